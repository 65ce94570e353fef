import copy
import threading

import pytest
import torch
from torch import nn

import splinenets as sn
from splinenets.path import Path, diffuse, match_samples, match_size, nearest_positions, peaked_logits


def chain(spec, *widths):
    """Convolutions of these widths, one after the other, connected."""
    layers = [sn.SplineConv2d(i, o, 3, padding=1, spec=spec) for i, o in zip((3, *widths), widths, strict=False)]
    return sn.connect(nn.Sequential(*layers))


def test_diffusion():
    parent, proposal = torch.tensor([0.2]), torch.tensor([0.6])
    assert diffuse(parent, proposal, 1) is proposal
    assert diffuse(parent, proposal, 0) == parent
    torch.testing.assert_close(diffuse(parent, proposal, 0.25), torch.tensor([0.3]))


def test_without_diffusion_positions_never_change_after_the_first_level():
    net = chain("H(5)-C-R3 diffusion=0", 4, 4, 4)
    _, positions = sn.trace(net, torch.randn(6, 3, 5, 5))
    assert torch.equal(positions["0"], positions["1"])
    assert torch.equal(positions["0"], positions["2"])
    assert positions["0"].std() > 0.1


@pytest.mark.parametrize("branching", [1, 2, 3])
def test_a_tree_reaches_exactly_the_papers_range(branching):
    net = chain(f"D(5)-C-R4 diffusion=tree({branching}) raw", 4, 4, 4, 4).eval()
    _, positions = sn.trace(net, torch.randn(400, 3, 5, 5) * 1e6)  # so large that every proposal is 0 or 1
    for level in (2, 3, 4):
        delta = float(branching) ** (1 - level)
        moved = positions[str(level - 1)] - (1 - delta) * positions[str(level - 2)]
        assert moved.min().item() == pytest.approx(0, abs=1e-6)
        assert moved.max().item() == pytest.approx(delta, abs=1e-6)


def test_size_matching_keeps_positions_in_range_and_starts_peaked():
    logits = peaked_logits(6, 16)
    weights = logits.softmax(1)
    torch.testing.assert_close(weights.max(1).values, torch.full((6,), 0.9))
    assert weights.argmax(1).tolist() == [1, 4, 6, 9, 12, 14]
    matched = match_size(torch.randint(0, 2, (500, 16)).double(), logits.double() * 3)
    assert matched.shape == (500, 6)
    assert matched.min() >= 0
    assert matched.max() <= 1 + 1e-12
    assert peaked_logits(3, 1).softmax(1).tolist() == [[1], [1], [1]]


def test_sizes_that_nobody_foresaw():
    parent = torch.rand(3, 8)
    assert torch.equal(nearest_positions(parent, 2), parent[:, [2, 6]])
    assert torch.equal(nearest_positions(parent, 16), parent.repeat_interleave(2, 1))


def test_batches_that_are_cut_and_joined():
    parent = torch.rand(4, 2)
    assert torch.equal(match_samples(parent, 12), parent.repeat_interleave(3, 0))
    torch.testing.assert_close(match_samples(parent, 2), torch.stack([parent[:2].mean(0), parent[2:].mean(0)]))
    assert match_samples(parent, 3) is None


def test_trace_names_layers_and_sizes():
    net = nn.Sequential()
    net.body = nn.Sequential(sn.SplineConv2d(3, 4, 3, spec="H(5)-C-R3"), nn.ReLU())
    net.body[0].extra = None
    net.pool = nn.Flatten()
    net.head = sn.SplineLinear(4 * 9, 2, spec="H(5)-D-R3 dims=2")
    x = torch.randn(7, 3, 5, 5)
    sn.connect(net, x)
    y, positions = sn.trace(net, x)
    assert {k: tuple(v.shape) for k, v in positions.items()} == {"body.0": (7, 4), "head": (7, 1, 2)}
    assert all(((v >= 0) & (v <= 1)).all() for v in positions.values())
    assert y.shape == (7, 2)
    assert "4" in net.head.matching
    net.eval()
    assert torch.equal(sn.trace(net, x)[0], net(x))


def test_positions_reach_later_layers():
    net = chain("H(5)-C-R3", 4, 4).eval()
    x = torch.randn(5, 3, 6, 6)
    _, positions = sn.trace(net, x)
    alone = net[1](net[0](x).detach())  # called by itself a layer has no parent
    assert not torch.allclose(alone, net(x))
    expected = net[1].projection(net[0](x).mean((2, 3)), positions["0"])[0]
    torch.testing.assert_close(positions["1"], expected)


def test_the_first_level_is_plain():
    net = chain("H(5)-C-R3", 4, 4)
    assert net[0].projection.knots is None
    assert net[1].projection.knots.shape[0] == 5


def test_dynamic_layers_need_no_matching():
    assert not any("matching" in n for n, _ in chain("D(5)-C-R3", 4, 8).named_parameters())
    assert any("matching" in n for n, _ in chain("D(5)-C-R3 diffusion=0.5", 4, 8).named_parameters())


def test_repeated_and_nested_calls():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = sn.SplineConv2d(3, 4, 3, padding=1, spec="H(5)-C-R3")
            self.second = sn.SplineConv2d(4, 3, 3, padding=1, spec="H(5)-C-R3")

        def forward(self, x, again=False):
            y = self.first(x)
            if again:
                self(x)  # must not disturb the run it is called in
            return self.second(y)

    x = torch.randn(2, 3, 4, 4)
    net = sn.connect(Twice(), x).eval()
    alone = net(x)
    assert torch.equal(net(x), alone)
    assert torch.equal(net(x, again=True), alone)
    _, positions = sn.trace(net, x, again=True)
    assert list(positions) == ["first", "first#2", "second", "second#2"]


def test_a_reused_layer():
    layer = sn.SplineConv2d(4, 4, 3, padding=1, spec="H(5)-C-R3")
    net = sn.connect(nn.Sequential(layer, nn.ReLU(), layer), torch.randn(2, 4, 5, 5))
    assert layer.projection.knots is not None  # it comes first, but not only
    _, positions = sn.trace(net, torch.randn(3, 4, 5, 5))
    assert list(positions) == ["0", "0#2"]


def test_a_failed_call_leaves_nothing_behind():
    net = chain("H(5)-C-R3", 4, 4).eval()
    x = torch.randn(2, 3, 5, 5)
    expected = net(x)
    with pytest.raises(ValueError, match="channels"):
        net(torch.randn(2, 5, 5, 5))
    assert net[0].path.state.run is None
    assert torch.equal(net(x), expected)


def test_two_threads_get_their_own_answers():
    net = chain("H(5)-C-R3 diffusion=0.7", 8, 4, 8, 4).eval()
    inputs = [torch.randn(samples, 3, 9, 9) for samples in (1, 2, 3, 4)]
    expected = [net(x) for x in inputs]
    wrong = []

    def work(index):
        for _ in range(25):
            y, positions = sn.trace(net, inputs[index])
            if not torch.equal(y, expected[index]) or len(positions) != 4:
                wrong.append(index)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_copy_has_a_path_of_its_own():
    net = chain("H(5)-C-R3", 4, 8).eval()
    twin = copy.deepcopy(net)
    assert twin[0].path is twin[1].path
    assert twin[0].path is not net[0].path
    x = torch.randn(2, 3, 5, 5)
    assert torch.equal(twin(x), net(x))
    with torch.no_grad():
        twin[0].projection.weight.mul_(-1)
    assert not torch.allclose(twin(x), net(x))


def test_connecting_again_replaces_the_path():
    net = chain("H(5)-C-R3", 4, 4)
    outer = sn.connect(nn.Sequential(net, sn.SplineConv2d(4, 4, 1, spec="H(5)-C-R3")))
    assert not net._forward_hooks
    assert len(outer._forward_hooks) == 1
    assert len({m.path for m in outer.modules() if isinstance(m, sn.SplineLayer)}) == 1


def test_the_order_follows_the_example():
    class Backwards(nn.Module):
        def __init__(self):
            super().__init__()
            self.last = sn.SplineConv2d(8, 2, 1, spec="H(5)-C-R3")
            self.first = sn.SplineConv2d(3, 8, 1, spec="H(5)-C-R3")

        def forward(self, x):
            return self.last(self.first(x))

    net = sn.connect(Backwards(), torch.randn(1, 3, 4, 4))
    assert net.first.projection.knots is None
    assert list(net.last.matching) == ["8"]
    guessed = sn.connect(Backwards())  # wrong, but it still runs
    assert guessed(torch.randn(2, 3, 4, 4)).shape == (2, 2, 4, 4)


def test_local_positions_have_the_same_values():
    net = chain("H(5)-C-R3 diffusion=0.6", 4, 6)
    x = torch.randn(5, 3, 6, 6, requires_grad=True)
    _, positions = sn.trace(net, x)
    for name, position in positions.items():
        assert torch.equal(position, positions.local[name])
    positions.local["1"].sum().backward()
    assert x.grad is None
    assert net[0].projection.weight.grad is None
    assert net[1].projection.weight.grad is not None
    sn.trace(net, x)[1]["1"].sum().backward()
    assert x.grad is not None
    assert net[0].projection.weight.grad is not None


def test_a_path_is_not_saved():
    assert isinstance(copy.deepcopy(Path()), Path)
    assert not any("path" in key for key in chain("H(5)-C-R3", 4, 4).state_dict())


def test_steering_one_coordinate_leaves_the_others_and_ends_with_its_block():
    net = sn.convert(sn.models.lenet(4), "H(4)-D-R3", example=torch.randn(8, 1, 28, 28), spread=1.0).eval()
    images = torch.randn(3, 1, 28, 28)
    logits, own = sn.trace(net, images)
    chosen = torch.full((8,), torch.nan)
    chosen[2] = 1.0
    with sn.steer(net, {"conv2": chosen}):
        steered, positions = sn.trace(net, images)
    assert (positions["conv2"][:, 2] == 1).all()
    others = [i for i in range(8) if i != 2]
    assert torch.equal(positions["conv2"][:, others], own["conv2"][:, others])
    assert torch.equal(positions["conv1"], own["conv1"])
    assert not torch.equal(positions["dense1"], own["dense1"])  # it inherits what was chosen
    assert not torch.equal(steered, logits)
    assert torch.equal(net(images), logits)


def test_steering_to_where_samples_are_changes_nothing():
    net = sn.convert(sn.models.lenet(4), "D(4)-C-R3 dims=2", example=torch.randn(8, 1, 28, 28), spread=1.0).eval()
    images = torch.randn(3, 1, 28, 28)
    logits, own = sn.trace(net, images)
    with sn.steer(net, own):
        assert torch.equal(net(images), logits)
        elsewhere = []
        thread = threading.Thread(target=lambda: elsewhere.append(sn.trace(net, -images)[1]))
        thread.start()
        thread.join()
    assert torch.equal(elsewhere[0]["conv1"], sn.trace(net, -images)[1]["conv1"])  # other threads are not steered


@pytest.mark.parametrize(
    ("positions", "complaint"),
    [
        ({"conv9": torch.zeros(4)}, "conv9"),
        ({"conv1": torch.zeros(5)}, "shape"),
        ({"conv1": torch.zeros(1, 1, 4)}, "shape"),
        ({"conv1": torch.full((4,), 1.5)}, "between 0 and 1"),
    ],
)
def test_steering_says_what_is_wrong(positions, complaint):
    net = sn.convert(sn.models.lenet(4), "D(4)-C-R3", example=torch.randn(8, 1, 28, 28))
    with pytest.raises(ValueError, match=complaint), sn.steer(net, positions):
        pass


@pytest.mark.slow  # tests/test_compile.py has a quicker one
def test_steering_a_compiled_network():
    torch._dynamo.reset()
    net = sn.convert(sn.models.lenet(4), "H(4)-C-R3", example=torch.randn(8, 1, 28, 28), spread=1.0).eval()
    compiled = torch.compile(net, backend="eager")
    images = torch.randn(2, 1, 28, 28)
    free = compiled(images)
    with sn.steer(net, {"conv1": torch.zeros(4)}):
        torch.testing.assert_close(compiled(images), net(images))
    torch.testing.assert_close(compiled(images), free)
