"""Kernels of our own for the CPU, compiled for this machine when they are first needed. All of it is optional."""

from .build import Unavailable, library, load
from .calls import (
    Geometry,
    arrange,
    backward,
    channels_last,
    forward,
    has_kernel,
    pool,
    propose,
    row_length,
    spread,
    without,
)

__all__ = [
    "Geometry",
    "Unavailable",
    "arrange",
    "backward",
    "channels_last",
    "forward",
    "has_kernel",
    "library",
    "load",
    "pool",
    "propose",
    "row_length",
    "spread",
    "without",
]
