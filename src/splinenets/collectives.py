"""Sums over the ranks of a distributed run, through which gradients flow."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def sum_over_ranks(tensor: Tensor) -> Tensor:
    """The sum of ``tensor`` over all ranks; itself when there is only one.

    The gradient of a rank's part is the sum of all ranks' gradients: that of the sum of their losses.
    """
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return _Sum.apply(tensor)  # type: ignore[no-untyped-call]
    return tensor


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        total = tensor.contiguous().clone()
        torch.distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return _Sum.forward(ctx, grad)
