"""Spline layers as functions: an operation whose weights lie on B-splines, at a position of its own for each sample.

For sample n at position p(n) the weights are base + sum_k B_k(p(n)) knots_k, and the output is the operation of torch
with these weights. The layers hold parameters and choose positions; these functions take both from anywhere else.
"""

from __future__ import annotations

from typing import TypeAlias

import torch
from torch import Tensor

from .operators import Convolution, Curves, LinearMap, compute, fused, why_not
from .spec import check_knots

Size: TypeAlias = int | tuple[int, ...]


def spline_linear(
    x: Tensor,
    position: Tensor,
    knots: Tensor,
    base: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    degree: int | None = None,
    closed: bool = False,
) -> Tensor:
    """``F.linear`` with weights on splines: (N, ..., in), (N,) or (N, S), (K, out, in) -> (N, ..., out).

    position  in [0, 1]: one for each sample, or S of them, which share out the outputs evenly; (N, S, dims) on surfaces
    knots     control points, or offsets from ``base``; (dims, K, out, in) on surfaces
    base      (out, in)
    degree    of the B-splines; None means min(2, K - 1)
    closed    whether the curves are closed, so that positions 0 and 1 are one place

    Examples:
        >>> x, position, knots = torch.randn(4, 8), torch.rand(4), torch.randn(5, 3, 8)
        >>> sn.spline_linear(x, position, knots).shape
        torch.Size([4, 3])
    """
    curves, position = _curves("spline_linear", x, position, knots, base, bias, degree, closed, weight_dims=2)
    if x.dim() < 2 or x.shape[-1] != knots.shape[-1]:
        raise ValueError(f"spline_linear needs {knots.shape[-1]} features last, got input of shape {tuple(x.shape)}")
    return compute(x, position, curves, LinearMap(), bias)


def spline_conv1d(
    x: Tensor,
    position: Tensor,
    knots: Tensor,
    base: Tensor | None = None,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: str | Size = 0,
    dilation: Size = 1,
    groups: int = 1,
    *,
    degree: int | None = None,
    closed: bool = False,
) -> Tensor:
    """``F.conv1d`` with weights on splines; see ``spline_conv2d``."""
    return _convolve(1, x, position, knots, base, bias, stride, padding, dilation, groups, degree, closed)


def spline_conv2d(
    x: Tensor,
    position: Tensor,
    knots: Tensor,
    base: Tensor | None = None,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: str | Size = 0,
    dilation: Size = 1,
    groups: int = 1,
    *,
    degree: int | None = None,
    closed: bool = False,
) -> Tensor:
    """``F.conv2d`` with weights on splines: (N, C, H, W), (N, S), (K, out, C / groups, kh, kw) -> (N, out, H', W').

    position  in [0, 1]: one for each sample, or S of them, which share out the filters evenly; (N, S, dims) on surfaces
    knots     control points, or offsets from ``base``; (dims, K, out, C / groups, kh, kw) on surfaces
    base      (out, C / groups, kh, kw)
    degree    of the B-splines; None means min(2, K - 1)
    closed    whether the curves are closed, so that positions 0 and 1 are one place

    Examples:
        >>> x, position, knots = torch.randn(4, 3, 9, 9), torch.rand(4), torch.randn(5, 6, 3, 3, 3)
        >>> sn.spline_conv2d(x, position, knots, padding=1).shape
        torch.Size([4, 6, 9, 9])
    """
    return _convolve(2, x, position, knots, base, bias, stride, padding, dilation, groups, degree, closed)


def spline_conv3d(
    x: Tensor,
    position: Tensor,
    knots: Tensor,
    base: Tensor | None = None,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: str | Size = 0,
    dilation: Size = 1,
    groups: int = 1,
    *,
    degree: int | None = None,
    closed: bool = False,
) -> Tensor:
    """``F.conv3d`` with weights on splines; see ``spline_conv2d``."""
    return _convolve(3, x, position, knots, base, bias, stride, padding, dilation, groups, degree, closed)


def conv2d_per_sample(
    x: Tensor,
    weights: Tensor,
    bias: Tensor | None = None,
    stride: Size = 1,
    padding: str | Size = 0,
    dilation: Size = 1,
    groups: int = 1,
) -> Tensor:
    """``F.conv2d`` with a filter bank for each sample: (N, C, H, W), (N, out, C / groups, kh, kw) -> (N, out, H', W').

    bias  (out,), or (N, out) for one of its own for each sample
    """
    samples = x.shape[0]
    if weights.dim() != 5 or x.dim() != 4 or weights.shape[0] != samples:
        raise ValueError(
            "conv2d_per_sample needs images (N, C, H, W) and as many filter banks (N, out, C / groups, kh, kw), "
            f"got {tuple(x.shape)} and {tuple(weights.shape)}"
        )
    operation = _operation("conv2d_per_sample", x, weights.shape[1:], stride, padding, dilation, groups)
    filters = weights.shape[1]
    if bias is not None and bias.shape not in ((filters,), (samples, filters)):
        raise ValueError(
            f"conv2d_per_sample needs a bias of shape ({filters},) or ({samples}, {filters}), got {tuple(bias.shape)}"
        )
    shared = None if bias is None or bias.dim() == 2 else bias
    own = None if bias is None or shared is not None else bias
    # a spline of degree 0 is a row of steps: sample n stands on the n-th of N knots
    curves = Curves(weights.flatten(2), None, 1, 1, 0)
    if type(samples) is not int:  # a program for any batch: no convolution has so many groups
        y = operation.unfolded(x, curves.knots, shared)
    elif samples == 0:
        y = operation.plain(x, curves.knots.sum(0), shared)
    else:
        steps = (torch.arange(samples, device=x.device) + 0.5).unsqueeze(1) / samples
        serves = not why_not(x, steps, curves, operation, shared)
        y = fused(x, steps, curves, operation, shared) if serves else operation.per_sample(x, curves.knots, shared)
    return y if own is None else y + own.to(y.dtype)[:, :, None, None]


def _convolve(
    spatial: int,
    x: Tensor,
    position: Tensor,
    knots: Tensor,
    base: Tensor | None,
    bias: Tensor | None,
    stride: Size,
    padding: str | Size,
    dilation: Size,
    groups: int,
    degree: int | None,
    closed: bool,
) -> Tensor:
    name = f"spline_conv{spatial}d"
    curves, position = _curves(name, x, position, knots, base, bias, degree, closed, weight_dims=2 + spatial)
    operation = _operation(name, x, knots.shape[-2 - spatial :], stride, padding, dilation, groups)
    return compute(x, position, curves, operation, bias)


def _operation(
    name: str, x: Tensor, weight: torch.Size, stride: Size, padding: str | Size, dilation: Size, groups: int
) -> Convolution:
    """The convolution that these settings describe, or an error that says what would fit."""
    filters, channels, *kernel = weight
    if x.dim() != len(weight) or x.shape[1] != channels * groups:
        raise ValueError(
            f"{name} with filters of shape {tuple(weight)} and groups={groups} needs input of shape "
            f"(N, {channels * groups}, {', '.join('HWD'[: len(kernel)])}), got {tuple(x.shape)}"
        )
    if filters % groups:
        raise ValueError(f"{name} cannot share out {filters} filters between {groups} groups")

    def each(setting: str, size: Size, least: int) -> tuple[int, ...]:
        sizes = (size,) * len(kernel) if isinstance(size, int) else tuple(size)
        if len(sizes) != len(kernel) or min(sizes) < least:
            raise ValueError(f"{name} needs {setting} as {len(kernel)} numbers of {least} or more, got {size}")
        return sizes

    strides = each("stride", stride, 1)
    if padding not in ("same", "valid") and isinstance(padding, str):
        raise ValueError(f"{name} needs padding as numbers, 'same' or 'valid', got {padding!r}")
    if padding == "same" and max(strides) > 1:
        raise ValueError(f"{name} cannot keep the input's size with padding='same' and stride {stride}")
    padding = padding if isinstance(padding, str) else each("padding", padding, 0)
    return Convolution(tuple(kernel), strides, padding, each("dilation", dilation, 1), groups)


def _curves(
    name: str,
    x: Tensor,
    position: Tensor,
    knots: Tensor,
    base: Tensor | None,
    bias: Tensor | None,
    degree: int | None,
    closed: bool,
    *,
    weight_dims: int,
) -> tuple[Curves, Tensor]:
    """Knots and positions in the shapes that strategies compute with, or an error that says what would fit."""
    surface = knots.dim() == weight_dims + 2
    if not surface and knots.dim() != weight_dims + 1:
        raise ValueError(f"{name} needs knots (K, *weight) or (dims, K, *weight), got shape {tuple(knots.shape)}")
    dims, count, filters = knots.shape[0] if surface else 1, knots.shape[int(surface)], knots.shape[-weight_dims]
    fits = position.dim() == 3 and position.shape[2] == dims if surface else position.dim() in (1, 2)
    if not fits or position.shape[0] != x.shape[0]:
        wanted = f"(N, S, {dims})" if surface else "(N,) or (N, S)"
        raise ValueError(
            f"{name} needs positions {wanted} for input of shape {tuple(x.shape)}, got shape {tuple(position.shape)}"
        )
    splines = 1 if position.dim() == 1 else position.shape[1]
    if filters % splines:
        raise ValueError(f"{name} cannot share out {filters} filters between {splines} splines")
    degree = min(2, count - 1) if degree is None else degree
    check_knots(count, degree, closed=closed)
    weight = knots.shape[-weight_dims:]
    if base is not None and base.shape != weight:
        raise ValueError(f"{name} needs a base of shape {tuple(weight)}, as one knot has it, got {tuple(base.shape)}")
    if bias is not None and bias.shape != (filters,):
        raise ValueError(f"{name} needs a bias of shape ({filters},), got {tuple(bias.shape)}")
    position = position if position.is_floating_point() else position.to(knots.dtype)
    flat = knots.reshape(dims * count, filters, -1)
    return Curves(flat, base, splines, dims, degree, closed), position.reshape(x.shape[0], splines * dims)
