"""What the engine executes: steps, and where their images lie in memory.

``Step`` is the one description of a step. Its fields, in their order, are those of ``Step`` in step.h, and whoever
loads the engine compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Annotated, NamedTuple, TypeAlias, get_type_hints

import numpy as np
from numpy.typing import NDArray

LANES = 16  # channels in a block


class Kind(IntEnum):
    """What a step does."""

    INPUT = 0
    CONV = 1
    LINEAR = 2
    MAXPOOL = 3
    SUM = 4
    MEAN = 5
    ADD = 6
    SUBSAMPLE = 7
    PROJECT = 8
    LOCATE = 9
    MIX = 10
    OUTPUT = 11
    DEPTHWISE = 12
    AVGPOOL = 13
    SUBTRACT = 14
    MULTIPLY = 15
    AFFINE = 16
    NORM = 17
    COPY = 18
    TELL = 19
    PLACE = 20


ALONE = (Kind.MEAN, Kind.LOCATE, Kind.MIX, Kind.TELL, Kind.PLACE)  # what threads do without waiting for each other


ADDING = (  # what can add up the channels of the image that it makes
    *(Kind.INPUT, Kind.CONV, Kind.DEPTHWISE, Kind.MAXPOOL, Kind.AVGPOOL),
    *(Kind.ADD, Kind.SUBTRACT, Kind.MULTIPLY, Kind.AFFINE),
)


class Activation(IntEnum):
    """What becomes of a step's numbers at its end."""

    NONE = 0
    RELU = 1
    RELU6 = 2
    LEAKY_RELU = 3
    SIGMOID = 4
    SILU = 5
    HARD_SIGMOID = 6
    HARD_SWISH = 7
    GELU = 8
    GELU_TANH = 9
    TANH = 10


@dataclass(eq=False)
class Image:
    """An image or a vector inside the network; where it lies, in floats, is decided when everything is known."""

    offset: int = field(default=-1, kw_only=True)
    channels: int = 0
    height: int = 1
    width: int = 1
    margin: int = 0
    own: bool = False  # every thread has its own

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        return self.channels, self.height, self.width

    @property
    def size(self) -> int:
        """Floats, margins included."""
        return padded(self.channels) * (self.height + 2 * self.margin) * (self.width + 2 * self.margin)

    @property
    def place(self) -> tuple[int, ...]:
        """What another image must have in common to lie in the same place: then margins stay 0."""
        return *self.shape, self.margin, self.own


class Matrix(NamedTuple):
    """Numbers among the parameters, and the scale of each row, in bytes; -1: none."""

    type: int = 0
    offset: int = -1
    scale: int = -1


NOWHERE, NOTHING = Image(0, 0, 0), Matrix()  # where there is none
Start: TypeAlias = Annotated[Image, "start"]  # an image of which the engine is told only where it begins


@dataclass(eq=False)
class Step:
    """One step. All have the same fields, of which each uses some; see step.h."""

    kind: Kind
    input: Image = NOWHERE
    output: Image = NOWHERE
    other: Image = NOWHERE  # what is added, or the parent's positions
    activation: Activation = Activation.NONE
    kernel_h: int = 0
    kernel_w: int = 0
    stride_h: int = 1
    stride_w: int = 1
    pad_h: int = 0
    pad_w: int = 0
    dilation_h: int = 1
    dilation_w: int = 1
    groups: int = 1  # of a norm, 0: each pixel by itself
    inclusive: bool = False  # whether averages count pixels beyond the border
    weight: Matrix = NOTHING
    sums: Start = NOWHERE  # what every thread adds up, or has added up
    mixed: Start = NOWHERE  # filters of this sample
    narrow: Start = NOWHERE  # features of 16 bits
    bias: int = -1
    basis: Start = NOWHERE  # active knots and their weights
    splines: int = 0
    dims: int = 0
    knots: int = 0
    degree: int = 0
    rows: int = 0
    length: int = 0
    matching: int = -1
    bounded: bool = False
    closed: bool = False
    decision_knots: int = 0
    decision_degree: int = 0
    kept: bool = False  # can be left out where the network is told the same as before
    blocked: bool = False  # knots of several splines, or decision parameters, lie as filters do
    based: bool = False  # the first knots of all dims are one row, their mean, and the others are differences from them
    source: int = 0
    target: int = 0
    count: int = 0
    diffusion: float = 0.0
    slope: float = 0.0
    epsilon: float = 0.0

    def window(self, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair) -> Step:
        """Look at an image through a window; in both directions, height first."""
        self.kernel_h, self.kernel_w = kernel
        self.stride_h, self.stride_w = stride
        self.pad_h, self.pad_w = padding
        self.dilation_h, self.dilation_w = dilation
        return self

    def touched(self) -> list[Image]:
        """All images that must lie somewhere while this step runs, but for scratch memory; each once."""
        images = dict.fromkeys((self.input, self.other, self.output, self.sums))
        return [image for image in images if image is not NOWHERE]


Pair: TypeAlias = tuple[int, int]
NUMBERS: dict[object, type[np.int64 | np.float64]] = {
    **dict.fromkeys((int, bool, Kind, Activation, Start), np.int64),
    float: np.float64,
}


def _dtype_of(record: type) -> np.dtype[np.void]:
    hints = get_type_hints(record, include_extras=True)
    return np.dtype([(name, NUMBERS.get(hint) or _dtype_of(hint)) for name, hint in hints.items()])


STEP = _dtype_of(Step)


def layout() -> list[str]:
    """How a step lies in memory, as the engine describes it: a line for each number."""
    names = {"kinds": Kind, "activations": Activation}
    lists = [f"{title} {', '.join(each.name for each in kind)}" for title, kind in names.items()]
    return [*_lines(STEP), f"end {STEP.itemsize}", f"lanes {LANES}", *lists]


def _lines(record: np.dtype[np.void], prefix: str = "", start: int = 0) -> Iterator[str]:
    for name in record.names or ():
        inner, offset = record.fields[name][:2]  # type: ignore[index]
        if inner.names:
            yield from _lines(inner, f"{prefix}{name}.", start + offset)
        else:
            yield f"{prefix}{name} {start + offset} {inner.kind}{inner.itemsize}"


def padded(count: int) -> int:
    """Up to whole blocks."""
    return -(-count // LANES) * LANES


class Told(NamedTuple):
    """One number that a network is told: its name, and the values at positions 0 and 1."""

    name: str
    low: float
    high: float


@dataclass(frozen=True)
class Program:
    """Steps (n,) of type ``STEP``, parameters (bytes,), and the floats of memory that one image needs."""

    steps: NDArray[np.void]
    weights: NDArray[np.uint8]
    arena: int
    told: tuple[Told, ...] = ()


def assemble(
    steps: Sequence[Step], scratch: Sequence[Image], parameters: NDArray[np.uint8], told: Sequence[Told] = ()
) -> Program:
    """Give every image a place, behind scratch memory; images alike share one when their times do not meet."""
    arena = 0
    for image in scratch:
        image.offset, arena = arena, arena + image.size
    ends = _ends(steps)
    free: dict[tuple[int, ...], list[int]] = {}
    for number, step in enumerate(steps):
        for image in (i for i in (step.output, step.sums) if i is not NOWHERE and i.offset < 0):
            places = free.setdefault(image.place, [])
            if places:
                image.offset = places.pop()
            else:
                image.offset, arena = arena, arena + image.size
        for image in ends.get(number, ()):
            free.setdefault(image.place, []).append(image.offset)
    return Program(np.array([_numbers(step) for step in steps], STEP), parameters, arena, tuple(told))


def _ends(steps: Sequence[Step]) -> dict[int, list[Image]]:
    """The images whose time ends with a step. Sums end later: until all wait, a thread may read those of another."""
    last = {image: number for number, step in enumerate(steps) for image in step.touched()}
    for number, step in enumerate(steps):
        if step.kind in ALONE and step.sums is not NOWHERE:
            waits = (i for i in range(number, len(steps)) if steps[i].kind not in ALONE)
            last[step.sums] = max(last[step.sums], next(waits, len(steps)))
    ends: dict[int, list[Image]] = {}
    for image, number in last.items():
        ends.setdefault(number, []).append(image)
    return ends


Number: TypeAlias = int | float


def _numbers(step: Step) -> tuple[Number | tuple[Number, ...], ...]:
    return tuple(_written(getattr(step, f.name), whole=bool(STEP[f.name].names)) for f in fields(step))


def _written(value: Image | Matrix | Number, *, whole: bool) -> Number | tuple[Number, ...]:
    if isinstance(value, Image):
        return tuple(getattr(value, f.name) for f in fields(value)) if whole else value.offset
    return value
