"""``make bench``: one spline convolution against the plain one, each strategy, interleaved."""

from __future__ import annotations

import json
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn

import splinenets as sn
from splinenets.tables import text_table

SHAPES = {"16ch 32x32": (16, 32), "32ch 16x16": (32, 16), "64ch 8x8": (64, 8)}
SPECS = ("D(5)-C-R4", "D(5)-C-R3")
BATCH, REPEATS = 250, 7
RESULTS = Path(__file__).parent / "results"


def step(layer: nn.Module, x: Tensor, strategy: str) -> Callable[[], None]:
    def run() -> None:
        with sn.strategy(strategy):
            layer(x).sum().backward()

    return run


def interleaved(rows: dict[str, Callable[[], None]], repeats: int) -> dict[str, float]:
    """Median seconds of each row, all rows measured in turn, after one round that does not count."""
    times: dict[str, list[float]] = {name: [] for name in rows}
    for repeat in range(repeats + 1):
        for name, run in rows.items():
            start = time.perf_counter()
            run()
            if repeat:
                times[name].append(time.perf_counter() - start)
    return {name: median(values) for name, values in times.items()}


def main() -> None:
    result: dict[str, dict[str, float]] = {}
    start = time.perf_counter()
    for shape, (channels, size) in SHAPES.items():
        x = torch.randn(BATCH, channels, size, size)
        rows = {"plain": step(nn.Conv2d(channels, channels, 3, padding=1), x, "auto")}
        for spec in SPECS:
            layer = sn.SplineConv2d(channels, channels, 3, padding=1, spec=spec)
            rows |= {f"{spec} {name}": step(layer, x, name) for name in ("grouped", "bank")}
        result[shape] = interleaved(rows, REPEATS)
    names = list(next(iter(result.values())))
    body = [
        [n, *(f"{result[s][n] / result[s]['plain']:.2f}  ({result[s][n] * 1e3:.0f} ms)" for s in SHAPES)] for n in names
    ]
    print(f"one convolution, forward and backward, batch {BATCH}, float32: time over the plain layer's (ms)\n")
    print(text_table(["", *SHAPES], body))
    RESULTS.mkdir(exist_ok=True)
    about = {
        "command": "make bench",
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "repeats": REPEATS,
        "seconds": round(time.perf_counter() - start, 1),
    }
    path = RESULTS / "strategies.json"
    path.write_text(json.dumps({"about": about, "median_seconds": result}, indent=1) + "\n")
    print(f"\nwritten to {path}", file=sys.stderr)


if __name__ == "__main__":
    main()
