"""A small native runtime for deployed networks: one call an image, whatever the number of layers."""

from __future__ import annotations

import json

from torch import nn

from ..capture import Inputs, Obstacles, capture
from ..formats import Exported
from .engine import Engine, build
from .file import current, to_bytes
from .lowering import native_program
from .program import STEP, Kind, Program

__all__ = ["STEP", "Engine", "Kind", "Program", "build", "dump", "load", "native_program", "to_bytes"]


def dump(net: nn.Module, example: Inputs, any_batch: bool, metadata: str, obstacles: Obstacles) -> bytes:
    """The engine's program and its parameters; batches of any size are several images one by one."""
    captured = capture(net, example[:1], any_batch=False, many_rows=True, obstacles=obstacles)
    return to_bytes(native_program(captured), metadata)


def load(content: bytes, threads: int) -> Exported:
    """A program in the native runtime."""
    engine = Engine(current(content), threads)
    return Exported(json.loads(engine.metadata), engine)
