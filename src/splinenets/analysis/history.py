"""Figures of a training, epoch after epoch, from its metrics alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .counts import enough_bins, spread_out
from .style import (
    BLUE,
    DASHES,
    GREY,
    INK,
    LAYERS,
    NAME,
    PALE,
    SERIES,
    VERDICTS,
    WIDTH,
    empty_figure,
    grid_of,
    in_time,
    outer_labels,
    styled,
    whole_ticks,
)
from .text import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAMED = 40  # layers that have room for their names below each other
OVERLAP = 1.7  # rows that the highest ridge of a layer reaches up


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


@styled
def positions_over_time(epochs: Sequence[Epoch]) -> Figure:
    """How each layer's positions were spread, epoch after epoch, the newest in front."""
    layers = spread_out(list(epochs[-1].layers), LAYERS)
    shown = spread_out([e for e in epochs if set(layers) <= set(e.layers)], 20)
    figure, axes = grid_of(len(layers), columns=3, height=1.6 + 0.08 * max(len(shown), 6))
    for axis, layer in zip(axes, layers, strict=True):
        densities = [_density(e.layers[layer].histogram) for e in shown]
        tallest = max(float(d.max()) for d in densities) or 1.0
        reach = min(3.0, 0.5 + 0.4 * len(shown))  # few epochs need no towers
        for i, density in enumerate(densities):
            base = len(shown) - 1 - i
            colour = in_time(0.1 + 0.8 * i / max(len(shown) - 1, 1))
            _ridge(axis, base, density * (reach / tallest), colour, order=i)
        labelled = range(len(shown)) if len(shown) <= 10 else spread_out(range(len(shown)), 6)
        axis.set_yticks([len(shown) - 1 - i for i in labelled], [str(shown[i].number) for i in labelled])
        axis.set(title=printable(layer, NAME), xlim=(0, 1), ylim=(-0.2, len(shown) - 0.8 + reach), xticks=(0, 0.5, 1))
        axis.tick_params(left=False)
        axis.spines["left"].set_visible(False)
    outer_labels(axes, 3, "position", "epoch")
    return figure


@styled
def positions_by_layer(epoch: Epoch) -> Figure:
    """How the positions of every layer were spread after one epoch, a ridge for each, however many there are."""
    layers = list(epoch.layers)
    figure = empty_figure(min(1.2 + 0.26 * len(layers), 13.0), WIDTH * 0.8)
    axis = figure.subplots()
    for row, name in enumerate(layers):
        base = len(layers) - 1 - row
        density = _density(epoch.layers[name].histogram)
        # a uniform one is a third as high as the highest may be, whatever other layers do
        height = density * (OVERLAP / max(float(density.max()), 3.0))
        _ridge(axis, base, height, in_time(0.1 + 0.8 * row / max(len(layers) - 1, 1)), order=row)
    named = spread_out(range(len(layers)), NAMED)
    axis.set_yticks([len(layers) - 1 - row for row in named], [printable(layers[row], 24) for row in named], fontsize=8)
    axis.set(xlim=(0, 1), ylim=(-0.2, len(layers) - 0.8 + OVERLAP), xlabel="position")
    axis.set_xticks((0, 0.25, 0.5, 0.75, 1))
    axis.grid(axis="x", color=PALE, linewidth=0.6)
    axis.set_axisbelow(True)
    axis.tick_params(left=False)
    axis.spines["left"].set_visible(False)
    return figure


def _density(histogram: Sequence[int]) -> Tensor:
    """Counts as a density, 1 where positions are uniform, in no more bins than they can fill."""
    counts = torch.tensor(histogram).double()
    bins = enough_bins(float(counts.sum()), len(counts))
    counts = counts.view(bins, -1).sum(1)
    return counts / counts.sum().clamp(min=1) * bins


def _ridge(axis: Axes, base: float, heights: Tensor, colour: Any, *, order: int) -> None:
    """A hill on a base line, with a white edge that keeps it apart from the one behind."""
    bins = len(heights)
    x = [0.0, *((torch.arange(bins) + 0.5) / bins).tolist(), 1.0]
    y = [base + float(h) for h in (heights[0], *heights, heights[-1])]
    axis.fill_between(x, base, y, color=colour, zorder=order + 2, linewidth=0)
    axis.plot(x, y, color="white", linewidth=0.9, zorder=order + 2)
    axis.plot((0, 1), (base, base), color=colour, linewidth=0.5, zorder=order + 2)


@styled
def health_over_epochs(epochs: Sequence[Epoch]) -> Figure:
    """Accuracy, entropy, information and verdicts, epoch after epoch."""
    layers = list(epochs[-1].layers)
    low = min(0.24 * max(len(layers), 3), 7.5)
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


def _layers_over_epochs(entropy: Axes, bits: Axes, epochs: Sequence[Epoch], layers: Sequence[str]) -> None:
    """A line for each layer; many layers are told apart by their depth alone."""
    few = len(layers) <= len(SERIES)
    for i, layer in enumerate(layers):
        style: dict[str, Any] = {
            "color": SERIES[i] if few else in_time(0.05 + 0.85 * i / (len(layers) - 1)),
            "linestyle": DASHES[i % len(DASHES)] if few else "-",
            "linewidth": 1.5 if few else 0.9,
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

    sparse = len(epochs) <= 40 and len(layers) <= NAMED
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
                ink = "white" if verdict == "constant" else INK
                axis.text(column, row, letter, ha="center", va="center", color=ink, fontsize=8)
    axis.set(xlim=(-0.5, len(epochs) - 0.5), ylim=(len(layers) - 0.5, -0.5), xlabel="epoch", title="verdict")
    shown = spread_out(range(len(layers)), NAMED)
    size = 7.5 if len(shown) > 20 else 9
    axis.set_yticks(shown, [printable(layers[i], 16) for i in shown], fontsize=size)
    axis.xaxis.set_major_formatter(
        lambda x, _: str(epochs[round(x)].number) if 0 <= round(x) < len(epochs) and x == round(x) else ""
    )
    whole_ticks(axis, 12)
    axis.tick_params(left=False)
    handles = [Patch(facecolor=c, label=f"{v} ({letter})" if letter else v) for v, (c, letter) in VERDICTS.items()]
    axis.legend(handles=handles, loc="lower right", bbox_to_anchor=(1, 1.0), ncols=len(handles), fontsize=8)
