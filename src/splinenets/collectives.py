"""Sums over the ranks of a distributed run, through which gradients flow."""

from __future__ import annotations

import torch
from torch import Tensor


def sum_over_ranks(tensor: Tensor) -> Tensor:
    """The sum of ``tensor`` over all ranks; itself when there is only one."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        from torch.distributed.nn.functional import all_reduce

        return all_reduce(tensor)
    return tensor
