"""The kernels and the strategy that uses them, against the grouped strategy in float64."""

import copy
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.marks import slow
from tests.helpers.problems import make, with_parent

import splinenets as sn
from splinenets import kernels
from splinenets.kernels import build, calls

FLOAT, BFLOAT = torch.float32, torch.bfloat16
TOLERANCE = {FLOAT: 5e-5, BFLOAT: 2e-2}
KINDS = [FLOAT, pytest.param(BFLOAT, marks=pytest.mark.skipif(not kernels.has_kernel(BFLOAT), reason="no bf16 here"))]
pytestmark = pytest.mark.skipif(kernels.library() is None, reason="the kernels cannot be compiled here")

SHAPES = {
    "one block": (16, 16, 3, 1, 1, 1, 8, 8),
    "colours": (3, 16, 3, 1, 1, 1, 9, 7),
    "grey, large kernel": (1, 32, 5, 1, 2, 1, 28, 28),
    "strided": (16, 32, 3, 2, 1, 1, 8, 8),
    "odd numbers of everything": (33, 18, (3, 2), (2, 1), (1, 0), (1, 2), 9, 8),
    "few of everything": (2, 3, 1, 1, 0, 1, 1, 1),
    "strides beyond the kernel": (20, 48, 1, 2, 0, 1, 8, 8),
    "dilated": (16, 32, 3, 3, 2, 2, 13, 17),
    "narrow and uneven": (4, 33, (5, 4), (2, 3), (1, 2), (2, 1), 13, 15),
    "wide": (64, 64, 3, 1, 1, 1, 8, 8),
}


def layer_of(channels, filters, kernel, stride, padding, dilation, spec="D(5)-C-R3", **more):
    layer = sn.SplineConv2d(channels, filters, kernel, stride, padding, dilation, spec=spec, **more)
    torch.nn.init.normal_(layer.knots, std=0.2)
    return layer


def run(layer, x, position, strategy, dtype):
    """Outputs and gradients of one strategy."""
    layer = copy.deepcopy(layer)
    x, position = (t.clone().requires_grad_() for t in (x, position))
    with sn.strategy(strategy), torch.autocast("cpu", BFLOAT, enabled=dtype == BFLOAT):
        y = layer.operate(x, position)
    (y.double() * torch.linspace(-1, 1, y.numel()).cos().view_as(y)).sum().backward()
    return [
        y.detach(),
        x.grad,
        position.grad,
        *(p.grad for p in (layer.knots, layer.base, layer.bias) if p is not None),
    ]


def assert_close(found, expected, tolerance):
    for f, e in zip(found, expected, strict=True):
        assert (f.double() - e).abs().max() <= tolerance * max(1e-3, e.abs().max().item())


def compare(layer, x, position, dtype):
    """Close to float64, or at least as close as torch's own convolution comes with these numbers, give or take."""
    expected = run(layer.double(), x.double(), position.double(), "grouped", None)
    theirs = run(layer.float(), x, position, "grouped", dtype)
    ours = run(layer, x, position, "fused", dtype)
    with torch.no_grad(), sn.strategy("fused"), torch.autocast("cpu", BFLOAT, enabled=dtype == BFLOAT):
        few = layer.operate(x, position)
    for e, t, f in zip([*expected, expected[0]], [*theirs, theirs[0]], [*ours, few], strict=True):
        allowed = TOLERANCE[dtype] * max(1, e.abs().max().item()) + 3 * (t - e).abs().max()
        assert (f.double() - e).abs().max() <= allowed


@pytest.mark.parametrize("dtype", KINDS)
@pytest.mark.parametrize(
    "spec", ["D(5)-C-R4", "D(2)-C-R3", "D(7)-C-R3 degree=3 dims=2", "D(5)-C-R4 independent degree=0"]
)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_fused_equals_grouped(shape, spec, dtype):
    *sizes, height, width = shape
    layer = layer_of(*sizes, spec=spec)
    for samples in (1, 7, 20):
        position = torch.rand(samples, layer.coordinates)
        position[0], position[-1] = 0, 1
        if layer.spec.spline_degree == 1:
            position[0], position[-1] = 0.01, 0.99  # a corner has two slopes
        compare(layer, torch.randn(samples, sizes[0], height, width), position, dtype)


@pytest.mark.parametrize("dtype", KINDS)
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_fused_equals_grouped_for_any_shape(dtype, data):
    def draw(low, high):
        return data.draw(st.integers(low, high))

    kernel, dilation = (draw(1, 4), draw(1, 4)), (draw(1, 2), draw(1, 2))
    stride, padding = (draw(1, 3), draw(1, 3)), (draw(0, 3), draw(0, 3))
    height, width = (
        max(1, (k - 1) * d + 1 - 2 * p) + draw(0, 9) for k, d, p in zip(kernel, dilation, padding, strict=True)
    )
    torch.manual_seed(draw(0, 1000))
    layer = layer_of(draw(1, 20), draw(1, 20), kernel, stride, padding, dilation, bias=data.draw(st.booleans()))
    layer.to(memory_format=data.draw(st.sampled_from([torch.contiguous_format, torch.channels_last])))
    samples = draw(1, 5)
    x = torch.randn(samples, layer.in_channels, height, width)
    compare(layer, x, 0.05 + 0.9 * torch.rand(samples, layer.coordinates), dtype)


def test_padding_by_name():
    for padding in ("same", "valid"):
        layer = layer_of(3, 8, (5, 3), 1, padding, (1, 2))
        compare(layer, torch.randn(3, 3, 9, 9), torch.rand(3, 8), FLOAT)


@pytest.mark.parametrize(
    "spec", ["D(5)-C-R3", "H(5)-C-R3 degree=3", "H(4)-D-G2 independent", "D(4)-D-R4 raw", "H(3)-C-R4 dims=2"]
)
def test_one_sample_decides_as_a_batch_does(spec):
    layer, shape = make("conv2d", spec)
    layer.float().eval()
    x, parent = torch.randn(7, *shape), torch.rand(7, layer.coordinates)
    for inherited in (parent, None):
        with sn.strategy("grouped"):
            expected = with_parent(layer, inherited)(x)
        with torch.no_grad():
            rows = [
                with_parent(layer, None if inherited is None else inherited[n : n + 1])(x[n : n + 1]) for n in range(7)
            ]
        torch.testing.assert_close(torch.cat(rows), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", KINDS)
def test_gradients_of_an_image_that_others_read_too(dtype):
    """The pooled features' gradient is added in place to the operation's, and to nobody else's."""
    layer = layer_of(16, 16, 3, 1, 1, 1, "D(5)-C-R3").eval()
    image = torch.randn(5, 16, 6, 6).contiguous(memory_format=torch.channels_last)
    found = []
    for numbers, strategy in ((dtype, "fused"), (torch.float64, "grouped")):
        x = image.to(numbers).clone().requires_grad_()
        with sn.strategy(strategy):
            shared = x * 1
            y = layer.to(numbers)(shared).double() + shared.double()
        (y * torch.linspace(-1, 1, y.numel()).view_as(y)).sum().backward()
        found.append([y.detach(), x.grad])
    assert_close(found[0], found[1], TOLERANCE[dtype])


def test_the_same_bits_every_time():
    layer, x = layer_of(16, 24, 3, 1, 1, 1), torch.randn(9, 16, 8, 8)
    runs = [run(layer, x, torch.linspace(0, 1, 9 * 24).view(9, 24), "fused", FLOAT) for _ in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_not_a_number_stays_with_its_sample():
    layer, x, position = layer_of(4, 8, 3, 1, 1, 1), torch.randn(3, 4, 5, 5), torch.rand(3, 8)
    position[1] = torch.nan
    y = run(layer, x, position, "fused", FLOAT)[0]
    assert y[1].isnan().all()
    assert y[[0, 2]].isfinite().all()


def test_several_threads_at_once():
    layer = layer_of(16, 16, 3, 1, 1, 1)
    batches = [(torch.randn(5, 16, 8, 8), torch.rand(5, 16)) for _ in range(16)]
    expected = [run(layer, *batch, "fused", FLOAT) for batch in batches]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda batch: run(layer, *batch, "fused", FLOAT), batches))
    assert all(torch.equal(a, b) for e, f in zip(expected, found, strict=True) for a, b in zip(e, f, strict=True))


@pytest.mark.parametrize(
    ("make_layer", "shape", "reason"),
    [
        (lambda: sn.SplineConv1d(2, 2, 3), (2, 5), "2d convolutions"),
        (lambda: sn.SplineConv2d(2, 2, 3, groups=2), (2, 5, 5), "2d convolutions"),
        (lambda: sn.SplineLinear(2, 2), (2,), "2d convolutions"),
        (lambda: sn.SplineConv2d(2, 2, 3).double(), (2, 5, 5), "no kernel for torch.float64"),
        slow(lambda: sn.SplineConv2d(512, 2048, 8), (512, 8, 8), "needs more than 256 MB"),
    ],
)  # fmt: skip
def test_it_says_why_it_cannot_serve(make_layer, shape, reason):
    layer = make_layer()
    x = torch.zeros(2, *shape, dtype=layer.knots.dtype)
    with sn.strategy("fused"), pytest.raises(ValueError, match=f"'fused' .*{reason}.*'auto'"):
        layer(x)


@pytest.mark.parametrize(
    "environment", [{"SPLINENETS_NATIVE": "0"}, slow({"CXX": "no-such-compiler"}), slow({"CXX": "false"})]
)
def test_it_steps_aside(environment, tmp_path):
    code = (
        "import torch, splinenets as sn; layer = sn.SplineConv2d(3, 4, 3); x = torch.randn(5, 3, 8, 8); "
        "layer(x).sum().backward(); layer.eval()(x[:1]); print(sn.kernels.library())"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), **environment}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "None\n", "")
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]


@pytest.mark.slow
@pytest.mark.parametrize("march", ["x86-64", "x86-64-v3", "x86-64-v4"])
def test_other_processors(march, monkeypatch):
    flags = tuple(f"-march={march}" if flag.startswith("-march") else flag for flag in build.FLAGS)
    other = build.load(build.SOURCE, flags)
    if march == "x86-64-v4" and torch.backends.cpu.get_cpu_capability() != "AVX512":
        pytest.skip("it compiles, and this processor cannot run it")
    monkeypatch.setattr(calls, "library", lambda: other)
    calls._find.cache_clear()
    try:
        for *sizes, height, width in SHAPES.values():
            layer = layer_of(*sizes)
            compare(layer, torch.randn(7, sizes[0], height, width), torch.rand(7, layer.coordinates), FLOAT)
    finally:
        calls._find.cache_clear()


def test_doing_without_ends(monkeypatch):
    monkeypatch.setenv("SPLINENETS_NATIVE", "1")
    had = calls.has_kernel(torch.float32)
    with calls.without():
        assert not calls.has_kernel(torch.float32)
    assert calls.has_kernel(torch.float32) == had
    assert os.environ["SPLINENETS_NATIVE"] == "1"


@pytest.mark.parametrize("degree", [9, 16, 20])
@pytest.mark.parametrize("spec", ["D({})-C-R4 degree={}", "D({})-C-R3 degree={}"])
def test_high_degrees(spec, degree):
    layer = layer_of(5, 9, 3, 1, 1, 1, spec.format(degree + 3, degree))
    compare(layer, torch.randn(4, 5, 6, 7), torch.linspace(0, 1, 4 * layer.coordinates).view(4, -1), FLOAT)


@pytest.mark.parametrize("degree", [0, 2, 8, 9, 15, 16, 20])
@pytest.mark.parametrize("place", [None, 0.0, 0.37, 1.0, -0.5, 1.5])
def test_high_degrees_of_decision_splines(degree, place):
    knots, features = torch.randn(degree + 4, 3, 7), torch.randn(1, 7)
    parent = None if place is None else torch.full((1, 3), place)
    raw = {"degree": degree, "epsilon": 1e-6, "bound": 2.7, "slope": 1.3}
    found = kernels.propose(features, parent, None, knots, None, None, **raw)
    basis = sn.basis.bspline_basis(torch.tensor(0.5 if place is None else place).double(), degree + 4, degree)
    expected = torch.sigmoid(1.3 * torch.einsum("k,kcm,nm->nc", basis, knots.double(), features.double()))
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=2e-6)


def test_a_decision_spline_of_high_degree_leaves_the_process_alive():
    layer = sn.SplineLinear(8, 4, spec="H(17)-D-R4 degree=16").eval()
    x = torch.randn(3, 8)
    with torch.no_grad():
        one_by_one = torch.cat([layer(row) for row in x.split(1)])
        torch.testing.assert_close(one_by_one, layer(x), rtol=1e-5, atol=1e-6)


def test_a_parent_that_is_not_a_number():
    parent = torch.tensor([[0.5, torch.nan]])
    raw = {"degree": 2, "epsilon": 1e-6, "bound": 2.7, "slope": 1.0}
    found = kernels.propose(torch.randn(1, 4), parent, None, torch.randn(5, 2, 4), None, None, **raw)
    assert found.isnan().tolist() == [[False, True]]


def test_no_samples():
    geometry = calls.Geometry(torch.Size((0, 3, 5, 5)), 4, (5, 5), (3, 3), (1, 1), (1, 1), (1, 1), 1, 1, 5, 2)
    x, position, knots = kernels.channels_last(torch.zeros(0, 3, 5, 5)), torch.zeros(0, 1), torch.randn(5, 4, 27)
    arranged = kernels.arrange(geometry, knots, None, FLOAT)
    for some in (arranged, None):
        y = kernels.forward(geometry, x, position, some, knots, None, None)
        assert y.shape == (0, 4, 5, 5)
    _, _, knots_grad, bias_grad = kernels.backward(geometry, x, position, arranged, y, True, True)
    assert not knots_grad.any()
    assert not bias_grad.any()


def test_a_library_changes_with_the_headers_it_includes(tmp_path):
    folder = tmp_path / "headers"
    folder.mkdir()
    source, header, deeper = tmp_path / "some.cpp", folder / "some.h", folder / "deeper.h"
    source.write_text('#include "some.h"\n')
    header.write_text('#include "deeper.h"\n')
    found = []
    for text in ("int a;\n", "int b;\n", "int a;\n"):
        deeper.write_text(text)
        found.append(build.fingerprint(source, "c++", (f"-I{folder}",)))
    assert found[0] == found[2] != found[1]
