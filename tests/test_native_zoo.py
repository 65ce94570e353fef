"""Networks that nobody here wrote, in the native runtime: plain, and with every layer converted."""

import pytest
import torch
from tests.helpers.zoo import build
from torch import nn

import splinenets as sn

# the convolutional families of docs/conversion.md, and what is missing for those that cannot be exported
FAMILIES = {
    **dict.fromkeys(
        ("ResNet", "RegNet", "ConvNext", "MobileNetV1", "MobileNetV2", "EfficientNet", "Bit", "PoolFormer")
    ),
    **dict.fromkeys(("FocalNet", "HGNetV2", "TextNet", "PPLCNet")),
    "ConvNextV2": "aten.linalg_vector_norm.default",
}
QUICK = ("RegNet", "ConvNext")


class Logits(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        answer = self.net(x)
        return answer.logits if hasattr(answer, "logits") else answer.last_hidden_state


@pytest.mark.parametrize("spec", [None, "D(5)-C-R4", "D(5)-C-R3"])
@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in FAMILIES])
def test_families(name, spec, tmp_path):
    torch.manual_seed(0)
    net, images = build(name)
    net, images = Logits(net).float().eval(), images.float()
    if spec is not None:
        net = sn.convert(net, spec, example=images, spread=0.1).eval()
    if FAMILIES[name] is not None:
        with pytest.raises(ValueError, match=f"does not know {FAMILIES[name]}"):
            sn.export(net, images, tmp_path / "net.native")
        return
    sn.export(net, images, tmp_path / "net.native")
    expected, found = net(images), sn.load_export(tmp_path / "net.native", threads=2)(images)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-3 * max(1.0, expected.abs().max().item()))


def test_most_families_can_be_exported():
    assert sum(missing is None for missing in FAMILIES.values()) >= 0.8 * len(FAMILIES)
