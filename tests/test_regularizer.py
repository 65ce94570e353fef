import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

import splinenets as sn
from splinenets.histograms import (
    bins_in_reach,
    conditional_entropy,
    entropy,
    kernel_histogram,
    soft_bins,
    soft_histogram,
)
from splinenets.regularizer import view_entropy

BINS = (2, 3, 5, 50)
SLOPES = (1.2, 4.0, 100.0, 1e4, 1e12)
ESTIMATORS = ("bins", "kernel")


# The paper's formulas in the most obvious way: one number at a time.


def obvious_soft_bin(position, bin, bins, bin_slope):
    z = 2 * (position - (bin + 0.5) / bins) * bins
    score = (1 - z * z) * math.log(bin_slope)
    return 1 / (1 + math.exp(-score)) if score > -700 else 0.0


def obvious_kernel(position, bin, bins, bandwidth):
    centre = (bin + 0.5) / bins
    images = [sign * position + 2 * i for i in range(-3, 4) for sign in (1, -1)]
    return sum(math.exp(-(((centre - image) / bandwidth) ** 2) / 2) for image in images)


def obvious_entropy(masses):
    total = sum(masses)
    return -sum(m / total * math.log(m / total) for m in masses if m > 0)


def obvious_entropies(positions, labels, count):
    """H(position) and H(position | label) of one coordinate; count(position, bin) is what a bin counts of it."""
    whole = obvious_entropy([sum(count(p, b) for p in positions) for b in range(count.bins)])
    conditional = 0.0
    for c in set(labels):
        own = [p for p, label in zip(positions, labels, strict=True) if label == c]
        histogram = [sum(count(p, b) for p in own) for b in range(count.bins)]
        conditional += len(own) / len(positions) * obvious_entropy(histogram)
    return whole, conditional


def counting(function, bins, parameter):
    def count(position, bin):
        return function(position, bin, bins, parameter)

    count.bins = bins
    return count


def random_batch(samples=40, coordinates=3, classes=4, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    position = torch.rand(samples, coordinates, generator=generator, dtype=dtype)
    return position, torch.randint(classes, (samples,), generator=generator)


# Soft bins


def test_soft_bin_is_high_inside_half_at_the_edge_and_low_outside():
    at = torch.tensor([0.5, 0.4, 0.6, 0.41, 0.59, 0.3, 0.0, 1.0], dtype=torch.float64)
    values = soft_bins(at, 5, 100)[:, 2]
    assert_close(values[0], torch.tensor(100 / 101, dtype=torch.float64))
    assert_close(values[1:3], torch.full((2,), 0.5, dtype=torch.float64))
    assert (values[3:5] > 0.5).all()
    assert (values[5:] < 0.01).all()


def test_the_printed_formula_is_ours_turned_inside_out():
    position = torch.linspace(0, 1, 101, dtype=torch.float64)
    z = 2 * (position - 0.5) * 5  # from the centre of the third of five bins
    ours = soft_bins(position, 5, 100)[:, 2]
    printed = 1 - 1 / (1 + 100 ** z.square())
    outwards = z.abs().argsort(stable=True)
    assert (ours[outwards].diff() <= 1e-12).all()
    assert (printed[outwards].diff() >= -1e-12).all()
    inside = z.abs() <= 1
    assert_close(ours[inside], 1 - 1 / (1 + 100 ** (1 - z[inside].square())))  # printed, with 1 - z^2 in place of z^2


@pytest.mark.parametrize("bins", BINS)
@pytest.mark.parametrize("bin_slope", SLOPES)
def test_sparse_histogram_equals_all_bins(bins, bin_slope):
    position, labels = random_batch()
    edges = torch.linspace(0, 1, 40, dtype=torch.float64).unsqueeze(1)
    position = torch.cat([position, edges, edges.round()], 1).requires_grad_()
    dense = torch.einsum("ncb,nk->kcb", soft_bins(position, bins, bin_slope), F.one_hot(labels, 4).double())
    sparse = soft_histogram(position, labels, 4, bins, bin_slope)
    assert_close(sparse, dense, rtol=1e-12, atol=1e-12)
    weights = torch.randn(sparse.shape, dtype=torch.float64)
    gradients = [torch.autograd.grad((h * weights).sum(), position)[0] for h in (sparse, dense)]
    assert_close(*gradients, rtol=1e-9, atol=1e-9)


def test_sparse_histogram_equals_all_bins_in_float32():
    position, labels = random_batch(250, 7, 10, dtype=torch.float32)
    dense = torch.einsum("ncb,nk->kcb", soft_bins(position, 50, 100), F.one_hot(labels, 10).float())
    assert_close(soft_histogram(position, labels, 10, 50, 100), dense, rtol=1e-4, atol=1e-5)


class Written(TorchDispatchMode):
    """Counts the numbers that all operations write."""

    def __init__(self):
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        self.numbers += sum(tensor.numel() for tensor in (out if isinstance(out, (tuple, list)) else [out]))
        return out


def test_sparse_histogram_writes_a_fraction_of_the_numbers_of_all_bins():
    position, labels = random_batch(250, 1137, 10, dtype=torch.float32)  # a batch of Spline-ResNet-32 D(5)-C-R3
    position.requires_grad_()
    one_hot = F.one_hot(labels, 10).float()

    def numbers(histogram):
        with Written() as written:
            torch.autograd.grad(histogram().sum(), position)
        return written.numbers

    sparse = numbers(lambda: soft_histogram(position, labels, 10, 50, 100))
    dense = numbers(lambda: torch.einsum("ncb,nk->kcb", soft_bins(position, 50, 100), one_hot))
    assert sparse < dense / 5


def test_three_bins_see_a_position_at_slope_100():
    assert bins_in_reach(50, 100) == 1
    assert bins_in_reach(50, 1.2) > 1
    assert bins_in_reach(2, 1.0001) == 1


# Entropies


def parts_of(estimator, position, labels, classes=4, **options):
    return sn.MutualInformation(classes, estimator=estimator, **options).parts({"layer": position}, labels)


@pytest.mark.parametrize("bin_slope", [4.0, 100.0])
@pytest.mark.parametrize("bins", BINS)
def test_bins_equal_the_obvious_loops(bins, bin_slope):
    position, labels = random_batch()
    labels[labels == 2] = 1  # an absent class
    parts = parts_of("bins", position, labels, bins=bins, bin_slope=bin_slope)
    count = counting(obvious_soft_bin, bins, bin_slope)
    expected = np.mean([obvious_entropies(column, labels.tolist(), count) for column in position.T.tolist()], 0)
    assert_close(torch.cat([parts.entropy, parts.conditional_entropy]), torch.from_numpy(expected), rtol=0, atol=1e-12)
    assert float(parts.loss) == pytest.approx(0.05 * expected[1] - 0.05 * expected[0], abs=1e-13)


@pytest.mark.parametrize("bandwidth", [0.04, 0.05, 0.1, 0.3])
def test_kernels_equal_the_obvious_loops(bandwidth):
    position, labels = random_batch()
    position[:3] = torch.tensor([[0.0], [1.0], [0.5]])
    parts = parts_of("kernel", position, labels, bandwidth=bandwidth)
    count = counting(obvious_kernel, 50, bandwidth)
    expected = np.mean([obvious_entropies(column, labels.tolist(), count) for column in position.T.tolist()], 0)
    # B-splines share out samples between nodes: nearly a Gaussian, the more so the wider the kernel is
    error = 1e-4 if bandwidth < 0.05 else 3e-5
    assert_close(torch.cat([parts.entropy, parts.conditional_entropy]), torch.from_numpy(expected), rtol=0, atol=error)


def test_entropies_approach_a_plain_histogram_as_the_slope_grows():
    position, _ = random_batch(500, 40)
    nobody = torch.zeros(500).long()
    counts = [np.histogram(column, bins=50, range=(0, 1))[0] for column in position.T]
    expected = torch.tensor([obvious_entropy(c.tolist()) for c in counts], dtype=torch.float64)
    errors = []
    for bin_slope in (10.0, 1e2, 1e4, 1e8, 1e16, 1e32, 1e64):
        soft = entropy(soft_histogram(position, nobody, 1, 50, bin_slope))
        errors.append(float((soft - expected).abs().mean()))
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-3
    inside = ((position * 50).floor() + 0.3 + 0.4 * torch.rand(500, 40, dtype=torch.float64)) / 50
    assert_close(entropy(soft_histogram(inside, nobody, 1, 50, 1e16))[0], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("bins", BINS)
def test_closed_forms(bins):
    centres = (torch.arange(bins, dtype=torch.float64) + 0.5) / bins
    steep = {"bins": bins, "bin_slope": 1e8}
    uniform = parts_of("bins", centres.repeat(3).unsqueeze(1), torch.arange(3).repeat_interleave(bins), **steep)
    assert float(uniform.entropy) == pytest.approx(math.log(bins), abs=1e-12)
    assert float(uniform.mutual_information) == pytest.approx(0, abs=1e-12)
    point = parts_of("bins", centres[:1].repeat(8).unsqueeze(1), torch.zeros(8).long(), **steep)
    assert float(point.entropy) == pytest.approx(0, abs=1e-12)
    two = centres[[0, -1]].repeat(4).unsqueeze(1)
    told = parts_of("bins", two, torch.tensor([0, 1]).repeat(4), **steep)
    assert float(told.entropy) == pytest.approx(math.log(2), abs=1e-12)
    assert float(told.conditional_entropy) == pytest.approx(0, abs=1e-12)
    assert float(told.mutual_information) == pytest.approx(math.log(2), abs=1e-12)


def test_kernel_closed_forms():
    grid = ((torch.arange(1000, dtype=torch.float64) + 0.5) / 1000).unsqueeze(1)
    flat = parts_of("kernel", grid, torch.zeros(1000).long())
    assert float(flat.entropy) == pytest.approx(math.log(50), abs=1e-6)
    point = parts_of("kernel", torch.full((10, 1), 0.5, dtype=torch.float64), torch.zeros(10).long())
    gaussian = 0.5 * math.log(2 * math.pi * math.e * 0.05**2) + math.log(50)
    assert float(point.entropy) == pytest.approx(gaussian, abs=1e-3)


def test_kernels_count_every_sample_as_one():
    position, labels = random_batch(dtype=torch.float64)
    position[:2] = torch.tensor([[0.0], [1.0]])
    histogram = kernel_histogram(position, labels, 4, 50, 0.05)
    counts = torch.bincount(labels, minlength=4).double().unsqueeze(1)
    assert_close(histogram.sum(-1), counts.expand(4, 3))


def test_an_empty_histogram_has_no_entropy():
    assert float(entropy(torch.zeros(5))) == 0
    assert_close(conditional_entropy(torch.zeros(2, 3, 5), torch.zeros(2)), torch.zeros(3))


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_gradients(estimator):
    position, labels = random_batch(9, 2, 3)
    position = (0.02 + 0.96 * position).requires_grad_()
    regularizer = sn.MutualInformation(5, bins=6, bin_slope=9, estimator=estimator, bandwidth=0.2, views=3)
    for given_labels in (labels, None):
        assert torch.autograd.gradcheck(lambda p, y=given_labels: regularizer({"layer": p}, y), position)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.floats(0, 1, width=32), min_size=1, max_size=30),
    st.integers(1, 6),
    st.sampled_from(BINS),
    st.sampled_from(ESTIMATORS),
    st.sampled_from([torch.float64, torch.float32, torch.bfloat16, torch.float16]),
    st.randoms(use_true_random=False),
)
def test_entropies_stay_in_bounds_and_finite(values, classes, bins, estimator, dtype, random):
    position = torch.tensor(values, dtype=dtype).unsqueeze(1).requires_grad_()
    labels = torch.tensor([random.randrange(classes) for _ in values])
    parts = parts_of(estimator, position, labels, classes, bins=bins, bandwidth=0.5)
    for h in (parts.entropy, parts.conditional_entropy):
        assert 0 <= float(h.detach()) <= np.nextafter(np.float32(math.log(bins)), np.float32(9))
    parts.loss.backward()
    assert position.grad.isfinite().all()


@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("samples", [0, 1, 2, 250])
@pytest.mark.parametrize("where", [0.0, 1.0, 0.5, None])
def test_finite_for_every_batch(estimator, dtype, samples, where):
    position = torch.rand(samples, 4) if where is None else torch.full((samples, 4), where)
    position = position.to(dtype).requires_grad_()
    for labels in (torch.zeros(samples).long(), torch.arange(samples) % 3, None):
        loss = sn.MutualInformation(10, estimator=estimator)({"layer": position}, labels)
        assert loss.dtype == torch.float32
        assert loss.isfinite()
        (gradient,) = torch.autograd.grad(loss, position)
        assert gradient.isfinite().all()


def test_autocast_does_not_touch_entropies():
    position, labels = random_batch(dtype=torch.float32)
    regularizer = sn.MutualInformation(4, estimator="kernel")
    plain = regularizer({"layer": position}, labels)
    with torch.autocast("cpu", torch.bfloat16):
        assert_close(regularizer({"layer": position}, labels), plain, rtol=0, atol=0)


def test_first_use_without_gradients_does_not_spoil_later_ones():
    position, labels = random_batch()
    regularizer = sn.MutualInformation(4, estimator="kernel", bandwidth=0.0789)
    with torch.inference_mode():
        value = float(regularizer({"a": position}, labels))
    loss = regularizer({"a": position.requires_grad_()}, labels)
    loss.backward()
    assert float(loss.detach()) == value


# Layers and weights


def test_splines_are_averaged_and_layers_summed():
    position, labels = random_batch(30, 6)
    regularizer = sn.MutualInformation(4)
    single = [regularizer({"layer": position[:, i : i + 1]}, labels) for i in range(6)]
    layers = {"first": position[:, :2], "second": position[:, 2:].reshape(30, 2, 2)}
    parts = regularizer.parts(layers, labels)
    assert parts.layers == ("first", "second")
    assert_close(parts.loss, sum(single[:2]) / 2 + sum(single[2:]) / 4)


def test_parts_for_logging():
    position, labels = random_batch()
    parts = sn.MutualInformation(4, utilization=0.3, specialization=0.1).parts(
        {"a": position, "b": 1 - position}, labels
    )
    numbers = parts.log()
    assert set(numbers) == {"loss"} | {
        f"{part}/{layer}"
        for part in ("entropy", "conditional_entropy", "mutual_information")
        for layer in ("a", "b", "total")
    }
    assert numbers["entropy/total"] == pytest.approx(numbers["entropy/a"] + numbers["entropy/b"])
    assert numbers["mutual_information/a"] == pytest.approx(numbers["entropy/a"] - numbers["conditional_entropy/a"])
    assert numbers["loss"] == pytest.approx(0.1 * numbers["conditional_entropy/total"] - 0.3 * numbers["entropy/total"])


def test_weights_may_follow_progress():
    position, labels = random_batch()
    growing = sn.MutualInformation(4, utilization=lambda progress: 0.2 * progress, specialization=0.1)
    for progress in (0.0, 0.5, 1.0):
        fixed = sn.MutualInformation(4, utilization=0.2 * progress, specialization=0.1)
        assert_close(growing({"a": position}, labels, progress=progress), fixed({"a": position}, labels))
    with pytest.raises(ValueError, match="call with progress="):
        growing({"a": position}, labels)


def test_module_copies_and_shows_itself():
    regularizer = sn.MutualInformation(10, estimator="kernel")
    assert repr(copy.deepcopy(regularizer)) == repr(regularizer)
    assert "classes=10" in repr(regularizer)
    assert "bandwidth=0.05" in repr(regularizer)


# Whom it trains


def small_net(spec="H(4)-D-R3", seed=0, dtype=torch.float32):
    torch.manual_seed(seed)
    plain = nn.Sequential(nn.Conv2d(1, 4, 3, stride=2), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.ReLU(), nn.Flatten())
    plain.append(nn.Linear(6 * 4 * 4, 3)).to(dtype)
    return sn.convert(plain, spec, example=torch.rand(4, 1, 13, 13, dtype=dtype), spread=0.3)


def gradients_of(net, regularizer, images, labels, wrap=lambda positions: positions):
    net.zero_grad()
    _, positions = sn.trace(net, images)
    regularizer(wrap(positions), labels).backward()
    return {name: None if p.grad is None else p.grad.clone() for name, p in net.named_parameters()}


def test_trains_projections_alone_unless_asked():
    net, images, labels = small_net(), torch.rand(20, 1, 13, 13), torch.arange(20) % 3
    local = gradients_of(net, sn.MutualInformation(3), images, labels)
    trained = {name for name, g in local.items() if g is not None and g.abs().sum() > 0}
    assert trained
    assert all(".projection." in name or ".matching." in name for name in trained)
    full = gradients_of(net, sn.MutualInformation(3, full_gradient=True), images, labels)
    assert full["0.weight"].abs().sum() > 0
    # the last layer's positions come from its projection directly
    for name in ("5.projection.weight", "5.projection.knots"):
        assert_close(local[name], full[name])


def test_a_plain_dict_is_used_as_it_is():
    net, images, labels = small_net(dtype=torch.float64), torch.rand(20, 1, 13, 13).double(), torch.arange(20) % 3
    exact = sn.MutualInformation(3, full_gradient=True, exact_gradient=True)
    full = gradients_of(net, exact, images, labels)
    again = gradients_of(net, sn.MutualInformation(3), images, labels, wrap=dict)
    assert sum(gradient is not None for gradient in full.values()) > 5
    assert_close(*({name: g for name, g in found.items() if g is not None} for found in (full, again)))


@pytest.mark.parametrize("full_gradient", [False, True])
@pytest.mark.parametrize("exact_gradient", [False, True])
def test_loss_does_not_depend_on_its_gradient(full_gradient, exact_gradient):
    net, images, labels = small_net(), torch.rand(20, 1, 13, 13), torch.arange(20) % 3
    _, positions = sn.trace(net, images)
    expected = sn.MutualInformation(3).parts(dict(positions), labels)
    regularizer = sn.MutualInformation(3, full_gradient=full_gradient, exact_gradient=exact_gradient)
    for parts in (regularizer.parts(positions, labels), torch.no_grad()(regularizer.parts)(positions, labels)):
        assert_close(parts.loss, expected.loss, rtol=0, atol=0)
        assert_close(parts.entropy, expected.entropy, rtol=0, atol=0)


@pytest.mark.parametrize("bins", BINS)
def test_smooth_gradient_is_that_of_kernels_as_wide_as_a_bin(bins):
    position, labels = random_batch(60, 2)
    position.requires_grad_()
    options = {"bins": bins, "utilization": 0.3, "specialization": 0.1}
    smooth = sn.MutualInformation(4, **options)(sn.Positions({"a": position}), labels)
    kernels = sn.MutualInformation(4, estimator="kernel", bandwidth=1 / bins, **options)({"a": position}, labels)
    gradients = [torch.autograd.grad(loss, position)[0] for loss in (smooth, kernels)]
    assert_close(*gradients)
    assert float(gradients[0].abs().max()) > 1e-4


def test_smooth_gradient_agrees_with_the_exact_one_when_samples_abound():
    torch.manual_seed(0)
    position = torch.distributions.Beta(2.0, 3.0).sample((200_000, 1)).double().requires_grad_()
    labels = torch.zeros(200_000).long()
    pulls = []
    for exact in (False, True):
        regularizer = sn.MutualInformation(1, specialization=0, exact_gradient=exact)
        (pull,) = torch.autograd.grad(regularizer(sn.Positions({"a": position}), labels), position)
        # the mean over tenths of the spline, where the exact one is fit to be compared
        tenth = (position.detach() * 10).long().flatten()
        pulls.append(torch.zeros(10).double().index_add(0, tenth, pull.flatten()) / torch.bincount(tenth, minlength=10))
    assert_close(pulls[0][1:8], pulls[1][1:8], rtol=0.15, atol=0.05 * float(pulls[1].abs().max()))


# Without labels


def test_view_entropy_has_its_closed_forms():
    torch.manual_seed(0)
    inputs = torch.rand(20_000, 1, dtype=torch.float64) * 0.6 + 0.2
    assert float(view_entropy(torch.cat([inputs, inputs]), 2, 50)) == 0
    for views in (2, 3):
        seen = torch.cat([inputs + 0.05 * torch.randn_like(inputs) for _ in range(views)])
        gaussian = 0.5 * math.log(1 + 2 * math.pi * math.e * (50 * 0.05) ** 2)
        assert float(view_entropy(seen, views, 50)) == pytest.approx(gaussian, abs=0.01)


def test_without_labels_information_is_bounded_by_that_with_the_input():
    torch.manual_seed(0)
    regularizer = sn.MutualInformation(None, views=2)
    inputs = torch.rand(500, 4, dtype=torch.float64)
    told = []
    for deviation in (0.0, 0.01, 0.05, 0.2):
        seen = torch.cat([(inputs + deviation * torch.randn_like(inputs)).clamp(0, 1) for _ in range(2)])
        told.append(float(regularizer.parts({"a": seen}).mutual_information))
    assert told == sorted(told, reverse=True)
    assert told[0] == pytest.approx(math.log(50), abs=0.06)
    assert told[-1] < 1


def test_one_view_leaves_utilisation():
    position, labels = random_batch()
    alone = sn.MutualInformation(None, utilization=0.3)({"a": position})
    assert_close(alone, sn.MutualInformation(4, utilization=0.3, specialization=0)({"a": position}, labels))


# Bad input

GOOD = {"layer": torch.full((4, 2), 0.5)}
LABELS = torch.zeros(4).long()
BAD = [
    (lambda: sn.MutualInformation(0), "classes must be 1 or more .*, got 0"),
    (lambda: sn.MutualInformation(3, bins=1), "bins must be a whole number from 2 to 1000 .*, got 1"),
    (lambda: sn.MutualInformation(3, bin_slope=1), "bin_slope must be a number above 1, got 1"),
    (lambda: sn.MutualInformation(3, bin_slope=math.nan), "bin_slope must be a number above 1, got nan"),
    (lambda: sn.MutualInformation(3, utilization=-0.1), "utilization must be a weight of 0 or more, .*, got -0.1"),
    (lambda: sn.MutualInformation(3, specialization=math.inf), "specialization must be a weight .*, got inf"),
    (lambda: sn.MutualInformation(3, estimator="bin"), r"unknown estimator 'bin', choose from bins, kernel"),
    (lambda: sn.MutualInformation(3, estimator="kernel", bandwidth=0.01), "bandwidth must lie between .*, got 0.01"),
    (lambda: sn.MutualInformation(3, views=0), "views must be 1 or more, got 0"),
    (lambda: sn.MutualInformation(3)(GOOD, torch.tensor([0, 1, 2, 3])), r"labels must lie in 0..2 .*, got 3"),
    (lambda: sn.MutualInformation(3)(GOOD, torch.tensor([0, 1, -1, 2])), r"labels must lie in 0..2 .*, got -1"),
    (lambda: sn.MutualInformation(3)(GOOD, LABELS[:3]), "every sample needs one label, got 4 positions and 3 labels"),
    (lambda: sn.MutualInformation(3)(GOOD, LABELS.float()), "labels must be integers .*, got torch.float32"),
    (lambda: sn.MutualInformation(3)(GOOD, LABELS.view(2, 2)), r"labels must be integers \(N,\) or .*, got .*\(2, 2\)"),
    (lambda: sn.MutualInformation(None)(GOOD, LABELS), "labels were given, but classes=None"),
    (lambda: sn.MutualInformation(None, views=3)(GOOD), "a batch of 3 views must be a multiple of that, got 4"),
    (lambda: sn.MutualInformation(3)({}, LABELS), "there are no positions: does the network have spline layers"),
    (lambda: sn.MutualInformation(3)({"a": torch.full((4, 2), 1.5)}, LABELS), r"must lie in \[0, 1\], got 1.5 in 'a'"),
    (lambda: sn.MutualInformation(3)({"a": torch.full((4, 2), -2.0)}, LABELS), r"lie in \[0, 1\], got -2 in 'a'"),
    (lambda: sn.MutualInformation(3)(GOOD | {"a": GOOD["layer"] * math.nan}, LABELS), r"got nan in 'a'"),
    (
        lambda: sn.MutualInformation(3)(GOOD | {"b": torch.zeros(5, 2)}, LABELS),
        "same samples, got batch sizes {'layer': 4, 'b': 5}",
    ),
    (lambda: sn.MutualInformation(3)({"a": torch.zeros(4)}, LABELS), r"positions must be floats .* \(4,\) in 'a'"),
    (lambda: sn.MutualInformation(3)({"a": torch.zeros(4, 2).long()}, LABELS), "must be floats .*, got torch.int64"),
]


@pytest.mark.parametrize(("call", "message"), BAD)
def test_bad_input_is_one_clear_sentence(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_positions_outside_by_rounding_alone_are_fine():
    position = torch.tensor([[1.004], [-0.001], [0.5]])
    inside = position.clamp(0, 1)
    regularizer = sn.MutualInformation(3)
    labels = torch.arange(3)
    assert_close(regularizer({"a": position}, labels), regularizer({"a": inside}, labels))


# Labels that are shares of classes, as mixup makes them


def obvious_shared_entropies(positions, shares, count):
    """The same with every sample counted for every class by its share."""
    whole = obvious_entropy([sum(count(p, b) for p in positions) for b in range(count.bins)])
    conditional = 0.0
    for own in zip(*shares, strict=True):
        histogram = [sum(s * count(p, b) for p, s in zip(positions, own, strict=True)) for b in range(count.bins)]
        if sum(own):
            conditional += sum(own) / len(positions) * obvious_entropy(histogram)
    return whole, conditional


def mixed(labels, classes, smoothing=0.0):
    """Mixup of a batch with itself, and label smoothing."""
    hard = F.one_hot(labels, classes).double()
    return (1 - smoothing) * (0.7 * hard + 0.3 * hard.flip(0)) + smoothing / classes


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("estimator", ["bins", "kernel"])
def test_shares_of_classes_in_the_most_obvious_way(estimator, smoothing):
    position, labels = random_batch(samples=20, coordinates=2)
    shares = mixed(labels, 5, smoothing)  # of the fifth class there is nothing but smoothing
    regularizer = sn.MutualInformation(5, bins=5, estimator=estimator, exact_gradient=True)
    found = regularizer.parts({"a": position}, shares)
    if estimator == "bins":
        count = counting(obvious_soft_bin, 5, 100)
    else:  # the plain density, share by share, is what the histogram of one sample is
        single = [
            kernel_histogram(position[i : i + 1], labels[i : i + 1] * 0, 1, 5, regularizer.bandwidth, None)[0]
            for i in range(20)
        ]
        rows = {(i, c): single[i][c] for i in range(20) for c in range(2)}

        def count(place, bin):
            return float(rows[place][bin])

        count.bins = 5
    expected = []
    for c in range(2):
        places = position[:, c].tolist() if estimator == "bins" else [(i, c) for i in range(20)]
        expected.append(obvious_shared_entropies(places, shares.tolist(), count))
    whole, conditional = (sum(e[k] for e in expected) / 2 for k in (0, 1))
    assert_close(float(found.entropy), whole, rtol=1e-9, atol=1e-9)
    assert_close(float(found.conditional_entropy), conditional, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("estimator", ["bins", "kernel"])
def test_whole_shares_are_labels(estimator):
    position, labels = random_batch()
    regularizer = sn.MutualInformation(4, bins=7, estimator=estimator)
    gradients = []
    for given_labels in (labels, F.one_hot(labels, 4).double()):
        leaf = position.clone().requires_grad_()
        loss = regularizer({"a": leaf}, given_labels)
        loss.backward()
        gradients.append((loss.detach(), leaf.grad))
    assert_close(gradients[0], gradients[1], rtol=1e-12, atol=1e-12)


def test_gradients_with_shares_of_classes():
    position, labels = random_batch(samples=8, coordinates=2)
    shares = mixed(labels, 4, 0.1)
    regularizer = sn.MutualInformation(4, bins=5, estimator="kernel", utilization=0.7, specialization=0.4)
    assert torch.autograd.gradcheck(lambda p: regularizer({"a": p}, shares), position.requires_grad_())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's compiler warns of torch
def test_compiled_with_shares_of_classes():
    torch._dynamo.reset()
    position, labels = random_batch()
    regularizer, shares = sn.MutualInformation(4, bins=7), mixed(labels, 4)
    compiled = torch.compile(lambda p, s: regularizer({"a": p}, s), fullgraph=True, backend="eager")
    assert_close(compiled(position, shares), regularizer({"a": position}, shares))


@pytest.mark.parametrize(
    ("shares", "complaint"),
    [
        (torch.full((40, 3), 1 / 3), r"must have shape \(40, 4\) here, got \(40, 3\)"),
        (torch.full((39, 4), 1 / 4), r"must have shape \(40, 4\) here"),
        (torch.full((40, 4), 0.5), "sum to 1"),
        (torch.tensor([[1.5, -0.5, 0, 0]]).expand(40, 4), "0 or more"),
        (torch.full((40, 4), float("nan")), "sum to 1"),
    ],
)
def test_shares_that_are_none(shares, complaint):
    position, _ = random_batch()
    with pytest.raises(ValueError, match=complaint):
        sn.MutualInformation(4)({"a": position}, shares)
