"""Networks of timm and torchvision themselves, where these packages are installed; docs/conversion.md lists them."""

import copy
import re

import pytest
import torch
from tests.helpers.marks import slow
from tests.helpers.pages import PAGES
from tests.helpers.stubs import real

import splinenets as sn
from splinenets.training import Recipe
from splinenets.training.networks import Shape, build_plain, first_convolution, later_stages

SMALL = (
    *("timm:test_resnet", "timm:test_efficientnet", "timm:test_convnext", "timm:test_vit"),
    *("torchvision:squeezenet1_1", "torchvision:shufflenet_v2_x0_5"),
)
ROWS = re.findall(r"^\| `(timm:\w+)` \| (\d+) \| (\d+) \|", PAGES["conversion.md"].read_text(), flags=re.MULTILINE)
TABLE = {name: (int(converted), int(left)) for name, converted, left in ROWS}
ARGUMENTS = {"timm:vit_tiny_patch16_224": {"img_size": 64}}
CHANNELS = "the native runtime computes with images whose channels come first"
LACKING = {("timm:vit_tiny_patch16_224", "native"): CHANNELS, ("timm:test_vit", "native"): CHANNELS}
IMAGES, LABELS = torch.randn(4, 3, 64, 64, generator=torch.Generator().manual_seed(0)).double(), torch.arange(4)


def converted(model, spec, spread=0.1):
    """Those layers are splines that would be if nobody said which."""
    specs = dict.fromkeys(later_stages(model), spec)
    return sn.convert(model, specs, example=IMAGES, skip=first_convolution(model), spread=spread).eval()


@pytest.fixture(scope="module", params=[*SMALL, *map(slow, TABLE)])
def stranger(request):
    """A plain network of another package in float64 and eval mode, and its name."""
    if not real(request.param.partition(":")[0]):
        pytest.skip("the package is not installed")
    torch.manual_seed(0)
    recipe = Recipe(name="x", network=request.param, arguments=ARGUMENTS.get(request.param, {}))
    model = build_plain(recipe, Shape(channels=3, size=64, classes=5)).double()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.momentum = 1.0
    with torch.no_grad():
        model.train()(IMAGES)  # batch norms see what they will normalise
    return model.eval(), request.param


@pytest.mark.parametrize("spec", ["D(3)-C-R3", "H(3)-C-R3"])
def test_strangers_start_as_they_were_and_learn(stranger, spec):
    model, name = stranger
    net = converted(model, spec, spread=0.0)
    if name in TABLE:
        assert (len(net.conversion.converted), len(net.conversion.left)) == TABLE[name]
    expected = model(IMAGES)
    torch.testing.assert_close(net(IMAGES), expected, rtol=0, atol=1e-9 * expected.abs().max().item())
    loss, _ = sn.Regularized(net.train(), 5)(IMAGES, labels=LABELS)
    loss.backward()
    torch.optim.SGD(net.parameters(), lr=1e-3).step()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())
    with torch.no_grad():
        assert net.eval()(IMAGES).isfinite().all()


@torch.no_grad()
@pytest.mark.parametrize("spec", ["D(3)-C-R3", "H(3)-C-R3", "D(3)-X-R3"])
def test_strangers_are_saved_and_deployed(stranger, spec, tmp_path):
    net, inputs = converted(stranger[0], spec).float(), (IMAGES.float(),)
    if "X" in spec:
        net, inputs = sn.condition(net, 0, 1, name="level"), (*inputs, torch.rand(4))
    expected = net(*inputs)
    deployed = sn.deploy(net)
    atol = 1e-3 * max(1.0, expected.abs().max().item())
    torch.testing.assert_close(deployed(*inputs), expected, rtol=0, atol=atol)
    for subject in (net, deployed):
        sn.save(subject, tmp_path / "net.safetensors")
        assert torch.equal(sn.load(tmp_path / "net.safetensors")(*inputs), subject(*inputs))
        sn.hub.Shared(subject).save_pretrained(tmp_path / "folder")
        assert torch.equal(sn.hub.Shared.from_pretrained(tmp_path / "folder").net(*inputs), subject(*inputs))


@pytest.mark.slow
@pytest.mark.parametrize("to", ["native", "onnx", "pt2"])
def test_strangers_are_exported(stranger, to, tmp_path):
    net, images = converted(stranger[0], "D(3)-C-R3").float(), IMAGES.float()
    if lacking := LACKING.get((stranger[1], to)):
        with pytest.raises(ValueError, match=lacking):
            sn.export(net, images, tmp_path / f"net.{to}")
        return
    sn.export(net, images, tmp_path / f"net.{to}")
    expected, found = net(images), sn.load_export(tmp_path / f"net.{to}")(images)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-3 * max(1.0, expected.abs().max().item()))


@pytest.mark.slow
@pytest.mark.parametrize("training", [False, True])
def test_strangers_are_compiled_in_one_piece(stranger, training):
    torch._dynamo.reset()
    net = converted(stranger[0], "D(3)-C-R3").train(training)
    for module in net.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    twin = copy.deepcopy(net)
    compiled = torch.compile(twin, fullgraph=True, backend="aot_eager")
    for subject in (net, compiled):
        subject(IMAGES).square().mean().backward()
    torch.testing.assert_close(compiled.eval()(IMAGES), net.eval()(IMAGES))
    for (name, p), q in zip(net.named_parameters(), twin.parameters(), strict=True):
        atol = 1e-9 * max(1e-3, p.grad.abs().max().item())
        torch.testing.assert_close(q.grad, p.grad, rtol=1e-6, atol=atol, msg=lambda m, n=name: f"{n}: {m}")
