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
        return x, kernels.pool(x)
    return _PoolBeside.apply(x)  # type: ignore[no-untyped-call]


def _kernel_pools(x: Tensor) -> bool:
    """Only images whose channels come last in memory."""
    return (
        x.dim() == 4
        and not obstacle(x, x.dtype)
        and x.is_contiguous(memory_format=torch.channels_last)
        and x.numel() > 0
    )


class _PoolBeside(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.shape = x.shape
        ctx.set_materialize_grads(False)
        return x.view_as(x), kernels.pool(x)

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


def _has(t: Tensor | None, shape: tuple[int, ...]) -> bool:
    """Whether the kernel that decides may read a tensor: float32 numbers in this shape, one after the other."""
    return t is None or (t.dtype is torch.float32 and t.shape == shape and t.is_contiguous())


def decide(features: Tensor, parent: Tensor | None, decision: Decision) -> Tensor | None:
    """A projection's positions in one kernel, (1, M) or (1, ...), (1, C) or None -> (1, C); None where it cannot serve.

    It does for one sample of float32 numbers, when nothing is to be learnt.
    """
    weight, knots, mean, variance, *_ = decision
    if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or features.dtype is not torch.float32:
        return None
    if obstacle(features, torch.float32, parent, weight, knots, mean, variance):
        return None
    coordinates, length = sizes = (weight if knots is None else knots).shape[-2:]  # type: ignore[union-attr]
    if features.numel() != length or not (parent is None or parent.shape == (1, coordinates)):
        return None
    if not (_has(weight, sizes) and _has(mean, sizes[:1]) and _has(variance, sizes[:1])):
        return None
    if knots is not None and not _has(knots, (knots.shape[0], coordinates, length)):
        return None
    features = (features if features.dim() == 2 else features.flatten(1)).contiguous()
    return kernels.propose(features, None if parent is None else parent.float().contiguous(), *decision)
