"""How figures look: readable in print, and by people who see few colours."""

from __future__ import annotations

import functools
import io
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from matplotlib.figure import Figure

P = ParamSpec("P")
T = TypeVar("T")

BLUE, ORANGE, GREEN, RED, PURPLE, GREY = "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#6b7280"  # Okabe, Ito
SERIES = (BLUE, ORANGE, GREEN, PURPLE, "#56b4e9", RED, "#000000", "#b8a600")
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


def styled(draw: Callable[P, T]) -> Callable[P, T]:
    """Run a function under our settings; letters that no font at hand can draw are left to the reader's fonts."""

    @functools.wraps(draw)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> T:
        from matplotlib import rc_context

        with rc_context(SETTINGS), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Glyph .* missing")
            return draw(*args, **kwargs)

    return wrapped


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
def to_png(figure: Figure, dpi: int = 110) -> bytes:
    """The figure as PNG, of few colours: a quarter of the size, and nobody sees it."""
    from PIL import Image

    full, small = io.BytesIO(), io.BytesIO()
    figure.savefig(full, format="png", dpi=dpi)
    with Image.open(full) as image:
        image.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
    return small.getvalue()
