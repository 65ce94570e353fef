import copy
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

import splinenets as sn
from splinenets.conversion import copy_network

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
SPECS = ["D(5)-C-R3", "H(5)-D-R4", "H(3)-D-R3 diffusion=0.5", "D(4)-C-R3 independent dims=2 degree=3"]


class Residual(nn.Module):
    def __init__(self, body):
        super().__init__()
        self.body = body

    def forward(self, x):
        return x + self.body(x)


class Shared(nn.Module):
    """One layer under two names, called three times."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 3, 3, padding=1)
        self.again = self.first

    def forward(self, x):
        return self.again(F.relu(self.first(self.first(x))))


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(6, 6)
        self.b = nn.Linear(6, 6, bias=False)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.b(self.a(x).relu())


class PlainList(nn.Module):
    """Holds its layers a second time, where torch does not see them."""

    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 3, 1)
        self.order = [self.one, self.two]

    def forward(self, x):
        for layer in self.order:
            x = layer(x)
        return x


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.left = nn.Conv2d(3, 4, 3, padding=1)
        self.right = nn.Conv2d(3, 6, 5, padding=2)
        self.join = nn.Conv2d(10, 2, 1)

    def forward(self, x):
        return self.join(torch.cat([self.left(x), self.right(x)], 1))


class OutOfOrder(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(8, 2)
        self.first = nn.Conv2d(3, 8, 3)

    def forward(self, x):
        return self.last(self.first(x).mean((2, 3)))


class Windows(nn.Module):
    """Cuts every image into four parts and puts them together again."""

    def __init__(self):
        super().__init__()
        self.stem, self.inside, self.head = (
            nn.Conv2d(3, 4, 3, padding=1),
            nn.Conv2d(4, 4, 3, padding=1),
            nn.Conv2d(4, 2, 1),
        )

    def forward(self, x):
        x = self.stem(x)
        n, c, h, w = x.shape
        parts = x.view(n, c, 2, h // 2, 2, w // 2).permute(0, 2, 4, 1, 3, 5).flatten(0, 2)
        parts = self.inside(parts)
        x = parts.view(n, 2, 2, c, h // 2, w // 2).permute(0, 3, 1, 4, 2, 5).reshape(n, c, h, w)
        return self.head(x)


class Keywords(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, *, tokens, scale=1.0):
        return {"out": self.layer(input=tokens) * scale}


class Mixed(nn.Module):
    """A subclass that computes what its parent computes, and has a method of its own."""

    class Conv(nn.Conv2d):
        def double(self):
            return 2

    def __init__(self):
        super().__init__()
        self.layer = self.Conv(3, 4, 3)

    def forward(self, x):
        return self.layer(x) * self.layer.double()


def seq(*layers):
    return nn.Sequential(*layers)


IMAGE, SIGNAL, VOLUME, ROW, TOKENS = (2, 3, 8, 8), (2, 3, 9), (2, 2, 4, 4, 4), (2, 6), (2, 5, 6)
NETWORKS = {
    "nested": (lambda: seq(seq(nn.Conv2d(3, 4, 3), seq(nn.ReLU(), nn.Conv2d(4, 5, 3))), nn.Flatten()), IMAGE),
    "residual": (lambda: Residual(seq(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 1))), IMAGE),
    "shared": (Shared, IMAGE),
    "tied": (Tied, ROW),
    "plain list": (PlainList, IMAGE),
    "branches": (Branches, IMAGE),
    "out of order": (OutOfOrder, IMAGE),
    "windows": (Windows, IMAGE),
    "subclass": (Mixed, IMAGE),
    "depthwise": (lambda: seq(nn.Conv2d(3, 6, 3, groups=3, padding=1), nn.Conv2d(6, 4, 1)), IMAGE),
    "grouped": (lambda: seq(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 4, 3, groups=4)), IMAGE),
    "dilated": (lambda: nn.Conv2d(3, 4, 3, dilation=2, stride=2, padding=2), IMAGE),
    "same": (lambda: nn.Conv2d(3, 4, (3, 4), padding="same"), IMAGE),
    "valid": (lambda: nn.Conv2d(3, 4, 3, padding="valid", bias=False), IMAGE),
    "reflect": (lambda: nn.Conv2d(3, 4, 3, padding=2, padding_mode="reflect"), IMAGE),
    "replicate same": (lambda: nn.Conv2d(3, 4, 4, padding="same", padding_mode="replicate"), IMAGE),
    "circular": (lambda: nn.Conv2d(3, 4, 3, padding=(1, 2), padding_mode="circular"), IMAGE),
    "one dimension": (lambda: seq(nn.Conv1d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv1d(4, 2, 1)), SIGNAL),
    "three dimensions": (lambda: seq(nn.Conv3d(2, 4, 3, padding=1), nn.Conv3d(4, 2, 2, stride=2)), VOLUME),
    "dense": (lambda: seq(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3, bias=False)), ROW),
    "tokens": (lambda: seq(nn.Linear(6, 8), nn.LayerNorm(8), nn.Linear(8, 3)), TOKENS),
    "module dict": (lambda: nn.ModuleDict({"a": nn.Linear(6, 4)})["a"], ROW),
    "embedding": (lambda: seq(nn.Conv2d(3, 4, 8), nn.Flatten(), nn.Linear(4, 4), nn.Dropout(0.0)), IMAGE),
    "norms": (lambda: seq(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)), IMAGE),
    "pooling": (lambda: seq(nn.Conv2d(3, 4, 3), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)), IMAGE),
    "beside transposed": (lambda: seq(nn.Conv2d(3, 4, 3), nn.ConvTranspose2d(4, 3, 3), nn.Conv2d(3, 2, 1)), IMAGE),
    "lenet": (lambda: sn.models.lenet(4, in_channels=3, image_size=8, dropout=0.0), IMAGE),
    "resnet": (lambda: sn.models.resnet(8), IMAGE),
    "resnet with projections": (lambda: sn.models.resnet(8, shortcut="projection"), IMAGE),
}  # fmt: skip


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
def test_without_spread_the_copy_computes_what_the_model_computes(name, spec, dtype, tolerance):
    build, shape = NETWORKS[name]
    model = build().to(dtype)
    x = torch.randn(shape, dtype=dtype)
    before = copy.deepcopy(model.state_dict())
    net = sn.convert(model, spec, example=x)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items()), "the model itself was changed"
    for training in (True, False):
        expected, found = model.train(training)(x), net.train(training)(x)
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    net.train()(x).square().sum().backward()
    for key, parameter in net.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key


@pytest.mark.parametrize("name", NETWORKS)
def test_with_spread_positions_matter(name):
    build, shape = NETWORKS[name]
    model, x = build().eval(), torch.randn(shape)
    net = sn.convert(model, "D(5)-C-R3", example=x, spread=0.5).eval()
    assert not torch.allclose(net(x), model(x), atol=1e-4)
    for module in net.modules():
        if isinstance(module, sn.SplineLayer):
            ratio = module.knots.std() / module.weight.std(correction=0)
            assert 0.3 < ratio < 0.7


def test_shared_and_tied_layers_stay_so():
    shared = sn.convert(Shared(), "H(5)-C-R3", example=torch.randn(IMAGE))
    assert shared.first is shared.again
    tied = sn.convert(Tied(), "D(5)-C-R4", spread=0.3)
    assert tied.a.weight is tied.b.weight
    assert tied.a.knots is tied.b.knots
    assert tied.a.projection.weight is not tied.b.projection.weight
    position = torch.rand(2, 1)
    assert torch.equal(tied.a.weights_at(position), tied.b.weights_at(position))


def test_frozen_layers_stay_frozen_and_modes_and_hooks_stay():
    model = seq(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1)).eval()
    model[0].weight.requires_grad_(False)
    calls = []
    model[1].register_forward_hook(lambda *a: calls.append(1))
    net = sn.convert(model, "D(5)-C-R3")
    assert not net[0].weight.requires_grad
    assert net[0].knots.requires_grad
    assert not net[0].training
    assert not net[0].projection.training
    net(torch.randn(IMAGE))
    assert len(calls) == 1


def test_the_order_of_layers_comes_from_the_example():
    net = sn.convert(OutOfOrder(), "H(5)-C-R3", example=torch.randn(IMAGE))
    assert net.first.projection.knots is None
    assert list(net.last.matching) == ["8"]


def test_keyword_examples():
    example = {"tokens": torch.randn(2, 5, 4), "scale": 2.0}
    net = sn.convert(Keywords(), "D(5)-D-R4", example=example)
    assert net.layer.input_size == (5,)
    torch.testing.assert_close(net(**example)["out"].shape, torch.Size([2, 5, 3]))
    two = sn.convert(Two(), "D(5)-D-R4", example=(torch.randn(3, 4), torch.randn(3, 4)))
    assert two(torch.randn(2, 4), torch.randn(2, 4)).shape == (2, 4)


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, a, b):
        return self.layer(a) + b


def test_an_example_leaves_no_trace():
    model = seq(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    before = copy.deepcopy(model[1].state_dict())
    state = torch.get_rng_state()
    net = sn.convert(model, "H(5)-D-R3", example=torch.randn(IMAGE, generator=torch.Generator().manual_seed(3)))
    assert all(torch.equal(v, before[k]) for k, v in net[1].state_dict().items())
    assert net[1].training
    assert not torch.equal(state, torch.get_rng_state())  # decisions are drawn


def test_an_example_calibrates_projections():
    x = torch.randn(64, 3, 8, 8) * 5 + 20
    net = sn.convert(seq(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)), "H(5)-C-R3", example=x).eval()
    _, positions = sn.trace(net, x)
    assert all(0.2 < p.std() < 0.33 for p in positions.values())


def test_patterns():
    model = sn.models.resnet(8)
    net = sn.convert(model, {"stages.0.*": "D(3)-C-R4", "stages.*": "H(5)-C-R3", "dense": None}, skip=("*conv2",))
    rows = {row.name: row for row in net.conversion.rows}
    assert rows["stages.0.0.conv1"].spec == "D(3)-C-R4"
    assert rows["stages.1.0.conv1"].spec == "H(5)-C-R3"
    assert rows["stages.1.0.conv2"].reason == "skipped"
    assert rows["conv"].reason == "no pattern fits its name"
    assert "no spec" in rows["dense"].reason
    assert type(net.dense) is nn.Linear
    assert isinstance(net.stages[1][0].conv1, sn.SplineConv2d)


class OwnForward(nn.Linear):
    def forward(self, x):
        return super().forward(x) + 1


def integers():
    layer = nn.Linear(4, 4)
    layer.weight = nn.Parameter(torch.ones(4, 4, dtype=torch.int8), requires_grad=False)
    return layer


def legacy_weight_norm(layer):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(layer)


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (lambda: nn.ConvTranspose1d(4, 4, 1), "transposed"),
        (lambda: parametrizations.weight_norm(nn.Linear(4, 4)), "parametrised"),
        (lambda: legacy_weight_norm(nn.Linear(4, 4)), "computed from other parameters"),
        (integers, "not plain floats"),
        (lambda: OwnForward(4, 4), "OwnForward has a forward of its own"),
        (lambda: nn.LazyLinear(4), "lazy"),
        (lambda: sn.SplineLinear(4, 4), "spline layer already"),
        (lambda: nn.TransformerEncoderLayer(4, 2, 8), "reads its weight directly"),
        (lambda: nn.MultiheadAttention(4, 2), "reads its weight directly"),
    ],
)
def test_what_cannot_be_converted_is_left_and_listed(layer, reason):
    left = layer()
    net = sn.convert(seq(nn.Linear(4, 4), left), "D(5)-C-R4")
    assert type(net[1]) is type(left)
    assert net.conversion.converted == ("0",)
    assert all(reason in r for r in net.conversion.left.values())
    table = str(net.conversion)
    assert reason in table
    assert "converted" in table


def test_attention_still_computes_in_eval_mode():
    model = seq(nn.Linear(4, 4), nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)).eval()
    net = sn.convert(model, "D(5)-C-R4")
    x = torch.randn(2, 3, 4)
    with torch.no_grad():
        torch.testing.assert_close(net(x), model(x))


def test_dot_projections_where_the_example_does_not_reach():
    class Sometimes(nn.Module):
        def __init__(self):
            super().__init__()
            self.always, self.never, self.twice = nn.Linear(4, 4), nn.Linear(4, 4), nn.Conv2d(1, 1, 1)

        def forward(self, x):
            return self.always(x), self.twice(x[None, None]), self.twice(x[None, None, :1])

    net = sn.convert(Sometimes(), "D(5)-D-R4", example=torch.randn(2, 4))
    assert "never calls it" in net.conversion.left["never"]
    assert "several sizes" in net.conversion.left["twice"]


class Reads(nn.Module):
    """Calls one layer, reads the weight of another, as Swin V2 does, and has a third for nobody."""

    def __init__(self):
        super().__init__()
        self.asked, self.read, self.nobodys = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return F.linear(self.asked(x), self.read.weight, self.read.bias)


@pytest.mark.parametrize("spec", ["D(5)-C-R4", "D(5)-D-R4", "D(5)-C-R4 independent"])
def test_what_the_example_never_calls_stays_and_is_listed(spec):
    model, x = Reads(), torch.randn(2, 4)
    net = sn.convert(model, spec, example=x, spread=0.5)
    assert net.conversion.converted == ("asked",)
    assert set(net.conversion.left) == {"read", "nobodys"}
    assert all("never calls it" in reason for reason in net.conversion.left.values())
    assert type(net.read) is type(net.nobodys) is nn.Linear
    net(x).sum().backward()
    assert all(p.grad is not None for layer in (net.asked, net.read) for p in layer.parameters())


def test_an_example_that_calls_nothing():
    with pytest.raises(ValueError, match=r"nothing to convert: .*the example never calls it"):
        sn.convert(seq(Reads()), {"*.read": "D(5)-C-R4"}, example=torch.randn(2, 4))


def test_knots_for_which_there_is_no_room(monkeypatch):
    monkeypatch.setattr("splinenets.spec._memory", lambda: 2**30)  # a machine with 1 GB
    with pytest.raises(ValueError, match=r"the knots of D\(1024\)-C-R4 would take 4 GB of memory, .* machine has 1 GB"):
        sn.convert(seq(nn.Linear(1000, 1000)), "D(1024)-C-R4")


@pytest.mark.parametrize("made_inside", [False, True])
def test_inside_inference_mode(made_inside):
    x = torch.randn(IMAGE)
    model = seq(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 3))
    with torch.inference_mode():
        if made_inside:
            model = copy.deepcopy(model)
        nets = [sn.convert(model, "H(5)-C-R3", example=x, spread=0.1)]
        nets += [sn.fold_batchnorm(nets[0], x), sn.collapse(nets[0]), sn.connect(copy_network(nets[0]), x)]
    for net in nets:
        net.train()(x).square().sum().backward()
        assert all(p.grad is not None for p in net.parameters() if p.requires_grad)


class Versioned(nn.Module):
    """Has a version and a way of loading of its own, as torchvision's MNASNet."""

    _version = 2

    def __init__(self):
        super().__init__()
        self.layers = seq(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), VersionedConv(4, 2, 1))

    def forward(self, x):
        return self.layers(x)

    def _load_from_state_dict(self, state, prefix, metadata, *rest):
        if metadata.get("version") != 2:
            raise ValueError("version should be set to 2")
        super()._load_from_state_dict(state, prefix, metadata, *rest)


class VersionedConv(nn.Conv2d):
    _version = 7

    def _load_from_state_dict(self, state, prefix, metadata, *rest):
        if metadata.get("version") != 7:
            raise ValueError("version should be set to 7")
        super()._load_from_state_dict(state, prefix, metadata, *rest)


@pytest.mark.parametrize("spec", SPECS)
def test_versions_of_modules_travel_with_their_state(spec, tmp_path):
    x = torch.randn(IMAGE)
    nets = [sn.convert(Versioned(), spec, example=x, spread=0.5).eval() for _ in range(2)]
    assert nets[0].state_dict()._metadata[""] == {"version": 2}
    assert nets[0].state_dict()._metadata["layers.2"] == {"version": 7}
    torch.save(nets[0].state_dict(), tmp_path / "state")
    nets[1].load_state_dict(torch.load(tmp_path / "state", weights_only=True))
    assert torch.equal(nets[0](x), nets[1](x))
    plain = sn.collapse(nets[0])
    Versioned().load_state_dict(plain.state_dict())


def test_hooks_of_loading_and_saving_stay():
    model = seq(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 1))
    calls = []
    model[1].register_load_state_dict_pre_hook(lambda module, *_: calls.append(("load", module)))
    model[1].register_load_state_dict_post_hook(lambda module, _: calls.append(("loaded", module)))
    model[1].register_state_dict_pre_hook(lambda module, *_: calls.append(("save", module)))
    net = sn.convert(model, "D(5)-C-R3")
    net.load_state_dict(net.state_dict())
    assert [name for name, _ in calls] == ["save", "load", "loaded"]
    assert all(module is net[1] for _, module in calls)


def test_a_network_that_keeps_tensors_can_be_copied():
    model = nn.Linear(3, 3)
    model.cache = {"last": model(torch.randn(1, 3))}
    net = sn.convert(model, "D(5)-C-R4")
    assert net.cache["last"].grad_fn is None


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: sn.convert(nn.ReLU(), "D(5)-C-R3"), "ReLU has nothing to convert"),
        (lambda: sn.convert(seq(nn.ConvTranspose2d(1, 1, 1)), "D(5)-C-R3"), "nothing to convert: transposed"),
        (lambda: sn.convert(nn.Conv2d(3, 4, 3), "D(5)-D-R3"), "pass example"),
        (lambda: sn.convert(nn.Conv2d(3, 4, 3), "D(5)-D-R3", example=torch.randn(1, 5, 8, 8)), r"\(1, 5, 8, 8\) does not pass"),
        (lambda: sn.convert(seq(nn.Conv2d(3, 6, 3)), "D(5)-C-G4"), "layer '0': G4 asks for 4 splines"),
        (lambda: sn.convert(nn.Linear(3, 3), "D(5)-C-R3", skip=("head",)), "'head' fits no layer"),
        (lambda: sn.convert(seq(nn.Linear(3, 3)), {"body.*": "D(5)-C-R3"}), r"'body.\*' fits no layer; layers are 0"),
        (lambda: sn.convert(nn.Linear(3, 3), "D(5)-C-R3", spread=-1), "got -1"),
        (lambda: sn.convert(nn.Linear(3, 3), "nonsense"), "a valid one"),
    ],
)  # fmt: skip
def test_bad_input_is_named(call, complaint):
    with pytest.raises(ValueError, match=complaint) as error:
        call()
    assert "\n" not in str(error.value)
