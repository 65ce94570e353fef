"""Networks on turned images: tables of what ``splinenets reproduce turned`` leaves."""

from __future__ import annotations

import math
from statistics import mean, stdev

from benchmarks.animations import COLOURS, number, sheet, words
from benchmarks.timing import RESULTS, markdown
from splinenets.reproduce import EXPERIMENTS, collect
from splinenets.reproduce.experiments import SECTORS
from splinenets.reproduce.outcome import Found, spread

EACH = "degrees"  # rows of networks that know a few angles alone end so
ALL = f"{len(SECTORS)} networks LeNet-4, one for each {360 // len(SECTORS)} degrees"


SHORT = ("LeNet-4", "LeNet-4, told by scales", "LeNet-4, told by a curve", "LeNet-8, told by scales")


def told() -> str:
    """The networks that a first look needs."""
    found = collect("turned", RESULTS / "reproduce", "standard")
    head = ["network", "test accuracy, %", "seeds", "MACs", "parameters"]
    lines = [_line(name, found[name], 1) for name in SHORT if found[name]]
    return markdown(head, [[*line[:4], line[5]] for line in lines])


def turned() -> str:
    """Accuracy and cost, a line for each network; those for a few angles share one."""
    found = collect("turned", RESULTS / "reproduce", "standard")
    own = next(iter(found["LeNet-4, told by a curve"].values())).macs
    lines = [
        _line(row.name, found[row.name], own)
        for row in EXPERIMENTS["turned"].rows
        if found[row.name] and not row.name.endswith(EACH)
    ]
    return markdown(
        ["network", "test accuracy, %", "seeds", "MACs", "over a told LeNet-4", "parameters"],
        [*lines, *_each(found, own)],
    )


SERIES = {"told by a curve": COLOURS[0], "told by scales": COLOURS[1], "told by channels": COLOURS[2], "": "#888888"}


def figure() -> str:
    """Accuracy against multiply-accumulates, a line for each way to tell; bars are standard errors over seeds."""
    found = collect("turned", RESULTS / "reproduce", "standard")
    parts = [words(70, 28, "Turned images of clothes: test accuracy of networks that are told the angle", "bold")]
    for y in range(74, 89, 2):
        parts.append(f'<line class="line" x1="70" x2="610" y1="{_down(y)}" y2="{_down(y)}" opacity=".3"/>')
        parts.append(words(36, _down(y) + 4, f"{y}%"))
    for i, (name, colour) in enumerate(SERIES.items()):
        rows = {row: found[row] for row in _rows(name) if found.get(row)}
        way = " ".join(f"{number(_right(seeds))},{number(_down(_mean(seeds)))}" for seeds in rows.values())
        parts.append(f'<polyline points="{way}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [_point(row.partition(",")[0], seeds, colour) for row, seeds in rows.items()]
        parts.append(f'<rect x="440" y="{232 + 20 * i}" width="14" height="4" fill="{colour}"/>')
        parts.append(words(462, 239 + 20 * i, name or "not told", "small"))
    parts += [words(_place(macs), 350, f"{macs:,}", "small middle") for macs in (250_000, 500_000, 1_000_000)]
    parts.append(words(340, 372, "multiply-accumulates for an image; hollow dots have one seed", "small middle"))
    return sheet(640, 390, "Test accuracy against multiply-accumulates on turned images", *parts)


def _point(label: str, found: Found, colour: str) -> str:
    x, y, error = number(_right(found)), _down(_mean(found)), _error(found)
    shape = f'fill="{colour}"' if error else f'class="paper" stroke="{colour}" stroke-width="2"'
    bar = f'y1="{number(_down(_mean(found) - error))}" y2="{number(_down(_mean(found) + error))}"'
    return (
        f'<line x1="{x}" x2="{x}" {bar} stroke="{colour}" stroke-width="2"/>'
        f'<circle cx="{x}" cy="{y}" r="5" {shape}/>{words(_right(found) + 9, y + 14, label, "small")}'
    )


def _rows(name: str) -> list[str]:
    sizes = [f"LeNet-{width}" for width in (4, 8, 9, 10)]
    return [f"{size}, {name}" for size in sizes] if name else sizes[:1]


def _place(macs: int) -> float:
    return 70 + 540 * math.log(macs / 200_000) / math.log(1_600_000 / 200_000)


def _right(found: Found) -> float:
    return _place(next(iter(found.values())).macs)


def _down(accuracy: float) -> float:
    return round(330 - 280 * (accuracy - 74) / 14, 2)


def _mean(found: Found) -> float:
    return mean(100 * result.accuracy for result in found.values())


def _error(found: Found) -> float:
    values = [100 * result.accuracy for result in found.values()]
    return stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


def _line(name: str, found: Found, own: int) -> list[str]:
    some = next(iter(found.values()))
    accuracy = spread([100 * result.accuracy for result in found.values()])
    return [name, accuracy, str(len(found)), f"{some.macs:,}", f"{some.macs / own:.2f}", f"{some.parameters:,}"]


def _each(found: dict[str, Found], own: int) -> list[list[str]]:
    sectors = [seeds for name, seeds in found.items() if name.endswith(EACH)]
    complete = sorted(set.intersection(*(set(seeds) for seeds in sectors)))
    if not complete:
        return []
    accuracy = spread([100 * mean(seeds[seed].accuracy for seeds in sectors) for seed in complete])
    some = sectors[0][complete[0]]
    size = f"{len(sectors) * some.parameters:,}"
    return [[ALL, accuracy, str(len(complete)), f"{some.macs:,}", f"{some.macs / own:.2f}", size]]
