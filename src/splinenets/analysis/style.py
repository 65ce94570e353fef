"""How figures look, readable in print and by people who see few colours, and the parts that several have in common."""

from __future__ import annotations

import functools
import io
import math
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from PIL import Image
from torch import Tensor

from .counts import shares, standard_error
from .text import compact, printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

P = ParamSpec("P")
T = TypeVar("T")

BLUE, ORANGE, GREEN, RED, PURPLE, GREY = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#6b7280"  # Okabe, Ito
PALE = "#e5e7eb"  # lines that help the eye
SOFT = "#d1d5db"  # what is only there to compare with
SERIES = (BLUE, ORANGE, GREEN, PURPLE, "#56b4e9", RED, "#000000", "#b8a600")
# Ten that stay apart, also for people who see few colours: tests/test_figures.py measures by how much.
CLASSES = (
    "#006eb6", "#f59400", "#009d84", "#d53c00", "#7b4888", "#40c4fe", "#f29cc2", "#99cb39", "#7a4a2b", "#c2185b",
)  # fmt: skip
INK = "#111827"  # on colours that stay light in the dark
MARKERS = "osD^vPX*"
DASHES = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (4, 1, 1, 1)))
TIME = "cividis"
SHARE = "cividis"
SIGNED = "PuOr"
# Colour and letter of a verdict: the letter serves where colours do not.
VERDICTS = {
    "healthy": ("#dceaf3", ""),
    "constant": ("#332288", "c"),
    "binary": (ORANGE, "b"),
    "shifting": (RED, "s"),
    "under-used": (PURPLE, "u"),
}
SETTINGS: Any = {
    "text.parse_math": False,  # a class may be called $x$
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
    "legend.frameon": False,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "splinenets",  # the same figure is the same file
    "figure.dpi": 120,  # of what is drawn as pixels
}
# In an img a drawing follows the page's light. White is paper there and black is ink; other colours stay.
DARK = (
    "<style>@media (prefers-color-scheme: dark) {"
    'path[style*="fill: #ffffff"] { fill: #1a2029 !important; }'
    '[style*="stroke: #ffffff"] { stroke: #1a2029 !important; }'
    '[style*="stroke: #e5e7eb"] { stroke: #3b4452 !important; }'
    '[style*="stroke: #d1d5db"] { stroke: #4b5563 !important; }'
    '[style*="stroke: #000000"] { stroke: #a3adba !important; }'
    'text:not([style*="fill"]) { fill: #e5e7eb; }'
    "}</style>"
)
PRINTED = 300  # dots an inch
LAYERS = 6  # in one figure
WIDTH = 9.0  # inches: text of 9 points stays readable on a page and on a screen
NAME = 24  # letters of a name


def styled(draw: Callable[P, T]) -> Callable[P, T]:
    """Run a function under our settings; letters that no font at hand can draw are left to the reader's fonts."""

    @functools.wraps(draw)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        from matplotlib import rc_context

        with rc_context(SETTINGS), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing")
            return draw(*args, **kwargs)

    return wrapped


def class_colours(count: int) -> list[str]:
    """A colour for each class; ten can be told apart, then they begin again."""
    return [CLASSES[i % len(CLASSES)] for i in range(count)]


def check_matplotlib() -> None:
    """Raise unless figures can be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ValueError("figures need matplotlib: pip install 'splinenets[figures]'") from None


@styled
def to_svg(figure: Figure) -> bytes:
    """The figure as SVG, the same bytes every time."""
    file = io.BytesIO()
    figure.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    return file.getvalue()


@styled
def to_png(figure: Figure, dpi: int = PRINTED) -> bytes:
    """The figure as PNG."""
    full, small = io.BytesIO(), io.BytesIO()
    figure.savefig(full, format="png", dpi=dpi)
    with Image.open(full) as image:  # nothing shines through, so a quarter of the bytes says nothing
        image.convert("RGB").save(small, "PNG", optimize=True, dpi=(dpi, dpi))
    return small.getvalue()


def for_both_lights(drawing: bytes) -> bytes:
    """An SVG whose paper is dark and whose ink is light where the reader wants that."""
    head, end, rest = drawing.partition(b"<defs>")
    return head + DARK.encode() + end + rest


def empty_figure(height: float, width: float = WIDTH) -> Figure:
    """A figure of so many inches without anything in it."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def grid_of(count: int, columns: int, height: float) -> tuple[Figure, list[Axes]]:
    """A figure with so many panels, ``height`` inches each."""
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    figure = empty_figure(0.3 + height * rows, WIDTH if columns > 1 else WIDTH / 2)
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


def in_time(share: float) -> tuple[float, float, float, float]:
    """The colour of a moment, or of a layer's depth, between 0 and 1."""
    from matplotlib import colormaps

    return colormaps[TIME](share)


def whole_ticks(axis: Axes, most: int) -> None:
    """Ticks at whole numbers, which epochs are."""
    from matplotlib.ticker import MaxNLocator

    axis.xaxis.set_major_locator(MaxNLocator(most, integer=True))


def class_map(axis: Axes, counts: Tensor, names: Sequence[str]) -> AxesImage:
    """Classes by bins, each bin's classes adding up to 1; ``names`` may be empty: (classes, bins)."""
    classes = len(counts)
    image = axis.imshow(shares(counts).numpy(), aspect="auto", cmap=SHARE, vmin=0, vmax=1, extent=(0, 1, classes, 0))
    axis.set_xticks((0, 0.5, 1))
    axis.set_yticks([i + 0.5 for i in range(classes)] if names else [], [printable(name, 16) for name in names])
    axis.tick_params(left=False)
    axis.spines[:].set_visible(False)
    return image


def class_scale(figure: Figure, image: AxesImage, axes: Sequence[Axes]) -> None:
    """The colours of class maps, beside them."""
    label = "share of the bin's samples" if figure.get_figheight() > 2.5 else "share"
    figure.colorbar(image, ax=axes, label=label, shrink=0.8, aspect=30, pad=0.01)


def accuracy_axes(height: float, costs: Sequence[str]) -> tuple[Figure, list[Axes]]:
    """A figure of test accuracies in percent, with a panel for each kind of cost."""
    figure = empty_figure(height)
    axes = figure.subplots(1, len(costs), sharey=True, squeeze=False).flatten().tolist()
    figure.set_layout_engine("constrained", wspace=0.08)
    for axis, cost in zip(axes, costs, strict=True):
        axis.set_xlabel(cost)
        axis.grid(axis="y", color=PALE)
        axis.set_axisbelow(True)
    axes[0].set_ylabel("test accuracy, %")
    return figure, axes


def accuracy_points(
    axis: Axes, number: int, costs: Sequence[float], accuracies: Sequence[float], samples: Sequence[int], **look: Any
) -> None:
    """One series: accuracies, as shares, with the standard error that so many samples leave."""
    axis.errorbar(
        costs,
        [100 * accuracy for accuracy in accuracies],
        yerr=[100 * standard_error(a, n) for a, n in zip(accuracies, samples, strict=True)],
        color=SERIES[number % len(SERIES)],
        marker=MARKERS[number % len(MARKERS)],
        **look,
    )


def short_numbers(axis: Axes) -> None:
    """1.5M, not 1500000."""
    axis.xaxis.set_major_formatter(lambda value, _: compact(value))
