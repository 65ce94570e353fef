"""A gradient by which knots learn at the rate of the weights around which they lie."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .serving import transformed


def balanced(knots: Tensor) -> Tensor:
    """The same knots; in their gradient, what all weights of a filter share counts once: (..., M) -> (..., M).

    Inputs of a layer are mostly positive, so a filter's M weights are all pushed the way that makes its sum larger or
    smaller. Batch norm takes that from a weight which all samples share, and cannot take it from offsets, which differ
    from sample to sample: most of their gradient lies in this one direction, in which the loss is M times as steep as
    in others. So the mean of the gradient is divided by M; gradient descent does the same with parameters in which a
    filter's mean is stored sqrt(M) times as large.
    """
    if not (torch.is_grad_enabled() and knots.requires_grad):
        return knots
    if torch.compiler.is_compiling() or transformed():  # neither of which looks into functions of our own
        even = knots - knots.mean(-1, keepdim=True) * (1 - 1 / knots.shape[-1])
        return even + (knots - even).detach()
    return _Balanced.apply(knots)  # type: ignore[no-untyped-call]


class _Balanced(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, knots: Tensor) -> Tensor:
        return knots.view_as(knots)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad - grad.mean(-1, keepdim=True) * (1 - 1 / grad.shape[-1])
