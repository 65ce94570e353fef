"""Conversion of networks that nobody here wrote."""

import re

import pytest
import torch
from tests.helpers import zoo
from tests.helpers.marks import slow
from tests.helpers.pages import PAGES

import splinenets as sn

# their convolutions standardise their own weights; only the head is converted
LEFT = {"Bit": "has a forward of its own"}


QUICK = {
    "D(3)-C-R3": ["ResNet", "RegNet", "ConvNextV2", "MobileNetV1", "EfficientNet", "Bit", "ViT", "PvtV2"],
    "D(3)-D-R4": ["ConvNext", "Swin"],
    "H(3)-D-R3": ["ResNet"],
    "H(3)-C-R4": [],
}
CASES = [(name, spec) if name in quick else slow(name, spec) for spec, quick in QUICK.items() for name in zoo.CONFIGS]
ROWS = re.findall(r"^\| (\w+) \| (\d+) \| (\d+) \|$", PAGES["conversion.md"].read_text(), flags=re.MULTILINE)
TABLE = {name: (int(converted), int(left)) for name, converted, left in ROWS}


def test_the_page_lists_all_networks():
    assert list(TABLE) == list(zoo.CONFIGS)


@pytest.mark.parametrize(("name", "spec"), CASES)
def test_convert_and_train(name, spec):
    model, images = zoo.build(name)
    net = sn.convert(model, spec, example=images)
    if spec == "D(3)-C-R3":
        assert (len(net.conversion.converted), len(net.conversion.left)) == TABLE[name]
    assert len(net.conversion.converted) >= (1 if name in LEFT else 5)
    assert all(LEFT.get(name, "nothing is left") in reason for reason in net.conversion.left.values())

    with torch.no_grad():
        for training in (False, True):
            expected, found = (m.train(training)(images)[0] for m in (model, net))
            scale = expected.abs().max().item()
            assert scale > 0, "nothing to compare"
            torch.testing.assert_close(found, expected, rtol=0, atol=1e-9 * scale)

    model(images)[0].square().mean().backward()
    reached = {n for n, p in model.named_parameters() if p.grad is not None}
    output, positions = sn.trace(net, images)
    output[0].square().mean().backward()
    for key, parameter in net.named_parameters():
        if key in reached or key.endswith(("knots", "projection.weight")):
            assert parameter.grad is not None, key
            assert parameter.grad.isfinite().all(), key
    assert len(positions) >= len(net.conversion.converted)

    other = sn.convert(model, spec, example=images)
    other.load_state_dict(net.state_dict())
    with torch.no_grad():
        assert torch.equal(other.eval()(images)[0], net.eval()(images)[0])


@pytest.mark.parametrize("name", ["ResNet", "ConvNext", slow("MobileNetV2"), slow("Swin")])
def test_without_an_example(name):
    model, images = zoo.build(name)
    net = sn.convert(model, "H(3)-C-R3 diffusion=0.8").eval()
    torch.testing.assert_close(net(images)[0], model.eval()(images)[0], rtol=1e-9, atol=1e-9)
