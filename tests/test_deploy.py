"""Deployed networks answer as their originals do."""

import pytest
import torch
from tests.helpers.exports import network
from torch import nn
from torch.testing import assert_close

import splinenets as sn
from splinenets.projection import FoldedProjection

SPECS = [
    "D(5)-C-R3",
    "H(5)-D-R4 diffusion=0.75",
    "H(4)-C-G2 degree=3 diffusion=tree(2) dims=2",
    "H(3)-D-R3 raw independent",
    "D(2)-C-R4 raw",
]


def trained(spec, images, net=None):
    """A network whose batch norms, projections and knots have all moved."""
    net = sn.convert(net or sn.models.resnet(8), spec, example=images, spread=0.3).to(images.dtype)
    with torch.no_grad():
        for _ in range(5):
            net(images + torch.randn_like(images) / 2)
    return net.eval()


@pytest.mark.parametrize("spec", SPECS)
def test_deployed_networks_answer_alike(spec):
    images = torch.randn(4, 3, 12, 12, dtype=torch.float64)
    net = trained(spec, images, sn.models.resnet(8).double())
    deployed = sn.deploy(net, images)
    torch.testing.assert_close(deployed(images), net(images), rtol=0, atol=1e-9)
    torch.testing.assert_close(deployed(images[:1]), net(images[:1]), rtol=0, atol=1e-9)
    layers = [m for m in deployed.modules() if isinstance(m, sn.SplineLayer)]
    assert all(layer.base is None and isinstance(layer.projection, FoldedProjection) for layer in layers)
    assert not any(p.requires_grad for p in deployed.parameters())
    again = sn.deploy(deployed, images)
    assert torch.equal(again(images), deployed(images))


def test_layers_without_a_parent():
    images = torch.randn(2, 8)
    net = sn.SplineLinear(8, 4, spec="H(5)-D-R4").eval()
    torch.testing.assert_close(sn.deploy(net, images)(images), net(images))


def test_layers_that_share_a_weight_share_its_knots():
    images = torch.randn(3, 4)
    net = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    net[2].weight = net[0].weight
    spline = trained("D(5)-D-R4", images, net)
    deployed = sn.deploy(spline, images)
    assert deployed[0].knots is deployed[2].knots
    torch.testing.assert_close(deployed(images), spline(images))


@pytest.mark.parametrize(("knots", "bytes_each", "error"), [("bf16", 2, 2**-8), ("int8", 1, 1 / 127)])
def test_storage(knots, bytes_each, error):
    images = torch.randn(4, 3, 12, 12)
    net = sn.deploy(trained("H(5)-D-R3", images), images)
    small = sn.deploy(net, images, knots=knots)
    for name, layer in net.named_modules():
        if isinstance(layer, sn.SplineLayer):
            other = small.get_submodule(name)
            assert other.parametrizations.knots.original0.element_size() == bytes_each
            allowed = error * layer.knots.abs().amax(-1, keepdim=True)
            assert ((other.knots - layer.knots).abs() <= allowed).all()
    sizes = [sum(p.numel() * p.element_size() for p in n.parameters()) for n in (net, small)]
    assert sizes[1] < sizes[0] * bytes_each / 4 * 1.1
    answers = small(images)
    assert (answers - net(images)).abs().max() < 0.1 * net(images).abs().max()
    exact = small.double()(images.double())  # as exports judge their rounding errors
    assert exact.dtype == torch.float64
    torch.testing.assert_close(exact.float(), answers, rtol=1e-4, atol=1e-4)


def test_rows_of_zeros_are_stored_as_zeros():
    net = sn.SplineLinear(3, 2, spec="D(2)-D-R4")
    with torch.no_grad():
        net.weight.zero_()
        net.knots.zero_()
        net.bias.zero_()
    ones = torch.ones(1, 3)
    assert sn.deploy(net, ones, knots="int8")(ones).abs().max() == 0


def test_unknown_storage():
    with pytest.raises(ValueError, match="'int4', choose from float32, bf16, int8"):
        sn.deploy(nn.Linear(2, 2), knots="int4")


def told_network(spec, **conditions):
    """A LeNet that is told something, and images."""
    net, some = network("lenet4", spec, count=8)
    return sn.condition(net, **conditions).eval(), some


ANGLE = sn.Condition(0, 360)
TOLD = [
    ("D(4)-X-R4 closed", {"angle": ANGLE}, 90),
    ("D(4)-X-R4", {"angle": ANGLE}, {"angle": torch.tensor([300.0])}),
    ({"conv1": "D(4)-X-R4", "conv2": "D(4)-C-R3", "dense1": None, "*": "D(3)-X-R4"}, {"angle": ANGLE}, 17.5),
    ("D(3)-X-R4 dims=2", {"angle": ANGLE, "noise": sn.Condition(1, 0)}, {"noise": 0.25, "angle": 10}),
    ("D(3)-X-R4 dims=2", {"place": sn.Condition((0, -1), (1, 1))}, {"place": (0.5, 0.25)}),
]


@pytest.mark.parametrize(("spec", "conditions", "at"), TOLD)
def test_a_network_frozen_at_a_condition(spec, conditions, at):
    net, some = told_network(spec, **conditions)
    given = at if isinstance(at, dict) else {"angle": at}
    given = {name: torch.as_tensor(value).reshape(1, -1).expand(8, -1) for name, value in given.items()}
    with torch.no_grad():
        expected = net(some, given)
        for each in (net, sn.deploy(net), sn.deploy(net, (some, given))):
            frozen = sn.collapse(each, at)
            assert not [m for m in frozen.modules() if isinstance(m, sn.SplineLayer) and m.spec.external]
            torch.testing.assert_close(each(some, given), expected, rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(frozen(some), expected, rtol=1e-5, atol=1e-5)


def test_what_cannot_be_frozen():
    net, _ = told_network("D(4)-X-R4", angle=ANGLE)
    for at, complaint in (
        (400, "the condition 'angle' lies between 0 and 360, got 400"),
        (float("nan"), "a condition 'angle' that is not a number"),
        ({"angel": 3}, "unknown condition 'angel', choose from angle"),
        (torch.tensor([1.0, 2.0]), "the condition 'angle' has shape"),
    ):
        with pytest.raises(ValueError, match=complaint):
            sn.collapse(net, at)
    net, _ = told_network({"conv1": "D(4)-X-R4", "*": "H(4)-C-R3"}, angle=ANGLE)
    with pytest.raises(ValueError, match=r"layer 'net\.conv2' inherits positions"):
        sn.collapse(net, 90)


def test_collapse_takes_positions_as_places_on_their_curve():
    layer = torch.nn.Sequential(torch.nn.Linear(4, 4))
    closed, opened = (sn.convert(layer, spec, spread=0.5) for spec in ("D(4)-C-R3 closed", "D(4)-C-R3"))
    seam = sn.collapse(closed, {"0": torch.tensor([[0.9999], [0.0001]])})
    assert_close(seam[0].weight, sn.collapse(closed, 0.0)[0].weight, atol=1e-3, rtol=0)
    for wrong in (float("nan"), 7.0, -0.1):
        with pytest.raises(ValueError, match=r"positions of layer '0' lie in \[0, 1\], got"):
            sn.collapse(opened, {"0": torch.full((2, 1), wrong)})
