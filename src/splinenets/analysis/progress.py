"""Figures of a training, epoch after epoch, and what they are drawn from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from .counts import spread_out
from .panels import LAYERS, NAME, WIDTH, grid_of, outer_labels
from .style import BLUE, DASHES, GREY, SERIES, TIME, VERDICTS, styled
from .text import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


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
    layers: Mapping[str, LayerEpoch]

    @property
    def histograms(self) -> bool:
        """Whether it holds the positions of every layer."""
        return bool(self.layers) and all(layer.histogram for layer in self.layers.values())


@styled
def positions_over_time(epochs: Sequence[Epoch]) -> Figure:
    """How each layer's positions were spread, epoch after epoch, the newest in front."""
    from matplotlib import colormaps

    layers = spread_out(list(epochs[-1].layers), LAYERS)
    shown = spread_out([e for e in epochs if set(layers) <= set(e.layers)], 20)
    figure, axes = grid_of(len(layers), columns=3, height=3.2)
    colours = colormaps[TIME]
    for axis, layer in zip(axes, layers, strict=True):
        counts = [torch.tensor(e.layers[layer].histogram).double() for e in shown]
        density = [c / c.sum().clamp(min=1) * len(c) for c in counts]  # 1 where positions are uniform
        tallest = max(float(d.max()) for d in density) or 1.0
        for i, d in enumerate(density):
            base = len(shown) - 1 - i
            height = (base + d * (3 / tallest)).numpy()
            x = ((torch.arange(len(d)) + 0.5) / len(d)).numpy()
            colour = colours(0.1 + 0.8 * i / max(len(shown) - 1, 1))
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
def health_over_epochs(epochs: Sequence[Epoch]) -> Figure:
    """Accuracy, entropy, information and verdicts, epoch after epoch."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    numbers = [e.number for e in epochs]
    layers = list(epochs[-1].layers)
    few = len(layers) <= len(SERIES)
    rows = max(len(layers), 3)
    figure = Figure(figsize=(WIDTH, 3.0 + min(0.24 * rows, 6.0) + 0.6), layout="constrained")
    grid = figure.add_gridspec(2, 3, height_ratios=[2.4, min(0.24 * rows, 6.0)])
    accuracy, entropy, bits = (figure.add_subplot(grid[0, i]) for i in range(3))
    accuracy.plot(numbers, [100 * e.train_accuracy for e in epochs], color=GREY, linestyle="--", label="training")
    accuracy.plot(numbers, [100 * e.test_accuracy for e in epochs], color=BLUE, marker=".", label="test")
    accuracy.set(title="accuracy, %", xlabel="epoch")
    accuracy.legend(loc="lower right")
    for i, layer in enumerate(layers):
        style: dict[str, Any] = {
            "color": SERIES[i] if few else colormaps[TIME](i / (len(layers) - 1)),
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
    for axis in (accuracy, entropy, bits):
        axis.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axis.grid(axis="y", color="#e5e7eb")
    _verdicts(figure.add_subplot(grid[1, :]), epochs, layers)
    return figure


def _verdicts(axis: Axes, epochs: Sequence[Epoch], layers: Sequence[str]) -> None:
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator

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
    axis.xaxis.set_major_locator(MaxNLocator(12, integer=True))
    axis.tick_params(left=False)
    handles = [Patch(facecolor=c, label=f"{v} ({letter})" if letter else v) for v, (c, letter) in VERDICTS.items()]
    axis.legend(handles=handles, loc="lower right", bbox_to_anchor=(1, 1.0), ncols=len(handles), fontsize=8)
