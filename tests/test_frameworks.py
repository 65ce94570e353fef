"""Spline layers inside everything torch does with a network."""

import copy
import io

import pytest
import torch
from tests.helpers.marks import slow, slow_where
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

import splinenets as sn


def small(spec="H(5)-C-R3 diffusion=0.75", neighbour=nn.Conv2d):
    net = nn.Sequential(
        sn.SplineConv2d(3, 8, 3, padding=1, spec=spec, input_size=(6, 6)),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        neighbour(8, 8, 1),
        sn.SplineConv2d(8, 4, 3, stride=2, spec=spec, input_size=(6, 6)),
        nn.Flatten(),
        sn.SplineLinear(16, 5, spec=spec),
    )
    return sn.connect(net, torch.randn(2, 3, 6, 6))


SPECS = ["D(5)-C-R3", "H(5)-D-R4", "H(4)-C-G2 degree=3 diffusion=0.75 dims=2"]
images = torch.randn(4, 3, 6, 6, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("spec", slow_where(SPECS[-1].__ne__, SPECS))
@pytest.mark.parametrize("samples", [1, slow(4)])
def test_compile(spec, samples):
    torch._dynamo.reset()
    net = small(spec).eval()
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    x = images[:samples]
    torch.testing.assert_close(compiled(x), net(x))
    torch.testing.assert_close(compiled(x + 1), net(x + 1))  # nothing of the first call was frozen


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compile_to_machine_code():
    torch._dynamo.reset()
    net = small().eval()
    compiled = torch.compile(net, fullgraph=True)
    with torch.no_grad():
        for samples in (1, 4):
            torch.testing.assert_close(compiled(images[:samples]), net(images[:samples]), rtol=1e-4, atol=1e-5)


def test_compiled_training():
    torch._dynamo.reset()
    net = small()
    twin = copy.deepcopy(net)
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager")
    for _ in range(2):
        for call, model in ((compiled, net), (twin, twin)):
            model.zero_grad()
            call(images).square().sum().backward()
    for (name, p), q in zip(net.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-4, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")
    for p, q in zip(net.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(p, q)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("samples", [1, 4])
def test_export(spec, samples):
    net = small(spec).eval()
    program = torch.export.export(net, (images[:samples],))
    torch.testing.assert_close(program.module()(images[:samples] * 2), net(images[:samples] * 2))


@pytest.mark.parametrize("spec", slow_where(SPECS[-1].__ne__, SPECS))
def test_export_with_any_batch(spec):
    net = small(spec).eval()
    program = torch.export.export(net, (images,), dynamic_shapes=({0: torch.export.Dim("samples")},))
    for samples in (2, 3, 4):
        torch.testing.assert_close(program.module()(images[:samples]), net(images[:samples]))


@pytest.mark.filterwarnings("ignore:While compiling, we found certain side effects")
def test_strict_export():
    torch._dynamo.reset()
    net = small().eval()
    program = torch.export.export(net, (images,), strict=True)
    torch.testing.assert_close(program.module()(images), net(images))


@pytest.mark.parametrize("strategy", ["single", "grouped", "bank"])
def test_autocast(strategy):
    net = small()
    twin = copy.deepcopy(net)
    with sn.strategy(strategy):
        expected, exact = sn.trace(twin, images)
        with torch.autocast("cpu", torch.bfloat16):
            y, positions = sn.trace(net, images)
        assert y.dtype == torch.bfloat16
        assert all(p.dtype == torch.float32 for p in positions.values())
        torch.testing.assert_close(positions["0"], exact["0"], atol=0.05, rtol=0)
        torch.testing.assert_close(y.float(), expected, atol=0.15, rtol=0.1)
        y.float().sum().backward()
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in net.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_whole_networks_in_another_precision(dtype):
    net = small().to(dtype)
    y = net(images.to(dtype))
    y.sum().backward()
    assert y.dtype == dtype
    assert all(p.grad.dtype == dtype for p in net.parameters())
    net.eval()
    assert net(images[:1].to(dtype)).dtype == dtype


def test_channels_last():
    net = small().eval()
    expected = net(images)
    net.to(memory_format=torch.channels_last)
    torch.testing.assert_close(net(images.to(memory_format=torch.channels_last)), expected)


def test_deepcopy_and_state_dict():
    net, other = small(), small()
    net(images)
    other.load_state_dict(net.state_dict())
    net.eval(), other.eval()
    assert torch.equal(other(images), net(images))
    assert torch.equal(copy.deepcopy(net)(images), net(images))


def test_saving_a_whole_network():
    net = small().eval()
    file = io.BytesIO()
    torch.save(net.state_dict(), file)
    file.seek(0)
    other = small().eval()
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other(images), net(images))


def test_parametrised_neighbours():
    net = small(neighbour=lambda *a: parametrizations.weight_norm(nn.Conv2d(*a)))
    y, positions = sn.trace(net, images)
    y.sum().backward()
    assert len(positions) == 3
    assert all(p.grad is not None for p in net.parameters())


class Checkpointed(nn.Module):
    def __init__(self, net, **how):
        super().__init__()
        self.net, self.how = net, how

    def forward(self, x):
        for part in (self.net[:2], self.net[2:5], self.net[5:]):
            x = checkpoint(part, x, **self.how)
        return x


def test_gradient_checkpointing():
    net = small()
    twin = copy.deepcopy(net)
    wrapped = sn.connect(Checkpointed(twin, use_reentrant=False))
    for model in (net, wrapped):
        model(images).square().sum().backward()
    for (name, p), q in zip(net.named_parameters(), twin.named_parameters(), strict=True):
        torch.testing.assert_close(p.grad, q[1].grad, msg=lambda m, n=name: f"{n}: {m}")
    for module, other in zip(net.modules(), twin.modules(), strict=True):
        if hasattr(module, "batches"):  # recomputing counts nothing twice
            torch.testing.assert_close(module.running_mean, other.running_mean)
            assert module.batches == other.batches


def gradients_of_two_calls(model, net, second):
    """Both calls come before the backward pass."""
    net.zero_grad()
    (model(images).square().sum() + model(second).sin().sum()).backward()
    return {name: parameter.grad for name, parameter in net.named_parameters()}


@pytest.mark.parametrize("spec", ["H(5)-C-R3 diffusion=0.75", "H(4)-D-R4", "D(3)-C-R3 diffusion=0.5", "D(5)-C-R3"])
def test_gradient_checkpointing_of_two_calls(spec):
    """What is repeated is the right one of several calls."""
    net = small(spec)
    wrapped = sn.connect(Checkpointed(copy.deepcopy(net), use_reentrant=False))
    for second in (images.flip(0), images[:3] + 1):
        expected = gradients_of_two_calls(net, net, second)
        for name, gradient in gradients_of_two_calls(wrapped, wrapped.net, second).items():
            torch.testing.assert_close(gradient, expected[name], msg=lambda m, n=name: f"{n}: {m}")


def test_gradient_checkpointing_that_keeps_nothing_is_refused():
    wrapped = sn.connect(Checkpointed(small(), use_reentrant=True))
    logits = wrapped(images.clone().requires_grad_())
    with pytest.raises(RuntimeError, match="set use_reentrant=False"):
        logits.sum().backward()


def test_gradient_checkpointing_of_two_calls_that_look_alike_is_refused():
    """The same images with two conditions: nobody could tell which of them is repeated."""
    plain = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1), nn.Flatten(), nn.Linear(64, 5))
    net = sn.condition(sn.connect(Checkpointed(sn.convert(plain, "D(3)-X-R4", spread=0.3), use_reentrant=False)))
    one, other = (net(images, torch.full((4,), angle)).sum() for angle in (0.2, 0.7))
    with pytest.raises(RuntimeError, match="give each call other inputs"):
        (one + other).backward()


def test_functional_call():
    net = small().eval()
    halved = {n: p / 2 for n, p in net.named_parameters()}
    torch.func.functional_call(net, halved, (images,))
    assert net[0].path.state.run is None


@pytest.mark.filterwarnings(
    *("ignore:`torch.jit:DeprecationWarning", "ignore:You are using the legacy", "ignore:The feature will be removed")
)
@pytest.mark.parametrize(
    "work",
    [
        lambda net, x: torch.jit.trace(net, x),
        lambda net, x: torch.jit.script(net),
        lambda net, x: torch.fx.symbolic_trace(net),
        lambda net, x: torch.onnx.export(net, (x,), io.BytesIO(), dynamo=False),
    ],
    ids=["trace", "script", "fx", "onnx by trace"],
)
def test_what_cannot_follow_positions_is_told_what_can(work):
    net = sn.convert(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3)), "D(3)-C-R3").eval()
    for subject in (net, net[0]):
        with pytest.raises(ValueError, match=r"use sn\.export\(net, example, path\), torch\.export") as error:
            work(subject, torch.randn(1, 3, 8, 8))
        assert "\n" not in str(error.value)
