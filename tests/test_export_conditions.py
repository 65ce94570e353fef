"""Exports of networks that are told something, and of closed curves: what they compute, what they refuse."""

import pytest
import torch
from tests.helpers.exports import network

import splinenets as sn
from splinenets.exporting.capture import Inputs

ANGLE = sn.Condition(0, 360)
# by name: the specs of a LeNet's layers, and what it is told
NETWORKS = {
    "X": ("D(5)-X-R4", {"angle": ANGLE}),
    "X closed": ("D(4)-X-R4 closed", {"angle": ANGLE}),
    "mixed": (
        {"conv1": "D(4)-X-R4 closed", "conv2": "D(4)-C-R3", "dense1": "H(3)-D-R4", "dense2": "D(5)-X-R4 degree=3"},
        {"angle": ANGLE},
    ),
    "surface": ("D(3)-X-R4 dims=2", {"angle": ANGLE, "noise": sn.Condition(1.0, 0.25)}),
    "one surface": ("D(3)-X-R4 dims=2 closed", {"place": sn.Condition((0, -1), (1, 1))}),
    "several": (
        "D(3)-X-R4",
        {"angle": sn.Condition(-180, 180, layers="conv*"), "noise": sn.Condition(layers="dense*")},
    ),
    "inherited": ({"conv1": "D(4)-X-R4", "*": "H(4)-C-R3 closed diffusion=0.7"}, {"angle": ANGLE}),
}
CLOSED = ["D(4)-C-R3 closed", "H(3)-D-R3 closed", "H(4)-C-G2 closed degree=0", "H(4)-C-R4 closed diffusion=tree(1.5)"]
SLOW = {"one surface", "several"}


def told_network(name):
    """A network that is told something, images, and a condition for each."""
    spec, conditions = NETWORKS[name]
    net, some = network("lenet4", spec, count=40)
    net = sn.condition(net, **conditions)
    torch.manual_seed(1)
    given = {n: net.conditions.at(n, torch.rand(len(some), size)) for n, size in net.conditions.sizes.items()}
    for n, values in given.items():  # both ends, and the middle
        values[:3] = net.conditions.at(n, torch.tensor([[0.0], [1.0], [0.5]]).expand(3, values.shape[1]))
    return net.eval(), some, given


@pytest.mark.parametrize("purpose", ["latency", "throughput"])
@pytest.mark.parametrize("to", ["onnx", "pt2", "native"])
@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in NETWORKS])
def test_exports_equal_the_network(name, to, purpose, tmp_path):
    net, some, given = told_network(name)
    path = tmp_path / f"net.{to}"
    sn.export(net, (some, given), path, purpose=purpose)
    exported = sn.load_export(path)
    with torch.no_grad():
        expected = net(some, **given)
        assert (expected - net(some[:1].expand_as(some), **given)).abs().max() > 0.01
        apart = net(some, **{n: values.flip(0) for n, values in given.items()})
    assert (expected - apart).abs().max() > 1e-3  # what it is told matters
    for size in (40, 3) if purpose == "throughput" else (40,):
        parts = Inputs(some, given).split(size)
        found = torch.cat([exported(part.images, part.conditions) for part in parts])
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert exported.conditions.described() == net.conditions.described()
