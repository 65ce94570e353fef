"""The functions behind the layers, against a slow loop over samples."""

import pytest
import torch
import torch.nn.functional as F
from tests.helpers.problems import basis

import splinenets as sn

CONVOLUTIONS = {
    1: (sn.spline_conv1d, F.conv1d, (7,), (3,)),
    2: (sn.spline_conv2d, F.conv2d, (6, 5), (3, 2)),
    3: (sn.spline_conv3d, F.conv3d, (4, 5, 3), (2, 3, 2)),
}
STRATEGIES = ["auto", "bank", "grouped", "single", "unfold", "measure"]


def weights_at(position, knots, base, splines, degree):
    """The weights of one sample, spline by spline and knot by knot: (S,), (K, out, ...) -> (out, ...)."""
    shares = knots.shape[1] // splines
    parts = [
        sum(b * knots[k, s * shares : (s + 1) * shares] for k, b in enumerate(basis(position[s], len(knots), degree)))
        for s in range(splines)
    ]
    return torch.cat(parts) + (0 if base is None else base)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    "setting", [{}, {"stride": 2, "padding": 1}, {"padding": "same", "dilation": 2}, {"groups": 2}]
)
@pytest.mark.parametrize("spatial", CONVOLUTIONS)
def test_convolutions(spatial, setting, strategy):
    ours, theirs, size, kernel = CONVOLUTIONS[spatial]
    groups = setting.get("groups", 1)
    x = torch.randn(3, 4, *size, dtype=torch.float64)
    knots = torch.randn(5, 6, 4 // groups, *kernel, dtype=torch.float64)
    base, bias = torch.randn_like(knots[0]), torch.randn(6, dtype=torch.float64)
    for splines in (1, 2, 6):
        position = torch.rand(3, splines, dtype=torch.float64)
        with sn.strategy(strategy):
            found = ours(x, position, knots, base, bias, **setting, degree=2)
        expected = [
            theirs(x[n : n + 1], weights_at(position[n], knots, base, splines, 2), bias, **setting) for n in range(3)
        ]
        torch.testing.assert_close(found, torch.cat(expected))


@pytest.mark.parametrize("strategy", [*STRATEGIES, "fused"])
def test_a_2d_convolution_in_float32(strategy):
    x, position, knots = torch.randn(3, 4, 6, 5), torch.rand(3), torch.randn(4, 6, 4, 3, 3)
    if strategy == "fused" and not sn.kernels.has_kernel(torch.float32):
        pytest.skip("no kernel here")
    with sn.strategy(strategy):
        found = sn.spline_conv2d(x, position, knots, padding=1, degree=3)
    expected = [F.conv2d(x[n : n + 1], weights_at(position[n : n + 1], knots, None, 1, 3), padding=1) for n in range(3)]
    torch.testing.assert_close(found, torch.cat(expected), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_linear(strategy):
    knots, base, bias = (torch.randn(*s, dtype=torch.float64) for s in ((3, 6, 5), (6, 5), (6,)))
    for shape, splines in (((4, 5), 1), ((4, 2, 5), 3)):
        x, position = torch.randn(shape, dtype=torch.float64), torch.rand(4, splines, dtype=torch.float64)
        with sn.strategy(strategy):
            found = sn.spline_linear(x, position, knots, base, bias)
        expected = [F.linear(x[n], weights_at(position[n], knots, base, splines, 2), bias) for n in range(4)]
        torch.testing.assert_close(found, torch.stack(expected))


def test_surfaces_are_means_of_splines():
    x, position = torch.randn(3, 5, dtype=torch.float64), torch.rand(3, 1, 2, dtype=torch.float64)
    knots = torch.randn(2, 4, 6, 5, dtype=torch.float64)
    halves = [sn.spline_linear(x, position[:, :, i], knots[i]) for i in range(2)]
    torch.testing.assert_close(sn.spline_linear(x, position, knots), (halves[0] + halves[1]) / 2)


def test_gradients():
    x, position = torch.randn(2, 2, 4, 3, dtype=torch.float64), 0.1 + 0.8 * torch.rand(2, 3, dtype=torch.float64)
    inputs = (x, position, *(torch.randn(*s, dtype=torch.float64) for s in ((4, 3, 2, 2, 2), (3, 2, 2, 2), (3,))))
    for tensor in inputs:
        tensor.requires_grad_()
    for strategy in ("bank", "grouped", "single", "unfold"):
        with sn.strategy(strategy):
            assert torch.autograd.gradcheck(sn.spline_conv2d, inputs)


def test_gradients_of_gradients():
    """The kernel has none of its own; it hands over to torch's operations, with the same first gradients."""
    torch.manual_seed(0)
    inputs = [
        torch.randn(2, 3, 5, 5),
        0.1 + 0.8 * torch.rand(2, 4),
        torch.randn(4, 4, 3, 3, 3),
        torch.randn(4, 3, 3, 3),
    ]
    results = []
    for strategy in ("auto", "grouped"):
        wanted = [t.clone().requires_grad_() for t in inputs]
        with sn.strategy(strategy):
            y = sn.spline_conv2d(*wanted, padding=1)
        first = torch.autograd.grad(y.square().sum(), wanted, create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in first), wanted)
        results.append([*first, *second])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3 * expected.abs().max().item())


@pytest.mark.parametrize("spec", ["D(5)-C-R3", "D(5)-D-R3", "H(3)-C-R4"])
def test_gradients_of_gradients_of_a_layer(spec):
    """The position depends on the image too, and that way counts once."""
    layer = sn.SplineConv2d(3, 4, 3, spec=spec, input_size=(5, 5)).eval()
    torch.nn.init.normal_(layer.knots)
    results = []
    for strategy in ("auto", "grouped"):
        x = torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(1)).requires_grad_()
        with sn.strategy(strategy):
            (first,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
            (second,) = torch.autograd.grad(first.square().sum(), x)
        results.append([first.detach(), second])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3 * expected.abs().max().item())


def test_whole_numbers_are_positions_too():
    x, knots = torch.randn(2, 4, 6, 6), torch.randn(5, 6, 4, 3, 3)
    for strategy in ("auto", "grouped"):
        with sn.strategy(strategy):
            found = sn.spline_conv2d(x, torch.tensor([0, 1]), knots)
        torch.testing.assert_close(found, sn.spline_conv2d(x, torch.tensor([0.0, 1.0]), knots))


@pytest.mark.parametrize("strided", ["knots", "base", "bias", "position", "x"])
@pytest.mark.parametrize("samples", [1, 20])
def test_any_order_in_memory(strided, samples):
    """Numbers that lie elsewhere than usual give the same answers, with gradients and without."""
    inputs = {
        "x": torch.randn(samples, 3, 5, 5), "position": torch.rand(samples, 4), "knots": torch.randn(5, 4, 3, 3, 3),
        "base": torch.randn(4, 3, 3, 3), "bias": torch.randn(4),
    }  # fmt: skip
    expected = sn.spline_conv2d(**inputs)
    spread = torch.stack([inputs[strided], torch.zeros_like(inputs[strided])], -1)[..., 0]
    turned = spread.transpose(0, 1).contiguous().transpose(0, 1) if spread.dim() > 1 else spread
    for learning in (True, False):
        for odd in (spread, turned):
            with torch.set_grad_enabled(learning):
                torch.testing.assert_close(sn.spline_conv2d(**{**inputs, strided: odd}), expected, rtol=1e-4, atol=1e-4)


def test_transforms_of_torch_func():
    layer = sn.SplineConv2d(3, 4, 3, spec="D(3)-C-R3").eval()
    x = torch.randn(5, 3, 6, 6).contiguous(memory_format=torch.channels_last)
    expected = torch.stack([layer(one.unsqueeze(0)).squeeze(0) for one in x])
    torch.testing.assert_close(torch.func.vmap(lambda one: layer(one.unsqueeze(0)).squeeze(0))(x), expected)
    gradient = torch.func.grad(lambda t: layer(t).square().sum())(x)
    wanted = x.clone().requires_grad_()
    layer(wanted).square().sum().backward()
    torch.testing.assert_close(gradient, wanted.grad, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("setting", [{}, {"stride": (2, 1), "padding": (1, 0)}, {"padding": "same"}, {"groups": 2}])
@pytest.mark.parametrize("samples", [0, 1, 5, 40])
@pytest.mark.parametrize("learning", [True, False])
def test_filters_of_its_own_for_each_sample(setting, samples, learning):
    groups = setting.get("groups", 1)
    x, weights = torch.randn(samples, 4, 7, 6), torch.randn(samples, 6, 4 // groups, 3, 3)
    for bias in (None, torch.randn(6), torch.randn(samples, 6)):
        own = bias if bias is not None and bias.dim() == 2 else [bias] * samples
        with torch.set_grad_enabled(learning):
            found = sn.conv2d_per_sample(x, weights, bias, **setting)
        rows = [F.conv2d(x[n : n + 1], weights[n], own[n], **setting) for n in range(samples)]
        if rows:
            torch.testing.assert_close(found, torch.cat(rows), rtol=1e-4, atol=1e-4)
        assert found.shape[:2] == (samples, 6)


def test_layers_are_these_functions():
    layer, x, position = sn.SplineConv2d(3, 4, 3, padding=1), torch.randn(2, 3, 5, 5), torch.rand(2, 4)
    found = sn.spline_conv2d(
        x, position, layer.knots.unflatten(2, layer.weight_shape), layer.weight, layer.bias, padding=1
    )
    assert torch.equal(found, layer.operate(x, position))


X, P, K = torch.randn(2, 4, 6, 6), torch.rand(2), torch.randn(5, 6, 4, 3, 3)


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: sn.spline_conv2d(X, P, K[0]), r"needs knots \(K, \*weight\)"),
        (lambda: sn.spline_conv2d(X, torch.rand(3), K), r"needs positions \(N,\) or \(N, S\) .*\(2, 4, 6, 6\), got shape \(3,\)"),
        (lambda: sn.spline_conv2d(X, torch.rand(2, 1, 2), K), r"got shape \(2, 1, 2\)"),
        (lambda: sn.spline_conv2d(X, torch.rand(2, 4), K), "6 filters between 4 splines"),
        (lambda: sn.spline_conv2d(X[:, :3], P, K), r"needs input of shape \(N, 4, H, W\), got \(2, 3, 6, 6\)"),
        (lambda: sn.spline_conv2d(X, P, K, groups=2), r"needs input of shape \(N, 8, H, W\)"),
        (lambda: sn.spline_conv2d(X, P, K, degree=5), "knots must exceed degree"),
        (lambda: sn.spline_conv2d(X[:, :, :2], P, K), r"kernel of size \(3, 3\) .* input of size \(2, 6\)"),
        (lambda: sn.spline_linear(torch.randn(2, 3), P, torch.randn(5, 6, 4)), "needs 4 features last"),
        (lambda: sn.spline_linear(torch.randn(2, 4), torch.rand(2, 1), torch.randn(2, 5, 6, 4)), r"\(N, S, 2\)"),
        (lambda: sn.spline_conv2d(X, P, K, torch.randn(6, 36)), r"base of shape \(6, 4, 3, 3\).*got \(6, 36\)"),
        (lambda: sn.spline_conv2d(X, P, K, bias=torch.zeros(1)), r"bias of shape \(6,\), got \(1,\)"),
        (lambda: sn.spline_conv2d(X, P, K, padding="sme"), "'same' or 'valid', got 'sme'"),
        (lambda: sn.spline_conv2d(X, P, K, padding="same", stride=2), "keep the input's size"),
        (lambda: sn.spline_conv2d(X, P, K, stride=(2,)), r"stride as 2 numbers of 1 or more, got \(2,\)"),
        (lambda: sn.spline_conv2d(X, P, K, stride=0), "stride as 2 numbers of 1 or more, got 0"),
        (lambda: sn.conv2d_per_sample(X, torch.randn(2, 6, 4, 3, 3), torch.zeros(1)), r"bias of shape \(6,\) or \(2, 6\)"),
        (lambda: sn.conv2d_per_sample(X, torch.randn(3, 6, 4, 3, 3)), "as many filter banks"),
        (lambda: sn.conv2d_per_sample(X, torch.randn(2, 6, 3, 3, 3)), r"\(N, 3, H, W\)"),
        (lambda: sn.SplineLinear(4, 2)(torch.randn(2, 4).double()), r"torch.float32 weights and got torch.float64 input"),
        (lambda: sn.SplineConv2d(4, 2, 7)(X), r"kernel of size \(7, 7\)"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_told_in_a_sentence(call, complaint):
    with pytest.raises(ValueError, match=complaint):
        call()
