"""A small native runtime for deployed networks: one call an image, whatever the number of layers."""

from ...kernels import Unavailable
from .build import build
from .engine import Engine
from .program import STEP, Kind, Program

__all__ = ["STEP", "Engine", "Kind", "Program", "Unavailable", "build"]
