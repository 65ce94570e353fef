"""sn.save and sn.load: the same bits come back, from data alone, whatever state a network is in."""

import copy
import json
import sys
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from tests.helpers import states, zoo
from torch import nn

import splinenets as sn
from splinenets.constructors import construct
from splinenets.files import DamagedError, seal
from splinenets.saving import NAME, read_card

IMAGES, LABELS = states.IMAGES, states.LABELS


class Tied(nn.Module):
    """Two layers with one weight, a layer under two names, and a layer that is called twice."""

    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 3, padding=1)
        self.outer.weight = self.inner.weight
        self.again = self.inner
        self.head = nn.Linear(3, 3)

    def forward(self, images):
        return self.head(self.inner(self.outer(self.again(images))).mean((2, 3)))


class Own(nn.Conv2d):
    """A convolution with something more to it."""

    def area(self):
        return self.kernel_size[0] * self.kernel_size[1]


class Backbone(nn.Module):
    """Splines in a part of a network alone, which has no path of its own."""

    def __init__(self, body):
        super().__init__()
        self.body, self.head = body, nn.Linear(3, 2)

    def forward(self, images):
        return self.head(torch.relu(self.body(images)))


def subclassed():
    return nn.Sequential(Own(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))


def convert(plain, spec, **options):
    return sn.convert(plain, spec, example=IMAGES, spread=0.3, **options)


def conditioned(spec="D(5)-X-R4 closed", **options):
    return sn.condition(convert(states.Net(), {"body.*": spec, "head": "H(3)-D-R4"}), **options)


def surface():
    net = convert(states.Net(), {"stem": "D(3)-X-R4", "body.3": "D(3)-X-R4 dims=2"})
    return sn.condition(net, angle=sn.Condition(0, 360), noise=sn.Condition((0.0,), (1.0,), layers="body.*"))


def channels_last(net):
    return net.to(memory_format=torch.channels_last)


def frozen():
    net = states.trained()
    net.stem.requires_grad_(False)
    return net


def unbalanced():
    net = states.trained()
    for module in net.modules():
        if isinstance(module, sn.SplineLayer):
            module.balanced = module.projection.balanced = False
    return net


def deployed_by_hand():
    return sn.deploy(sn.connect(states.by_hand(), IMAGES), IMAGES, knots="int8")


# name -> (the network, a plain one to load it into)
PLAIN = {"fresh layers": states.by_hand, "connected": states.by_hand}
SUBJECTS = {name: (build, PLAIN.get(name, states.Net)) for name, build in states.STATES.items() if name != "compiled"}
SUBJECTS |= {
    "closed": (lambda: states.trained("D(5)-C-R3 closed"), states.Net),
    "closed and deployed": (lambda: sn.deploy(states.trained("H(4)-C-R3 closed diffusion=0.5"), IMAGES), states.Net),
    "independent and deployed": (lambda: sn.deploy(states.trained("H(4)-D-R3 independent"), IMAGES), states.Net),
    "surfaces": (lambda: states.trained("H(4)-C-G2 degree=3 diffusion=tree(2.5) dims=2"), states.Net),
    "slope and variance": (lambda: states.trained("D(4)-D-R4 slope=0.30000000000000004 variance=0.1"), states.Net),
    "tied": (lambda: convert(Tied(), "H(3)-C-R3"), Tied),
    "tied and deployed": (lambda: sn.deploy(convert(Tied(), "H(3)-C-R3"), IMAGES, knots="int8"), Tied),
    "subclass": (lambda: convert(subclassed(), "D(3)-D-R3"), subclassed),
    "part": (lambda: Backbone(states.trained()), lambda: Backbone(states.Net())),
    "float64": (lambda: states.trained().double(), states.Net),
    "float64 and deployed": (lambda: sn.deploy(states.trained().double(), IMAGES.double()), states.Net),
    "bfloat16": (lambda: states.trained().bfloat16(), states.Net),
    "channels last": (lambda: channels_last(states.trained()), states.Net),
    "frozen": (frozen, states.Net),
    "unbalanced": (unbalanced, states.Net),
    "into a converted network": (states.trained, lambda: convert(states.Net(), "D(2)-C-R4")),
    "into a deployed network": (lambda: sn.connect(states.by_hand(), IMAGES), deployed_by_hand),
    "conditioned": (lambda: conditioned(low=0.0, high=360.0, name="angle"), states.Net),
    "conditioned and deployed": (lambda: sn.deploy(conditioned(), (IMAGES, torch.rand(6)), knots="bf16"), states.Net),
    "two conditions": (surface, states.Net),
}


@cache
def subject(name):
    torch.manual_seed(0)
    return SUBJECTS[name][0]()


def inputs(net):
    """What a network is called with."""
    images = IMAGES.to(next(p for p in net.parameters() if p.is_floating_point()).dtype)
    images = images.to(
        next(b.dtype for n, b in [*net.named_parameters(), *net.named_buffers()] if b.is_floating_point())
    )
    told = {"angle": torch.linspace(0, 0.9, 6), "noise": torch.linspace(0.9, 0, 6), "condition": torch.rand(6)}
    return images, {name: told[name] for name in getattr(net, "conditions", ())}


@pytest.mark.parametrize("name", SUBJECTS)
def test_round_trip(name, tmp_path):
    net, path = subject(name), tmp_path / "net.safetensors"
    before = copy.deepcopy(net.state_dict())
    sn.save(net, path)
    assert [p.name for p in tmp_path.iterdir()] == ["net.safetensors"]
    torch.manual_seed(1)
    plain = SUBJECTS[name][1]()
    kept = copy.deepcopy(plain.state_dict())
    found = sn.load(path, plain)
    assert not found.training
    for a, b in ((before, net.state_dict()), (kept, plain.state_dict()), (before, found.state_dict())):
        assert list(a) == list(b)  # neither network was changed, and the new one has what the old one has
        assert all(torch.equal(a[key], b[key]) and a[key].dtype == b[key].dtype for key in a)
    for (key, p), q in zip(net.named_parameters(), found.parameters(), strict=True):
        assert (p.requires_grad, p.stride()) == (q.requires_grad, q.stride()), key
    assert repr(found) == repr(net)
    same_answers(found, net)
    same_step(found, net)


@torch.no_grad()
def same_answers(found, net):
    """Outputs, positions and paths are equal, and nothing of a call is left behind."""
    images, told = inputs(net)
    for _ in range(2):
        expected, travelled = sn.trace(net.eval(), images, **told)
        output, positions = sn.trace(found, images, **told)
        assert torch.equal(output, expected)
        assert list(positions) == list(travelled)
        assert all(torch.equal(positions[key], travelled[key]) for key in positions)
        assert positions.given == travelled.given


def same_step(found, net):
    """A step of training takes both to the same weights."""
    if not any(p.requires_grad for p in net.parameters()):
        return
    after = []
    for model in (copy.deepcopy(net), found):
        images, told = inputs(model)
        torch.manual_seed(2)
        F.cross_entropy(model.train()(images, **told).float(), LABELS % 2).backward()
        torch.optim.SGD(model.parameters(), lr=0.1).step()
        after.append(model.state_dict())
    assert all(torch.equal(after[0][key], after[1][key]) for key in after[0])


def test_the_same_network_is_the_same_file(tmp_path):
    for name in ("a", "b"):
        sn.save(subject("trained"), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    sn.save(sn.load(tmp_path / "a", states.Net()).train(), tmp_path / "c")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "c").read_bytes()


def test_compiled_averaged_and_distributed_networks_are_saved_as_themselves(tmp_path):
    net = subject("trained")
    for wrapped in (
        torch.compile(net, backend="eager"),
        torch.optim.swa_utils.AveragedModel(net),
        nn.DataParallel(net),
    ):
        sn.save(wrapped, tmp_path / "net")
        same_answers(sn.load(tmp_path / "net", states.Net()), net)
    parts = copy.deepcopy(net)
    parts.body = torch.compile(parts.body, backend="eager")
    sn.save(parts, tmp_path / "net")
    same_answers(sn.load(tmp_path / "net", states.Net()), net)


# How it is built


@pytest.mark.parametrize("spec", ["H(5)-D-R3", "D(5)-X-R4"])
def test_our_own_networks_need_no_help(spec, tmp_path):
    for plain, size in (
        (sn.models.lenet(3, image_size=12, classes=4), 12),
        (sn.models.build("resnet8", classes=4), 32),
    ):
        images = torch.randn(4, 3 if size == 32 else 1, size, size)
        net = sn.convert(plain, spec, example=images, spread=0.2)
        net = sn.condition(net, 0, 2) if "X" in spec else sn.deploy(net, images, knots="int8")
        told = (torch.rand(4),) if "X" in spec else ()
        sn.save(net, tmp_path / "net")
        found = sn.load(tmp_path / "net")
        with torch.no_grad():
            assert torch.equal(found(images, *told), net.eval()(images, *told))
        assert type(found) is type(net)


def test_networks_that_ship_can_be_saved_again(tmp_path):
    net = sn.pretrained("fashion-mnist/D(5)-D-R3")
    images = sn.data.load().test.images[:50]
    sn.save(net, tmp_path / "net", example=net.prepare(images[:1]), card={"note": "as it shipped"})
    found = sn.load(tmp_path / "net")
    with torch.no_grad():
        assert torch.equal(found(found.prepare(images)), net(net.prepare(images)))
    assert found.classes == net.classes
    assert found.card["test_accuracy"] == net.card["test_accuracy"]
    assert found.card["cost"] == {"parameters": net.card["parameters"], "macs": net.card["macs"]}
    assert found.card["note"] == "as it shipped"
    assert found.conversion == net.conversion


def test_what_is_known_of_a_network_travels_with_it(tmp_path):
    preparation = sn.data.augmentation("none", mean=[0.2], std=[0.5]).preparation
    sn.save(
        subject("trained"), tmp_path / "net", classes=["a", "b", "c"], preparation=preparation, card={"accuracy": 0.75}
    )
    found = sn.load(tmp_path / "net", states.Net())
    images = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    torch.testing.assert_close(found.prepare(images), (images / 255 - 0.2) / 0.5)
    assert found.classes == ("a", "b", "c")
    assert found.card["accuracy"] == 0.75
    assert str(found.conversion) == str(subject("trained").conversion)
    sn.save(found, tmp_path / "again")
    assert read_card(tmp_path / "again") == read_card(tmp_path / "net")
    copy.deepcopy(found)


@pytest.mark.parametrize(("name", "spec"), [("ResNet", "H(3)-C-R3"), ("Swin", "D(3)-D-R4"), ("ViT", "H(3)-C-R3")])
def test_networks_of_transformers(name, spec, tmp_path):
    model, images = zoo.build(name)
    net = sn.convert(model, spec, example=images, spread=0.1)
    sn.save(net, tmp_path / "net")
    found = sn.load(tmp_path / "net")
    with torch.no_grad():
        assert torch.equal(found(images)[0], net.eval()(images)[0])
    assert type(found) is type(net)


def build_elsewhere(width, bias=True):
    """A builder in a module that nobody knows."""
    return nn.Sequential(nn.Conv2d(3, width, 3, bias=bias), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 3))


def test_a_builder_of_ones_own_is_run_when_trusted(tmp_path):
    net = convert(build_elsewhere(5, bias=False), "H(3)-C-R3")
    sn.save(net, tmp_path / "net", builder=f"{__name__}:build_elsewhere", arguments={"width": 5, "bias": False})
    with pytest.raises(
        ValueError, match=r"would run code that the file names: .* sn\.load\(path, net\), or say trust=True"
    ):
        sn.load(tmp_path / "net")
    same_answers(sn.load(tmp_path / "net", trust=True), net)
    same_answers(sn.load(tmp_path / "net", build_elsewhere(5, bias=False)), net)


def test_what_a_stranger_names_is_not_even_imported(tmp_path, monkeypatch):
    (tmp_path / "stranger.py").write_text("raise SystemExit('it ran')")
    monkeypatch.syspath_prepend(tmp_path)
    sn.save(subject("trained"), tmp_path / "net", builder="stranger:build")
    with pytest.raises(ValueError, match="trust=True"):
        sn.load(tmp_path / "net")
    assert "stranger" not in sys.modules


@pytest.mark.parametrize(
    ("builder", "arguments"),
    [
        ("os:system", {"command": "true"}),
        ("splinenets.files:cache_folder", {}),
        ("splinenets.models:FAMILIES", {}),
        ("splinenets.models.lenet:nn.Linear", {}),
        ("timm:create_model", {"model_name": "hf-hub:somebody/something"}),
        ("timm:create_model", {"model_name": "local-dir:/somewhere"}),
        ("timm:models.load_checkpoint", {"model_name": "resnet18"}),
        ("transformers:AutoModel", {"config": {}}),
        ("transformers:pipeline", {"config": {}}),
        ("transformers.dynamic_module_utils:get_class_from_dynamic_module", {}),
        ("nonsense", {}),
        ("", {}),
    ],
)
def test_what_is_allowed_is_a_short_list(builder, arguments):
    with pytest.raises(ValueError, match=r"."):
        construct({"builder": builder, "arguments": arguments})


def test_builders_of_known_packages(monkeypatch):
    """With stand-ins for packages that are not here: what they are asked for, and what they are not."""
    from types import ModuleType, SimpleNamespace

    asked = []

    def build(**arguments):
        asked.append(arguments)
        return nn.Linear(1, 1)

    timm, torchvision = ModuleType("timm"), ModuleType("torchvision")
    timm.create_model = build
    torchvision.models = SimpleNamespace(list_models=lambda: ["resnet18"], get_model_builder=lambda name: build)
    monkeypatch.setitem(sys.modules, "timm", timm)
    monkeypatch.setitem(sys.modules, "torchvision", torchvision)
    construct(
        {
            "builder": "timm:create_model",
            "arguments": {"model_name": "resnet18.a1", "pretrained": True, "num_classes": 3},
        }
    )
    construct({"builder": "torchvision.models:resnet18", "arguments": {"weights": "DEFAULT", "num_classes": 3}})
    assert asked == [{"model_name": "resnet18.a1", "num_classes": 3}, {"num_classes": 3}]
    with pytest.raises(ValueError, match="torchvision has no model 'list_models'"):
        construct({"builder": "torchvision.models:list_models", "arguments": {}})


def test_a_configuration_names_no_code(tmp_path):
    """What transformers would fetch from elsewhere and run is left out of a configuration before it is used."""
    sn.save(sn.convert(zoo.build("ViT")[0], "D(3)-C-R3"), tmp_path / "net")
    source = read_card(tmp_path / "net")["source"]
    config = source["arguments"]["config"]
    assert "quantization_config" not in config
    config |= {
        "auto_map": {"AutoModel": "evil--x.Y"},
        "_attn_implementation": "evil/kernel",
        "attn_implementation": "evil/kernel",
    }
    found = construct({"builder": source["builder"], "arguments": {"config": config, "attention": "evil/kernel"}})
    assert "evil" not in json.dumps(found.config.to_dict())
    assert found.config._attn_implementation in ("eager", "sdpa")


# Files that are not what they should be


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved") / "net"
    sn.save(sn.convert(sn.models.lenet(1, image_size=8), "H(2)-C-R3"), path)
    return path.read_bytes()


def test_a_damaged_file_is_noticed_wherever_it_is_damaged(written, tmp_path):
    path = tmp_path / "net"
    places = {*range(0, len(written), 97), *range(60), len(written) - 1}
    for place in places:
        changed = bytearray(written)
        changed[place] ^= 4
        path.write_bytes(changed)
        with pytest.raises(ValueError, match=str(path)) as raised:
            sn.load(path)
        assert len(str(raised.value).splitlines()) == 1


def test_a_cut_file_is_noticed(written, tmp_path):
    for length in (0, 7, 8, 100, len(written) // 2, len(written) - 1):
        (tmp_path / "net").write_bytes(written[:length])
        with pytest.raises(ValueError, match="net"):
            sn.load(tmp_path / "net")


def test_other_files_are_not_taken_for_ours(tmp_path):
    from safetensors.torch import save_file

    save_file({"x": torch.zeros(1)}, tmp_path / "other")
    with pytest.raises(ValueError, match=r"was not written by sn\.save"):
        sn.load(tmp_path / "other")
    save_file({"x": torch.zeros(1)}, tmp_path / "later", metadata={"splinenets": seal({"format": 2})})
    with pytest.raises(ValueError, match="format 2, this version of splinenets reads 1"):
        sn.load(tmp_path / "later")
    with pytest.raises(FileNotFoundError):
        sn.load(tmp_path / "nowhere")
    (tmp_path / "net").write_bytes(b"x")
    assert issubclass(DamagedError, ValueError)


def test_the_wrong_network_is_told_so(tmp_path):
    sn.save(subject("trained"), tmp_path / "net")
    with pytest.raises(ValueError, match=r"does not say how the network is built: .* sn\.load\(path, net\)"):
        sn.load(tmp_path / "net")
    with pytest.raises(ValueError, match="Sequential has no layer 'stem'"):
        sn.load(tmp_path / "net", subclassed())
    wider = states.Net()
    wider.stem = nn.Conv2d(3, 8, 5, padding=2)
    with pytest.raises(
        ValueError, match=r"'stem.weight' is \(8, 3, 3, 3\) in the file and \(8, 3, 5, 5\) in the network"
    ):
        sn.load(tmp_path / "net", wider)
    more = states.Net()
    more.extra = nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"another network, without 'extra\.weight'"):
        sn.load(tmp_path / "net", more)
    other = states.Net()
    other.head = nn.ReLU()
    with pytest.raises(ValueError, match="ReLU cannot be a spline layer"):
        sn.load(tmp_path / "net", other)


def test_what_cannot_be_saved_leaves_the_old_file(written, tmp_path):
    path = tmp_path / "net"
    path.write_bytes(written)
    with pytest.raises(ValueError, match="what JSON knows"):
        sn.save(subject("trained"), path, card={"a": object()})

    class Odd(nn.Linear):
        def get_extra_state(self):
            return {"a": 1}

    with pytest.raises(ValueError, match="tensors alone"):
        sn.save(nn.Sequential(Odd(2, 2)), path)
    assert path.read_bytes() == written
    assert [p.name for p in tmp_path.iterdir()] == ["net"]


def test_a_folder_stands_for_the_file_in_it(written, tmp_path):
    (tmp_path / NAME).write_bytes(written)
    assert isinstance(sn.load(tmp_path), sn.models.LeNet)


def test_a_file_that_is_missing(tmp_path):
    (tmp_path / "empty").mkdir()
    for where, named in ((tmp_path / "gone.safetensors", "gone.safetensors"), (tmp_path / "empty", f"empty.{NAME}")):
        with pytest.raises(FileNotFoundError, match=f"^there is no file .*{named}$"):
            sn.load(where)
