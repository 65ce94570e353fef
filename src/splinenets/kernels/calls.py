"""The kernels as functions of tensors. They check nothing and know no gradients: that is for their callers."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import POINTER, Array, Structure, byref, c_float, c_int64, c_void_p
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import Protocol

import torch
from torch import Tensor

from ..basis import basis_matrix
from .build import SWITCH, library


@dataclass(frozen=True, eq=False)
class Geometry:
    """A 2d convolution with weights on splines, but for its knots. Whoever needs one again should keep it."""

    image: torch.Size  # (N, C, H, W)
    filters: int
    output: tuple[int, ...]  # (H, W)
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]  # zeros before each axis
    dilation: tuple[int, ...]
    splines: int
    dims: int
    knots: int
    degree: int

    @cached_property
    def record(self) -> _Layer:
        """The same for C++."""
        sizes = (*self.image, self.filters, *self.output, *self.kernel, *self.stride, *self.padding, *self.dilation)
        return _Layer(*sizes, self.splines, self.dims, self.knots, self.degree, _basis(self.degree))

    @cached_property
    def result(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shape of what a convolution gives, and its strides: channels last."""
        height, width = self.output
        shape = (self.image[0], self.filters, height, width)
        return shape, (height * width * self.filters, 1, width * self.filters, self.filters)


class _Layer(Structure):
    """The same order as ``Layer`` in kernels.cpp; and so for the others below and their namesakes there."""

    _fields_ = [
        *((name, c_int64) for name in ("samples", "channels", "height", "width", "filters", "out_height", "out_width")),
        *((name, c_int64) for name in ("kernel_h", "kernel_w", "stride_h", "stride_w", "pad_h", "pad_w")),
        *((name, c_int64) for name in ("dilation_h", "dilation_w", "splines", "dims", "knots", "degree")),
        ("basis", POINTER(c_float)),
    ]


class _Base(Structure):
    _fields_ = [("at", c_void_p), ("filter", c_int64), ("channel", c_int64), ("tap", c_int64)]


class _Forward(Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("x", "position", "arranged", "knots", "bias")),
        ("base", _Base),
        ("y", c_void_p),
    ]


class _Gradients(Structure):
    _fields_ = [
        *((name, c_void_p) for name in ("x", "position", "knots", "y_grad", "x_grad")),
        *((name, c_void_p) for name in ("position_grad", "knots_grad", "bias_grad", "partial")),
        ("threads", c_int64),
    ]


class _Decision(Structure):
    _fields_ = [
        *((name, c_int64) for name in ("samples", "features", "coordinates", "knots", "degree")),
        ("basis", POINTER(c_float)),
        *((name, c_void_p) for name in ("weight", "spline", "mean", "variance")),
        *((name, c_float) for name in ("epsilon", "bound", "slope")),
    ]


SIGNATURES = {
    "row": [c_void_p],
    "arrange": [c_void_p] * 4,
    "forward": [c_void_p] * 2,
    "backward": [c_void_p] * 2,
    "pool": [c_int64] * 3 + [c_void_p] * 2,
    "spread": [c_int64] * 3 + [c_void_p] * 2,
    "propose": [c_void_p] * 4,
}


class _Function(Protocol):
    """A function of the library: numbers, addresses and what ``byref`` gives -> a number, or nothing, which is 0."""

    def __call__(self, *arguments: object) -> int: ...


@lru_cache(maxsize=64)
def _find(name: str, dtype: torch.dtype | None = None) -> _Function | None:
    symbol = name if dtype is None else f"{name}_{str(dtype).removeprefix('torch.')}"
    function = getattr(library(), symbol, None)
    if function is not None:
        function.argtypes = SIGNATURES[name]
        function.restype = c_int64 if name == "row" else None
    return function


def _call(name: str, dtype: torch.dtype | None, *arguments: object) -> int:
    function = _find(name, dtype)
    assert function is not None, f"no kernel {name} for {dtype}"
    return function(*arguments)


def has_kernel(dtype: torch.dtype) -> bool:
    """Whether this machine has kernels for these numbers."""
    return _find("forward", dtype) is not None


@contextmanager
def without() -> Iterator[None]:
    """Do without kernels in this process for a while: none is compiled, so nothing is written."""
    before = os.environ.get(SWITCH)
    os.environ[SWITCH] = "0"
    _forget()
    try:
        yield
    finally:
        os.environ.pop(SWITCH)
        if before is not None:
            os.environ[SWITCH] = before
        _forget()


def _forget() -> None:
    library.cache_clear()
    _find.cache_clear()


def channels_last(x: Tensor) -> Tensor:
    """As the kernels read and write images."""
    return x.contiguous(memory_format=torch.channels_last)


def row_length(channels: int, kernel: Sequence[int], dtype: torch.dtype) -> int:
    """How many numbers a filter takes in ``arrange``'s order."""
    geometry = Geometry(torch.Size((1, channels, 1, 1)), 1, (1, 1), tuple(kernel), (1, 1), (0, 0), (1, 1), 1, 1, 1, 0)
    return int(_call("row", dtype, byref(geometry.record)))


def arrange(geometry: Geometry, knots: Tensor, base: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Knots, float32 (dims * K, filters, fan_in), base included, as ``forward`` and ``backward`` want them."""
    layer = geometry.record
    row = _call("row", dtype, byref(layer))
    arranged = knots.new_empty(knots.shape[0], geometry.filters, row, dtype=dtype)
    _call("arrange", dtype, byref(layer), knots.data_ptr(), byref(_base(base)), arranged.data_ptr())
    return arranged


def forward(
    geometry: Geometry,
    x: Tensor,
    position: Tensor,
    arranged: Tensor | None,
    knots: Tensor,
    base: Tensor | None,
    bias: Tensor | None,
) -> Tensor:
    """Convolve images (N, C, H, W), channels last; without arranged knots, which pay from some ten samples on, too."""
    y = x.new_empty_strided(*geometry.result)
    pointers = (x.data_ptr(), position.data_ptr(), _at(arranged), knots.data_ptr(), _at(bias))
    _call("forward", x.dtype, byref(geometry.record), byref(_Forward(*pointers, _base(base), y.data_ptr())))
    return y


def backward(
    geometry: Geometry, x: Tensor, position: Tensor, arranged: Tensor, grad: Tensor, image_too: bool, bias_too: bool
) -> tuple[Tensor | None, Tensor, Tensor, Tensor | None]:
    """The gradients of image, positions, knots and bias, from that of the output, channels last."""
    rows, filters, row = arranged.shape
    x_grad = torch.empty_like(x) if image_too else None
    position_grad = torch.empty_like(position)
    knots_grad = position.new_empty(rows, filters, x.shape[1] * prod(geometry.kernel))
    bias_grad = position.new_empty(filters) if bias_too else None
    threads = torch.get_num_threads()
    partial = position.new_empty(threads, rows * filters * row + filters)  # one share for each
    pointers = (x.data_ptr(), position.data_ptr(), arranged.data_ptr(), grad.data_ptr(), _at(x_grad))
    results = (position_grad.data_ptr(), knots_grad.data_ptr(), _at(bias_grad), partial.data_ptr())
    _call("backward", x.dtype, byref(geometry.record), byref(_Gradients(*pointers, *results, threads)))
    return x_grad, position_grad, knots_grad, bias_grad


def pool(x: Tensor) -> Tensor:
    """Means over all places: (N, C, H, W), channels last -> (N, C)."""
    samples, channels, height, width = x.shape
    pooled = x.new_empty(samples, channels, dtype=torch.float32)
    _call("pool", x.dtype, samples, height * width, channels, x.data_ptr(), pooled.data_ptr())
    return pooled if x.dtype is torch.float32 else pooled.to(x.dtype)


def spread(grad: Tensor, to: Tensor) -> None:
    """Add the gradient of means, float32 (N, C), to that of images (N, C, H, W), channels last."""
    _call("spread", to.dtype, to.shape[0], prod(to.shape[2:]), to.shape[1], grad.data_ptr(), to.data_ptr())


def propose(
    features: Tensor,
    parent: Tensor | None,
    weight: Tensor | None,
    spline: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    degree: int,
    epsilon: float,
    bound: float,
    slope: float,
) -> Tensor:
    """A projection's positions, all float32: see ``Projection``."""
    samples, length = features.shape
    coordinates, knots = (weight.shape[0], 0) if spline is None else (spline.shape[1], spline.shape[0])  # type: ignore[union-attr]
    sizes, tensors = (samples, length, coordinates, knots, degree), (_at(weight), _at(spline), _at(mean), _at(variance))
    decision = _Decision(*sizes, _basis(degree), *tensors, epsilon, bound, slope)
    positions = features.new_empty(samples, coordinates)
    _call("propose", None, byref(decision), features.data_ptr(), _at(parent), positions.data_ptr())
    return positions


@lru_cache(maxsize=16)
def _basis(degree: int) -> Array[c_float]:
    numbers = [number for row in basis_matrix(degree) for number in row]
    return (c_float * len(numbers))(*numbers)


def _base(base: Tensor | None) -> _Base:
    if base is None:
        return _Base(None, 0, 0, 0)
    _, channels, height, width = base.shape
    taps = height * width
    near, far = (taps, 1) if base.is_contiguous() else (1, channels)
    return _Base(base.data_ptr(), channels * taps, near, far)


def _at(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()
