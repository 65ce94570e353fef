"""A whole batch: mix weights for every sample, then one grouped operation."""

from __future__ import annotations

from torch import Tensor

from .mixing import Curves, mix_weights
from .operation import Operation


def grouped(x: Tensor, position: Tensor, curves: Curves, operation: Operation, bias: Tensor | None) -> Tensor:
    """(N, ...), (N, S * dims) -> (N, ...); the cost of the operation does not grow with K."""
    return operation.per_sample(x, mix_weights(position, curves), bias)
