"""What came out of an experiment, as a figure like the paper's."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

import torch

from ..analysis.panels import WIDTH, class_map, class_scale
from ..analysis.style import DASHES, MARKERS, SERIES, check_matplotlib, styled, to_svg
from ..analysis.text import compact, printable
from ..files import replacing
from ..training.recipe import STATIC
from .record import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CORNERS = (((-6, 4), "right"), ((6, -9), "left"), ((6, -9), "left"))  # so that labels of neighbours do not meet


def draw(results: Mapping[str, Mapping[int, Result]], path: Path) -> None:
    """Write an SVG: maps of positions by class where results have them, else accuracy against cost."""
    check_matplotlib()
    seen = {name: next((r for r in found.values() if r.maps), None) for name, found in results.items()}
    mapped = {name: result for name, result in seen.items() if result}
    figure = specialization_maps(mapped) if mapped else tradeoffs(results)
    with replacing(path) as file:
        file.write(to_svg(figure))


@styled
def tradeoffs(results: Mapping[str, Mapping[int, Result]]) -> Figure:
    """Mean accuracy over seeds against MACs and parameters: a line for each kind of network, along which K grows."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullLocator

    figure = Figure(figsize=(WIDTH, 3.4), layout="constrained")
    axes = figure.subplots(1, 2, sharey=True)
    families: dict[str, dict[str, Mapping[int, Result]]] = {}
    for name, found in results.items():
        if found:
            families.setdefault(_family(name, found), {})[name] = found
    for number, (family, members) in enumerate(families.items()):
        accuracies = [mean(result.accuracy for result in found.values()) for found in members.values()]
        some = [next(iter(found.values())) for found in members.values()]
        errors = [math.sqrt(a * (1 - a) / one.test_images) for a, one in zip(accuracies, some, strict=True)]
        for axis, costs in zip(axes, ([r.macs for r in some], [r.parameters for r in some]), strict=True):
            axis.errorbar(
                costs,
                [100 * accuracy for accuracy in accuracies],
                yerr=[100 * error for error in errors],
                color=SERIES[number % len(SERIES)],
                marker=MARKERS[number % len(MARKERS)],
                linestyle=DASHES[number % len(DASHES)],
                capsize=2,
                label=printable(family, 40) if axis is axes[0] else None,
            )
            for place, name in enumerate(members if family == STATIC else ()):
                shift, side = CORNERS[place % len(CORNERS)]
                point = costs[place], 100 * accuracies[place]
                axis.annotate(printable(name, 24), point, xytext=shift, textcoords="offset points", ha=side, fontsize=7)
    for axis, label in zip(axes, ("MACs", "parameters"), strict=True):
        axis.set(xlabel=label, xscale="log")
        axis.margins(x=0.2)
        axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.xaxis.set_major_formatter(lambda value, _: compact(value))
        axis.grid(axis="y", color="#e5e7eb")
        axis.set_axisbelow(True)
    axes[0].set_ylabel("test accuracy, %")
    rows = math.ceil(len(families) / 4) or 1
    figure.legend(loc="outside lower center", ncols=math.ceil(len(families) / rows) or 1)
    return figure


def _family(name: str, found: Mapping[int, Result]) -> str:
    """D(2)-D-R3 and D(5)-D-R3 are D(K)-D-R3; all plain networks are static."""
    model = next(iter(found.values())).recipe["model"]
    return STATIC if model == STATIC else re.sub(r"\(\d+\)", "(K)", name, count=1)


@styled
def specialization_maps(results: Mapping[str, Result]) -> Figure:
    """The paper's figure 7: classes by bins, each bin's classes adding up to 1; a column a network, a line a layer."""
    from matplotlib.figure import Figure

    layers = list(next(iter(results.values())).maps)
    classes = list(next(iter(results.values())).maps[layers[0]])
    height = 0.5 + (0.5 + 0.19 * len(classes)) * len(layers)
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    grid = figure.subplots(len(layers), len(results), squeeze=False, sharex=True)
    image: Any = None
    for column, (name, result) in enumerate(results.items()):
        for axis, layer in zip(grid[:, column], layers, strict=True):
            image = class_map(axis, torch.tensor(list(result.maps[layer].values())), () if column else classes)
        grid[0, column].set_title(printable(name, 24))
        grid[-1, column].set_xlabel("position")
    for axis, layer in zip(grid[:, 0], layers, strict=True):
        axis.set_ylabel(printable(layer, 24))
    class_scale(figure, image, grid)
    return figure
