"""Latency as tables, from what ``splinenets bench latency`` measured."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from splinenets.bench.latency import RATIOS, Timing, fastest

RESULTS = Path(__file__).parent / "results"
FAMILIES = ("resnet", "lenet")


@dataclass(frozen=True)
class Measured:
    """One run of the benchmark."""

    macs: dict[str, int]
    timings: list[Timing]


def read(family: str) -> Measured:
    """The networks of one kind, which were measured side by side."""
    content = json.loads((RESULTS / f"latency-{family}.json").read_bytes())
    return Measured(content["macs"], [Timing(**timing) for timing in content["timings"]])


def ratios() -> str:
    """The best runtime of each network, one by the other."""
    return "\n".join(["| ratio of medians | one thread | two threads | by MACs |", "|---|---|---|---|", *_ratios()])


def _ratios() -> Iterator[str]:
    for measured in map(read, FAMILIES):
        one, two = (fastest(measured.timings, threads) for threads in (1, 2))
        for upper, lower in RATIOS:
            if upper in one and lower in one:
                times = (best[upper].median / best[lower].median for best in (one, two))
                by_macs = measured.macs[upper] / measured.macs[lower]
                cells = " | ".join(f"{ratio:.2f}" for ratio in (*times, by_macs))
                yield f"| {_name(upper)} over {_name(lower)} | {cells} |"


def milliseconds() -> str:
    """Every network in every runtime."""
    return "\n\n".join(_milliseconds(read(family)) for family in FAMILIES)


def _milliseconds(measured: Measured) -> str:
    runtimes = list(dict.fromkeys(timing.runtime for timing in measured.timings))
    found = {(t.network, t.threads, t.runtime): t for t in measured.timings}
    lines = [f"| ms, median (95%) | {' | '.join(runtimes)} |", "|---" * (len(runtimes) + 1) + "|"]
    for network, threads in dict.fromkeys((t.network, t.threads) for t in measured.timings):
        timings = (found.get((network, threads, runtime)) for runtime in runtimes)
        cells = " | ".join(f"{t.median * 1e3:.2f} ({t.p95 * 1e3:.2f})" if t else "" for t in timings)
        lines.append(f"| {network}, {threads} thread{'s' if threads > 1 else ''} | {cells} |")
    return "\n".join(lines)


def _name(network: str) -> str:
    return f"Spline-{network}" if " " in network else network
