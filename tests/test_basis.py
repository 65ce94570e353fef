import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.interpolate import BSpline
from tests.helpers.problems import basis as truncated_powers

import splinenets as sn
from splinenets.basis import basis_matrix, compact_basis

SHAPES = [(knots, degree) for degree in range(6) for knots in range(degree + 1, 21)]
positions = st.one_of(st.sampled_from([0.0, 1.0, 0.5]), st.floats(0, 1))


def scipy_basis(position: np.ndarray, knots: int, degree: int) -> np.ndarray:
    vector = np.arange(-degree, knots + 1.0)
    return np.stack(
        [BSpline(vector, row, degree)(position * (knots - degree)) for row in np.eye(knots)], axis=-1
    )  # fmt: skip


@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.lists(positions, min_size=40, max_size=40), st.sampled_from(SHAPES))
def test_equals_scipy(drawn, shape):
    position = torch.tensor([0.0, 1.0, *drawn], dtype=torch.float64)
    values = sn.bspline_basis(position, *shape)
    np.testing.assert_allclose(values.numpy(), scipy_basis(position.numpy(), *shape), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("knots", "degree"), SHAPES)
def test_rows_sum_to_one_and_stay_in_range(knots, degree):
    position = torch.rand(2000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    position[:2] = torch.tensor([0.0, 1.0])
    values = sn.bspline_basis(position, knots, degree)
    torch.testing.assert_close(values.sum(-1), torch.ones(2000, dtype=torch.float64), rtol=0, atol=1e-12)
    assert (values >= 0).all()
    assert (values <= 1).all()
    np.testing.assert_allclose(values.numpy(), scipy_basis(position.numpy(), knots, degree), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("knots", "degree"), [shape for shape in SHAPES if shape[1]])
def test_closed_splines_are_scipys_periodic_ones(knots, degree):
    position = torch.linspace(0, 1, 301, dtype=torch.float64)
    values = sn.bspline_basis(position, knots, degree, closed=True)
    vector, points = np.arange(-degree, knots + degree + 1.0), np.eye(knots)
    periodic = BSpline(vector, np.concatenate([points, points[:degree]]), degree, extrapolate="periodic")
    np.testing.assert_allclose(values.numpy(), periodic(position.numpy() * knots), rtol=0, atol=1e-12)
    np.testing.assert_allclose(values[0].numpy(), values[-1].numpy(), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("knots", "degree"), [(2, 1), (5, 2), (7, 3), (1, 0), (4, 0)])
def test_ends_by_hand(knots, degree):
    ends = {0: [1], 1: [1], 2: [0.5, 0.5], 3: [1 / 6, 4 / 6, 1 / 6]}[degree]
    first, last = sn.bspline_basis(torch.tensor([0.0, 1.0], dtype=torch.float64), knots, degree).tolist()
    rest = [0.0] * (knots - len(ends))
    assert first == pytest.approx([*ends, *rest], abs=1e-15)
    assert last == pytest.approx([*rest, *ends], abs=1e-15)


def test_equals_differences_of_truncated_powers():
    for knots, degree in SHAPES:
        for position in torch.tensor([0.0, 0.1, 1 / 3, 0.5, 0.77, 1.0], dtype=torch.float64) if degree else ():
            got = sn.bspline_basis(position, knots, degree)
            torch.testing.assert_close(got, truncated_powers(position, knots, degree), rtol=0, atol=1e-9)


@pytest.mark.parametrize("degree", range(1, 6))
@pytest.mark.parametrize("extra", [1, 4])
def test_gradients(degree, extra):
    position = torch.rand(6, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 0.96 + 0.02
    position.requires_grad_()
    assert torch.autograd.gradcheck(lambda p: sn.bspline_basis(p, degree + extra, degree), position)
    if degree > 1:
        assert torch.autograd.gradgradcheck(lambda p: sn.bspline_basis(p, degree + extra, degree), position)


def test_gradient_at_the_ends_points_inwards():
    position = torch.tensor([0.0, 1.0], requires_grad=True)
    sn.bspline_basis(position, 5, 2)[:, [1, 3]].sum().backward()
    assert position.grad[0] > 0 > position.grad[1]


def test_compact_is_the_non_zero_part_of_dense():
    position = torch.linspace(0, 1, 101)
    values, first = compact_basis(position, 7, 3)
    dense = sn.bspline_basis(position, 7, 3)
    for n in range(101):
        torch.testing.assert_close(dense[n, first[n] : first[n] + 4], values[n])
        assert dense[n].count_nonzero() <= 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_low_precision(dtype):
    position = torch.linspace(0, 1, 257).to(dtype)
    values = sn.bspline_basis(position, 20, 2)
    assert values.dtype == dtype
    exact = sn.bspline_basis(position.double(), 20, 2)
    torch.testing.assert_close(values.double(), exact, rtol=0, atol=torch.finfo(dtype).eps * 32)


@pytest.mark.parametrize("degree", [0, 1, 3])
def test_not_a_number_stays_with_its_sample(degree):
    position = torch.tensor([0.3, float("nan"), 0.9])
    values, first = compact_basis(position, 5, degree)
    assert values[1].isnan().all()
    assert 0 <= first[1] <= 4 - degree
    dense = sn.bspline_basis(position, 5, degree)
    assert torch.equal(dense[[0, 2]], sn.bspline_basis(position[[0, 2]], 5, degree))
    assert dense[1].isnan().any()


def test_beyond_the_ends_counts_as_the_end():
    got = sn.bspline_basis(torch.tensor([-0.1, 1 + 1e-7, float("inf")]), 5, 2)
    torch.testing.assert_close(got, sn.bspline_basis(torch.tensor([0.0, 1.0, 1.0]), 5, 2))


def test_shapes():
    assert sn.bspline_basis(torch.rand(3, 2), 5, 2).shape == (3, 2, 5)
    assert sn.bspline_basis(torch.tensor(0.5), 5, 2).shape == (5,)
    assert sn.bspline_basis(torch.rand(0, 4), 5, 2).shape == (0, 4, 5)


def test_any_degree():
    columns = torch.tensor(basis_matrix(11), dtype=torch.float64).sum(1)
    torch.testing.assert_close(columns, torch.eye(12, dtype=torch.float64)[0], rtol=0, atol=1e-12)
    assert sn.bspline_basis(torch.tensor(0.4, dtype=torch.float64), 13, 11).sum().item() == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize(("knots", "degree"), [(2, 2), (3, 5), (0, 0), (4, -1)])
def test_impossible(knots, degree):
    with pytest.raises(ValueError, match=str(degree)):
        sn.bspline_basis(torch.tensor(0.5), knots, degree)
