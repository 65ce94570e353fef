"""Seconds, measured so that they can be compared, and the files that results are kept in."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from math import inf
from pathlib import Path
from statistics import median

import torch

from splinenets.reproduce.record import readable_json

RESULTS = Path(__file__).resolve().parent / "results"  # those of this clone, wherever a command is typed


def interleaved(rows: Mapping[str, Callable[[], object]], repeats: int, hopeless: float = inf) -> dict[str, float]:
    """Median seconds of each row, all of them in turn, after one round that does not count.

    A row that takes more than ``hopeless`` times as long as the fastest in that round and the next is not repeated.
    """
    times: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(2):
        for name, run in rows.items():
            times[name].append(seconds(run))
    limit = hopeless * min(values[1] for values in times.values())
    for _ in range(repeats - 1):
        for name, run in rows.items():
            if times[name][1] <= limit:
                times[name].append(seconds(run))
    return {name: median(values[1:]) for name, values in times.items()}


def seconds(run: Callable[[], object]) -> float:
    """How long one call takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def about(command: str, **more: object) -> dict[str, object]:
    """What a file of results says of its making."""
    return {
        "command": command,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "processor": processor(),
        "threads": torch.get_num_threads(),
        **more,
    }


def processor() -> str:
    """The name that the processor gives itself, and the widest vectors it has."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"{next(names, platform.processor())}, {torch.backends.cpu.get_cpu_capability()}"


def write(path: Path, content: Mapping[str, object]) -> None:
    """Write a file of results."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(readable_json(dict(content)))


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table for a page of the docs."""
    return "\n".join(f"| {' | '.join(line)} |" for line in [head, ["---"] * len(head), *rows])
