"""Seconds, measured so that they can be compared."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from math import inf
from statistics import median
from typing import Any

import torch


def interleaved(rows: dict[str, Callable[[], Any]], repeats: int, hopeless: float = inf) -> dict[str, float]:
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


def seconds(run: Callable[[], Any]) -> float:
    """How long one call takes."""
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def about(command: str, **more: Any) -> dict[str, Any]:
    """What a file of results says of its making."""
    return {
        "command": command,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        **more,
    }
