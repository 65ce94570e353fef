"""What the engine executes: steps and the parameters they read, and the file that holds both.

``Step`` is the one description of a step. Its fields, in their order, are those of ``Step`` in engine.cpp, and whoever
loads the engine compares the two.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Annotated, NamedTuple, TypeAlias, get_type_hints

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load, save

from ..formats import KEY, NewerFile

LANES = 16  # channels in a block
VERSION = 1  # of the file


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
    """Numbers among the parameters, and the scale of each row, in bytes; a scale of -1: none."""

    type: int = 0
    offset: int = 0
    scale: int = 0


NOWHERE, NOTHING = Image(0, 0, 0), Matrix()  # where there is none
Start: TypeAlias = Annotated[Image, "start"]  # an image of which the engine is told only where it begins


@dataclass(eq=False)
class Step:
    """One step. All have the same fields, of which each uses some; see engine.cpp."""

    kind: Kind
    input: Image = NOWHERE
    output: Image = NOWHERE
    other: Image = NOWHERE  # what is added, or the parent's positions
    relu: bool = False
    kernel_h: int = 0
    kernel_w: int = 0
    stride: int = 1
    pad_h: int = 0
    pad_w: int = 0
    dilation: int = 1
    weight: Matrix = NOTHING
    sums: Start = NOWHERE  # what every thread adds up, or has added up
    mixed: Start = NOWHERE  # filters of this sample
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
    decision_knots: int = 0
    decision_degree: int = 0
    diffusion: float = 0.0
    slope: float = 0.0

    def touched(self) -> list[Image]:
        """All images that must lie somewhere while this step runs, but for scratch memory; each once."""
        images = dict.fromkeys((self.input, self.other, self.output, self.sums))
        return [image for image in images if image is not NOWHERE]


NUMBERS: dict[object, type[np.int64 | np.float64]] = {
    **dict.fromkeys((int, bool, Kind, Start), np.int64),
    float: np.float64,
}


def _dtype_of(record: type) -> np.dtype[np.void]:
    hints = get_type_hints(record, include_extras=True)
    return np.dtype([(name, NUMBERS.get(hint) or _dtype_of(hint)) for name, hint in hints.items()])


STEP = _dtype_of(Step)


def layout() -> list[str]:
    """How a step lies in memory, as the engine describes it: a line for each number."""
    kinds = ", ".join(kind.name for kind in Kind)
    return [*_lines(STEP), f"end {STEP.itemsize}", f"lanes {LANES}", f"kinds ({kinds})"]


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


@dataclass(frozen=True)
class Program:
    """Steps (n,) of type ``STEP``, parameters (bytes,), and the floats of memory that one image needs."""

    steps: NDArray[np.void]
    weights: NDArray[np.uint8]
    arena: int


def assemble(steps: Sequence[Step], scratch: Sequence[Image], parameters: NDArray[np.uint8]) -> Program:
    """Give every image a place, behind scratch memory; images alike share one when their times do not meet."""
    arena = 0
    for image in scratch:
        image.offset, arena = arena, arena + image.size
    last = {image: number for number, step in enumerate(steps) for image in step.touched()}
    free: dict[tuple[int, ...], list[int]] = {}
    for number, step in enumerate(steps):
        for image in (i for i in (step.output, step.sums) if i is not NOWHERE and i.offset < 0):
            places = free.setdefault(image.place, [])
            if places:
                image.offset = places.pop()
            else:
                image.offset, arena = arena, arena + image.size
        for image in step.touched():
            if last[image] == number:
                free.setdefault(image.place, []).append(image.offset)
    return Program(np.array([_numbers(step) for step in steps], STEP), parameters, arena)


Number: TypeAlias = int | float


def _numbers(step: Step) -> tuple[Number | tuple[Number, ...], ...]:
    return tuple(_written(getattr(step, f.name), whole=bool(STEP[f.name].names)) for f in fields(step))


def _written(value: Image | Matrix | Number, *, whole: bool) -> Number | tuple[Number, ...]:
    if isinstance(value, Image):
        return tuple(getattr(value, f.name) for f in fields(value)) if whole else value.offset
    return value


def to_bytes(program: Program, metadata: str) -> bytes:
    """A safetensors file behind its version and its SHA-256: the engine checks nothing while it runs."""
    tensors = {
        "steps": torch.frombuffer(bytearray(program.steps.tobytes()), dtype=torch.uint8),
        "weights": torch.from_numpy(program.weights.copy()),
        "arena": torch.tensor(program.arena),
    }
    content = save(tensors, metadata={KEY: metadata})
    return b"splinenets native %d\n" % VERSION + hashlib.sha256(content).digest() + content


def from_bytes(sealed: bytes) -> tuple[Program, str]:
    """A program and its metadata; a damaged file must not reach the engine."""
    found = re.match(rb"splinenets native (\d+)\n(.{32})", sealed, flags=re.DOTALL)
    if found and int(found[1]) > VERSION:
        raise NewerFile(
            f"is of version {int(found[1])} of the native format, newer than this package reads ({VERSION})"
        )
    content = sealed[found.end() if found else 0 :]
    if found is None or hashlib.sha256(content).digest() != found[2]:
        raise ValueError("its content does not have the SHA-256 that stands before it")
    tensors = load(content)
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    steps = tensors["steps"].numpy().view(STEP)
    return Program(steps, tensors["weights"].numpy(), int(tensors["arena"])), header["__metadata__"][KEY]
