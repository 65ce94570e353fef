"""Any tensor may reach our kernels: wherever its numbers lie, answers are those of torch's own operations, or refused."""

import os
import signal

import pytest
import torch
from torch import nn

import splinenets as sn
from splinenets.exporting.native import engine

SPEC = "H(4)-C-R3"


def layer(spec=SPEC):
    made = sn.SplineConv2d(3, 4, 3, spec=spec).eval()
    nn.init.normal_(made.knots)
    made.projection.running_mean.normal_()
    made.projection.running_var.uniform_(0.5, 2)
    return made


def images(samples=2):
    return torch.randn(samples, 3, 6, 6)


def spread(t):
    """Every number has a stranger beside it."""
    return torch.stack([t, torch.full_like(t, 7.0)], -1)[..., 0]


def turned(t):
    """Dimensions in another order in memory."""
    return t.transpose(0, -1).contiguous().transpose(0, -1)


def repeated(t):
    """Numbers that several places share."""
    return t[:1].expand_as(t)


def offset(t):
    """Not at a multiple of anything but a float."""
    return torch.cat([t.new_zeros(1), t.flatten()])[1:].view(t.shape)


def misaligned(t):
    """Not even at a multiple of a float."""
    memory = bytearray(t.numel() * t.element_size() + 1)
    return torch.frombuffer(memory, dtype=t.dtype, offset=1).view(t.shape).copy_(t)


def negated(t):
    """A view whose numbers have the other sign in memory."""
    return torch._neg_view(-t)


PLACES = [spread, turned, repeated, offset, misaligned, negated]
NAMES = ["weight", "bias", "knots", "projection.weight", "projection.knots", "projection.running_mean"]


def put(net, name, tensor):
    """Set a parameter or a buffer, as it is."""
    owner = net.get_submodule(name.rpartition(".")[0])
    for tensors in (owner._parameters, owner._buffers):
        if name.rpartition(".")[2] in tensors:
            tensors[name.rpartition(".")[2]] = tensor


@pytest.mark.parametrize("place", PLACES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("name", [*NAMES, "input"])
@pytest.mark.parametrize(("samples", "learning"), [(1, False), (2, True), (2, False), (20, False)])
def test_wherever_numbers_lie(place, name, samples, learning):
    net, x = layer(), images(samples)
    moved = place(x if name == "input" else dict(net.state_dict())[name])
    plain = moved.clone(memory_format=torch.contiguous_format).resolve_neg()
    answers = []
    for tensor, strategy in ((moved, "auto"), (plain, "grouped")):
        if name == "input":
            x = tensor
        else:
            put(net, name, tensor)
        with torch.set_grad_enabled(learning), sn.strategy(strategy):
            answers.append(net(x))
    torch.testing.assert_close(*answers, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("place", PLACES, ids=lambda f: f.__name__)
def test_wherever_an_image_lies_that_is_decided_by_whole(place):
    net, x = sn.SplineConv2d(3, 4, 3, spec="D(4)-D-R3", input_size=6).eval(), place(images(1))
    with torch.no_grad():
        found = net(x)
        with sn.strategy("grouped"):
            torch.testing.assert_close(found, net(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("samples", [1, 2, 20])
def test_another_default_for_new_tensors(samples):
    """What kernels write into has the numbers that they write, whatever numbers torch gives to new tensors."""
    x = images(samples).contiguous(memory_format=torch.channels_last)
    net, answers = layer(), []
    for default in (torch.float64, torch.float32):
        torch.set_default_dtype(default)
        try:
            with torch.no_grad():
                inferred = net(x)
            y = net(x)
            answers.append([inferred, y, *torch.autograd.grad(y.square().sum(), list(net.parameters()))])
        finally:
            torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(*answers)


@pytest.mark.parametrize("name", ["weight", "bias", "knots", "projection.weight", "projection.running_mean"])
@pytest.mark.parametrize("learning", [True, False])
def test_parameters_elsewhere_are_not_read(name, learning):
    """On another device there is nothing at an address: what happens is what torch's own operations do."""
    net = layer()
    put(net, name, dict(net.state_dict())[name].to("meta"))

    def outcome(x, strategy):
        with torch.set_grad_enabled(learning), sn.strategy(strategy):
            try:
                return net(x).device.type
            except RuntimeError as error:
                return str(error)

    for samples in (1, 2):
        x = images(samples)
        assert outcome(x, "auto") == outcome(x, "grouped")


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("bias", (1,)),
        ("knots", (4, 4, 9)),
        ("knots", (2, 4, 27)),
        ("knots", (4, 5, 27)),
        ("weight", (4, 3, 2, 2)),
        ("projection.weight", (4, 7)),
        ("projection.knots", (4, 4, 2)),
    ],
)
def test_parameters_of_another_size_are_refused(name, shape):
    net = layer()
    put(net, name, torch.zeros(shape))
    for samples in (1, 2):
        for learning in (True, False):
            with torch.set_grad_enabled(learning), pytest.raises((RuntimeError, ValueError)):
                net(images(samples))


def test_statistics_of_another_size_are_not_read_beyond_their_end():
    net, x = layer(), images(1)
    put(net, "projection.running_mean", torch.full((1,), 0.3))
    with torch.no_grad():
        found = net(x)
        put(net, "projection.running_mean", torch.full((4,), 0.3))
        torch.testing.assert_close(found, net(x))


@pytest.mark.parametrize("strategy", ["auto", "single", "grouped", "unfold", "bank", "fused"])
@pytest.mark.parametrize(("kernel", "size"), [(1, (0, 5)), (6, (3, 5))])
def test_an_image_that_is_too_small_is_refused_as_torch_refuses_it(strategy, kernel, size):
    message = rf"does not fit into an input of size \({size[0]}, 5\)"
    with sn.strategy(strategy), pytest.raises(ValueError, match=message):
        sn.SplineConv2d(3, 4, kernel, padding=1)(torch.randn(2, 3, *size))


def test_a_batch_of_another_size_than_it_is_steered_for():
    net = layer()
    with sn.steer(net, {"": torch.rand(3, 4)}), pytest.raises(ValueError, match=r"steered for 3 samples, .* has 1"):
        net(images(1))


def test_what_was_saved_may_come_back_elsewhere():
    """Hooks on saved tensors may bring them back in another order in memory."""
    gradients = []
    for unpack in (turned, torch.clone):
        torch.manual_seed(0)
        net, x = layer(), images().requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t, unpack=unpack: unpack(t.detach())):
            net(x).square().sum().backward()
        gradients.append([x.grad, *(p.grad for p in net.parameters())])
    torch.testing.assert_close(*gradients)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A file for the native runtime."""
    path = tmp_path_factory.mktemp("exports") / "net.native"
    net = nn.Sequential(layer(), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5)).eval()
    try:
        engine.build()
    except ValueError as error:
        pytest.skip(str(error))
    sn.export(net, images(), path, purpose="throughput")
    return path


@pytest.mark.parametrize("place", PLACES, ids=lambda f: f.__name__)
def test_the_native_runtime_wherever_images_lie(exported, place):
    net, x = sn.load_export(exported), place(images(3))
    if place is negated:
        with pytest.raises(ValueError, match="plain tensors on the CPU"):
            net(x)
    else:
        torch.testing.assert_close(net(x), net(x.clone(memory_format=torch.contiguous_format)))
    with pytest.raises(ValueError, match="plain tensors on the CPU, got Tensor on meta"):
        net(images().to("meta"))


# A process that is forked has none of its parent's threads


def in_a_child(work, seconds=20):
    """How a forked process ends that does some work: a hang is the signal of an alarm."""
    child = os.fork()
    if not child:
        signal.alarm(seconds)
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("learning", [True, False])
def test_forked_after_a_pass_with_two_threads(two_threads, learning):
    first = sn.SplineConv2d(3, 16, 3, spec="D(5)-C-R3")
    net, x = nn.Sequential(first, nn.Flatten(), nn.Linear(16 * 36, 64), nn.Linear(64, 9)), torch.randn(64, 3, 8, 8)

    def work():
        with torch.set_grad_enabled(learning):
            y = net(x)
        if learning:
            y.square().sum().backward()

    work()
    assert in_a_child(work) == 0
    assert torch.get_num_threads() == 2


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("samples", [1, 5])
def test_forked_beside_the_native_runtime(exported, samples):
    net, x = sn.load_export(exported, threads=2), images(samples)
    expected = net(x)

    def work():
        assert torch.equal(net(x), expected)

    assert in_a_child(work) == 0
    work()


def test_an_absurd_number_of_threads(exported):
    with pytest.raises(ValueError, match="threads must lie between 1 and 1024, got 1000000000"):
        sn.load_export(exported, threads=10**9)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.uint8])
def test_input_with_fewer_bits_than_the_weights(dtype):
    for net, x in ((sn.SplineConv2d(3, 4, 3), torch.ones(2, 3, 5, 5)), (sn.SplineLinear(3, 4), torch.ones(2, 3))):
        with pytest.raises(ValueError, match=f"has torch.float32 weights and got {dtype} input"):
            net(x.to(dtype))


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_a_kernel_without_a_place():
    with pytest.raises(ValueError, match=r"SplineConv2d needs a kernel of size 1 or more, got \(0, 3\)"):
        sn.SplineConv2d(3, 4, (0, 3))


def test_sides_that_no_tensor_has():
    for make in (lambda: sn.SplineConv2d(3, 2**63, 3), lambda: sn.SplineLinear(2**63, 4)):
        with pytest.raises(
            ValueError, match=r"^a layer has fewer than 2\^63 inputs and outputs, got 9223372036854775808$"
        ):
            make()


def test_a_basis_that_fits_into_no_memory():
    for knots in (10**12, 2**63):
        with pytest.raises(ValueError, match=r"knots would take .* GB of memory"):
            sn.bspline_basis(torch.rand(2), knots, 2)


@pytest.mark.parametrize("spread", [-1.0, 1e140, float("inf"), float("nan")])
def test_a_spread_beyond_every_number(spread):
    with pytest.raises(ValueError, match="spread must lie between 0 and 100 standard deviations"):
        sn.convert(torch.nn.Linear(3, 4), "D(3)-C-R4", spread=spread)


@pytest.mark.parametrize("shape", [(), (1,), (0, 4), (2, 3)])
def test_positions_of_another_shape_cannot_be_collapsed_to(shape):
    with pytest.raises(ValueError, match=r"positions of layer '0' have the shape \(N, 4\)"):
        sn.collapse(torch.nn.Sequential(sn.SplineConv2d(3, 4, 3, spec="D(5)-C-R3")), {"0": torch.zeros(shape)})
