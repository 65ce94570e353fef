"""Conversion of networks that nobody here wrote."""

import copy
import re

import pytest
import torch
from tests.helpers import zoo
from tests.helpers.marks import slow
from tests.helpers.pages import PAGES
from tests.helpers.stubs import real

import splinenets as sn
from splinenets.training import Recipe
from splinenets.training.networks import Shape, build_plain

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


# Networks of timm and torchvision themselves, where these packages are installed

STRANGERS = (
    *("timm:test_resnet", "timm:test_efficientnet", "timm:test_convnext", "timm:test_vit"),
    *("torchvision:squeezenet1_1", "torchvision:shufflenet_v2_x0_5"),
)


@pytest.fixture(scope="module", params=STRANGERS)
def stranger(request):
    """A SplineNet made of a network of another package, in eval mode, images, and what it says of them."""
    if not real(request.param.partition(":")[0]):
        pytest.skip("the package is not installed")
    torch.manual_seed(0)
    model = build_plain(Recipe(name="x", network=request.param), Shape(channels=3, size=64, classes=5))
    images = torch.randn(4, 3, 64, 64)
    with torch.no_grad():
        model.train()(images)  # batch norms see what they will normalise
    net = sn.convert(model, "D(3)-C-R3", example=images, spread=0.1).eval()
    return net, images, net(images).detach()


def same(found, expected):
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-3 * max(1.0, expected.abs().max().item()))


def test_strangers_are_saved_and_deployed(stranger, tmp_path):
    net, images, expected = stranger
    sn.save(net, tmp_path / "net.safetensors")
    assert torch.equal(sn.load(tmp_path / "net.safetensors")(images), net(images))
    deployed = sn.deploy(net)
    same(deployed(images), expected)
    sn.save(deployed, tmp_path / "deployed.safetensors")
    assert torch.equal(sn.load(tmp_path / "deployed.safetensors")(images), deployed(images))


@pytest.mark.slow
def test_strangers_are_exported(stranger):
    net, images, expected = stranger
    for chosen in (net, sn.deploy(net)):
        same(torch.export.export(chosen, (images,)).module()(images), expected)


@pytest.mark.slow
@pytest.mark.parametrize("deployed", [False, True])
def test_strangers_are_compiled_in_one_piece(stranger, deployed):
    net, images, expected = stranger
    torch._dynamo.reset()
    twin = sn.deploy(net) if deployed else copy.deepcopy(net)
    compiled = torch.compile(twin, fullgraph=True, backend="aot_eager")
    same(compiled(images), expected)
    if not deployed:
        compiled(images).square().mean().backward()
        net.zero_grad()
        net(images).square().mean().backward()
        for (name, p), q in zip(net.named_parameters(), twin.parameters(), strict=True):
            if p.grad is not None:
                atol = 1e-3 * max(1e-3, p.grad.abs().max().item())
                torch.testing.assert_close(q.grad, p.grad, rtol=0, atol=atol, msg=lambda m, n=name: f"{n}: {m}")
