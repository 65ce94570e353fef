"""Parts that several figures have in common."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from .counts import shares
from .style import SHARE
from .text import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

LAYERS = 6  # in one figure
WIDTH = 9.0  # inches: text of 9 points stays readable on a page and on a screen
NAME = 24  # letters of a name


def grid_of(count: int, columns: int, height: float) -> tuple[Figure, list[Axes]]:
    """A figure with so many panels, ``height`` inches each."""
    from matplotlib.figure import Figure

    columns = min(columns, count)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(WIDTH if columns > 1 else WIDTH / 2, 0.3 + height * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
    for axis in axes[count:]:
        axis.set_visible(False)
    return figure, axes[:count]


def outer_labels(axes: Sequence[Axes], columns: int, bottom: str, left: str) -> None:
    """Name the axes of a grid's panels, on its outside alone."""
    for number, axis in enumerate(axes):
        if number + columns >= len(axes):
            axis.set_xlabel(bottom)
        if number % columns == 0:
            axis.set_ylabel(left)


def class_map(axis: Axes, counts: Tensor, names: Sequence[str]) -> AxesImage:
    """Classes by bins, each bin's classes adding up to 1; ``names`` may be empty: (classes, bins)."""
    classes = len(counts)
    image = axis.imshow(shares(counts).numpy(), aspect="auto", cmap=SHARE, vmin=0, vmax=1, extent=(0, 1, classes, 0))
    axis.set_xticks((0, 0.5, 1))
    axis.set_yticks([i + 0.5 for i in range(classes)] if names else [], [printable(name, 16) for name in names])
    axis.tick_params(left=False)
    axis.spines[:].set_visible(False)
    return image


def class_scale(figure: Figure, image: AxesImage, axes: Any) -> None:
    """The colours of class maps, beside them."""
    figure.colorbar(image, ax=axes, label="share of the bin's samples", shrink=0.8, aspect=30, pad=0.01)
