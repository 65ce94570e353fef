"""The paper's training form: respond to all knots as one filter bank, then mix the responses."""

from __future__ import annotations

import torch
from torch import Tensor

from .mixing import Curves, dense_basis
from .operation import Operation


def bank(x: Tensor, position: Tensor, curves: Curves, operation: Operation, bias: Tensor | None) -> Tensor:
    """(N, ...), (N, S * dims) -> (N, ...); K times the work, but weights do not depend on the batch."""
    responses = operation.bank(x, curves.control_points())  # (N, dims * K, filters, rest)
    basis = dense_basis(position, curves).to(responses.dtype)
    per_spline = responses.unflatten(2, (curves.splines, -1))
    mixed = torch.einsum("nsk,nksfr->nsfr", basis, per_spline).flatten(1, 2)
    return operation.restore(mixed, x, bias)
