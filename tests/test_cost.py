import json

import pytest
import torch
from tests.helpers import zoo
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import splinenets as sn


def torch_macs(net, x):
    counter = FlopCounterMode(display=False)
    with counter, torch.no_grad():
        net.eval()(x)
    return counter.get_total_flops() // 2 // len(x)


GREY, COLOUR = torch.zeros(1, 1, 28, 28), torch.zeros(1, 3, 32, 32)


def test_lenet_by_hand():
    found = sn.cost(sn.models.lenet(32), GREY)
    assert found.macs == found.operator == 28 * 28 * 25 * 32 + 14 * 14 * 25 * 32 * 64 + 3136 * 128 + 128 * 10
    assert found.parameters == found.active == 32 * 26 + 64 * 801 + 128 * 3137 + 10 * 129
    activations = 32 * 28 * 28 + 64 * 14 * 14 + 128
    pooling = 4 * (32 * 14 * 14 + 64 * 7 * 7)
    assert found.other == activations + pooling
    assert found.bytes_read == 4 * found.parameters


@pytest.mark.parametrize(("depth", "blocks"), [(32, 5), (110, 18)])
def test_resnet_by_hand(depth, blocks):
    found = sn.cost(sn.models.resnet(depth), COLOUR)
    stages = sum(
        9 * c * c * s * s * (2 * blocks - (c > 16)) + (9 * c // 2 * c * s * s if c > 16 else 0)
        for c, s in ((16, 32), (32, 16), (64, 8))
    )
    assert found.macs == 9 * 3 * 16 * 32 * 32 + stages + 640
    values = sum(2 * blocks * c * s * s for c, s in ((16, 32), (32, 16), (64, 8)))
    stem = 16 * 32 * 32
    assert found.other == 2 * (values + stem) + 64 * 8 * 8  # norm and activation after each convolution, then pooling


def test_spline_lenet_by_hand():
    net = sn.convert(sn.models.lenet(32), "H(4)-D-R3", example=GREY)
    found = sn.cost(net, GREY)
    knots = 25 * 32 + 25 * 32 * 64 + 3136 * 128 + 1280
    bias = 32 + 64 + 128 + 10
    decisions = 784 * 32 + 4 * (6272 * 64 + 3136 + 128)
    matching = 32 * 64 + 64 * 1
    assert found.parameters == 4 * knots + bias + decisions + matching
    assert found.active == 3 * knots + bias + 784 * 32 + 3 * (6272 * 64 + 3136 + 128) + matching
    assert found.trained == found.parameters + knots + 6272 * 64 + 3136 + 128
    assert found.trained == sum(p.numel() for p in net.parameters())
    assert found.projection == 784 * 32 + 6272 * 64 + 3136 + 128
    assert found.decision == 3 * (6272 * 64 + 3136 + 128)
    assert found.weights == 3 * knots
    operator = sn.cost(sn.models.lenet(32), GREY).macs
    assert found.operator == operator
    assert found.macs == found.projection + found.decision + found.weights + found.operator


def test_spline_resnet_by_hand():
    net = sn.convert(sn.models.resnet(32), "D(5)-C-R3")
    found = sn.cost(net, COLOUR)
    convolutions = (
        [(3, 16, 32)] + [(16, 16, 32)] * 10 + [(16, 32, 32)] + [(32, 32, 16)] * 9 + [(32, 64, 16)] + [(64, 64, 8)] * 9
    )
    knots = sum(9 * i * o for i, o, _ in convolutions) + 640
    pooled = sum(i * s * s for i, _, s in convolutions)  # the dense layer's input is pooled already
    decisions = sum(i * o for i, o, _ in convolutions) + 64
    assert found.parameters == 5 * knots + decisions + 10 + 2 * (16 * 11 + 32 * 10 + 64 * 10)
    assert found.projection == pooled + decisions
    assert found.weights == 3 * knots
    assert found.decision == 0
    outputs = sum(o * (s if i in (o, 3) else s // 2) ** 2 for i, o, s in convolutions) + 10
    static = sn.cost(sn.models.resnet(32), COLOUR).macs
    assert found.grouped == 3 * (found.projection + 5 * knots + static)
    assert found.bank == 3 * (found.projection + 5 * static + 5 * outputs)


@pytest.mark.parametrize("samples", [1, 3])
def test_static_networks_agree_with_torchs_counter(samples):
    x = torch.randn(samples, 3, 32, 32)
    for net in (sn.models.lenet(32, in_channels=3, image_size=32), sn.models.resnet(20, shortcut="projection")):
        assert sn.cost(net, x).macs == torch_macs(net, x)


@pytest.mark.parametrize("name", ["ResNet", "MobileNetV2", "ConvNext", "ViT", "Swin", "Levit"])
def test_networks_from_elsewhere_agree_with_torchs_counter(name):
    net, images = zoo.build(name)
    net.eval()
    found = sn.cost(net, images)
    assert found.macs == torch_macs(net, images)
    assert found.parameters == sum(p.numel() for p in net.parameters())
    if name not in ("ViT", "Swin"):  # torch's counter sees attention on some of torch's paths and not on others
        spline = sn.cost(sn.convert(net, "H(5)-C-R3", example=images), images)
        assert spline.operator == found.operator


def test_a_layer_called_twice_costs_twice_and_is_stored_once():
    layer = nn.Conv2d(3, 3, 3, padding=1)
    once, twice = (sn.cost(nn.Sequential(*[layer] * n), torch.zeros(1, 3, 8, 8)) for n in (1, 2))
    assert twice.macs == 2 * once.macs
    assert twice.parameters == once.parameters


def test_transposed_convolutions_agree_with_torch():
    net, x = nn.ConvTranspose2d(4, 6, 3, stride=2), torch.zeros(2, 4, 5, 5)
    assert sn.cost(net, x).macs == torch_macs(net, x)


def test_shows_itself():
    found = sn.cost(sn.convert(sn.models.lenet(4), "D(5)-C-R3"), GREY)
    table = found.table()
    assert str(found) == table
    assert "conv1" in table
    assert f"{found.macs:,}" in table.splitlines()[-1]
    data = json.loads(found.to_json())
    assert data["total"]["macs"] == found.macs == sum(layer["macs"] for layer in data["layers"])
    net = nn.Sequential()
    net.add_module("<b>bold</b>", nn.Linear(2, 2))
    page = sn.cost(net, torch.zeros(1, 2))._repr_html_()
    assert "<b>" not in page
    assert "&lt;b&gt;" in page
    with pytest.raises(AttributeError, match="'watts'"):
        found.watts  # noqa: B018


@pytest.mark.parametrize(
    ("example", "complaint"), [(torch.zeros(0, 2), "empty batch"), ("image", "got str"), ({}, "got dict")]
)
def test_bad_input_is_named(example, complaint):
    with pytest.raises(ValueError, match=complaint):
        sn.cost(nn.Linear(2, 2), example)
