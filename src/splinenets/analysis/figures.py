"""The figures, one function for each. Names may be anything; positions are those of ``sn.trace``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..basis import bspline_basis
from ..health_check import histogram
from ..layers import SplineLayer
from ..spec import SplineSpec
from .counts import BINS, STEPS, by_class, join_rare, most_telling, spread_out
from .filters import along, liveliest, view
from .style import (
    BLUE,
    DASHES,
    GREY,
    LAYERS,
    NAME,
    ORANGE,
    PALE,
    SERIES,
    SIGNED,
    VERDICTS,
    WIDTH,
    accuracy_axes,
    accuracy_points,
    class_colours,
    class_map,
    class_scale,
    empty_figure,
    grid_of,
    in_time,
    outer_labels,
    short_numbers,
    styled,
    whole_ticks,
)
from .text import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STATIONS = 8  # layers on the way of a flow


@dataclass(frozen=True, kw_only=True)
class LayerEpoch:
    """What one epoch's metrics say about a layer."""

    entropy: float
    information: float
    verdict: str
    histogram: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """What the metrics say about one epoch; accuracies are shares."""

    number: int
    train_accuracy: float
    test_accuracy: float
    test_loss: float
    test_balanced_accuracy: float | None = None  # where classes have unequally many test images
    layers: Mapping[str, LayerEpoch]

    @property
    def histograms(self) -> bool:
        """Whether it holds the positions of every layer."""
        return bool(self.layers) and all(layer.histogram for layer in self.layers.values())


@dataclass(frozen=True, kw_only=True)
class Point:
    """A network and what it costs."""

    name: str
    accuracy: float
    samples: int  # on which accuracy was measured
    macs: int
    parameters: int
    latency: float | None = None  # seconds


@dataclass(frozen=True, kw_only=True)
class Answers:
    """A network, and which test images it got right: values (N,) of their condition, right (N,)."""

    name: str
    between: tuple[float, float]
    values: Tensor
    right: Tensor


@styled
def positions_over_time(epochs: Sequence[Epoch]) -> Figure:
    """How each layer's positions were spread, epoch after epoch, the newest in front."""
    layers = spread_out(list(epochs[-1].layers), LAYERS)
    shown = spread_out([e for e in epochs if set(layers) <= set(e.layers)], 20)
    figure, axes = grid_of(len(layers), columns=3, height=3.2)
    for axis, layer in zip(axes, layers, strict=True):
        counts = [torch.tensor(e.layers[layer].histogram).double() for e in shown]
        density = [c / c.sum().clamp(min=1) * len(c) for c in counts]  # 1 where positions are uniform
        tallest = max(float(d.max()) for d in density) or 1.0
        for i, d in enumerate(density):
            base = len(shown) - 1 - i
            height = (base + d * (3 / tallest)).numpy()
            x = ((torch.arange(len(d)) + 0.5) / len(d)).numpy()
            colour = in_time(0.1 + 0.8 * i / max(len(shown) - 1, 1))
            axis.fill_between(x, base, height, color=colour, zorder=i, linewidth=0)
            axis.plot(x, height, color="white", linewidth=0.8, zorder=i)
        labelled = range(len(shown)) if len(shown) <= 10 else spread_out(range(len(shown)), 6)
        axis.set_yticks([len(shown) - 1 - i for i in labelled], [str(shown[i].number) for i in labelled])
        axis.set(title=printable(layer, NAME), xlim=(0, 1), ylim=(-0.2, len(shown) + 2.2), xticks=(0, 0.5, 1))
        axis.tick_params(left=False)
        axis.spines["left"].set_visible(False)
    outer_labels(axes, 3, "position", "epoch")
    return figure


@styled
def positions_by_layer(epoch: Epoch) -> Figure:
    """How the positions of every layer were spread after one epoch, a ridge for each, however many there are."""
    layers = list(epoch.layers)
    figure = empty_figure(min(1.0 + 0.3 * len(layers), 14.0), WIDTH * 0.7)
    axis = figure.subplots()
    for row, name in enumerate(layers):
        counts = torch.tensor(epoch.layers[name].histogram).double()
        density = counts / counts.sum().clamp(min=1) * len(counts)
        x = ((torch.arange(len(counts)) + 0.5) / len(counts)).numpy()
        height = (row - density * (0.9 / max(float(density.max()), 2.0))).numpy()  # a uniform one is half as high
        axis.fill_between(x, row, height, color=in_time(0.1 + 0.8 * row / max(len(layers) - 1, 1)), linewidth=0)
        axis.axhline(row, color=PALE, linewidth=0.6, zorder=0)
    axis.set_yticks(range(len(layers)), [printable(name, 20) for name in layers], fontsize=7.5)
    axis.set(xlim=(0, 1), ylim=(len(layers) - 0.5, -1.1), xticks=(0, 0.25, 0.5, 0.75, 1), xlabel="position")
    axis.tick_params(left=False)
    axis.spines["left"].set_visible(False)
    return figure


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
def health_over_epochs(epochs: Sequence[Epoch]) -> Figure:
    """Accuracy, entropy, information and verdicts, epoch after epoch."""
    layers = list(epochs[-1].layers)
    low = min(0.24 * max(len(layers), 3), 6.0)
    figure = empty_figure(3.6 + low)
    grid = figure.add_gridspec(2, 3, height_ratios=[2.4, low])
    accuracy, entropy, bits = (figure.add_subplot(grid[0, i]) for i in range(3))
    numbers = [e.number for e in epochs]
    accuracy.plot(numbers, [100 * e.train_accuracy for e in epochs], color=GREY, linestyle="--", label="training")
    accuracy.plot(numbers, [100 * e.test_accuracy for e in epochs], color=BLUE, marker=".", label="test")
    accuracy.set(title="accuracy, %", xlabel="epoch")
    accuracy.legend(loc="lower right")
    _layers_over_epochs(entropy, bits, epochs, layers)
    for axis in (accuracy, entropy, bits):
        whole_ticks(axis, 6)
        axis.grid(axis="y", color=PALE)
    _verdicts(figure.add_subplot(grid[1, :]), epochs, layers)
    return figure


@styled
def utilization(positions: Mapping[str, Tensor], bins: Sequence[int] = (2, 3, 5, 50)) -> Figure:
    """Histograms of positions against uniform ones, for several numbers of bins."""
    layers = spread_out(list(positions), LAYERS)
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
def specialization(positions: Mapping[str, Tensor], labels: Tensor, classes: Sequence[str], bins: int = BINS) -> Figure:
    """Who is where: classes by bins, each bin's classes adding up to 1, on each layer's most telling spline."""
    layers = spread_out(list(positions), LAYERS)
    labels, names = join_rare(labels, classes)
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
    at, curves = _smooth(paths)
    x = at.numpy()
    colours = class_colours(len(names))
    everyone = curves[spread_out(range(len(curves)), 80)].T.numpy()
    for number, (axis, name) in enumerate(zip(axes, names, strict=True)):
        own = curves[labels == number][:lines].T.numpy()
        axis.set_rasterization_zorder(3)  # thousands of lines are smaller as pixels
        axis.plot(x, everyone, color="#d1d5db", linewidth=0.4, zorder=1)
        axis.plot(x, own, color=colours[number], linewidth=0.8, alpha=0.7, zorder=2)
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
    if all(p.latency is not None for p in points):
        costs["latency, ms"] = [1e3 * (p.latency or 0) for p in points]
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


def _layers_over_epochs(entropy: Axes, bits: Axes, epochs: Sequence[Epoch], layers: Sequence[str]) -> None:
    """A line for each layer; many layers are told apart by their depth alone."""
    few = len(layers) <= len(SERIES)
    for i, layer in enumerate(layers):
        style: dict[str, Any] = {
            "color": SERIES[i] if few else in_time(i / (len(layers) - 1)),
            "linestyle": DASHES[i % len(DASHES)],
            "label": printable(layer, 16),
        }
        known = [e for e in epochs if layer in e.layers]
        at = [e.number for e in known]
        entropy.plot(at, [100 * e.layers[layer].entropy for e in known], **style)
        bits.plot(at, [e.layers[layer].information for e in known], **style)
    entropy.set(title="entropy, % of uniform", xlabel="epoch", ylim=(0, 103))
    bits.set(title="told about the class, bits", xlabel="epoch")
    bits.set_ylim(bottom=0)
    if few:
        entropy.legend(loc="lower right", fontsize=8)
    else:
        shades = "dark: first layers\nbright: last layers"
        entropy.text(0.97, 0.05, shades, transform=entropy.transAxes, ha="right", fontsize=8)


def _verdicts(axis: Axes, epochs: Sequence[Epoch], layers: Sequence[str]) -> None:
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    sparse = len(epochs) <= 40 and len(layers) <= 20
    verdicts = [[e.layers[layer].verdict if layer in e.layers else "" for e in epochs] for layer in layers]
    colours = {"": "#ffffff", **{verdict: colour for verdict, (colour, _) in VERDICTS.items()}, "other": GREY}
    places = {verdict: i for i, verdict in enumerate(colours)}
    codes = [[places.get(verdict, places["other"]) for verdict in row] for row in verdicts]
    axis.pcolormesh(
        [i - 0.5 for i in range(len(epochs) + 1)],
        [i - 0.5 for i in range(len(layers) + 1)],
        codes,
        cmap=ListedColormap(list(colours.values())),
        vmin=-0.5,
        vmax=len(colours) - 0.5,
        edgecolors="white",
        linewidth=1 if sparse else 0,
        rasterized=not sparse,
    )
    for row, line in enumerate(verdicts if sparse else ()):
        for column, verdict in enumerate(line):
            if letter := VERDICTS.get(verdict, ("", "?"))[1] if verdict else "":
                ink = "white" if verdict == "constant" else "black"
                axis.text(column, row, letter, ha="center", va="center", color=ink, fontsize=8)
    axis.set(xlim=(-0.5, len(epochs) - 0.5), ylim=(len(layers) - 0.5, -0.5), xlabel="epoch", title="verdict")
    shown = spread_out(range(len(layers)), 20)
    axis.set_yticks(shown, [printable(layers[i], 16) for i in shown])
    axis.xaxis.set_major_formatter(
        lambda x, _: str(epochs[round(x)].number) if 0 <= round(x) < len(epochs) and x == round(x) else ""
    )
    whole_ticks(axis, 12)
    axis.tick_params(left=False)
    handles = [Patch(facecolor=c, label=f"{v} ({letter})" if letter else v) for v, (c, letter) in VERDICTS.items()]
    axis.legend(handles=handles, loc="lower right", bbox_to_anchor=(1, 1.0), ncols=len(handles), fontsize=8)
