"""The figures, one function for each. Names may be anything; positions are those of ``sn.trace``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..basis import bspline_basis
from ..histograms import histogram
from ..layers import SplineLayer
from ..spec import SplineSpec
from .counts import by_class, enough_bins, join_rare, most_telling, spread_out
from .filters import STEPS, along, liveliest, view
from .style import (
    BLUE,
    DASHES,
    LAYERS,
    NAME,
    ORANGE,
    PALE,
    SERIES,
    SIGNED,
    SOFT,
    accuracy_axes,
    accuracy_points,
    class_colours,
    class_map,
    class_scale,
    empty_figure,
    grid_of,
    outer_labels,
    short_numbers,
    styled,
)
from .text import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.patches import PathPatch

STATIONS = 8  # layers on the way of a flow


@dataclass(frozen=True, kw_only=True)
class Point:
    """A network and what it costs."""

    name: str
    accuracy: float
    samples: int  # on which accuracy was measured
    macs: int
    parameters: int
    latency: float | None = None  # seconds, in torch
    deployed: float | None = None  # seconds, in the native runtime


@dataclass(frozen=True, kw_only=True)
class Answers:
    """A network, and which test images it got right: values (N,) of their condition, right (N,)."""

    name: str
    between: tuple[float, float]
    values: Tensor
    right: Tensor


@styled
def accuracy_over_condition(series: Sequence[Answers], condition: str, bins: int = 12) -> Figure:
    """Accuracy in each stretch of the condition's range, a line for each network."""
    figure, (axis,) = accuracy_axes(3.2, [printable(condition, NAME)])
    low, high = series[0].between
    for number, answers in enumerate(series):
        place = ((answers.values.double() - low) / (high - low) * bins).long().clamp(0, bins - 1)
        counts = torch.bincount(place, minlength=bins)
        shares = torch.bincount(place, answers.right.double(), minlength=bins) / counts.clamp(min=1)
        there = [i for i in range(bins) if counts[i]]
        accuracy_points(
            axis,
            number,
            [low + (i + 0.5) * (high - low) / bins for i in there],
            [float(shares[i]) for i in there],
            [int(counts[i]) for i in there],
            markersize=5,
            capsize=2,
            linewidth=1.4,
            linestyle=DASHES[number % len(DASHES)],
            label=printable(answers.name, 40),
        )
    axis.set_xlim(low, high)
    figure.legend(loc="outside lower center", ncols=min(len(series), 3))
    return figure


@styled
def utilization(positions: Mapping[str, Tensor], bins: Sequence[int] = ()) -> Figure:
    """Histograms of positions against uniform ones, for several numbers of bins.

    bins  how many; none: 2, 3, 5, and as many as the positions can fill, at most 50
    """
    layers = spread_out(list(positions), LAYERS)
    bins = bins or sorted({2, 3, 5, enough_bins(min(positions[layer].numel() for layer in layers))})
    figure = empty_figure(0.55 + 1.15 * len(layers))
    grid = figure.subplots(len(layers), len(bins), squeeze=False, sharex=True)
    for row, layer in enumerate(layers):
        top = 0.0
        for axis, count in zip(grid[row], bins, strict=True):
            seen = histogram(positions[layer], count).double()
            density = seen / seen.sum().clamp(min=1) * count
            top = max(top, float(density.max()))
            edges = torch.linspace(0, 1, count + 1)
            axis.stairs(
                density.numpy(),
                edges.numpy(),
                fill=True,
                color=BLUE,
                edgecolor="white",
                linewidth=0.6 if count < 20 else 0,
            )
            axis.axhline(1, color=ORANGE, linewidth=1.6, linestyle=(0, (4, 2)))
            axis.set(xlim=(0, 1), xticks=(0, 0.5, 1))
            if row == 0:
                axis.set_title(f"{count} bins")
            if row == len(layers) - 1:
                axis.set_xlabel("position")
        for axis in grid[row]:
            axis.set_ylim(0, 1.08 * max(top, 1))
            axis.set_yticks((0, 1) if top < 6 else (0, round(top)))
        grid[row][0].set_ylabel(printable(layer, 16), rotation=0, ha="right", va="center")
    return figure


@styled
def specialization(positions: Mapping[str, Tensor], labels: Tensor, classes: Sequence[str], bins: int = 0) -> Figure:
    """Which class is where: classes by bins, each bin's classes adding up to 1, on each layer's most telling spline.

    bins  how many; 0: as many as the samples can fill, at most 50
    """
    layers = spread_out(list(positions), LAYERS)
    labels, names = join_rare(labels, classes)
    bins = bins or enough_bins(len(labels))
    chosen = most_telling({layer: positions[layer] for layer in layers}, labels)
    columns = min(len(layers), 3)
    figure, axes = grid_of(len(layers), columns=3, height=0.9 + 0.19 * len(names))
    for number, (axis, layer) in enumerate(zip(axes, layers, strict=True)):
        spline = chosen[layer]
        counts = by_class(positions[layer].flatten(1)[:, [spline]], labels, len(names), bins)[:, 0]
        image = class_map(axis, counts, names if number % columns == 0 else ())
        several = positions[layer].flatten(1).shape[1] > 1
        axis.set_title(printable(layer, NAME) + (f", spline {spline + 1}" if several else ""))
    outer_labels(axes, 3, "position", "")
    class_scale(figure, image, axes)
    return figure


@styled
def flow(positions: Mapping[str, Tensor], labels: Tensor, classes: Sequence[str], lines: int = 40) -> Figure:
    """From layer to layer: each class's samples in front of all others', on each layer's most telling spline."""
    layers = spread_out(list(positions), STATIONS)
    labels, names = join_rare(labels, classes)
    chosen = most_telling({layer: positions[layer] for layer in layers}, labels)
    paths = torch.stack([positions[layer].flatten(1)[:, chosen[layer]].float() for layer in layers], 1)  # (N, layers)
    figure, axes = grid_of(len(names), columns=5, height=1.9)
    colours = class_colours(len(names))
    fewer = 1 if len(layers) <= 4 else 2  # long ways fill a panel sooner, and a file
    everyone = paths[spread_out(range(len(paths)), 80 // fewer)]
    for number, (axis, name) in enumerate(zip(axes, names, strict=True)):
        axis.add_patch(_curves(everyone, color=SOFT, linewidth=0.4, zorder=1))
        axis.add_patch(
            _curves(paths[labels == number][: lines // fewer], color=colours[number], linewidth=0.8, zorder=2)
        )
        axis.set(title=printable(name, 18), ylim=(0, 1), yticks=(0, 0.5, 1))
        axis.set_xlim(-0.15, max(len(layers) - 1, 1) + 0.15)
        upright = len(layers) > 4 or max(map(len, layers)) > 7
        axis.set_xticks(
            range(len(layers)), [printable(n, 20) for n in layers], rotation=90 if upright else 0, fontsize=7.5
        )
        if number + 5 < len(names):
            axis.set_xticklabels([])
        if number % 5:
            axis.set_yticklabels([])
    outer_labels(axes, 5, "", "position")
    return figure


@styled
def filters_along(
    layer: SplineLayer, name: str = "", splines: Sequence[int] | None = None, steps: int = STEPS
) -> Figure:
    """Weights at evenly spaced positions, and below them the influence of each knot along the spline."""
    chosen = liveliest(layer, 4) if splines is None else list(splines)
    spec = layer.spec
    places = torch.linspace(0, 1, steps)
    figure = empty_figure(2.0 + len(chosen))
    grid = figure.add_gridspec(len(chosen) + 1, steps, height_ratios=[*[1.0] * len(chosen), 1.1])
    for row, spline in enumerate(chosen):
        shown = view(layer, spline)
        pictures = along(layer, shown, places)
        largest = float(pictures.abs().max()) or 1.0
        for column in range(steps):
            axis = figure.add_subplot(grid[row, column])
            axis.imshow(pictures[column].numpy(), cmap=SIGNED, vmin=-largest, vmax=largest)
            axis.set(xticks=(), yticks=())
            axis.spines[:].set_visible(False)
            if row == 0:
                axis.set_title(f"{float(places[column]):.3g}", loc="center")
            if column == 0:
                axis.set_ylabel(f"spline {spline + 1}" if layer.splines > 1 else "")
                axis.set_xlabel(shown.title, loc="left", fontsize=7.5)
    _influence(figure.add_subplot(grid[-1, :]), spec, places)
    if name:
        figure.suptitle(printable(name, 60), x=0.01, ha="left", fontsize=10)
    return figure


@styled
def tradeoff(points: Sequence[Point]) -> Figure:
    """Accuracy against multiply-accumulates, parameters and, where all have it, measured latency."""
    costs = {"MACs": [float(p.macs) for p in points], "parameters": [float(p.parameters) for p in points]}
    for name, times in {
        "deployed, ms": [p.deployed for p in points],
        "in torch, ms": [p.latency for p in points],
    }.items():
        if None not in times:
            costs[name] = [1e3 * (seconds or 0) for seconds in times]
    figure, axes = accuracy_axes(2.9, list(costs))
    for axis, values in zip(axes, costs.values(), strict=True):
        for number, (point, value) in enumerate(zip(points, values, strict=True)):
            label = printable(point.name, 30) if axis is axes[0] else None
            look: dict[str, Any] = {"markersize": 8, "capsize": 3, "linestyle": "none", "label": label}
            accuracy_points(axis, number, [value], [point.accuracy], [point.samples], **look)
        axis.set_xlim(0, 1.15 * (max(values) or 1))
        axis.ticklabel_format(axis="x", style="plain")
        short_numbers(axis)
        axis.locator_params(axis="x", nbins=5)
    figure.legend(loc="outside lower center", ncols=min(len(points), 4))
    return figure


def _influence(axis: Axes, spec: SplineSpec, places: Tensor) -> None:
    """The basis of each knot; the places stand below the pictures that belong to them."""
    x, knots = torch.linspace(0, 1, 201), spec.knots
    influence = bspline_basis(x, knots, spec.spline_degree, closed=spec.closed).numpy()
    for place in places.tolist():
        axis.axvline(place, color=PALE, linewidth=0.8, zorder=0)
    for knot in range(knots):
        colour = SERIES[knot % len(SERIES)]
        axis.plot(x.numpy(), influence[:, knot], color=colour, linestyle=DASHES[knot % len(DASHES)])
        peak = int(influence[:, knot].argmax())
        side, shift = {0: ("right", (-4, -4)), 200: ("left", (4, -4))}.get(peak, ("center", (0, 2)))
        axis.annotate(
            f"knot {knot + 1}" if knots <= 8 else str(knot + 1),
            (float(x[peak]), float(influence[peak, knot])),
            xytext=shift,
            textcoords="offset points",
            ha=side,
            va="bottom",
            color=colour,
        )
    edge = 0.5 / (len(places) - 1)
    axis.set(xlim=(-edge, 1 + edge), ylim=(0, 1.25 * float(influence.max())), xlabel="position", ylabel="influence")
    axis.set(xticks=(0, 0.25, 0.5, 0.75, 1), yticks=())


def _curves(paths: Tensor, **look: Any) -> PathPatch:
    """Paths (N, layers) as curves that leave and reach every layer level, all in one drawing: few bytes for many."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    paths = paths if paths.shape[1] > 1 else paths.expand(-1, 2)
    points: list[tuple[float, float]] = []
    codes: list[Any] = []
    for path in paths.tolist():
        points.append((0, path[0]))
        codes.append(Path.MOVETO)
        for x, (before, after) in enumerate(pairwise(path)):
            points += [(x + 1 / 3, before), (x + 2 / 3, after), (x + 1, after)]
            codes += [Path.CURVE4] * 3
    return PathPatch(Path(points or [(0, 0)], codes or [Path.MOVETO]), fill=False, **look)
