"""The ways of computing a spline layer that are made of torch's own operations; each gives the same answer.

All are (N, ...), (N, S * dims) -> (N, ...): inputs and positions to outputs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .mixing import Curves, active_knots, dense_basis, has_active_knots, mix_active_weights, mix_weights
from .operation import LinearMap, Operation


def single(x: Tensor, position: Tensor, curves: Curves, operation: Operation, bias: Tensor | None) -> Tensor:
    """One sample after the other: mix the degree + 1 knots it touches, then the plain operation."""
    one = _respond if isinstance(operation, LinearMap) and has_active_knots(position, curves) else _mix
    outputs = [one(x[n : n + 1], position[n], curves, operation, bias) for n in range(x.shape[0])]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _mix(x: Tensor, position: Tensor, curves: Curves, operation: Operation, bias: Tensor | None) -> Tensor:
    return operation.plain(x, mix_active_weights(position, curves), bias)


def _respond(x: Tensor, position: Tensor, curves: Curves, operation: Operation, bias: Tensor | None) -> Tensor:
    """A large matrix is read once and never written: mix responses to the knots it touches, as ``bank`` does with all.

    Reading is what a linear map of one sample spends its time on.
    """
    values, knots = active_knots(position, curves)
    responses = operation.bank(x, knots)  # (1, degree + 1, filters, rest)
    mixed = torch.tensordot(values.to(responses.dtype), responses, ([0], [1]))
    if curves.base is None:
        return operation.restore(mixed, x, bias)
    return operation.restore(mixed, x, None) + operation.plain(x, curves.base, bias)


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
