"""B-splines as sums of ramps, max(slope p + offset, 0)^degree: a graph computes these in three small steps."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from ..basis import bspline_basis

GROWTH = 32  # times the rounding error of a number is what a sum of ramps may have
GRID = 2001


class Ramps(NamedTuple):
    """B_k(p) = sum_j matrix[j, k] max(slope[j] p + offset[j], 0)^degree, for positions p in [0, 1].

    There are as many ramps as knots: slope (K,), offset (K,), matrix (K, K).
    """

    slope: NDArray[np.float64]
    offset: NDArray[np.float64]
    matrix: NDArray[np.float64]

    def values(self, position: NDArray[np.float64], degree: int) -> NDArray[np.float64]:
        """(n,) -> (n, K)."""
        return np.maximum(position[:, None] * self.slope + self.offset, 0) ** degree


@lru_cache(maxsize=64)
def ramps(knots: int, degree: int) -> Ramps | None:
    """The ramps of a spline; None where there are none, or where their sum would lose too much to rounding.

    Polynomials of the degree are sums of a constant and ramps that begin outside [0, 1]; for each place inside at which
    two pieces meet there is one more, which leads away from the middle, so that none is long.
    """
    if degree == 0:
        return None
    spans = knots - degree
    half = spans / 2
    inner = np.arange(1, spans) - half
    far = np.array([2 * (i // 2) + 1 for i in range(degree)]) * half
    slope = np.concatenate([[0], np.where(np.arange(degree) % 2, -1, 1), np.where(inner < 0, -1, 1)])
    start = np.concatenate([[1], far, -np.abs(inner)])
    height = np.abs(slope) * half + start  # what a ramp reaches at its end of [-half, half]
    found = Ramps(slope * spans / height, (start - slope * half) / height, np.eye(knots))
    grid = np.linspace(0, 1, GRID)
    values, exact = found.values(grid, degree), bspline_basis(torch.from_numpy(grid), knots, degree).numpy()
    matrix = np.asarray(np.linalg.lstsq(values, exact, rcond=None)[0], np.float64)
    lost = np.abs(values @ matrix - exact).max() > 1e-10
    if lost or (np.abs(values)[:, :, None] * np.abs(matrix)).sum(1).max() > GROWTH:
        return None
    return found._replace(matrix=matrix)
