"""engine.cpp: compiled for this machine once, and a program in its memory, ready to run."""

from __future__ import annotations

import os
import threading
import weakref
from ctypes import CDLL, Structure, addressof, byref, c_char_p, c_int64, c_void_p
from functools import lru_cache
from itertools import zip_longest
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...basis import basis_matrix
from ...kernels import Unavailable, load
from ...kernels.build import SOURCE as KERNELS
from ...operators import readable
from .program import Kind, Program, layout

SOURCE = Path(__file__).with_name("engine.cpp")
FLAGS = ("-std=c++20", "-O3", "-march=native", "-fPIC", "-shared", "-pthread", f"-I{KERNELS.parent}")

MOST_THREADS = 1024  # each has memory of its own


class _Plan(Structure):
    """The same order as ``Plan`` in engine.cpp."""

    _fields_ = [
        *(("steps", c_void_p), ("count", c_int64), ("weights", c_void_p), ("matrices", c_void_p)),
        *(("arena", c_int64), ("threads", c_int64)),
    ]


@lru_cache(maxsize=1)
def build() -> CDLL:
    """The engine for this machine: compiled when it is first asked for, which takes seconds, and found again later."""
    try:
        library = load(SOURCE, FLAGS)
    except Unavailable as error:
        raise Unavailable(f"the native runtime cannot be used, {error}: export to onnx instead") from None
    library.splinenets_layout.restype = c_char_p
    check_layout(library.splinenets_layout().decode().splitlines())
    library.splinenets_create.argtypes, library.splinenets_create.restype = [c_void_p], c_void_p
    library.splinenets_run.argtypes, library.splinenets_run.restype = [c_void_p, c_void_p, c_void_p, c_int64], None
    library.splinenets_destroy.argtypes, library.splinenets_destroy.restype = [c_void_p], None
    return library


def check_layout(described: list[str]) -> None:
    """Raise unless steps lie in the engine's memory as they do in programs."""
    for theirs, ours in zip_longest(described, layout(), fillvalue="nothing"):
        if theirs != ours:
            raise Unavailable(
                f"the native runtime cannot be used, its step has {theirs!r} where a program has {ours!r}: "
                "export to onnx instead"
            )


class Engine:
    """Images (N, C, H, W), float32 -> logits (N, classes). Threads share one image, or take one each of several."""

    def __init__(self, program: Program, threads: int = 1) -> None:
        if not 1 <= threads <= MOST_THREADS:
            raise ValueError(f"threads must lie between 1 and {MOST_THREADS}, got {threads}")
        self._steps = steps = np.ascontiguousarray(program.steps)
        first = steps[steps["kind"] == Kind.INPUT][0]["output"]
        last = steps[steps["kind"] == Kind.OUTPUT][0]["input"]
        self.input, self.classes = tuple(int(first[n]) for n in ("channels", "height", "width")), int(last["channels"])
        # torch's memory begins at a multiple of 64, as numpy's may not
        self._weights = torch.empty(len(program.weights), dtype=torch.uint8)
        self._weights.numpy()[:] = program.weights
        degrees = range(1 + max(int(steps[name].max()) for name in ("degree", "decision_degree")))
        self._bases = [torch.tensor(basis_matrix(degree), dtype=torch.float32) for degree in degrees]
        self._matrices = (c_void_p * len(degrees))(*(basis.data_ptr() for basis in self._bases))
        self._arena, self._threads = program.arena, threads
        self._start()

    def _start(self) -> None:
        """Begin the engine's threads in this process."""
        library = build()
        plan = _Plan(self._steps.ctypes.data, len(self._steps), self._weights.data_ptr(), addressof(self._matrices))
        plan.arena, plan.threads = self._arena, self._threads
        self._run, self._handle = library.splinenets_run, library.splinenets_create(byref(plan))
        if not self._handle:
            raise MemoryError(f"not enough memory for the native runtime with {self._threads} threads")
        self._lock, self._process = threading.Lock(), os.getpid()
        weakref.finalize(self, _stop, library, self._handle, self._process)

    def __call__(self, images: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, classes)."""
        if images.dim() != 4 or tuple(images.shape[1:]) != self.input or images.dtype != torch.float32:
            raise ValueError(
                f"the network takes float32 images of shape (N, {', '.join(map(str, self.input))}), "
                f"got {images.dtype} of shape {tuple(images.shape)}"
            )
        if not readable(images):
            raise ValueError(
                f"the network takes plain tensors on the CPU, got {type(images).__name__} on {images.device}"
            )
        images = images.contiguous()
        logits = torch.empty(len(images), self.classes)
        if self._process != os.getpid():  # a process that was forked has none of its parent's threads
            self._start()
        if len(images):
            with self._lock:
                self._run(self._handle, images.data_ptr(), logits.data_ptr(), len(images))
        return logits


def _stop(library: CDLL, handle: int, process: int) -> None:
    """End an engine, in the process whose threads it has: in another, nobody would answer."""
    if process == os.getpid():
        library.splinenets_destroy(handle)
