"""Splines as sums of ramps are the splines they stand for, or are not offered."""

import numpy as np
import pytest
import torch

import splinenets as sn
from splinenets.exporting.ramps import ramps

ALL = [(knots, degree) for degree in range(9) for knots in range(degree + 1, degree + 12)]


@pytest.mark.parametrize(("knots", "degree"), ALL)
def test_ramps_sum_up_to_the_basis(knots, degree):
    places = np.sort(np.append(np.random.default_rng(0).uniform(size=200), [0, 0.5, 1]))
    exact = sn.bspline_basis(torch.from_numpy(places), knots, degree).numpy()
    found = ramps(knots, degree)
    if found is None:
        assert degree == 0 or degree > 2 or knots > 7
        return
    np.testing.assert_allclose(found.values(places, degree) @ found.matrix, exact, atol=1e-9)
    short = [part.astype(np.float32) for part in found]
    rounded = np.maximum(places.astype(np.float32)[:, None] * short[0] + short[1], 0) ** degree @ short[2]
    np.testing.assert_allclose(rounded, exact, atol=4e-6)


def test_usual_splines_have_ramps():
    assert all(ramps(knots, 2) for knots in range(3, 8))
    assert all(ramps(knots, 1) for knots in range(2, 8))
