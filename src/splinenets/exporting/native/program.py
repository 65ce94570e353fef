"""What the engine executes: an array of steps, and the parameters they read. The layout is that of engine.cpp."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

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


IMAGE = np.dtype([(name, np.int64) for name in ("offset", "channels", "height", "width", "margin", "own")])
MATRIX = np.dtype([(name, np.int64) for name in ("type", "offset", "scale")])
STEP = np.dtype(
    [
        ("kind", np.int64),
        *[(name, IMAGE) for name in ("in", "out", "other")],
        *[(name, np.int64) for name in ("relu", "kernel_h", "kernel_w", "stride", "pad_h", "pad_w", "dilation")],
        ("weight", MATRIX),
        *[
            (name, np.int64)
            for name in ("sums", "mixed", "bias", "basis", "splines", "dims", "knots", "degree", "rows", "length")
        ],
        *[(name, np.int64) for name in ("matching", "bounded", "decision_knots", "decision_degree")],
        *[(name, np.float64) for name in ("diffusion", "slope")],
    ]
)


@dataclass(frozen=True)
class Program:
    """Steps (n,) of type ``STEP``, parameters (bytes,), and the floats of memory that one image needs."""

    steps: NDArray[np.void]
    weights: NDArray[np.uint8]
    arena: int
