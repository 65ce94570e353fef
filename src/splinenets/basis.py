"""Position -> uniform (cardinal) B-spline basis, in a compact and a dense form."""

from __future__ import annotations

from math import comb, factorial

import torch
from torch import Tensor

from .spec import check_knots, check_memory


def basis_matrix(degree: int) -> tuple[tuple[float, ...], ...]:
    """Row p, column j: the coefficient of t**p in the j-th of the degree + 1 basis functions that meet in a span.

    On its piece m the cardinal B-spline is sum_i (-1)^i C(d+1, i) (t + m - i)^d / d!, i = 0..m; the j-th function
    of a span shows its piece m = d - j.
    """
    d = degree
    rows = [[0.0] * (d + 1) for _ in range(d + 1)]
    for j in range(d + 1):
        for p in range(d + 1):
            # integers until the last division, so every coefficient is correctly rounded
            terms = ((-1) ** i * comb(d + 1, i) * comb(d, p) * (d - j - i) ** (d - p) for i in range(d - j + 1))
            rows[p][j] = sum(terms) / factorial(d)
    return tuple(map(tuple, rows))


MATRICES = {degree: basis_matrix(degree) for degree in range(9)}


def open_knots(knots: Tensor, degree: int) -> Tensor:
    """A closed spline as an open one: its first ``degree`` knots once more at the end, (K, ...) -> (K + degree, ...).

    The open spline then has K spans, ends where it begins, and arrives there as smoothly as anywhere else.
    """
    return torch.cat([knots, knots[:degree]])


def compact_basis(position: Tensor, knots: int, degree: int) -> tuple[Tensor, Tensor]:
    """The degree + 1 non-zero values and the first knot they belong to: (...,) -> (..., degree + 1), (...,).

    With u = position (K - d), span = min(floor(u), K - d - 1) and t = u - span, the values are
    [1, t, .., t^d] times the basis matrix. Positions outside [0, 1] count as its nearest end.
    A position that is not a number gives values that are not numbers, and a legal index.
    """
    check_knots(knots, degree)
    dtype = torch.promote_types(position.dtype, torch.float32)  # bf16 cannot tell neighbouring positions apart
    u = position.to(dtype).clamp(0, 1) * (knots - degree)
    span = u.detach().nan_to_num().floor().clamp(0, knots - degree - 1)
    t = u - span
    matrix = torch.tensor(MATRICES.get(degree) or basis_matrix(degree), dtype=dtype, device=position.device)
    rows, t = matrix.unbind(), t.unsqueeze(-1)
    values = t * 0 + rows[-1]  # Horner's rule; not a matmul, which autocast would make imprecise
    for row in rows[-2::-1]:
        values = torch.addcmul(row, values, t)
    # rounding may leave -1e-17 where a function ends
    return values.clamp(0, 1).to(position.dtype), span.long()


def bspline_basis(position: Tensor, knots: int, degree: int, *, closed: bool = False) -> Tensor:
    """B_k(position) for every knot, rows summing to 1: (...,) -> (..., knots). Closed: 0 and 1 are one place.

    Examples:
        >>> sn.bspline_basis(torch.tensor([0.0, 0.5]), knots=4, degree=1)
        tensor([[1.0000, 0.0000, 0.0000, 0.0000],
                [0.0000, 0.5000, 0.5000, 0.0000]])
    """
    check_knots(knots, degree, closed=closed)
    if not torch.compiler.is_compiling():
        check_memory(position.numel() * knots * position.element_size(), f"a basis of {knots} knots")
    values, first = compact_basis(position, knots + degree if closed else knots, degree)
    index = first.unsqueeze(-1) + torch.arange(degree + 1, device=position.device)
    return values.new_zeros(*position.shape, knots).scatter(-1, index % knots if closed else index, values)
