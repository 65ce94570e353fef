"""``python -m benchmarks.frontier``: for the microseconds that a user has, what is the most accurate network?

Times one image on one thread in the native runtime, for the networks of our own experiments (``splinenets reproduce
turned``, ``regimes`` and ``frontier``), all of them in turn, and leaves benchmarks/results/frontier.json. How long a
network takes does not depend on what it has learned, so these have random weights. The figure and the tables of
docs/when.md put the times beside accuracies.

A plain network that is told by scales (FiLM) is timed as if nobody told it anything, which is in its favour. What our
runtime does not know, such as CondConv, is timed in ONNX Runtime.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev
from typing import NamedTuple

import torch

import splinenets as sn
from benchmarks import labels
from benchmarks.animations import COLOURS, number, sheet, words
from benchmarks.claims import results_of
from benchmarks.timing import RESULTS, about, interleaved, markdown, write
from splinenets.reproduce import EXPERIMENTS, Row
from splinenets.reproduce.experiments import recipe_of
from splinenets.reproduce.outcome import Found, spread
from splinenets.training.build import build_network, load_task
from splinenets.training.recipe import STATIC

COMMAND = "python -m benchmarks.frontier"
FILE = RESULTS / "frontier.json"
NAMES = ("turned", "regimes", "frontier")
ABOUT = {"turned": "turned images, ", "regimes": "", "frontier": "CIFAR-10, "}
CALLS, ROUNDS = 50, 41
RIVAL, SEVERAL = "rival", "several lines"
IN_SHORT = (  # the SplineNets of the README's table: one of each kind
    *("LeNet-4 D(8)-D-R4 closed", "LeNet-4, told by a curve", "three data sets: LeNet-4 D(8)-D-R4"),
    *("any exposure: LeNet-4 D(8)-D-R4", "Air 16-32-32 D(2)-C-R3", "Air 16-32-64 D(2)-C-R3 dims=3"),
    "ResNet-8 D(2)-C-R3 dims=3",
    "Air 16-32-32, upgraded to D(2)-C-R3",
)
LETTER = 8.5  # the width of one in a label, on a phone
ROOM = 48  # between two times below a figure
KINDS = {  # how a network is told, and whether it is plain -> the colour of its line in a figure
    ("curves", False): COLOURS[0],
    ("nobody", False): COLOURS[1],
    (SEVERAL, False): COLOURS[0],
    ("scales", True): COLOURS[2],
    ("nobody", True): "#888888",
    (RIVAL, True): COLOURS[3],
}


class Drawing(NamedTuple):
    """The figure of an experiment: its file, what stands above it, and what its lines are called."""

    file: str
    title: str
    about: str
    lines: dict[tuple[str, bool], str]


DRAWINGS = {
    "turned": Drawing(
        "frontier.svg",
        "Turned images: accuracy for the time you have",
        "Test accuracy against time on turned images",
        {
            ("curves", False): "SplineNet, told the angle",
            ("nobody", False): "SplineNet, not told",
            ("scales", True): "plain, told the angle (FiLM)",
            ("nobody", True): "plain, not told",
            (RIVAL, True): "other dynamic weights",
        },
    ),
    "frontier": Drawing(
        "frontier-cifar10.svg",
        "CIFAR-10: accuracy for the time you have",
        "Test accuracy against time on CIFAR-10",
        {
            (SEVERAL, False): "SplineNet, three lines a layer",
            ("nobody", False): "SplineNet, one line a layer",
            ("nobody", True): "plain",
            (RIVAL, True): "other dynamic weights",
        },
    ),
}


@dataclass(frozen=True, kw_only=True)
class Point:
    """A network that was trained and timed, and its plain twin."""

    row: Row
    found: Found
    twin: Found
    seconds: float
    twin_seconds: float | None

    @property
    def accuracies(self) -> list[float]:
        """Of its seeds, in percent."""
        return [100 * result.accuracy for result in self.found.values()]

    @property
    def kind(self) -> tuple[str, bool]:
        """How it is told, and whether it has no splines."""
        return kind_of(self.row)

    @property
    def macs(self) -> int:
        """Of one image."""
        return next(iter(self.found.values())).macs

    @property
    def parameters(self) -> int:
        """Of the deployed network."""
        return next(iter(self.found.values())).parameters


def kind_of(row: Row) -> tuple[str, bool]:
    """A row's key in ``KINDS``."""
    told = row.settings.get("told", "nobody")
    if "rivals" in row.settings.get("network", ""):
        told = RIVAL
    elif told == "nobody" and "dims" in row.settings["model"]:
        told = SEVERAL
    return told, row.settings["model"] == STATIC


def rows(name: str) -> Iterator[Row]:
    """The networks of an experiment that are for all images, with the settings that all of their kind share."""
    for row in EXPERIMENTS[name].rows:
        if (
            kind_of(row) in KINDS
            and "between" not in row.settings
            and not row.name.endswith((", open", ", SGD", ", AdamW"))
        ):
            yield row


def runtime(row: Row) -> str:
    """The faster of those that know its operations."""
    return "onnx" if row.name.endswith(("CondConv", "ODConv")) else "native"


def caller(name: str, row: Row, folder: Path) -> Callable[[], object]:
    """One image through a network, ``CALLS`` times."""
    settings = {**row.settings, **({"told": "nobody"} if row.settings.get("told") == "scales" else {})}
    recipe = recipe_of(EXPERIMENTS[name], Row(name=row.name, settings=settings), "standard", 0)
    task = load_task(recipe)
    net, example = build_network(recipe, task).eval(), tuple(part[:8] for part in task.example())
    path = folder / f"{name}-{row.slug}.{runtime(row)}"
    sn.export(net, example, path)
    exported, inputs = sn.load_export(path, threads=1), tuple(part[:1].contiguous() for part in task.example())

    def call() -> None:
        for _ in range(CALLS):
            exported(*inputs)

    return call


def main() -> None:
    """Measure, and write the file."""
    argparse.ArgumentParser(
        description="Time one image in every network of our experiments; alone, a minute."
    ).parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        calls = {f"{name}: {row.name}": caller(name, row, Path(folder)) for name in NAMES for row in rows(name)}
        seconds = {name: taken / CALLS for name, taken in interleaved(calls, ROUNDS).items()}
    write(FILE, {"about": about(COMMAND, calls=CALLS, rounds=ROUNDS), "seconds": seconds})
    print("\n".join(f"{name}: {1e6 * taken:.1f} microseconds" for name, taken in seconds.items()))


def points(name: str) -> list[Point]:
    """The networks of an experiment that were both trained and timed."""
    timed = json.loads(FILE.read_bytes())["seconds"]
    found = results_of(name)
    return [
        Point(
            row=row,
            found=found[row.name],
            twin=found.get(row.twin, {}),
            seconds=timed[f"{name}: {row.name}"],
            twin_seconds=timed.get(f"{name}: {row.twin}"),
        )
        for row in rows(name)
        if found[row.name] and f"{name}: {row.name}" in timed
    ]


def frontier(name: str) -> str:
    """The networks of an experiment: accuracy, and everything that one image costs."""
    head = ["network", "test accuracy, %", "seeds", "one image, µs", "MACs", "parameters"]
    lines = [
        [
            *(p.row.name, spread(p.accuracies), str(len(p.found))),
            *(f"{1e6 * p.seconds:.0f}", f"{p.macs:,}", f"{p.parameters:,}"),
        ]
        for p in points(name)
        if p.kind[0] != RIVAL and not p.row.start
    ]
    return markdown(head, lines)


def gains(chosen: Collection[str] = ()) -> str:
    """Every SplineNet, or those that are chosen, over its plain twin: points, loss, and what they cost."""
    head = ["", "plain, %", "SplineNet, %", "gain", "test loss", "seeds", "time", "MACs", "parameters"]
    lines = []
    for name in NAMES:
        for p in points(name):
            shared = sorted(set(p.found) & set(p.twin))
            if p.kind[1] or not shared or p.twin_seconds is None or (chosen and p.row.name not in chosen):
                continue
            own, plain = [p.found[seed] for seed in shared], [p.twin[seed] for seed in shared]
            gained = [100 * (a.accuracy - b.accuracy) for a, b in zip(own, plain, strict=True)]
            losses = [mean(r.epochs[-1]["test_loss"] for r in some) for some in (plain, own)]
            lines.append(
                [
                    f"{ABOUT[name]}{p.row.name}",
                    *(f"{mean(100 * r.accuracy for r in some):.2f}" for some in (plain, own)),
                    spread(gained, "+"),
                    f"{losses[0]:.3f} -> {losses[1]:.3f}",
                    str(len(shared)),
                    *(f"x {p.seconds / p.twin_seconds:.2f}", f"x {p.macs / plain[0].macs:.2f}"),
                    f"x {p.parameters / plain[0].parameters:.1f}",
                ]
            )
    return markdown(head, lines)


def against_plain() -> str:
    """Every SplineNet that finds its own way beside the plain networks of its family that cost as much."""
    costs: dict[str, Callable[[Point], float]] = {
        "time": lambda p: p.seconds,
        "MACs": lambda p: p.macs,
        "parameters": lambda p: p.parameters,
    }
    lines = []
    for name in ("turned", "frontier"):
        some = [p for p in points(name) if p.kind[0] in ("nobody", SEVERAL) and not p.row.start]
        for p in some:
            plain = [q for q in some if q.kind[1] and family_of(q) == family_of(p)]
            if p.kind[1] or len(plain) < 2:
                continue
            own = mean(p.accuracies)
            cells = [f"{ABOUT[name]}{p.row.name}", f"{own:.2f}"]
            for cost in costs.values():
                as_much = at_cost([(cost(q), mean(q.accuracies)) for q in plain], cost(p))
                cells.append("" if as_much is None else f"{as_much:.2f} ({own - as_much:+.2f})")
            lines.append(cells)
    return markdown(["SplineNet", "test accuracy, %", *(f"plain, same {cost}" for cost in costs)], lines)


def at_cost(plain: Sequence[tuple[float, float]], cost: float) -> float | None:
    """The best accuracy of plain networks, each a (cost, accuracy), at some cost; None beyond the largest and smallest.

    Between two networks a line is drawn, over the logarithm of what they cost.
    """
    best: list[tuple[float, float]] = []
    for spent, accuracy in sorted(plain):
        if not best or accuracy > best[-1][1]:
            best.append((spent, accuracy))
    for (low, worse), (high, better) in pairwise(best):
        if low <= cost <= high:
            return worse + (better - worse) * math.log(cost / low) / math.log(high / low)
    return None


def rivals() -> str:
    """Other dynamic weights beside SplineNets, on the same host and over the same plain network."""
    head = ["network", "test accuracy, %", "over plain", "seeds", "one image, µs", "in", "MACs", "parameters"]
    names = {"native": "ours", "onnx": "ONNX Runtime"}
    lines = []
    for name in NAMES:
        found = points(name)
        hosts = {p.row.twin for p in found if p.kind[0] == RIVAL}
        for p in found:
            if p.row.twin not in hosts and p.row.name not in hosts:
                continue
            gained = [
                100 * (p.found[seed].accuracy - p.twin[seed].accuracy) for seed in sorted(set(p.found) & set(p.twin))
            ]
            lines.append(
                [
                    *(f"{ABOUT[name]}{p.row.name}", spread(p.accuracies), spread(gained, "+") if gained else ""),
                    *(str(len(p.found)), f"{1e6 * p.seconds:.0f}", names[runtime(p.row)]),
                    *(f"{p.macs:,}", f"{p.parameters:,}"),
                ]
            )
    return markdown(head, lines)


def figure(name: str) -> str:
    """Accuracy against microseconds, a line for each kind of network; bars are standard errors."""
    drawing = DRAWINGS[name]
    some = [p for p in points(name) if not p.row.start and "D(5)-D-R3" not in p.row.name]
    times = [p.seconds for p in some]
    low, high = math.floor(min(mean(p.accuracies) for p in some)) - 1, math.ceil(max(max(p.accuracies) for p in some))
    scale = 430 / math.log(max(times) / min(times))

    def spot(seconds: float, accuracy: float) -> labels.Dot:
        return 150 + scale * math.log(seconds / min(times)), 420 - 280 * (accuracy - low) / (high - low)

    parts = [words(24, 34, drawing.title, "bold")]
    for mark in range(low + low % 2, high + 1, 2):
        y = spot(min(times), mark)[1]
        parts.append(f'<line class="line" x1="76" x2="660" y1="{y:.1f}" y2="{y:.1f}" opacity=".3"/>')
        parts.append(words(24, y + 5, f"{mark}%"))
    dots: dict[labels.Dot, str] = {}
    lines: list[tuple[labels.Dot, labels.Dot]] = []
    shown = {p.kind for p in some}
    for i, (kind, label) in enumerate((kind, label) for kind, label in drawing.lines.items() if kind in shown):
        for family in sorted({family_of(p) for p in some}):
            members = sorted((p for p in some if p.kind == kind and family_of(p) == family), key=lambda p: p.macs)
            spots = [spot(p.seconds, mean(p.accuracies)) for p in members]
            if kind[0] != RIVAL and spots:
                lines += pairwise(spots)
                way = " ".join(f"{number(x)},{number(y)}" for x, y in spots)
                parts.append(f'<polyline points="{way}" fill="none" stroke="{KINDS[kind]}" stroke-width="2"/>')
            for p, (x, y) in zip(members, spots, strict=True):
                parts.append(dot_of(p, x, y, KINDS[kind], spot))
                dots[x, y] = label_of(p)
        left, top = 34 + 320 * (i % 2), 62 + 24 * (i // 2)
        parts.append(f'<circle cx="{left}" cy="{top}" r="6" fill="{KINDS[kind]}"/>')
        parts.append(words(left + 13, top + 5, label, "small"))
    sizes = [(LETTER * len(label), 18.0) for label in dots.values()]
    boxes = labels.place([*dots], sizes, lines, labels.Box(76, 130, 600, 300))
    for (x, _), label, box in zip(dots, dots.values(), boxes, strict=True):
        anchor = "" if box.left > x else "end" if box.left + box.width < x else "middle"
        start = box.left + {"": 0, "middle": box.width / 2, "end": box.width}[anchor]
        parts.append(words(start, box.top + 14, label, f"small {anchor}".strip()))
    marks = ticks(min(times), max(times), apart=math.exp(ROOM / scale))
    parts += [words(spot(taken, low)[0], 444, f"{1e6 * taken:.0f}", "small middle") for taken in marks]
    single = "; hollow: one seed" if any(len(p.found) == 1 for p in some) else ""
    parts.append(words(340, 470, f"microseconds for one image, one thread{single}", "small middle"))
    return sheet(680, 484, drawing.about, *parts)


def dot_of(point: Point, x: float, y: float, colour: str, spot: Callable[[float, float], labels.Dot]) -> str:
    """A dot with its standard error, hollow where there is one seed."""
    at, error = mean(point.accuracies), standard_error(point.accuracies)
    ends = f'y1="{spot(point.seconds, at - error)[1]:.1f}" y2="{spot(point.seconds, at + error)[1]:.1f}"'
    shape = f'fill="{colour}"' if error else f'class="paper" stroke="{colour}" stroke-width="2"'
    bar = f'<line x1="{x:.1f}" x2="{x:.1f}" {ends} stroke="{colour}" stroke-width="2"/>'
    return f'{bar}<circle cx="{x:.1f}" cy="{y:.1f}" r="6" {shape}/>'


def family_of(point: Point) -> str:
    """What a network is called before its size; a line joins those of one family."""
    return re.split("[ -]", point.row.name)[0]


def label_of(point: Point) -> str:
    """Its host, or what kind of rival it is."""
    name = point.row.name.split(",")[0].removesuffix(f" {point.row.settings['model']}").removeprefix("Air ")
    return name.split(" ")[-1] if point.kind[0] == RIVAL else name


def ticks(low: float, high: float, apart: float) -> list[float]:
    """Round times between two others, each at least so many times the one before it."""
    found: list[float] = []
    for power in range(-7, 0):
        for factor in (1, 1.2, 1.5, 1.7, 2, 2.5, 3, 4, 5, 6, 7, 8):
            mark = factor * 10.0**power
            if low <= mark <= high and (not found or mark >= apart * found[-1]):
                found.append(mark)
    return found


def standard_error(values: Sequence[float]) -> float:
    """Of a mean; 0 where there is one value."""
    return stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


if __name__ == "__main__":
    main()
