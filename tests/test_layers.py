import copy
import sys
from itertools import product
from pathlib import Path

import pytest
import torch
from tests.helpers.problems import LAYERS, make, plain, reference, with_parent
from torch import nn
from torch.nn.utils import prune

import splinenets as sn

STRATEGIES = ["single", "grouped", "bank"]
CASES = [
    pytest.param(name, f"{kind}(5)-{decision}-{rank} degree={degree}", id=f"{name}-{kind}{decision}{rank}d{degree}")
    for name, kind, decision, rank, degree in product(LAYERS, "DH", "CD", ("R4", "G2", "R3"), (1, 2, 3))
]
CLOSED = [
    pytest.param(name, spec, id=f"{name}-{spec}")
    for name in LAYERS
    for spec in ("D(5)-C-R3 closed", "H(5)-D-G2 degree=3 closed", "H(2)-C-R4 degree=1 dims=2 closed raw")
]


def run(layer, x, parent, strategy):
    """Outputs, and gradients of everything, under one strategy (or the reference's)."""
    x, parent = x.clone().requires_grad_(), None if parent is None else parent.clone().requires_grad_()
    layer.zero_grad()
    if strategy == "reference":
        y, _ = reference(layer, x, parent, layer.spec.diffusion)
    else:
        with sn.strategy(strategy):
            y = with_parent(layer, parent)(x)
    weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).cos().view_as(y)
    (y * weights).sum().backward()
    found = {n: p.grad.clone() for n, p in layer.named_parameters() if p.grad is not None}
    found["input"] = x.grad
    if parent is not None and parent.grad is not None:
        found["parent"] = parent.grad
    return y.detach(), found


@pytest.mark.parametrize(("name", "spec"), [*CASES, *CLOSED])
def test_equals_one_sample_at_a_time(name, spec):
    torch.manual_seed(0)
    layer, shape = make(name, f"{spec} diffusion=0.75")
    layer.float().double().eval()  # numbers that both precisions can hold
    for samples in (1, 7):
        x = torch.randn(samples, *shape).double()
        parent = torch.rand(samples, layer.coordinates).double()
        expected, gradients = run(layer, x, parent, "reference")
        for strategy in STRATEGIES:
            check(run(layer, x, parent, strategy), expected, gradients, 1e-10)
    for strategy in [*STRATEGIES, "auto", *(["fused"] if name == "conv2d" else [])]:
        check(run(copy.deepcopy(layer).float(), x.float(), parent.float(), strategy), expected, gradients, 1e-5)


def check(result, expected, gradients, tolerance):
    y, found = result
    torch.testing.assert_close(y.double(), expected, rtol=tolerance, atol=tolerance)
    assert found.keys() <= gradients.keys()
    assert not any(gradients[key].any() for key in gradients.keys() - found.keys())
    for key, gradient in found.items():
        largest = max(1.0, gradients[key].abs().max().item())
        error = (gradient.double() - gradients[key]).abs().max().item()
        assert error <= tolerance * largest, f"{key}: off by {error}"


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("spec", ["D(3)-C-R4", "H(5)-D-R3 degree=3", "D(6)-D-G2 dims=2", "H(4)-C-R3 independent raw"])
@pytest.mark.parametrize("samples", [2, 64])
def test_a_batch_in_training(name, spec, samples):
    torch.manual_seed(0)
    layer, shape = make(name, spec)
    before = copy.deepcopy(layer.state_dict())
    x = torch.randn(samples, *shape, dtype=torch.float64)
    parent = torch.rand(samples, layer.coordinates, dtype=x.dtype)
    expected, gradients = run(layer, x, parent, "reference")
    for strategy in STRATEGIES:
        layer.load_state_dict(before)
        check(run(layer, x, parent, strategy), expected, gradients, 1e-10)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("strategy", ["auto", *STRATEGIES])
def test_an_empty_batch_behaves_as_torchs_layers_do(name, strategy):
    layer, shape = make(name, "H(5)-D-G2")
    x = torch.randn(0, *shape, dtype=torch.float64, requires_grad=True)
    with sn.strategy(strategy):
        y = layer(x)
    y.sum().backward()
    with torch.no_grad():
        twin = plain(layer, x, layer.weight)
    assert y.shape == twin.shape
    assert x.grad.shape == x.shape
    assert all(p.grad is None or p.grad.isfinite().all() for p in layer.parameters())
    if layer.spec.standardize:
        assert layer.projection.running_mean.isfinite().all()


@pytest.mark.parametrize("name", LAYERS)
def test_a_sample_without_a_batch(name):
    layer, shape = make(name, "D(5)-D-R3")
    layer.eval()
    x = torch.randn(*shape, dtype=torch.float64)
    if name != "linear-rows":  # two dimensions are a batch of rows for a linear layer
        torch.testing.assert_close(layer(x), layer(x.unsqueeze(0)).squeeze(0))


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("name", "spec"),
    [
        ("linear", "H(3)-D-R4"),
        ("conv2d", "D(5)-C-R3"),
        ("conv2d-grouped", "H(4)-D-G2 degree=3 dims=2"),
        ("conv1d", "H(3)-C-R3"),
    ],
)
@pytest.mark.usefixtures("plain_gradients")
def test_gradcheck(name, spec, strategy):
    torch.manual_seed(0)
    layer, shape = make(name, spec)
    layer.eval()
    x = torch.randn(2, *shape, dtype=torch.float64, requires_grad=True)
    parent = torch.rand(2, layer.coordinates, dtype=torch.float64, requires_grad=True)
    names, parameters = zip(*layer.named_parameters(), strict=True)

    def call(x, parent, *values):
        with sn.strategy(strategy):
            with_parent(layer, parent)
            return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (x,))

    assert torch.autograd.gradcheck(call, (x, parent, *parameters), fast_mode=True)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("spec", ["D(5)-C-R3", "H(5)-D-R4", "D(4)-D-G2 independent", "H(3)-C-R3 dims=3 independent"])
def test_equal_knots_are_the_torch_layer(name, spec):
    torch.manual_seed(0)
    layer, shape = make(name, spec)
    with torch.no_grad():
        layer.knots.copy_(layer.knots[:1].expand_as(layer.knots).clone())
    x = torch.randn(9, *shape, dtype=torch.float64)
    for strategy in STRATEGIES:
        with sn.strategy(strategy):
            torch.testing.assert_close(layer(x), plain(layer, x, layer.control_points()[0]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("spec", ["D(5)-C-R3", "H(5)-D-G2", "H(5)-C-R4 raw"])
def test_not_a_number_stays_with_its_sample(name, strategy, spec):
    layer, shape = make(name, spec)
    layer.eval()
    x = torch.randn(5, *shape, dtype=torch.float64)
    bad = x.clone()
    bad[2].view(-1)[0] = float("nan")
    with sn.strategy(strategy):
        expected, found = layer(x), layer(bad)
    others = [0, 1, 3, 4]
    assert torch.equal(found[others], expected[others])
    assert found[2].isnan().any()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_statistics_never_see_what_is_not_finite(value):
    layer, shape = make("conv2d", "D(5)-C-R3")
    clean = copy.deepcopy(layer)
    x = torch.randn(8, *shape, dtype=torch.float64)
    bad = x.clone()
    bad[3] = value
    layer(bad)
    clean(x[[0, 1, 2, 4, 5, 6, 7]])
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(getattr(layer.projection, name), getattr(clean.projection, name))


def test_initialisation():
    torch.manual_seed(0)
    layer = sn.SplineConv2d(64, 64, 3, spec="D(5)-C-R3")
    assert layer.weight.std().item() == pytest.approx((1 / 3 / 576) ** 0.5, rel=0.02)
    assert layer.knots.std().item() == pytest.approx(0.1 * layer.weight.std().item(), rel=0.02)
    paper = sn.SplineConv2d(64, 64, 3, spec="D(5)-C-R3 variance=0.05 independent raw")
    assert paper.base is None
    assert paper.knots.var().item() == pytest.approx(0.05 / 576, rel=0.02)
    assert paper.control_points().shape == (5, 64, 64, 3, 3)


@pytest.mark.parametrize("dims", [1, 2])
def test_weights_at_a_position(dims):
    layer, shape = make("conv2d", f"D(5)-C-R3 dims={dims}")
    layer.eval()
    x = torch.randn(3, *shape, dtype=torch.float64)
    y, positions = sn.trace(layer, x)
    weights = layer.weights_at(positions[""])
    assert weights.shape == (3, 4, *layer.weight.shape[1:])
    torch.testing.assert_close(torch.cat([plain(layer, x[n : n + 1], weights[n]) for n in range(3)]), y)


def test_shows_in_repr():
    assert repr(sn.SplineLinear(8, 4)) == "SplineLinear(in_features=8, out_features=4, bias=True, spec=D(5)-D-R4)"
    assert repr(sn.SplineConv2d(16, 32, 3)).endswith("spec=D(5)-C-R3)")


def test_stands_where_torchs_layer_stood():
    for ours, theirs in [(sn.SplineLinear(8, 4), nn.Linear(8, 4)), (sn.SplineConv2d(3, 8, 3), nn.Conv2d(3, 8, 3))]:
        assert isinstance(ours, type(theirs))
        ours.load_state_dict(theirs.state_dict(), strict=False)
        assert torch.equal(ours.weight, theirs.weight)


@pytest.mark.parametrize(
    ("build", "complaint"),
    [
        (lambda: sn.SplineConv2d(3, 8, 3, spec="D(5)-D-R3"), "needs input_size"),
        (lambda: sn.SplineConv2d(3, 8, 3, spec="D(5)-D-R3", input_size=(8,)), r"2 positive numbers, got \(8,\)"),
        (lambda: sn.SplineConv2d(3, 8, 3, spec="D(5)-C-G3"), "3 splines, which do not divide 8 filters"),
        (lambda: sn.SplineConv2d(3, 8, 3, spec="D(2)-C-R3 degree=2"), "knots=2, degree=2"),
        (lambda: sn.SplineConv2d(3, 8, 3, spec="D(5)-Q-R3"), "'Q'"),
        (lambda: sn.SplineConv2d(3, 8, 3)(torch.randn(2, 4, 8, 8)), r"3 input channels, got input of shape \(2, 4, 8, 8\)"),
        (lambda: sn.SplineConv2d(3, 8, 3)(torch.randn(3, 8)), "4 dimensions"),
        (lambda: sn.SplineLinear(8, 4)(torch.randn(2, 7)), r"8 features last, got input of shape \(2, 7\)"),
        (lambda: sn.SplineLinear(8, 4)(torch.randn(2, 3, 8)), r"input_size=\(\).*got \(3,\)"),
        (lambda: sn.SplineConv2d(3, 8, 3, spec="D(5)-D-R4", input_size=8)(torch.randn(2, 3, 9, 8)), r"\(8, 8\), got \(9, 8\)"),
        (lambda: sn.strategy("fast").__enter__(), "'fast', choose from"),
    ],
)  # fmt: skip
def test_bad_input_is_named(build, complaint):
    with pytest.raises(ValueError, match=complaint) as error:
        build()
    assert "\n" not in str(error.value)


def test_a_base_that_others_compute():
    """Pruned or normalised weights are still what the knots are offsets from."""
    x = torch.randn(2, 4)
    for change in (
        lambda layer: prune.random_unstructured(layer, "weight", 0.0),
        torch.nn.utils.parametrizations.weight_norm,
    ):
        layer = sn.SplineLinear(4, 3).eval()
        expected = layer(x)
        change(layer)
        torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("spec", ["D(3)-C-R3 independent", "D(3)-C-R3"])
def test_what_is_left_of_a_weight_can_be_averaged_and_broadcast(spec):
    layer = sn.SplineConv2d(3, 4, 3, spec=spec)
    assert layer.weight.dtype == torch.float32
    assert all(not buffer.numel() or buffer.is_contiguous() for buffer in layer.buffers())
    x = torch.randn(2, 3, 5, 5)
    averaged = torch.optim.swa_utils.AveragedModel(sn.deploy(layer, x), use_buffers=True)
    averaged.update_parameters(sn.deploy(layer, x))
    averaged.update_parameters(sn.deploy(layer, x))
    torch.testing.assert_close(averaged(x), layer.eval()(x), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("spec", ["D(3)-C-R3", "H(3)-D-R4"])
def test_layers_of_nothing_are_refused(spec):
    with pytest.raises(ValueError, match="a spline needs a feature to decide by"):
        sn.SplineLinear(0, 4, spec=spec)
    with pytest.raises(ValueError, match="a spline needs a feature to decide by"):
        sn.SplineConv2d(0, 4, 3, spec=spec, input_size=5)


@pytest.mark.skipif(not sn.kernels.has_kernel(torch.float32), reason="no kernels here")
@pytest.mark.parametrize(("spec", "most"), [("D(5)-C-R4", 71), ("H(5)-C-R3", 74), ("D(5)-D-R3", 64)])
def test_one_image_asks_few_questions(spec, most, monkeypatch):
    """Single images spend most of their time in Python: the functions of ours that are called, which no clock blurs."""
    net = nn.Sequential(*(nn.Conv2d(8, 8, 3, padding=1) for _ in range(3)))
    x = torch.randn(1, 8, 9, 9).contiguous(memory_format=torch.channels_last)
    net = sn.convert(net, spec, example=x).eval()
    monkeypatch.setattr(sn.path.COMPILER, "was_used", lambda: False)  # whatever was compiled in this process before
    ours, calls = str(Path(sn.__file__).parent), []

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(ours):
            calls.append(frame.f_code.co_name)

    with torch.no_grad():
        net(x)  # what is looked up once
        sys.setprofile(note)
        try:
            net(x)
        finally:
            sys.setprofile(None)
    assert len(calls) <= most * len(net)
