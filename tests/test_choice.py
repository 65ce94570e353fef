"""Which strategy is chosen, and what happens when it does not fit."""

import warnings

import pytest
import torch
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

import splinenets as sn
from splinenets.operators import choice, serving, strategies
from splinenets.operators.choice import SAFE, STRATEGIES

FULL = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"


def fails_with(error):
    def strategy(*args):
        raise error

    return strategy


def choose(layer, x):
    return choice.choose(x, torch.rand(len(x), layer.coordinates), layer.curves, layer.operation, layer.bias)


@pytest.mark.parametrize(
    ("layer", "x", "names"),
    [
        (sn.SplineConv2d(2, 4, 3), torch.randn(5, 2, 6, 6), ("fused", *SAFE)),
        (sn.SplineConv2d(2, 4, 3), torch.randn(1, 2, 6, 6), ("fused", *SAFE)),
        (sn.SplineConv2d(2, 4, 3), torch.randn(0, 2, 6, 6), ("bank",)),
        (sn.SplineConv2d(2, 4, 3, groups=2), torch.randn(5, 2, 6, 6), SAFE),
        (sn.SplineConv2d(2, 4, 3).double(), torch.randn(5, 2, 6, 6).double(), SAFE),
        (sn.SplineConv1d(2, 4, 3), torch.randn(5, 2, 6), SAFE),
        (sn.SplineLinear(4, 3), torch.randn(1, 4), ("single", "bank")),
        (sn.SplineLinear(4, 3), torch.randn(8, 4), SAFE),
        (sn.SplineLinear(4, 3), torch.randn(9, 4), ("bank", "grouped", "single")),
        (sn.SplineLinear(4, 3).bfloat16(), torch.randn(8, 4).bfloat16(), ("bank", "grouped", "single")),
    ],
)
def test_the_rule(layer, x, names):
    if not sn.kernels.has_kernel(torch.float32):
        names = tuple(name for name in names if name != "fused")
    assert choose(layer, x) == names


@pytest.mark.parametrize("name", STRATEGIES)
def test_what_is_asked_for_is_taken(name):
    with sn.strategy(name):
        assert choose(sn.SplineConv2d(2, 4, 3), torch.randn(5, 2, 6, 6)) == (name,)
    assert serving.asked(compiling=False) == "auto"


@pytest.mark.parametrize("name", ["bank", "grouped", "single", "unfold"])
def test_a_strategy_governs_decisions_too(name, monkeypatch):
    """Nothing but torch's own operations may run: every kernel of ours would be noticed."""
    for kernel in ("pool", "forward", "propose", "arrange"):
        monkeypatch.setattr(sn.kernels, kernel, fails_with(AssertionError(f"the kernel {kernel} was called")))
    layer = sn.SplineConv2d(2, 4, 3, spec="D(3)-C-R3").eval()
    x = torch.randn(1, 2, 6, 6).contiguous(memory_format=torch.channels_last)
    with torch.no_grad(), sn.strategy(name):
        assert layer(x).shape == (1, 4, 4, 4)
    if sn.kernels.has_kernel(torch.float32):
        with torch.no_grad(), pytest.raises(AssertionError, match="was called"):
            layer(x)


def test_a_batch_that_does_not_fit_falls_to_the_next_with_one_warning(monkeypatch):
    layer, x = sn.SplineConv2d(2, 4, 3), torch.randn(5, 2, 6, 6)
    with sn.strategy("bank"):
        expected = layer.eval()(x)
    first, second, *_ = choose(layer, x)
    for error in (RuntimeError(FULL), MemoryError()):
        monkeypatch.setitem(STRATEGIES, first, fails_with(error))
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("default")
            outputs = [layer(x) for _ in range(3)]
        for found in outputs:
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        assert [w.category for w in seen] == [choice.StrategyWarning]
        assert f"batch of 5 does not fit into memory with the strategy '{first}': trying '{second}'" in str(
            seen[0].message
        )
    monkeypatch.setitem(STRATEGIES, first, fails_with(RuntimeError("a bug")))
    with pytest.raises(RuntimeError, match="a bug"):
        layer(x)


def test_the_last_strategy_fails_as_torch_does(monkeypatch):
    for name in STRATEGIES:
        monkeypatch.setitem(STRATEGIES, name, fails_with(RuntimeError(FULL)))
    layer, x = sn.SplineConv2d(2, 4, 3), torch.randn(5, 2, 6, 6)
    with pytest.warns(choice.StrategyWarning), pytest.raises(RuntimeError, match="can't allocate"):
        layer(x)


def test_a_device_without_a_clock_uses_what_needs_no_kernel():
    layer = sn.SplineConv2d(2, 4, 3).to("meta")
    x = torch.empty(5, 2, 6, 6, device="meta")
    assert choose(layer, x) == SAFE
    assert layer.operate(x, torch.empty(5, 4, device="meta")).shape == (5, 4, 4, 4)


@pytest.fixture
def timed(monkeypatch):
    """The strategies that are timed, in order; each takes as long as its name says here."""
    calls, lengths = [], {"fused": 4, "grouped": 3, "unfold": 1, "bank": 2, "single": 5}

    def seconds(name, *_):
        calls.append(name)
        return lengths[name]

    monkeypatch.setattr(choice, "seconds", seconds)
    monkeypatch.setattr(choice, "measured", {})
    return calls


def test_measuring_keeps_to_the_fastest(timed):
    layer, x = sn.SplineConv2d(2, 4, 3, groups=2), torch.randn(5, 2, 6, 6)
    with sn.strategy("measure"):
        assert choose(layer, x) == ("unfold", "bank", "grouped", "single")
        assert sorted(timed) == ["bank", "grouped", "unfold"]
        assert choose(layer, x) == ("unfold", "bank", "grouped", "single")
        assert len(timed) == 3  # once for each shape
        with torch.no_grad():
            choose(layer, x)
        assert len(timed) == 6  # learning takes another time
        choose(layer, x[:1])
        assert timed[6:] == ["grouped", "unfold", "bank", "single"]


@pytest.mark.parametrize("learning", [True, False])
@pytest.mark.parametrize(
    "layer", [sn.SplineConv2d(2, 4, 3, padding=1), sn.SplineConv3d(2, 4, 2), sn.SplineLinear(6, 3, input_size=(6, 6))]
)
def test_measuring_changes_nothing(layer, learning, monkeypatch):
    monkeypatch.setattr(choice, "measured", {})
    x = torch.randn(5, *(2, 6, 6) if isinstance(layer, sn.SplineConv2d) else (2, 3, 6, 6)[-3:])
    if isinstance(layer, sn.SplineConv3d):
        x = torch.randn(5, 2, 4, 4, 4)
    elif isinstance(layer, sn.SplineLinear):
        x = torch.randn(5, 6, 6, 6)
    position = torch.rand(5, layer.coordinates)
    with torch.set_grad_enabled(learning):
        expected = layer.operate(x, position)
        state = torch.random.get_rng_state()
        with sn.strategy("measure"):
            torch.testing.assert_close(layer.operate(x, position), expected, rtol=1e-4, atol=1e-5)
    assert torch.equal(state, torch.random.get_rng_state())
    assert all(p.grad is None for p in layer.parameters())
    assert len(choice.measured) == 1


def test_what_runs_out_of_memory_while_it_is_timed_comes_last(monkeypatch):
    monkeypatch.setattr(choice, "measured", {})
    monkeypatch.setitem(STRATEGIES, "grouped", fails_with(RuntimeError(FULL)))
    layer, x = sn.SplineConv1d(2, 4, 3), torch.randn(5, 2, 6)
    with sn.strategy("measure"):
        assert choose(layer, x)[-2:] == ("grouped", "single")


def test_measuring_inside_of_others(monkeypatch):
    """Gradient checkpointing counts what is saved, and torch.func cannot be timed."""
    monkeypatch.setattr(choice, "measured", {})
    layer, x = sn.SplineConv2d(2, 4, 3), torch.randn(5, 2, 6, 6, requires_grad=True)
    expected = torch.autograd.grad(layer.eval()(x).square().sum(), x)[0]
    with sn.strategy("measure"):
        found = torch.autograd.grad(checkpoint(layer, x, use_reentrant=False).square().sum(), x)[0]
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
        found = torch.func.grad(lambda t: layer(t).square().sum())(x.detach())
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_every_name_has_its_strategy():
    assert set(serving.NAMES) == {"auto", "measure", *STRATEGIES}


def test_an_unknown_strategy():
    with (
        pytest.raises(ValueError, match=r"unknown strategy 'fast', choose from auto, .*unfold"),
        sn.strategy("fast"),
    ):
        pass


@pytest.mark.parametrize("base", [True, False])
def test_one_sample_of_a_linear_layer_writes_no_weights(base, monkeypatch, plain_gradients):
    """It sums responses to the knots that it touches, with the same gradients as from mixed weights."""
    layer = sn.SplineLinear(6, 4, spec=f"D(5)-D-R4{'' if base else ' independent'}", input_size=(3,)).double()
    x = torch.randn(1, 3, 6, dtype=torch.float64, requires_grad=True)
    with sn.strategy("grouped"):
        expected = layer.train()(x)
        gradients = torch.autograd.grad(expected.square().sum(), (x, *layer.parameters()))
    monkeypatch.setattr(strategies, "mix_active_weights", None)
    with sn.strategy("single"):
        y = layer(x)
    assert_close(y, expected)
    assert_close(torch.autograd.grad(y.square().sum(), (x, *layer.parameters())), gradients)
