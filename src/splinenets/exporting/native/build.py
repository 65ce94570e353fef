"""engine.cpp -> a library for this machine, compiled once and kept. Where that cannot be done, a sentence says why."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from pathlib import Path

from ...kernels import Unavailable, load

SOURCE = Path(__file__).with_name("engine.cpp")
FLAGS = ("-std=c++20", "-O3", "-march=native", "-fPIC", "-shared", "-pthread")


@lru_cache(maxsize=1)
def build() -> ctypes.CDLL:
    """The engine for this machine: compiled when it is first asked for, which takes seconds, and found again later."""
    try:
        return load(SOURCE, FLAGS)
    except Unavailable as error:
        raise Unavailable(f"the native runtime cannot be used, {error}: export to onnx instead") from None
