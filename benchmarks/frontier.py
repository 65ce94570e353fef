"""``python -m benchmarks.frontier``: for the microseconds that a user has, what is the most accurate network?

Times one image on one thread in the native runtime, for every network that ``splinenets reproduce turned`` trains, all
of them in turn, and leaves benchmarks/results/frontier.json; how long a network takes does not depend on what it has
learned. The figure and the table of docs/when.md put these times beside the accuracies.

A plain network that is told by scales (FiLM) is timed as if nobody told it anything, which is in its favour.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING

import torch

import splinenets as sn
from benchmarks.timing import RESULTS, about, interleaved, markdown, write
from splinenets.analysis.style import MARKERS, SERIES, accuracy_axes, styled
from splinenets.reproduce import EXPERIMENTS, Row, collect
from splinenets.reproduce.experiments import recipe_of
from splinenets.reproduce.outcome import spread
from splinenets.training.build import build_network, load_task
from splinenets.training.recipe import STATIC

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COMMAND = "python -m benchmarks.frontier"
FILE = RESULTS / "frontier.json"
EXPERIMENT = "turned"
CALLS, ROUNDS = 50, 41
KINDS = {  # how a row is told, and whether it is plain -> the line it stands on
    ("curves", False): "SplineNet, told the angle",
    ("nobody", False): "SplineNet, nobody tells it",
    ("scales", True): "plain, told the angle (FiLM)",
    ("nobody", True): "plain, nobody tells it",
}


@dataclass(frozen=True, kw_only=True)
class Point:
    """A network: the accuracies of its seeds in percent, and what one image costs."""

    name: str
    kind: str
    accuracies: list[float]
    microseconds: float
    macs: int
    parameters: int


def shown(row: Row) -> bool:
    """Whether a row is a network for all angles, with the settings that all lines share."""
    told, plain = row.settings.get("told", "nobody"), row.settings["model"] == STATIC
    return (told, plain) in KINDS and "between" not in row.settings and row.name.count(",") <= 1


def caller(row: Row, folder: Path) -> Callable[[], object]:
    """One image through a row's network, ``CALLS`` times."""
    experiment = EXPERIMENTS[EXPERIMENT]
    settings = {"told": "nobody"} if row.settings["told"] == "scales" else {}
    settings |= {"data": "embedded"}  # the same shapes
    recipe = recipe_of(experiment, Row(name=row.name, settings={**row.settings, **settings}), "standard", 0)
    task = load_task(recipe)
    net, path = build_network(recipe, task).eval(), folder / f"{row.slug}.native"
    sn.export(net, tuple(part[:8] for part in task.example()), path)
    exported, inputs = sn.load_export(path, threads=1), tuple(part[:1].contiguous() for part in task.example())

    def call() -> None:
        for _ in range(CALLS):
            exported.forward(*inputs)

    return call


def main() -> None:
    """Measure, and write the file."""
    torch.set_num_threads(1)
    rows = [row for row in EXPERIMENTS[EXPERIMENT].rows if shown(row)]
    with tempfile.TemporaryDirectory() as folder:
        times = interleaved({row.name: caller(row, Path(folder)) for row in rows}, ROUNDS)
    seconds = {name: taken / CALLS for name, taken in times.items()}
    write(FILE, {"about": about(COMMAND, calls=CALLS, rounds=ROUNDS), "seconds": seconds})
    print("\n".join(f"{name}: {1e6 * taken:.1f} microseconds" for name, taken in seconds.items()))


def points() -> list[Point]:
    """Every network that is both trained and timed."""
    timed = json.loads(FILE.read_bytes())["seconds"] if FILE.exists() else {}
    found = collect(EXPERIMENT, RESULTS / "reproduce", "standard")
    return [
        Point(
            name=row.name,
            kind=KINDS[row.settings.get("told", "nobody"), row.settings["model"] == STATIC],
            accuracies=[100 * result.accuracy for result in found[row.name].values()],
            microseconds=1e6 * timed[row.name],
            macs=next(iter(found[row.name].values())).macs,
            parameters=next(iter(found[row.name].values())).parameters,
        )
        for row in EXPERIMENTS[EXPERIMENT].rows
        if shown(row) and found[row.name] and row.name in timed
    ]


def frontier() -> str:
    """The table: accuracy, and everything that one image costs."""
    head = ["network", "test accuracy, %", "seeds", "one image, µs", "MACs", "parameters"]
    return markdown(
        head,
        [
            [
                *(p.name, spread(p.accuracies), str(len(p.accuracies))),
                *(f"{p.microseconds:.0f}", f"{p.macs:,}", f"{p.parameters:,}"),
            ]
            for p in points()
        ],
    )


@styled
def picture() -> Figure:
    """Accuracy against microseconds, a line for each way of telling."""
    figure, (axis,) = accuracy_axes(3.6, ("one image on one thread, µs",))
    for number, kind in enumerate(KINDS.values()):
        some = sorted((p for p in points() if p.kind == kind), key=lambda p: p.microseconds)
        axis.errorbar(
            [p.microseconds for p in some],
            [mean(p.accuracies) for p in some],
            yerr=[stdev(p.accuracies) / len(p.accuracies) ** 0.5 if len(p.accuracies) > 1 else 0 for p in some],
            color=SERIES[number],
            marker=MARKERS[number],
            label=kind,
        )
        for p in some:
            name = p.name.split(",")[0].split(" ")[0]
            place = (p.microseconds, mean(p.accuracies))
            axis.annotate(name, place, xytext=(5, -10), textcoords="offset points", fontsize=7)
    axis.legend(loc="lower right")
    axis.margins(x=0.12)
    return figure


if __name__ == "__main__":
    main()
