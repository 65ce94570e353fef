"""Labels of dots in a drawing that keep out of the way of dots, lines and each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Dot = tuple[float, float]
GAP = 9.0  # between the middle of a dot and its label


@dataclass(frozen=True)
class Box:
    """A rectangle: its left, upper corner, width and height."""

    left: float
    top: float
    width: float
    height: float

    def overlap(self, other: Box) -> float:
        """The area that both cover."""
        wide = min(self.left + self.width, other.left + other.width) - max(self.left, other.left)
        high = min(self.top + self.height, other.top + other.height) - max(self.top, other.top)
        return max(wide, 0.0) * max(high, 0.0)


def around(dot: Dot, width: float, height: float) -> list[Box]:
    """Where a label may stand beside its dot, best first."""
    x, y = dot
    right, left, middle = x + GAP, x - GAP - width, x - width / 2
    above, below, level = y - GAP - height, y + GAP, y - height / 2
    places = [(right, level), (left, level), (right, below), (right, above), (left, below), (left, above)]
    return [Box(*place, width, height) for place in [*places, (middle, above), (middle, below)]]


def along(start: Dot, end: Dot, steps: int = 24) -> list[Box]:
    """A line as small boxes."""
    shares = [step / steps for step in range(steps + 1)]
    return [
        Box(start[0] + (end[0] - start[0]) * share - 2, start[1] + (end[1] - start[1]) * share - 2, 4, 4)
        for share in shares
    ]


def place(
    dots: Sequence[Dot], sizes: Sequence[tuple[float, float]], lines: Sequence[tuple[Dot, Dot]], sheet: Box
) -> list[Box]:
    """A box for the label of each dot, with its (width, height): the place around it that covers the least."""
    taken = [Box(x - 6, y - 6, 12, 12) for x, y in dots] + [box for ends in lines for box in along(*ends)]
    placed: list[Box] = []
    for dot, (width, height) in zip(dots, sizes, strict=True):

        def cost(box: Box) -> float:
            outside = box.width * box.height - box.overlap(sheet)
            return 10 * outside + sum(3 * box.overlap(p) for p in placed) + sum(box.overlap(t) for t in taken)

        placed.append(min(around(dot, width, height), key=cost))
    return placed
