"""A convolution and the mixing of its weights in one kernel of our own; see native/kernels.cpp."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import kernels
from .mixing import Curves
from .operation import Convolution, Operation

SHARES = 2**28  # bytes that the threads' shares of the knots' gradient may take together
FEW = 16  # samples up to which it does not pay to rearrange all knots first


def fused(x: Tensor, position: Tensor, curves: Curves, operation: Operation, bias: Tensor | None) -> Tensor:
    """(N, C, H, W), (N, S * dims) -> (N, filters, H', W'); neither time nor memory grows with K."""
    reason = obstacle(x, curves, operation)
    if reason:
        raise ValueError(f"the strategy 'fused' {reason}; 'auto' picks one that fits")
    assert isinstance(operation, Convolution)
    x, position, knots = kernels.channels_last(x.to(dtype_of(x))), position.float().contiguous(), curves.knots.float()
    base = None if curves.base is None else as_image(curves.base.float())
    bias = None if bias is None else bias.float()
    before = tuple(before for before, _ in operation.margins())
    geometry = kernels.Geometry(
        *(x.shape, knots.shape[1], operation.output_size(x.shape[2:])),
        *(operation.kernel, operation.stride, before, operation.dilation),
        *(curves.splines, curves.dims, curves.knots_per_dim, curves.degree),
    )
    if torch.is_grad_enabled():
        return _Fused.apply(x, position, knots, base, bias, geometry)  # type: ignore[no-untyped-call]
    arranged = kernels.arrange(geometry, knots, base, x.dtype) if len(x) > FEW else None
    return kernels.forward(geometry, x, position, arranged, knots, base, bias)


def obstacle(x: Tensor, curves: Curves, operation: Operation) -> str:
    """Why the kernel cannot serve, or nothing."""
    if type(x) is not Tensor and type(x) is not torch.nn.Parameter:
        return f"needs plain tensors, got {type(x).__name__}"
    if x.device.type != "cpu":
        return f"runs on the CPU, got {x.device.type}"
    if not isinstance(operation, Convolution) or len(operation.kernel) != 2 or operation.groups != 1:
        return "computes 2d convolutions without groups"
    if not kernels.has_kernel(dtype_of(x)) or curves.knots.dtype == torch.float64:
        return f"has no kernel for {dtype_of(x)} here"
    if torch.is_grad_enabled() and 4 * torch.get_num_threads() * curves.knots.numel() > SHARES:
        return f"needs more than {SHARES >> 20} MB for the gradients of {curves.knots.numel():,} numbers"
    return ""


def dtype_of(x: Tensor) -> torch.dtype:
    """The numbers to compute with, as torch's own convolution would choose them."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype


def as_image(base: Tensor) -> Tensor:
    """A base in one of the two orders that the kernels know."""
    known = base.is_contiguous() or base.is_contiguous(memory_format=torch.channels_last)
    return base if known else base.contiguous()


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        position: Tensor,
        knots: Tensor,
        base: Tensor | None,
        bias: Tensor | None,
        geometry: kernels.Geometry,
    ) -> Tensor:
        arranged = kernels.arrange(geometry, knots, base, x.dtype)
        ctx.save_for_backward(x, position, arranged)
        ctx.set_materialize_grads(False)
        ctx.geometry, ctx.base_shape, ctx.bias_too = geometry, None if base is None else base.shape, bias is not None
        return kernels.forward(geometry, x, position, arranged, knots, base, bias)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor | None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * 6
        grad = kernels.channels_last(grad)
        x, position, arranged = ctx.saved_tensors
        wanted = (ctx.needs_input_grad[0], ctx.bias_too)
        image, place, knots, bias = kernels.backward(ctx.geometry, x, position, arranged, grad, *wanted)
        # the basis sums to 1, so the knots' gradients sum to the base's
        base = None if ctx.base_shape is None else knots.sum(0).view(ctx.base_shape)
        return image, place, knots, base, bias, None
