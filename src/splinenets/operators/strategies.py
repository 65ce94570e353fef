"""The ways of computing a spline layer that are made of torch's own operations; each gives the same answer.

All are (N, ...), (N, S * dims) -> (N, ...): inputs and positions to outputs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .mixing import Curves, dense_basis, mix_active_weights, mix_weights
from .operation import Operation


def single(x: Tensor, position: Tensor, curves: Curves, operation: Operation, bias: Tensor | None) -> Tensor:
    """One sample after the other: mix the degree + 1 knots it touches, then the plain operation."""
    outputs = [operation.plain(x[n : n + 1], mix_active_weights(position[n], curves), bias) for n in range(x.shape[0])]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def grouped(x: Tensor, position: Tensor, curves: Curves, operation: Operation, bias: Tensor | None) -> Tensor:
    """A whole batch: mix weights for every sample, then one operation with a group for each."""
    return operation.per_sample(x, mix_weights(position, curves), bias)


def unfold(x: Tensor, position: Tensor, curves: Curves, operation: Operation, bias: Tensor | None) -> Tensor:
    """A whole batch: mix weights for every sample, then one batch of matrix products with the unfolded input."""
    return operation.unfolded(x, mix_weights(position, curves), bias)


def bank(x: Tensor, position: Tensor, curves: Curves, operation: Operation, bias: Tensor | None) -> Tensor:
    """The paper's training form: respond to all knots as one filter bank, then mix the responses.

    K times the work, but the weights do not depend on the batch.
    """
    responses = operation.bank(x, curves.control_points())  # (N, dims * K, filters, rest)
    basis = dense_basis(position, curves).to(responses.dtype)
    per_spline = responses.unflatten(2, (curves.splines, -1))
    mixed = torch.einsum("nsk,nksfr->nsfr", basis, per_spline).flatten(1, 2)
    return operation.restore(mixed, x, bias)
