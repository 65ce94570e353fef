"""Steps of the native runtime, and where their images lie in its memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .program import LANES, STEP, Kind, Program


@dataclass(eq=False)
class Value:
    """An image or a vector inside the network; where it lies is decided when everything is known."""

    channels: int
    height: int = 1
    width: int = 1
    margin: int = 0
    own: bool = False  # every thread has its own
    offset: int = -1

    @property
    def size(self) -> int:
        """Floats, margins included."""
        return -(-self.channels // LANES) * (self.height + 2 * self.margin) * (self.width + 2 * self.margin) * LANES

    @property
    def place(self) -> tuple[int, ...]:
        """What another value must have in common to lie in the same place: then margins stay 0."""
        return *self.shape, self.margin, int(self.own)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        return self.channels, self.height, self.width


@dataclass(eq=False)
class Step:
    """A step before it has a place in memory; ``fields`` are those of ``STEP`` that are plain numbers."""

    kind: Kind
    inputs: dict[str, Value]  # "in" and "other"
    out: Value | None
    fields: dict[str, Any] = field(default_factory=dict)
    sums: Value | None = None  # what every thread adds up, or has added up

    def touched(self) -> set[Value]:
        """All values that must lie somewhere while this step runs."""
        return {*self.inputs.values(), *(v for v in (self.out, self.sums) if v is not None)}


def place(steps: Sequence[Step], parameters: NDArray[np.uint8]) -> Program:
    """Give every value a place; values of the same shape share one when their times do not meet."""
    for step in steps:
        if step.kind == Kind.CONV:
            source = step.inputs["in"]
            source.margin = max(source.margin, step.fields.pop("margin"))
    scratch_weights = max((s.fields.get("mixed_size", 0) for s in steps), default=0)
    scratch_basis = max((s.fields.get("basis_size", 0) for s in steps), default=0)
    arena = scratch_weights + scratch_basis
    last = {value: n for n, step in enumerate(steps) for value in step.touched()}
    free: dict[tuple[int, ...], list[int]] = {}
    records = np.zeros(len(steps), STEP)
    for number, step in enumerate(steps):
        for value in (v for v in (step.out, step.sums) if v is not None and v.offset < 0):
            places = free.setdefault(value.place, [])
            if places:
                value.offset = places.pop()
            else:
                value.offset, arena = arena, arena + value.size
        _record(records[number], step, scratch_weights)
        for value in step.touched():
            if last[value] == number:
                free.setdefault(value.place, []).append(value.offset)
    return Program(records, parameters, arena)


def _record(record: Any, step: Step, basis: int) -> None:
    """Fill a record of ``STEP``; mixed filters lie first in memory, bases behind them."""
    record["kind"] = step.kind
    for name in ("mixed", "bias", "basis", "matching"):
        record[name] = -1
    record["sums"] = -1 if step.sums is None else step.sums.offset
    record["other"]["offset"] = -1
    record["stride"] = record["dilation"] = 1
    for name, value in (*step.inputs.items(), *([("out", step.out)] if step.out else ())):
        record[name] = (value.offset, *value.shape, value.margin, value.own)
    for name, number in step.fields.items():
        if not name.endswith("_size"):
            record[name] = basis if name == "basis" else number
