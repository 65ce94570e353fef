"""``python -m benchmarks.animations``: the moving pictures of docs/concepts.md, computed by the package itself.

Each is an SVG that animates itself, has a background of its own and follows the reader's light or dark mode.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

import splinenets as sn

FIGURES = Path(__file__).resolve().parent.parent / "docs" / "figures"
KNOTS, DEGREE, FRAMES, SECONDS = 5, 2, 48, 8
COLOURS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00")  # Okabe and Ito's, for five knots or classes
STYLE = """
text { font: 15px system-ui, sans-serif; fill: #333 } .small { font-size: 13px } .bold { font-weight: 600 }
.paper { fill: #fafafa } .line { stroke: #888; fill: none } .curve { stroke: #333; fill: none; stroke-width: 2.5 }
.soft { fill: #8883; stroke: none } .ink { fill: #333 } .middle { text-anchor: middle } .end { text-anchor: end }
@media (prefers-color-scheme: dark) {
text { fill: #ddd } .paper { fill: #23252d } .curve { stroke: #ddd } .ink { fill: #ddd } .line { stroke: #999 }
}
@media (max-width: 480px) { text { font-size: 19px } .small { font-size: 17px } }"""  # a picture on a phone
Draw = Callable[[], str]


def sheet(width: int, height: int, title: str, *parts: str) -> str:
    """A whole picture; the title is what a screen reader says."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="{title}">'
        f'<title>{title}</title><style>{STYLE}</style><rect class="paper" width="{width}" height="{height}" rx="8"/>'
        + "".join(parts)
        + "</svg>\n"
    )


def number(value: float) -> str:
    """Short, for files that are sent."""
    return f"{value:.2f}".rstrip("0").rstrip(".")


def moving(name: str, values: Iterable[float | str], seconds: float = SECONDS) -> str:
    """An attribute that passes through values, again and again."""
    path = ";".join(v if isinstance(v, str) else number(v) for v in values)
    return f'<animate attributeName="{name}" values="{path}" dur="{seconds}s" repeatCount="indefinite"/>'


def words(x: float, y: float, content: str, kind: str = "", inside: str = "") -> str:
    return f'<text x="{number(x)}" y="{number(y)}" class="{kind}">{content}{inside}</text>'


def line(points: Tensor, kind: str, more: str = "") -> str:
    """Through points (n, 2)."""
    path = " ".join(f"{number(x)},{number(y)}" for x, y in points.tolist())
    return f'<polyline class="{kind}" points="{path}" {more}/>'


def there_and_back(frames: int = FRAMES) -> Tensor:
    """Positions from 0 to 1 and back, slowly at the ends."""
    return 0.5 - 0.5 * torch.cos(torch.linspace(0, 2 * torch.pi, frames + 1))


def shade(value: float) -> str:
    """A weight from -1 (blue) over 0 (white) to 1 (orange)."""
    end = torch.tensor((213.0, 94.0, 0.0) if value > 0 else (0.0, 114.0, 178.0))
    mixed = 245 + (end - 245) * min(1.0, abs(value))
    return "#" + "".join(f"{int(c):02x}" for c in mixed.tolist())


def filters(weights: Tensor, x: float, y: float, size: float) -> str:
    """Filters (frames, n, n), values from -1 to 1, as cells that change their colours; one frame stands still."""
    frames, rows, columns = weights.shape
    cells = []
    for row in range(rows):
        for column in range(columns):
            colours = [shade(v) for v in weights[:, row, column].tolist()]
            inside = moving("fill", colours) if frames > 1 else ""
            place = f'x="{number(x + column * size)}" y="{number(y + row * size)}"'
            cells.append(f'<rect {place} width="{size}" height="{size}" fill="{colours[0]}">{inside}</rect>')
    return "".join(cells)


def edges(angle: float, n: int = 5) -> Tensor:
    """A filter that looks for an edge in a direction."""
    at = torch.linspace(-1, 1, n)
    y, x = torch.meshgrid(at, at, indexing="ij")
    turned = torch.tensor(angle)
    return torch.sin(2.2 * (x * turned.cos() + y * turned.sin())) * torch.exp(-(x**2 + y**2) / 2)


def curve() -> str:
    """A curve of weights."""
    knots = torch.tensor([[60.0, 190.0], [110.0, 50.0], [220.0, 60.0], [300.0, 200.0], [390.0, 90.0]])
    bank = torch.stack([edges(0.7 * k) for k in range(KNOTS)])
    way = sn.bspline_basis(torch.linspace(0, 1, 80), KNOTS, DEGREE) @ knots
    basis = sn.bspline_basis(there_and_back(), KNOTS, DEGREE)
    place, weights = basis @ knots, (basis @ bank.flatten(1)).unflatten(1, (5, 5))
    dots = [
        filters(bank[k : k + 1], float(x) - 15, float(y) + (14 if y > 150 else -44), 6)
        + f'<circle cx="{number(x)}" cy="{number(y)}" r="5" fill="{COLOURS[k]}"/>'
        for k, (x, y) in enumerate(knots.tolist())
    ]
    return sheet(
        640,
        280,
        "A curve in the space of weights, shaped by five knots; a dot travels along it and its filter changes",
        line(knots, "line", 'stroke-dasharray="4 4"'),
        line(way, "curve"),
        *dots,
        f'<circle r="9" class="ink">{moving("cx", place[:, 0].tolist())}{moving("cy", place[:, 1].tolist())}</circle>',
        filters(weights, 460, 60, 24),
        words(520, 210, "the filter at the dot", "middle"),
        words(320, 270, "a curve through weight space, shaped by five knots", "middle"),
    )


def picture(image: Tensor, x: float, y: float, size: float, inside: str = "") -> str:
    """Bytes (h, w) as an image in the file."""
    file = io.BytesIO()
    Image.fromarray(image.numpy()).save(file, "PNG", optimize=True)
    data = base64.b64encode(file.getvalue()).decode()
    place = f'x="{number(x)}" y="{number(y)}" width="{size}" height="{size}"'
    return f'<image {place} href="data:image/png;base64,{data}">{inside}</image>'


def position() -> str:
    """Test images on their places, in a shipped network: the curve of its second layer that spreads them most."""
    data = sn.data.load("embedded")
    net: Any = sn.pretrained("fashion-mnist/D(5)-D-R3")
    images = data.test.images[:300]
    with torch.no_grad():
        _, positions = sn.trace(net, net.prepare(images))
    places = positions["conv2"]
    places = places[:, places.std(0).argmax()]
    wanted = torch.linspace(float(places.min()) + 0.02, float(places.max()) - 0.02, 7)
    chosen = [int((places - w).abs().argmin()) for w in wanted]
    left, width, seconds = 60.0, 520.0, 10.0
    parts = []
    for turn, i in enumerate(chosen):
        x = left + width * float(places[i]) - 20
        start, stop = 0.2 + 0.09 * turn, 0.26 + 0.09 * turn
        fall = (  # all are there at first, so that the picture says something when it stands still
            f'<animate attributeName="y" values="88;88;-50;-50;88;88" keyTimes="0;.1;.16;{start:.2f};{stop:.2f};1" '
            f'dur="{seconds}s" repeatCount="indefinite"/>'
        )
        name = data.classes[int(data.test.labels[i])]
        parts.append(picture(images[i, 0], x, 88, 40, fall))
        fade = (
            f'<animate attributeName="opacity" values="1;1;0;0;1;1" keyTimes="0;.1;.12;{stop:.2f};{stop + 0.02:.2f};1" '
            f'dur="{seconds}s" repeatCount="indefinite"/>'
        )
        height = 166 + 21 * (turn % 2)
        parts.append(words(x + 20, height, f"{name} {places[i]:.2f}", "middle small", fade))
    return sheet(
        640,
        230,
        "Seven pictures of clothes fall onto their places between 0 and 1 on a curve",
        words(left, 30, "every image finds its place on the curve", "bold"),
        line(torch.tensor([[left, 140.0], [left + width, 140.0]]), "curve"),
        words(left - 4, 218, "0"),
        words(left + width - 4, 218, "1"),
        words(left + width / 2, 218, "position", "middle"),
        *parts,
    )


def knots() -> str:
    """The influence of each knot along the curve."""
    left, top, width, height = 50.0, 50.0, 340.0, 150.0
    at = torch.linspace(0, 1, 80)
    basis = sn.bspline_basis(at, KNOTS, DEGREE)
    place = there_and_back()
    now = sn.bspline_basis(place, KNOTS, DEGREE)
    parts = []
    for k in range(KNOTS):
        points = torch.stack((left + width * at, top + height * (1 - basis[:, k])), 1)
        parts.append(line(points, "", f'fill="none" stroke="{COLOURS[k]}" stroke-width="2.5"'))
        tall = height * now[:, k]
        x = 440 + 34 * k
        parts.append(
            f'<rect x="{x}" width="22" fill="{COLOURS[k]}">{moving("height", tall.tolist())}'
            f"{moving('y', (top + height - tall).tolist())}</rect>"
            + words(x + 11, top + height + 18, f"{k + 1}", "middle")
        )
    sweep = (left + width * place).tolist()
    return sheet(
        640,
        260,
        "Five bumps, the influence of five knots; at each position three of them are not zero",
        words(left, 28, "influence of each knot", "bold"),
        words(440, 28, "the mixture here", "bold"),
        line(torch.tensor([[left, top + height], [left + width, top + height]]), "line"),
        *parts,
        f'<line class="curve" y1="{top - 6}" y2="{top + height}">{moving("x1", sweep)}{moving("x2", sweep)}</line>',
        words(left - 4, top + height + 18, "0"),
        words(left + width - 4, top + height + 18, "1"),
        words(left + width / 2, top + height + 18, "position", "middle"),
        words(left, 248, "at most three knots are mixed, however many there are", "small"),
    )


def decision() -> str:
    """Features, a dot product, and a sigmoid: a position."""
    left, top, width, height = 330.0, 50.0, 260.0, 150.0
    score = 3 * torch.sin(torch.linspace(0, 2 * torch.pi, FRAMES + 1))
    at = torch.linspace(-3.4, 3.4, 60)

    def down(x: Tensor) -> Tensor:
        return top + height * (1 - torch.sigmoid(1.7 * x))

    def right(x: Tensor) -> Tensor:
        return left + width * (x + 3.4) / 6.8

    theta = torch.tensor([0.9, -0.6, 0.4, -0.9, 0.7])
    wobble = torch.linspace(0, 2 * torch.pi, FRAMES + 1)[:, None] + torch.arange(5) * 1.3
    rest = 0.5 * torch.cos(2 * wobble)
    rest = rest - (rest @ theta)[:, None] * theta / (theta @ theta)
    features = score[:, None] * theta / (theta @ theta) * 0.9 + rest  # their dot product is 0.9 of the score
    parts = []
    for i in range(5):
        tall = 26 * features[:, i]
        begins = torch.where(tall > 0, 100 - tall, torch.full_like(tall, 100.0))
        column = 40 + 30 * i
        grows = moving("height", tall.abs().tolist()) + moving("y", begins.tolist())
        parts.append(f'<rect x="{column}" width="20" fill="{COLOURS[1]}">{grows}</rect>')
        size = 30 * float(theta[i])
        start, size = 195 - max(size, 0), abs(size)
        parts.append(f'<rect x="{column}" y="{number(start)}" width="20" height="{number(size)}" fill="{COLOURS[0]}"/>')
    x, y = right(score), down(score)
    return sheet(
        640,
        260,
        "Features times decision parameters give a score; a sigmoid turns the score into a position",
        words(40, 28, "features of this image", "bold"),
        words(40, 152, "decision parameters", "bold"),
        *parts,
        line(torch.tensor([[36.0, 100.0], [190.0, 100.0]]), "line"),
        line(torch.tensor([[36.0, 195.0], [190.0, 195.0]]), "line"),
        words(225, 72, "multiply", "small"),
        words(225, 88, "and add up", "small"),
        line(torch.tensor([[225.0, 100.0], [300.0, 100.0], [292.0, 95.0], [300.0, 100.0], [292.0, 105.0]]), "line"),
        line(torch.tensor([[left, top], [left, top + height], [left + width, top + height]]), "line"),
        line(torch.stack((right(at), down(at)), 1), "curve"),
        f'<line stroke="{COLOURS[0]}" stroke-dasharray="3 3" x1="{left}">{moving("x2", x.tolist())}'
        f"{moving('y1', y.tolist())}{moving('y2', y.tolist())}</line>",
        f'<circle r="8" fill="{COLOURS[0]}">{moving("cx", x.tolist())}{moving("cy", y.tolist())}</circle>',
        f'<circle r="6" class="ink" cx="{left}">{moving("cy", y.tolist())}</circle>',
        words(left - 14, top + 5, "1"),
        words(left - 14, top + height, "0"),
        words(left, 28, "position", "bold"),
        words(left + width / 2, top + height + 22, "score", "middle"),
    )


def regulariser() -> str:
    """Positions of 90 samples of three classes under ``sn.MutualInformation`` itself, nothing else pulling at them."""
    torch.manual_seed(0)
    samples, classes = 90, 3
    labels = torch.arange(samples) % classes
    free = (0.15 * torch.randn(samples)).requires_grad_()
    frames = [free.detach().sigmoid()]
    for specialization in (0.0, 1.0):
        term = sn.MutualInformation(classes, utilization=1.0, specialization=specialization, estimator="kernel")
        optimizer = torch.optim.Adam([free], lr=0.05)
        for step in range(120):
            optimizer.zero_grad()
            term({"layer": free.sigmoid()[:, None]}, labels).backward()
            optimizer.step()
            if step % 10 == 9:
                frames.append(free.detach().sigmoid())
    third = len(frames) // 2
    order = [frames[0]] * 6 + frames[1 : third + 1] + [frames[third]] * 6 + frames[third + 1 :] + [frames[-1]] * 8
    path = torch.stack(order)
    left, width, seconds = 50.0, 540.0, 12
    dots = [
        f'<circle r="5" cy="{70 + 3.2 * (i % 30):.0f}" fill="{COLOURS[int(labels[i])]}" fill-opacity="0.8">'
        f"{moving('cx', (left + width * path[:, i]).tolist(), seconds)}</circle>"
        for i in range(samples)
    ]
    total = len(order) - 1
    turns = [0.0, 6 / total, (6 + third + 5) / total, 1.0]
    said = ("all images in one place: the curve is wasted", "asked to spread: images use the whole curve",
            "asked to sort by class, too: each class gathers")  # fmt: skip
    captions = []
    for turn, text in enumerate(said):
        shown = [f"{1 if k == turn else 0}" for k in range(3)]
        inside = (
            f'<animate attributeName="opacity" calcMode="discrete" values="{";".join(shown)}" '
            f'keyTimes="{";".join(number(t) for t in turns[:3])}" dur="{seconds}s" repeatCount="indefinite"/>'
        )
        captions.append(words(left, 30, text, "bold", inside))
    return sheet(
        640,
        230,
        "Dots of three classes on a line from 0 to 1: gathered in the middle, then spread, then sorted by class",
        *captions,
        line(torch.tensor([[left, 182.0], [left + width, 182.0]]), "curve"),
        *dots,
        words(left - 4, 208, "0"),
        words(left + width - 4, 208, "1"),
        words(left + width / 2, 208, "position; three colours are three classes", "middle"),
    )


PICTURES: dict[str, Draw] = {
    "curve": curve,
    "position": position,
    "knots": knots,
    "decision": decision,
    "regulariser": regulariser,
}


def path_of(name: str) -> Path:
    return FIGURES / f"concept-{name}.svg"


def main(names: Sequence[str] = ()) -> None:
    for name in names or PICTURES:
        path_of(name).write_text(PICTURES[name]())
        print(f"{path_of(name).name}: {path_of(name).stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
