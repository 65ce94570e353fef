"""Balanced knots: the same answers, and a gradient in which what a filter's weights share counts once."""

import pytest
import torch
from torch.testing import assert_close

import splinenets as sn
from splinenets.layers import SplineLayer
from splinenets.operators import balanced
from splinenets.projection import Projection


def network(**options):
    torch.manual_seed(0)
    layers = (torch.nn.Conv2d(2, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(64, 3))
    net = sn.convert(torch.nn.Sequential(*layers).double(), spread=0.5, **options)
    return net.train(), torch.randn(6, 2, 6, 6, dtype=torch.float64)


def gradients(net, x, plain=False):
    for module in net.modules():
        if isinstance(module, SplineLayer | Projection):
            module.balanced = not plain
    net.zero_grad()
    net(x).square().sum().backward()
    return {name: p.grad for name, p in net.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("spec", ["D(4)-C-R3", "H(4)-C-R4", "D(3)-C-R3 closed dims=2"])
def test_the_mean_of_a_filters_gradient_is_divided_by_its_weights(spec):
    net, x = network(spec=spec)
    ours, plain = gradients(net, x), gradients(net, x, plain=True)
    assert ours.keys() == plain.keys()
    for name, gradient in plain.items():
        if name.endswith("knots"):
            mean = gradient.mean(-1, keepdim=True)
            gradient = gradient - mean + mean / gradient.shape[-1]
            assert not torch.equal(gradient, plain[name])
        assert_close(ours[name], gradient, msg=name)


def test_answers_are_the_same_bits():
    net, x = network(spec="H(4)-C-R3")
    answer = net(x)
    gradients(net, x, plain=True)
    assert torch.equal(net(x), answer)


def test_knots_that_stand_alone_have_plain_gradients():
    net, x = network(spec="H(4)-C-R3 independent")
    assert all(map(torch.equal, gradients(net, x).values(), gradients(net, x, plain=True).values()))


def test_a_filter_of_one_weight_learns_as_it_is():
    knots = torch.randn(5, 3, 1, requires_grad=True)
    (2 * balanced(knots)).sum().backward()
    assert_close(knots.grad, torch.full_like(knots, 2.0))


def test_descent_is_that_of_other_parameters():
    """Where a filter's mean is stored sqrt(M) times as large, plain gradient descent takes the same steps."""
    target = torch.randn(4, 9, dtype=torch.float64)
    knots = torch.randn(4, 9, dtype=torch.float64, requires_grad=True)
    stored = (knots.detach() + 2 * knots.detach().mean(-1, keepdim=True)).requires_grad_()
    for parameter, read in (
        (knots, balanced),
        (stored, lambda s: s - (1 - 1 / 3) * s.mean(-1, keepdim=True)),
    ):
        optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
        for _ in range(5):
            optimizer.zero_grad()
            (read(parameter) - target).pow(4).sum().backward()
            optimizer.step()
    assert_close(stored.detach() - (2 / 3) * stored.detach().mean(-1, keepdim=True), knots.detach())


def test_nothing_is_recorded_without_gradients():
    knots = torch.randn(5, 3, 4, requires_grad=True)
    with torch.no_grad():
        assert balanced(knots) is knots
    assert balanced(knots.detach()).grad_fn is None
