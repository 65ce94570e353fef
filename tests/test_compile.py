"""torch.compile without a break in its graph, on networks of every kind, in training and out of it."""

import copy
import threading

import pytest
import torch
from tests.helpers import zoo
from tests.helpers.marks import slow
from torch import nn

import splinenets as sn
from splinenets import path


class Root(nn.Module):
    """A root of the user's own: branches, a second call of the same layer, a network inside the network."""

    def __init__(self, spec):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.twice = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.inner = nn.Sequential(nn.Conv2d(8, 8, 1), nn.BatchNorm2d(8), nn.ReLU())
        self.head = nn.Linear(8, 5)

    def forward(self, images):
        x = torch.relu(self.stem(images))
        x = torch.relu(self.twice(x)) + torch.relu(self.twice(x))
        return self.head(self.inner(x).mean((2, 3)))


NETWORKS = {
    "lenet": lambda spec: sn.convert(sn.models.lenet(4, dropout=0.0, image_size=12), spec, example=torch.randn(4, 1, 12, 12), spread=0.3),
    "resnet": lambda spec: sn.convert(sn.models.resnet(8), spec, example=torch.randn(4, 3, 8, 8), spread=0.3),
    "own root": lambda spec: sn.convert(Root(spec), spec, example=torch.randn(4, 3, 8, 8), spread=0.3),
}  # fmt: skip


def small(spec):
    """Two spline layers, because tracing takes its time for each; linear ones are in ``NETWORKS``."""
    net = sn.models.lenet(4, dropout=0.0, image_size=12)
    return sn.convert(net, spec, example=torch.randn(4, 1, 12, 12), spread=0.3, skip=["dense*"])


SHAPES = {"lenet": (1, 12, 12), "resnet": (3, 8, 8), "own root": (3, 8, 8)}


def compiled_twin(net, backend="eager"):
    torch._dynamo.reset()
    twin = copy.deepcopy(net)
    return torch.compile(twin, fullgraph=True, backend=backend), twin


def logits(output):
    return output if isinstance(output, torch.Tensor) else output.logits


def same_training(net, compiled, twin, x):
    """One step of each: outputs, gradients and running statistics."""
    for call, model in ((net, net), (compiled, twin)):
        model.zero_grad()
        logits(call(x)).square().mean().backward()
    for (name, p), q in zip(net.named_parameters(), twin.parameters(), strict=True):
        expected, found = (torch.zeros_like(t) if t.grad is None else t.grad for t in (p, q))
        scale = max(1e-3, expected.abs().max().item())
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-3 * scale, msg=lambda m, n=name: f"{n}: {m}")
    for p, q in zip(net.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-3, atol=1e-4)


def same_answers(net, compiled, x):
    with torch.no_grad():
        torch.testing.assert_close(logits(compiled(x)), logits(net(x)), rtol=1e-3, atol=1e-3)


ALL = [(name, spec) for name in NETWORKS for spec in ("H(3)-C-R3", "D(3)-D-G2 diffusion=0.5")]


@pytest.mark.parametrize(
    ("name", "spec", "backend"),
    [("lenet", "H(3)-C-R3", "eager"), *(slow(*case, "aot_eager") for case in ALL)],  # tracing takes seconds
)
def test_any_root(name, spec, backend):
    net = NETWORKS[name](spec)
    compiled, twin = compiled_twin(net, backend)
    for samples in (6, 4):
        same_training(net, compiled, twin, torch.randn(samples, *SHAPES[name]))
    net.eval(), twin.eval()
    for samples in (5, 3):
        same_answers(net, compiled, torch.randn(samples, *SHAPES[name]))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("spec", ["D(3)-C-R3", "H(3)-D-R4", "H(4)-C-G2 degree=3 dims=2", "D(3)-C-R3 raw independent"])
@pytest.mark.parametrize("name", NETWORKS)
def test_any_root_to_machine_code(name, spec):
    net = NETWORKS[name](spec)
    compiled, twin = compiled_twin(net, "inductor")
    for samples in (6, 4, 5):
        same_training(net, compiled, twin, torch.randn(samples, *SHAPES[name]))
    net.eval(), twin.eval()
    for samples in (5, 1, 3, 4):
        same_answers(net, compiled, torch.randn(samples, *SHAPES[name]))


@pytest.mark.slow
@pytest.mark.parametrize("name", zoo.CONFIGS)
def test_networks_of_others(name):
    model, images = zoo.build(name)
    images = images.float()
    plain, _ = compiled_twin(model.float())
    try:
        plain(images)
    except Exception as error:
        pytest.skip(f"the plain network cannot be compiled in one piece: {type(error).__name__}")
    net = sn.convert(model, "H(3)-C-R4", example=images, spread=0.1)
    compiled, twin = compiled_twin(net, "aot_eager")
    same_training(net, compiled, twin, images)
    net.eval(), twin.eval()
    for samples in (4, 2, 3):
        same_answers(net, compiled, images[:samples])


def graph_of(net, x, training):
    """The operators in the graphs that torch.compile sees."""
    targets = []

    def backend(graph, _):
        targets.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    torch._dynamo.reset()
    with torch.set_grad_enabled(training):
        torch.compile(net, fullgraph=True, backend=backend)(x)
    return [t for t in targets if "splinenets" in t]


@pytest.mark.skipif(sn.kernels.library() is None, reason="the kernels cannot be compiled here")
def test_the_graph_keeps_the_kernel():
    net, x = small("D(3)-C-R3"), torch.randn(2, 1, 12, 12)
    layers = sum(isinstance(m, sn.SplineConv2d) for m in net.modules())
    assert graph_of(net, x, True) == ["splinenets.conv2d"] * layers
    assert graph_of(net.eval(), x, False) == ["splinenets.conv2d_inference"] * layers
    with sn.strategy("bank"):
        assert graph_of(net, x, False) == []
    exported = torch.export.export(net, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    assert (
        sum("conv2d" in str(node.target) and "splinenets" in str(node.target) for node in exported.graph.nodes)
        == layers
    )
    torch.testing.assert_close(exported.module()(x), net(x), rtol=1e-4, atol=1e-4)


def parts(net):
    """Ways to compile a part of a LeNet."""
    yield "a layer", lambda: setattr(net, "conv2", torch.compile(net.conv2, backend="eager"))
    yield "the first layer", lambda: setattr(net, "conv1", torch.compile(net.conv1, backend="eager"))
    yield "in place", lambda: net.conv2.compile(backend="eager")
    yield "forward", lambda: setattr(net, "forward", torch.compile(net.forward, backend="eager"))
    yield "a break", lambda: setattr(net.conv2, "forward", torch._dynamo.disable(net.conv2.forward))


@pytest.mark.parametrize("part", ["a layer", slow("the first layer"), slow("in place"), "forward", slow("a break")])
def test_networks_of_which_a_part_is_compiled(part):
    """Positions cross the border between what is compiled and what is not, both ways."""
    torch._dynamo.reset()
    net = small("H(3)-C-R3 diffusion=0.5").eval()
    twin = copy.deepcopy(net)
    dict(parts(twin))[part]()
    call = torch.compile(twin, backend="eager") if part == "a break" else twin
    for samples in (3, 4):
        x = torch.randn(samples, 1, 12, 12)
        with torch.no_grad():
            expected, positions = sn.trace(net, x)
            found, where = sn.trace(call, x)
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
        assert list(where) == list(positions)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_sizes_that_are_never_known():
    net, x = small("D(3)-C-R3"), torch.randn(3, 1, 12, 12)
    torch._dynamo.reset()
    found = torch.compile(net, dynamic=True, fullgraph=True, backend="aot_eager")(x)
    torch.testing.assert_close(found, net(x), rtol=1e-3, atol=1e-4)
    found.sum().backward()


@pytest.mark.slow
@pytest.mark.skipif(sn.kernels.library() is None, reason="the kernels cannot be compiled here")
def test_operators_as_torch_checks_them():
    position, knots = torch.rand(4, 6), torch.randn(5, 6, 27, requires_grad=True)
    base, bias = torch.randn(6, 3, 3, 3, requires_grad=True), torch.randn(6)
    setting = ([3, 3], [1, 2], [1, 1, 0, 0], [1, 1], 6, 1, 2)
    x = torch.randn(4, 3, 7, 6, requires_grad=True)
    for operator in (torch.ops.splinenets.conv2d, torch.ops.splinenets.conv2d_inference):
        tests = ("test_schema", "test_faketensor") + (
            ("test_aot_dispatch_dynamic",) if operator is torch.ops.splinenets.conv2d else ()
        )
        torch.library.opcheck(operator.default, (x, position, knots, base, bias, *setting), test_utils=tests)


def test_a_graph_without_its_kernel(monkeypatch):
    """A program that was exported here and runs where nothing can be compiled."""
    net, x = small("D(3)-C-R3").eval(), torch.randn(2, 1, 12, 12)
    program = torch.export.export(net, (x,)).module()
    expected = net(x)
    with sn.kernels.without():
        torch.testing.assert_close(program(x), expected, rtol=1e-4, atol=1e-4)
        with torch.no_grad():
            torch.testing.assert_close(program(x), expected, rtol=1e-4, atol=1e-4)


def test_a_strategy_reaches_compiled_networks():
    net, x = small("D(3)-C-R3").eval(), torch.randn(3, 1, 12, 12)
    compiled, _ = compiled_twin(net)
    expected = net(x)
    for name in ("bank", "unfold", "auto"):
        with sn.strategy(name):
            torch.testing.assert_close(compiled(x), expected, rtol=1e-4, atol=1e-4)


def test_tracing_and_steering_a_compiled_network():
    net, x = small("H(3)-C-R3"), torch.randn(5, 1, 12, 12)
    compiled, twin = compiled_twin(net)
    step = torch.compile(lambda images: sn.trace(twin, images), fullgraph=True, backend="eager")
    expected, positions = sn.trace(net, x)
    for found, where in (sn.trace(compiled, x), step(x)):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
        assert list(where) == list(positions) == list(where.local)
        for name, position in positions.items():
            torch.testing.assert_close(where[name], position, rtol=1e-3, atol=1e-4)
            torch.testing.assert_close(where.local[name], position, rtol=1e-3, atol=1e-4)
    chosen = {"conv1": torch.zeros(4), "conv2": torch.full((5, 8), torch.nan)}
    with sn.steer(net, chosen), sn.steer(twin, chosen):
        torch.testing.assert_close(compiled(x), net(x), rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(compiled(x), expected, rtol=1e-3, atol=1e-4)


def test_the_regulariser_trains_decisions_of_a_compiled_network():
    net, x, labels = small("H(3)-C-R3"), torch.randn(8, 1, 12, 12), torch.arange(8) % 4
    compiled, twin = compiled_twin(net)
    regularizer = sn.MutualInformation(classes=4)
    for call in (net, compiled):
        _, positions = sn.trace(call, x)
        regularizer(positions, labels).backward()
    for (name, p), q in zip(net.named_parameters(), twin.named_parameters(), strict=True):
        grads = [torch.zeros_like(p) if t.grad is None else t.grad for t in (p, q[1])]
        torch.testing.assert_close(grads[1], grads[0], rtol=1e-2, atol=1e-4)
        assert bool(grads[0].any()) <= ("projection" in name or "matching" in name)


def test_a_compiled_network_in_several_threads():
    net = small("H(3)-C-R3").eval()
    compiled, _ = compiled_twin(net)
    batches = [torch.randn(3, 1, 12, 12) for _ in range(24)]
    with torch.no_grad():
        expected = [net(x) for x in batches]
        compiled(batches[0])
    found = [None] * len(batches)

    def work(first):
        with torch.no_grad():
            for n in range(first, len(batches), 4):
                found[n] = compiled(batches[n])

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for f, e in zip(found, expected, strict=True):
        torch.testing.assert_close(f, e, rtol=1e-3, atol=1e-4)


def test_nothing_of_a_call_stays_behind():
    """What was traced keeps no position, and so no graph, alive."""
    net, x = small("H(3)-C-R3"), torch.randn(2, 1, 12, 12)
    compiled, twin = compiled_twin(net)
    compiled(x)
    assert twin.conv1.path.traced.run is None


def test_whether_anything_is_compiled_is_a_quick_question(monkeypatch):
    """Every optimizer imports the compiler; looking through a network's modules for graphs takes a tenth of its time."""
    frames, asked = torch._dynamo.eval_frame, []
    net = small("D(3)-C-R3")
    monkeypatch.setattr(net, "modules", lambda: asked.append(1) or iter(()))
    for backends, used in (({0: None}, False), ({}, True), ({0: None, 1: torch._inductor.compile}, True)):
        monkeypatch.setattr(path.COMPILER, "used", False)
        monkeypatch.setattr(frames, "cached_backends", backends)
        asked.clear()
        assert not path.has_graphs(net)
        assert bool(asked) == used
    monkeypatch.setattr(frames, "cached_backends", {0: None})  # once used is used
    path.has_graphs(net)
    assert len(asked) == 2


def test_muon_knows_the_knots_of_a_compiled_network():
    net = sn.convert(torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3)), "D(3)-C-R3", example=torch.randn(2, 3, 6, 6))
    shapes = [[m.shape for m in sn.Muon(each).matrices.values()] for each in (net, torch.compile(net, backend="eager"))]
    assert shapes[0] == shapes[1]
    assert (12, 27) in shapes[0]
