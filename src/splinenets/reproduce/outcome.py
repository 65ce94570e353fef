"""What came out of an experiment: its result files, a Markdown table beside the paper's numbers, and a figure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, TypeAlias

import torch

from ..analysis.style import (
    DASHES,
    accuracy_axes,
    accuracy_points,
    check_matplotlib,
    class_map,
    class_scale,
    empty_figure,
    short_numbers,
    styled,
    to_svg,
)
from ..analysis.text import printable
from ..files import replacing
from ..training.recipe import STATIC
from .experiments import Experiment, find, recipe_of
from .record import Result, holds, read_result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CORNERS = (((-6, 4), "right"), ((6, -9), "left"), ((6, -9), "left"))  # so that labels of neighbours do not meet
Found: TypeAlias = Mapping[int, Result]  # by seed


def collect(name: str, folder: Path, scale: str) -> dict[str, Found]:
    """All results of an experiment in the files folder/NAME/SCALE: row -> seed -> result.

    Experiments share networks: what a row lacks is taken from another experiment that trained the same recipe.
    """
    experiment, own = find(name), folder / name / scale
    results = {file: read_result(file) for file in sorted(folder.glob(f"*/{scale}/*-seed*.json"))}
    others = [result for file, result in results.items() if file.parent != own]
    found: dict[str, Found] = {}
    for row in experiment.rows:
        mine = [result for file, result in results.items() if file == own / f"{row.slug}-seed{result.seed}.json"]
        alike = [each for each in others if each.recipe.get("model") == row.settings["model"]]  # which is cheap to see
        recipes = {seed: recipe_of(experiment, row, scale, seed) for seed in {each.seed for each in alike}}
        shared = [each for each in alike if holds(recipes[each.seed], each, row.name)]
        by_seed = {result.seed: result for result in (*shared, *mine)}
        found[row.name] = dict(sorted(by_seed.items()))
    return found


def table(experiment: Experiment, results: Mapping[str, Found]) -> str:
    """A line for each row that has results, from row -> seed -> result; the others are named below."""
    printed = any(row.paper for row in experiment.rows)
    head = ["network", *["paper"] * printed]
    head += ["test accuracy, %", "over its static twin", "seeds", "epochs", "parameters", "MACs"]
    head += [f"{layer}: entropy, bits about labels" for layer in experiment.layers]
    lines = [head, ["---"] * len(head)]
    for row in experiment.rows:
        if found := results.get(row.name, {}):
            paper = ["" if row.paper is None else f"{row.paper:.2f}"] * printed
            lines.append([row.name, *paper, *_cells(found, results.get(row.twin, {}), experiment.layers)])
    missing = [row.name for row in experiment.rows if not results.get(row.name)]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return f"{text}\n\nNot trained: {'; '.join(missing)}." if missing else text


def spread(values: Sequence[float], sign: str = "") -> str:
    """Mean, and its standard error where there are several values."""
    return f"{mean(values):{sign}.2f}" + (f" ± {stdev(values) / len(values) ** 0.5:.2f}" if len(values) > 1 else "")


def _cells(found: Found, twin: Found, layers: Sequence[str]) -> list[str]:
    some = next(iter(found.values()))
    # twins are compared seed by seed: they share first weights, batches and augmentation
    gains = [100 * (result.accuracy - twin[seed].accuracy) for seed, result in found.items() if seed in twin]
    return [
        spread([100 * result.accuracy for result in found.values()]),
        _gain(gains),
        str(len(found)),
        str(len(some.epochs)),
        f"{some.parameters:,}",
        f"{some.macs:,}",
        *(_positions(found, layer) for layer in layers),
    ]


def _gain(gains: Sequence[float]) -> str:
    each = f" ({', '.join(f'{gain:+.2f}' for gain in gains)})" if len(gains) > 1 else ""
    return spread(gains, "+") + each if gains else ""


def _positions(found: Found, layer: str) -> str:
    rows = [row for result in found.values() for row in result.layers if row["layer"] == layer]
    if not rows:
        return ""
    return f"{mean(row['entropy'] for row in rows):.2f}, {mean(row['information'] for row in rows):.2f}"


def draw(results: Mapping[str, Found], path: Path) -> None:
    """Write an SVG: maps of positions by class where results have them, else accuracy against cost."""
    check_matplotlib()
    seen = {name: next((r for r in found.values() if r.maps), None) for name, found in results.items()}
    mapped = {name: result for name, result in seen.items() if result}
    figure = specialization_maps(mapped) if mapped else tradeoffs(results)
    with replacing(path) as file:
        file.write(to_svg(figure))


@styled
def tradeoffs(results: Mapping[str, Found]) -> Figure:
    """Mean accuracy over seeds against MACs and parameters: a line for each kind of network, along which K grows."""
    families: dict[str, dict[str, Found]] = {}
    for name, found in results.items():
        if found:
            families.setdefault(_family(name, found), {})[name] = found
    figure, (macs, parameters) = accuracy_axes(3.4, ("MACs", "parameters"))
    for number, (family, members) in enumerate(families.items()):
        some = [next(iter(found.values())) for found in members.values()]
        accuracies = [mean(result.accuracy for result in found.values()) for found in members.values()]
        for axis, costs in ((macs, [r.macs for r in some]), (parameters, [r.parameters for r in some])):
            dash, label = DASHES[number % len(DASHES)], printable(family, 40) if axis is macs else None
            samples = [r.test_images for r in some]
            accuracy_points(axis, number, costs, accuracies, samples, linestyle=dash, capsize=2, label=label)
            if family == STATIC:
                _name_points(axis, list(members), costs, accuracies)
    for axis in (macs, parameters):
        _grow_by_factors(axis)
    rows = math.ceil(len(families) / 4) or 1
    figure.legend(loc="outside lower center", ncols=math.ceil(len(families) / rows) or 1)
    return figure


def _family(name: str, found: Found) -> str:
    """D(2)-D-R3 and D(5)-D-R3 are D(K)-D-R3; all plain networks are static."""
    model = next(iter(found.values())).recipe["model"]
    return STATIC if model == STATIC else re.sub(r"\(\d+\)", "(K)", name, count=1)


def _name_points(axis: Axes, names: Sequence[str], costs: Sequence[float], accuracies: Sequence[float]) -> None:
    for place, (name, cost, accuracy) in enumerate(zip(names, costs, accuracies, strict=True)):
        shift, side = CORNERS[place % len(CORNERS)]
        point = cost, 100 * accuracy
        axis.annotate(printable(name, 24), point, xytext=shift, textcoords="offset points", ha=side, fontsize=7)


def _grow_by_factors(axis: Axes) -> None:
    from matplotlib.ticker import LogLocator, NullLocator

    axis.set_xscale("log")
    axis.margins(x=0.2)
    axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.xaxis.set_minor_locator(NullLocator())
    short_numbers(axis)


@styled
def specialization_maps(results: Mapping[str, Result]) -> Figure:
    """The paper's figure 7: classes by bins, each bin's classes adding up to 1; a column a network, a line a layer."""
    maps = {name: result.maps for name, result in results.items()}
    first = next(iter(maps.values()))
    layers, classes = list(first), list(next(iter(first.values())))
    figure = empty_figure(0.5 + (0.5 + 0.19 * len(classes)) * len(layers))
    grid = figure.subplots(len(layers), len(results), squeeze=False, sharex=True)
    for column, (name, counts) in enumerate(maps.items()):
        for axis, layer in zip(grid[:, column], layers, strict=True):
            image = class_map(axis, torch.tensor(list(counts[layer].values())), () if column else classes)
        grid[0, column].set_title(printable(name, 24))
        grid[-1, column].set_xlabel("position")
    for axis, layer in zip(grid[:, 0], layers, strict=True):
        axis.set_ylabel(printable(layer, 24))
    class_scale(figure, image, grid.flatten().tolist())
    return figure
