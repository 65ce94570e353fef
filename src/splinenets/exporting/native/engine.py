"""engine.cpp: compiled for this machine once, and a file's content in its memory, ready to run."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence
from ctypes import CDLL, Structure, byref, c_char_p, c_double, c_int, c_int64, c_size_t, c_void_p, create_string_buffer
from functools import cached_property, lru_cache
from itertools import zip_longest
from pathlib import Path

import torch
from torch import Tensor

from ...kernels import Unavailable, load
from ...kernels.build import SOURCE as KERNELS
from ...operators import readable
from .program import layout

SOURCE = Path(__file__).with_name("engine.cpp")
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fPIC", "-shared", "-pthread", f"-I{KERNELS.parent}")

MOST_THREADS = 1024  # each has memory of its own


class _Description(Structure):
    """The same order as ``splinenets_description`` in splinenets.h."""

    _fields_ = [
        *((name, c_int64) for name in ("channels", "height", "width", "outputs", "conditions")),
        ("metadata", c_char_p),
    ]


class _Condition(Structure):
    """The same order as ``splinenets_condition`` in splinenets.h."""

    _fields_ = [("name", c_char_p), ("low", c_double), ("high", c_double)]


@lru_cache(maxsize=1)
def build() -> CDLL:
    """The engine for this machine: compiled when it is first asked for, which takes seconds, and found again later."""
    try:
        library = load(SOURCE, FLAGS)
    except Unavailable as error:
        raise Unavailable(f"the native runtime cannot be used, {error}: export to onnx instead") from None
    return declared(library)


def declared(library: CDLL) -> CDLL:
    """The functions of splinenets.h, after a look at how steps lie in memory."""
    library.splinenets_layout.restype = c_char_p
    check_layout(library.splinenets_layout().decode().splitlines())
    library.splinenets_open.argtypes = [c_char_p, c_size_t, c_int, c_char_p, c_size_t]
    library.splinenets_open.restype = c_void_p
    library.splinenets_describe.argtypes, library.splinenets_describe.restype = [c_void_p, c_void_p], None
    library.splinenets_condition_at.argtypes = [c_void_p, c_int64]
    library.splinenets_condition_at.restype = _Condition
    library.splinenets_run.argtypes = [c_void_p, c_void_p, c_void_p, c_void_p, c_int64]
    library.splinenets_run.restype = c_int
    library.splinenets_free.argtypes, library.splinenets_free.restype = [c_void_p], None
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
    """Images (N, C, H, W), float32 -> logits (N, classes). Threads share one image, or take one each of several.

    ``content`` is that of a file; the engine refuses whatever would not stay inside its own memory.
    """

    def __init__(self, content: bytes, threads: int = 1) -> None:
        if not 1 <= threads <= MOST_THREADS:
            raise ValueError(f"threads must lie between 1 and {MOST_THREADS}, got {threads}")
        self._content, self._threads = content, threads
        self._start()
        about = _Description()
        self._library.splinenets_describe(self._handle, byref(about))
        self.input = int(about.channels), int(about.height), int(about.width)
        self.classes, self.conditions = int(about.outputs), int(about.conditions)
        self.metadata = about.metadata.decode()

    def _start(self) -> None:
        """Begin the engine's threads in this process."""
        self._library, message = build(), create_string_buffer(200)
        content = self._content
        self._handle = self._library.splinenets_open(content, len(content), self._threads, message, len(message))
        if not self._handle:
            reason = message.value.decode(errors="replace")
            raise MemoryError(f"{reason} for {self._threads} threads") if "not enough" in reason else ValueError(reason)
        self._lock, self._process = threading.Lock(), os.getpid()
        weakref.finalize(self, _stop, self._library, self._handle, self._process)

    def __call__(self, images: Tensor, *values: Tensor) -> Tensor:
        """(N, C, H, W), and (N, ...) for each condition -> (N, classes)."""
        if tuple(images.shape[1:]) not in self.shapes or images.dtype != torch.float32:
            raise ValueError(
                f"the network takes float32 images of shape (N, {', '.join(map(str, self.input))}), "
                f"got {images.dtype} of shape {tuple(images.shape)}"
            )
        if not readable(images, *values):
            kinds = {f"{type(each).__name__} on {each.device}" for each in (images, *values)}
            raise ValueError(f"the network takes plain tensors on the CPU, got {' and '.join(sorted(kinds))}")
        told, count = _side_by_side(values), images.shape[0]
        if (0 if told is None else told.shape[1]) != self.conditions or any(each.shape[0] != count for each in values):
            shapes = [tuple(each.shape) for each in values]
            raise ValueError(f"the network is told {self.conditions} numbers an image, got shapes {shapes}")
        images = images.contiguous()
        logits = torch.empty(count, self.classes)
        if self._process != os.getpid():  # a process that was forked has none of its parent's threads
            self._start()
        pointer = None if told is None else told.data_ptr()
        with self._lock:
            outside = self._library.splinenets_run(self._handle, images.data_ptr(), pointer, logits.data_ptr(), count)
        if outside:
            raise ValueError("a condition lies outside its range")
        return logits

    @cached_property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """Of one image; a signal is an image of one row, and a vector one of one pixel."""
        channels, height, width = self.input
        signal = ((channels, width),) if height == 1 else ()
        return self.input, *signal, *(((channels,),) if height == width == 1 else ())


def _side_by_side(values: Sequence[Tensor]) -> Tensor | None:
    """(N, size) of each condition -> (N, all of them), float32."""
    if not values:
        return None
    return (values[0] if len(values) == 1 else torch.cat([each.float() for each in values], 1)).float().contiguous()


def _stop(library: CDLL, handle: int, process: int) -> None:
    """End an engine, in the process whose threads it has: in another, nobody would answer."""
    if process == os.getpid():
        library.splinenets_free(handle)
