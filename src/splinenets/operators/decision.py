"""What stands beside a layer's operation: pooling for decisions, and the decision of a single sample."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import kernels
from .serving import obstacle


def pooled_features(x: Tensor, channel_dim: int) -> Tensor:
    """The mean over everything but samples and channels: (N, C, ...) or (N, ..., C) -> (N, C).

    A 1x1 convolution followed by global averaging is a linear map of these: averaging commutes with it, so pool first.
    """
    others = [d for d in range(1, x.dim()) if d != channel_dim % x.dim()]
    return x.mean(others) if others else x


def pool_beside(x: Tensor, channel_dim: int) -> tuple[Tensor, Tensor]:
    """An input and its pooled features, for a projection beside an operation on the same input.

    With our kernels the features' gradient is added to the image's where that is, never written down at its size.
    """
    if channel_dim != 1 or not _kernel_pools(x):
        return x, pooled_features(x, channel_dim)
    if not torch.is_grad_enabled():
        return x, kernels.pool(x).to(x.dtype)
    return _PoolBeside.apply(x)  # type: ignore[no-untyped-call]


def _kernel_pools(x: Tensor) -> bool:
    """Only images whose channels come last in memory; torch.compile makes a mean as good by itself."""
    return (
        not torch.compiler.is_compiling()
        and x.dim() == 4
        and not obstacle(x, x.dtype)
        and x.is_contiguous(memory_format=torch.channels_last)
        and x.numel() > 0
    )


class _PoolBeside(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.shape = x.shape
        ctx.set_materialize_grads(False)
        return x.view_as(x), kernels.pool(x).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, pooled_grad: Tensor | None) -> Tensor | None:
        if pooled_grad is None:
            return grad
        if grad is None or torch.is_grad_enabled() or not _kernel_pools(grad):
            each = (pooled_grad / prod(ctx.shape[2:]))[:, :, None, None]
            return each.expand(ctx.shape) if grad is None else grad + each
        # only the operation beside saw the image that was handed on, so nobody else holds its gradient
        kernels.spread(pooled_grad.float().contiguous(), grad)
        return grad


class Decision(NamedTuple):
    """What a projection does with a sample's features; see ``Projection``."""

    weight: Tensor | None  # (C, M)
    knots: Tensor | None  # (K, C, M)
    mean: Tensor | None  # (C,)
    variance: Tensor | None  # (C,)
    degree: int
    epsilon: float
    bound: float
    slope: float


def kernel_decides(features: Tensor, parent: Tensor | None, decision: Decision) -> bool:
    """Whether the kernel may decide: for one sample of float32 numbers, when nothing is to be learnt."""
    if features.shape[0] != 1 or torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"):
        return False
    if torch.compiler.is_compiling() or obstacle(features, torch.float32, parent, *decision[:4]):
        return False
    weight, knots, mean, variance, *_ = decision
    coordinates, length = sizes = (weight if knots is None else knots).shape[-2:]  # type: ignore[union-attr]
    for t, shape in ((weight, sizes), (knots, sizes), (mean, sizes[:1]), (variance, sizes[:1])):
        if t is not None and (t.dtype is not torch.float32 or (t.shape if t.dim() < 3 else t.shape[1:]) != shape):
            return False
    return (
        features.dtype is torch.float32
        and features.numel() == length
        and (parent is None or parent.shape == (1, coordinates))
    )


def decide(features: Tensor, parent: Tensor | None, decision: Decision) -> Tensor:
    """A projection's positions in one kernel: (N, M), (N, C) or None -> (N, C)."""
    weight, knots, mean, variance = (None if t is None else t.contiguous() for t in decision[:4])
    return kernels.propose(
        features.contiguous(),
        None if parent is None else parent.float().contiguous(),
        *(weight, knots, None if mean is None or variance is None else (mean, variance)),
        degree=decision.degree,
        epsilon=decision.epsilon,
        bound=decision.bound,
        slope=decision.slope,
    )
