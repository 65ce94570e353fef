"""A program in memory, ready to run."""

from __future__ import annotations

import ctypes
import threading
import weakref

import numpy as np
import torch
from torch import Tensor

from ...kernels import Unavailable
from .build import build
from .program import LANES, STEP, Kind, Program


class Engine:
    """Images (N, C, H, W), float32 -> logits (N, classes). Threads share one image, or take one each of several."""

    def __init__(self, program: Program, threads: int = 1) -> None:
        if threads < 1:
            raise ValueError(f"threads must be 1 or more, got {threads}")
        library = build()
        library.splinenets_create.restype = ctypes.c_void_p
        library.splinenets_step_size.restype = ctypes.c_int64
        if library.splinenets_step_size() != STEP.itemsize or library.splinenets_lanes() != LANES:
            raise Unavailable("the native runtime was built from another source: export to onnx instead")
        first = program.steps[program.steps["kind"] == Kind.INPUT][0]["out"]
        last = program.steps[program.steps["kind"] == Kind.OUTPUT][0]["in"]
        self.input, self.classes = tuple(int(first[n]) for n in ("channels", "height", "width")), int(last["channels"])
        self._weights = torch.empty(
            len(program.weights), dtype=torch.uint8
        )  # begins at a multiple of 64, as numpy's may not
        self._weights.numpy()[:] = program.weights
        steps = np.ascontiguousarray(program.steps)
        self._run = library.splinenets_run
        self._run.restype = None
        self._handle = ctypes.c_void_p(
            library.splinenets_create(
                ctypes.c_void_p(steps.ctypes.data),
                ctypes.c_int64(len(steps)),
                ctypes.c_void_p(self._weights.data_ptr()),
                ctypes.c_int64(program.arena),
                ctypes.c_int(threads),
            )
        )
        if not self._handle:
            raise MemoryError("not enough memory for the native runtime")
        self._lock = threading.Lock()
        weakref.finalize(self, library.splinenets_destroy, self._handle)

    def __call__(self, images: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, classes)."""
        if images.dim() != 4 or tuple(images.shape[1:]) != self.input or images.dtype != torch.float32:
            raise ValueError(
                f"the network takes float32 images of shape (N, {', '.join(map(str, self.input))}), "
                f"got {images.dtype} of shape {tuple(images.shape)}"
            )
        images = images.contiguous()
        logits = torch.empty(len(images), self.classes)
        if len(images):
            with self._lock:
                self._run(
                    self._handle,
                    ctypes.c_void_p(images.data_ptr()),
                    ctypes.c_void_p(logits.data_ptr()),
                    ctypes.c_int64(len(images)),
                )
        return logits
