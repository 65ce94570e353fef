"""One sample at a time: mix the knots it touches, then the plain operation."""

from __future__ import annotations

import torch
from torch import Tensor

from .mixing import Curves, mix_active_weights
from .operation import Operation


def single(x: Tensor, position: Tensor, curves: Curves, operation: Operation, bias: Tensor | None) -> Tensor:
    """(N, ...), (N, S * dims) -> (N, ...); reads degree + 1 knots a sample."""
    outputs = [operation.plain(x[n : n + 1], mix_active_weights(position[n], curves), bias) for n in range(x.shape[0])]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)
