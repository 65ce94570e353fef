"""Five small folders of drawn images, as users have them: few, of mixed sizes, unbalanced, many classes, grey, cut out.

Each class is a drawing of its own: strokes or a shape, which is turned, scaled, moved, coloured and made noisy anew for
every image.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy
from PIL import Image, ImageDraw, ImageFilter

Random = numpy.random.Generator
Points = list[tuple[float, float]]  # within the unit circle


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A folder: images of each class, the sides they have, and how one is painted from its drawing."""

    counts: tuple[int, ...]
    sides: tuple[int, int]
    drawing: Callable[[int, Random], list[Points]]
    paint: Callable[[list[Points], tuple[int, int], Random], Image.Image]


def make(kind: str, folder: Path, counts: Sequence[int] = (), seed: int = 0, strokes: int = 0) -> Path:
    """Draw a folder of a kind; other seeds give other images of the same classes, other ``strokes`` other classes.

    Shapes have names and stay what they are.
    """
    chosen = KINDS[kind]
    for label, count in enumerate(counts or chosen.counts):
        lines = chosen.drawing(label, numpy.random.default_rng([strokes, label]))
        random = numpy.random.default_rng([seed, label])
        place = folder / f"class {label:03d}"
        place.mkdir(parents=True)
        for number in range(count):
            width, height = (int(random.integers(*chosen.sides, endpoint=True)) for _ in range(2))
            chosen.paint(lines, (width, height), random).save(place / f"{number:03d}.png")
    return folder


# Drawings


def polygon(label: int, random: Random) -> list[Points]:
    """A circle, a square, a triangle, a star, a cross: outlines that a turn does not give away."""
    corners = (24, 4, 3, 10, 12)[label]
    radii = {10: (1.0, 0.45), 12: (1.0, 1.0, 0.45)}.get(corners, (1.0,))
    angles = [2 * math.pi * corner / corners for corner in range(corners + 1)]
    return [[(radii[i % len(radii)] * math.cos(a), radii[i % len(radii)] * math.sin(a)) for i, a in enumerate(angles)]]


def notched(label: int, random: Random) -> list[Points]:
    """A disc, whole or with a slice taken out of it."""
    angles = [2 * math.pi * step / 36 for step in range(37)]
    radii = [0.0 if label and 14 <= step <= 21 else 1.0 for step in range(37)]
    return [[(r * math.cos(a), r * math.sin(a)) for r, a in zip(radii, angles, strict=True)]]


def glyph(label: int, random: Random) -> list[Points]:
    """Three random strokes."""
    return [[tuple(random.uniform(-0.9, 0.9, 2)) for _ in range(3)] for _ in range(3)]


# Paintings


def placed(lines: list[Points], size: tuple[int, int], random: Random, turn: float) -> list[Points]:
    """The drawing somewhere in an image, turned by up to ``turn`` radians, a little sheared."""
    angle, shear = random.uniform(-turn, turn), random.uniform(-0.2, 0.2)
    scale = min(size) * random.uniform(0.28, 0.42)
    middle = [side / 2 + random.uniform(-0.12, 0.12) * min(size) for side in size]
    cosine, sine = scale * math.cos(angle), scale * math.sin(angle)

    def place(x: float, y: float) -> tuple[float, float]:
        x += shear * y
        return middle[0] + cosine * x - sine * y, middle[1] + sine * x + cosine * y

    return [[place(*point) for point in line] for line in lines]


def draw(image: Image.Image, lines: list[Points], colour: int | tuple[int, ...], filled: bool) -> None:
    """Strokes, or areas."""
    pen = ImageDraw.Draw(image)
    for line in lines:
        if filled:
            pen.polygon(line, fill=colour)
        else:
            pen.line(line, fill=colour, width=max(min(image.size) // 12, 1), joint="curve")


def noisy(image: Image.Image, random: Random, deviation: float) -> Image.Image:
    """A little out of focus, and with noise."""
    pixels = numpy.asarray(image.filter(ImageFilter.GaussianBlur(random.uniform(0, 0.02) * min(image.size))), float)
    return Image.fromarray((pixels + random.normal(0, deviation, pixels.shape)).clip(0, 255).astype(numpy.uint8))


def tint(random: Random, light: bool) -> tuple[int, ...]:
    """A light colour, or a dark one."""
    return tuple(map(int, random.integers(0, 110, 3) + 145 * light))


def in_colour(filled: bool, turn: float) -> Callable[[list[Points], tuple[int, int], Random], Image.Image]:
    """Light before dark or the other way round, with a line of the object's colour across it."""

    def paint(lines: list[Points], size: tuple[int, int], random: Random) -> Image.Image:
        light = bool(random.integers(0, 2))
        image = Image.new("RGB", size, tint(random, not light))
        across = [(float(random.uniform(0, size[0])), y) for y in (0.0, float(size[1]))]
        draw(image, [across, *placed(lines, size, random, turn)], tint(random, light), filled)
        return noisy(image, random, 16)

    return paint


def in_grey(lines: list[Points], size: tuple[int, int], random: Random) -> Image.Image:
    """Ink on paper, both of any shade."""
    image = Image.new("L", size, int(random.integers(120, 256)))
    draw(image, placed(lines, size, random, 0.4), int(random.integers(0, 100)), filled=False)
    return noisy(image, random, 20)


def cut_out(lines: list[Points], size: tuple[int, int], random: Random) -> Image.Image:
    """Dark or light on nothing: what is transparent hides noise."""
    pixels = random.integers(0, 256, (size[1], size[0], 3)).astype(numpy.uint8)
    mask = Image.new("L", size, 0)
    draw(mask, placed(lines, size, random, math.pi), 255, filled=True)
    image = Image.composite(
        Image.new("RGB", size, tint(random, bool(random.integers(0, 2)))), Image.fromarray(pixels), mask
    )
    image.putalpha(mask)
    return image


KINDS: Mapping[str, Kind] = {
    "mixed sizes": Kind(counts=(40,) * 3, sides=(24, 96), drawing=polygon, paint=in_colour(True, math.pi)),
    "9 to 1": Kind(counts=(180, 20), sides=(40, 64), drawing=notched, paint=in_colour(True, math.pi)),
    "100 classes": Kind(counts=(20,) * 100, sides=(32, 48), drawing=glyph, paint=in_colour(False, 0.3)),
    "grey": Kind(counts=(40,) * 8, sides=(28, 40), drawing=glyph, paint=in_grey),
    "transparent": Kind(counts=(40,) * 5, sides=(48, 128), drawing=polygon, paint=cut_out),
}
