import copy

import pytest
import torch
from tests.helpers.problems import make

import splinenets as sn
from splinenets.operators import pooled_features
from splinenets.projection import Projection, bounded, direction, mix_scores, moments


def spec(text="D(5)-C-R3", **changes):
    return sn.SplineSpec.parse(text).replace(**changes)


def test_pooling_first_equals_convolving_first():
    x, theta = torch.randn(4, 3, 5, 6, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)
    convolved = torch.nn.functional.conv2d(x, theta[:, :, None, None]).mean((2, 3))
    torch.testing.assert_close(pooled_features(x, 1) @ theta.mT, convolved)


def test_mixing_scores_equals_building_theta():
    x, knots = torch.randn(6, 8, dtype=torch.float64), torch.randn(5, 3, 8, dtype=torch.float64)
    parent = torch.rand(6, 3, dtype=torch.float64)
    theta = torch.einsum("nck,kcm->ncm", sn.bspline_basis(parent, 5, 2), knots)
    scores = torch.einsum("nm,kcm->nkc", x, knots)
    torch.testing.assert_close(mix_scores(scores, parent, 2), torch.einsum("nm,ncm->nc", x, theta))


def test_standardised_over_the_batch():
    projection = Projection(8, 3, spec())
    x = torch.randn(500, 8) * 100 + 7
    raw = x @ projection.weight.mT
    z = (raw - raw.mean(0)) / raw.std(0, correction=0)
    torch.testing.assert_close(projection(x, None)[0], torch.sigmoid(1.7 * z / (1 + (z / 2.7) ** 2).sqrt()))


def test_outliers_never_saturate():
    projection = Projection(1, 1, spec())
    x = torch.randn(1000, 1)
    x[0] = 300.0
    x.requires_grad_()
    position, _ = projection(x, None)
    assert 0.01 < position.min() < position.max() < 0.99
    position[0].sum().backward()
    assert projection.weight.grad.isfinite().all()
    assert (bounded(torch.tensor([0.1, 1e9]), 2.7) - torch.tensor([0.1, 2.7])).abs().max() < 1e-3


def test_running_statistics_are_right_from_the_first_batch_on():
    projection = Projection(8, 3, spec())
    x = torch.randn(1000, 8) * 50 + 3
    trained, _ = projection(x, None)
    projection.eval()
    torch.testing.assert_close(projection(x, None)[0], trained, atol=1e-4, rtol=0)


def test_running_statistics_follow():
    projection = Projection(4, 2, spec())
    for _ in range(200):
        projection(torch.randn(64, 4) + 5, None)
    expected = projection.weight.sum(1) * 5
    torch.testing.assert_close(projection.running_mean, expected, atol=0.2, rtol=0)


@pytest.mark.parametrize("samples", [0, 1])
def test_a_batch_too_small_for_statistics_uses_the_running_ones(samples):
    projection = Projection(8, 3, spec())
    projection(torch.randn(100, 8) + 2, None)
    before = copy.deepcopy(projection.state_dict())
    x = torch.randn(samples, 8) + 2
    in_training = projection(x, None)[0]
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(getattr(projection, name), before[name])
    projection.eval()
    torch.testing.assert_close(in_training, projection(x, None)[0])


def test_evaluation_treats_samples_alone():
    projection = Projection(8, 3, spec()).eval()
    x = torch.randn(5, 8)
    together = projection(x, None)[0]
    torch.testing.assert_close(together, torch.cat([projection(x[n : n + 1], None)[0] for n in range(5)]))


def test_raw_is_the_papers_form():
    projection = Projection(8, 3, spec(standardize=False))
    x = torch.randn(5, 8)
    torch.testing.assert_close(projection(x, None)[0], torch.sigmoid(0.4 * x @ projection.weight.mT))
    assert "running_mean" not in projection.state_dict()


def test_moments_leave_out_what_is_not_finite():
    raw = torch.tensor([[1.0, 2.0], [float("nan"), 4.0], [3.0, float("inf")]])
    mean, variance, count = moments(raw)
    assert (mean.tolist(), variance.tolist(), count.tolist()) == ([2, 3], [1, 1], [2, 2])


@pytest.mark.parametrize("text", ["D(5)-C-R3", "H(5)-C-R3", "H(5)-C-R3 independent raw"])
def test_the_local_proposal_has_the_same_value_and_trains_only_decisions(text):
    projection = Projection(8, 3, spec(text)).double()
    for p in projection.parameters():
        torch.nn.init.normal_(p)
    x = torch.randn(6, 8, dtype=torch.float64, requires_grad=True)
    parent = torch.rand(6, 3, dtype=torch.float64, requires_grad=True)
    weights = torch.randn(6, 3, dtype=torch.float64)
    full, local = projection(x, parent, local=True)
    assert torch.equal(local, full)
    # the same as detaching everything by hand
    (projection(x.detach(), parent.detach(), update=False)[0] * weights).sum().backward()
    expected = [p.grad.clone() for p in projection.parameters()]
    projection.zero_grad()
    (local * weights).sum().backward()
    for p, gradient in zip(projection.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, gradient, rtol=1e-12, atol=1e-12)
    assert x.grad is None
    assert parent.grad is None


def test_without_a_parent_the_middle_of_the_decision_spline_is_read():
    projection = Projection(8, 3, spec("H(5)-C-R3")).eval()
    x = torch.randn(4, 8)
    middle = projection(x, None)[0]
    torch.testing.assert_close(middle, projection(x, torch.full((4, 3), 0.5))[0])
    projection.forget_parent()
    assert projection.knots is None
    torch.testing.assert_close(projection(x, None)[0], middle)


def test_a_hierarchical_projection_depends_on_its_parent():
    projection = Projection(8, 3, spec("H(5)-C-R3")).eval()
    x = torch.randn(4, 8)
    assert not torch.allclose(projection(x, torch.zeros(4, 3))[0], projection(x, torch.ones(4, 3))[0])


@pytest.mark.parametrize("spec", ["D(5)-D-R4", "H(4)-D-G2"])
def test_images_with_channels_last_decide_alike(spec):
    layer, shape = make("conv2d", spec)
    found = []
    for memory_format in (torch.contiguous_format, torch.channels_last):
        torch.manual_seed(0)
        x = torch.randn(64, *shape, dtype=torch.float64).contiguous(memory_format=memory_format).requires_grad_()
        layer.zero_grad()
        y = layer(x)
        y.square().sum().backward()
        found.append([y.detach(), x.grad, *(p.grad.clone() for p in layer.projection.parameters())])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


def test_a_direction_of_anything_finite_is_a_place():
    responses = torch.tensor([[1e30, -1e25, 0.0, 1e-30, 3.0, 1e30]])
    place = direction(responses)
    expected = torch.atan2(responses[:, 3:].double(), responses[:, :3].double()).div(2 * torch.pi).remainder(1)
    torch.testing.assert_close(place.double(), expected, rtol=0, atol=1e-6)
    assert torch.equal(direction(torch.zeros(1, 2)), torch.zeros(1, 1))
