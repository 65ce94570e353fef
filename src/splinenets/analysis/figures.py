"""The figures, one function for each. Names may be anything; positions are those of ``sn.trace``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..basis import bspline_basis
from ..health_check import histogram
from ..layers import SplineLayer
from .counts import by_class, join_rare, most_telling, spread_out
from .filters import along, liveliest, view
from .panels import LAYERS, NAME, WIDTH, class_map, class_scale, grid_of, outer_labels
from .style import BLUE, DASHES, MARKERS, ORANGE, SERIES, SIGNED, styled
from .text import compact, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STATIONS = 8  # layers on the way of a flow


@dataclass(frozen=True, kw_only=True)
class Point:
    """A network and what it costs."""

    name: str
    accuracy: float
    samples: int  # on which accuracy was measured
    macs: int
    parameters: int
    latency: float | None = None  # seconds


@styled
def utilization(positions: Mapping[str, Tensor], bins: Sequence[int] = (2, 3, 5, 50)) -> Figure:
    """Histograms of positions against uniform ones, for several numbers of bins."""
    from matplotlib.figure import Figure

    layers = spread_out(list(positions), LAYERS)
    figure = Figure(figsize=(WIDTH, 0.55 + 1.15 * len(layers)), layout="constrained")
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
def specialization(positions: Mapping[str, Tensor], labels: Tensor, classes: Sequence[str], bins: int = 50) -> Figure:
    """Who is where: classes by bins, each bin's classes adding up to 1, on each layer's most telling spline."""
    layers = spread_out(list(positions), LAYERS)
    labels, names = join_rare(labels, classes)
    chosen = most_telling({layer: positions[layer] for layer in layers}, labels)
    columns = min(len(layers), 3)
    figure, axes = grid_of(len(layers), columns=3, height=0.9 + 0.19 * len(names))
    image: Any = None
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
    at, curves = _smooth(paths)
    x = at.numpy()
    everyone = curves[spread_out(range(len(curves)), 80)].T.numpy()
    for number, (axis, name) in enumerate(zip(axes, names, strict=True)):
        own = curves[labels == number][:lines].T.numpy()
        axis.set_rasterization_zorder(3)  # thousands of lines are smaller as pixels
        axis.plot(x, everyone, color="#d1d5db", linewidth=0.4, zorder=1)
        axis.plot(x, own, color=SERIES[number % len(SERIES)], linewidth=0.8, alpha=0.7, zorder=2)
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
def filters_along(layer: SplineLayer, name: str = "", splines: Sequence[int] | None = None, steps: int = 9) -> Figure:
    """Weights at evenly spaced positions, and below them the influence of each knot along the spline."""
    from matplotlib.figure import Figure

    chosen = liveliest(layer, 4) if splines is None else list(splines)
    spec = layer.spec
    places = torch.linspace(0, 1, steps)
    figure = Figure(figsize=(WIDTH, 0.8 + 1.0 * len(chosen) + 1.2), layout="constrained")
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
    _influence(figure.add_subplot(grid[-1, :]), spec.knots, spec.spline_degree, places)
    if name:
        figure.suptitle(printable(name, 60), x=0.01, ha="left", fontsize=10)
    return figure


@styled
def tradeoff(points: Sequence[Point]) -> Figure:
    """Accuracy against multiply-accumulates, parameters and, where all have it, measured latency."""
    from matplotlib.figure import Figure

    measures = [("MACs", "macs", 1.0), ("parameters", "parameters", 1.0), ("latency, ms", "latency", 1e3)]
    if any(point.latency is None for point in points):
        measures.pop()
    figure = Figure(figsize=(WIDTH, 2.9), layout="constrained")
    axes = figure.subplots(1, len(measures), sharey=True)
    for axis, (label, attribute, scale) in zip(axes, measures, strict=True):
        for number, point in enumerate(points):
            error = math.sqrt(max(point.accuracy * (1 - point.accuracy), 0) / max(point.samples, 1))
            axis.errorbar(
                getattr(point, attribute) * scale,
                100 * point.accuracy,
                yerr=100 * error,
                color=SERIES[number % len(SERIES)],
                marker=MARKERS[number % len(MARKERS)],
                markersize=8,
                capsize=3,
                linestyle="none",
                label=printable(point.name, 30) if axis is axes[0] else None,
            )
        values = [getattr(point, attribute) * scale for point in points]
        axis.set(xlabel=label, xlim=(0, 1.15 * (max(values) or 1)))
        axis.ticklabel_format(axis="x", style="plain")
        axis.xaxis.set_major_formatter(lambda value, _: compact(value))
        axis.locator_params(axis="x", nbins=5)
        axis.grid(axis="y", color="#e5e7eb")
        axis.set_axisbelow(True)
    axes[0].set_ylabel("test accuracy, %")
    figure.legend(loc="outside lower center", ncols=min(len(points), 4))
    return figure


def _influence(axis: Axes, knots: int, degree: int, places: Tensor) -> None:
    """The basis of each knot; the places stand below the pictures that belong to them."""
    x = torch.linspace(0, 1, 201)
    influence = bspline_basis(x, knots, degree).numpy()
    for place in places.tolist():
        axis.axvline(place, color="#e5e7eb", linewidth=0.8, zorder=0)
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


def _smooth(paths: Tensor, steps: int = 12) -> tuple[Tensor, Tensor]:
    """Paths as curves that leave and reach every layer level: (N, layers) -> (points,), (N, points)."""
    layers = paths.shape[1]
    if layers == 1:
        return torch.tensor([0.0, 1.0]), paths.expand(-1, 2)
    x = torch.linspace(0, layers - 1, steps * (layers - 1) + 1)
    left = x.floor().long().clamp(max=layers - 2)
    t = x - left
    ease = t * t * (3 - 2 * t)
    return x, paths[:, left] * (1 - ease) + paths[:, left + 1] * ease
