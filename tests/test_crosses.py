"""Networks from anywhere, told something or not, through everything that is done with a trained network.

Each cell of the table is the same question: does what comes out answer as the network did?
"""

import copy
import itertools
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from tests.helpers import zoo
from tests.helpers.commands import call
from tests.helpers.marks import slow
from tests.helpers.stubs import pictures
from torch import nn

import splinenets as sn
from splinenets.constructors import source_of
from splinenets.exporting import FORMATS
from splinenets.training import load_run

LABELS = torch.arange(6) % 3


class Branches(nn.Module):
    """A root of one's own: a layer that is called twice, a branch with other sizes, functions between them."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.twice = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.side = nn.Sequential(nn.Conv2d(8, 8, 1, stride=2, bias=False), nn.BatchNorm2d(8))
        self.head = nn.Linear(16, 3)

    def forward(self, images):
        x = torch.relu(self.stem(images))
        x = torch.relu(self.twice(x)) + torch.relu(self.twice(x))
        side = torch.relu(self.side(x))
        return self.head(torch.cat([x.mean((2, 3)), side.mean((2, 3))], 1))


class NormAct(nn.BatchNorm2d):
    """A batch norm with its activation, as timm has it."""

    def __init__(self, channels):
        super().__init__(channels)
        self.act = nn.SiLU(inplace=True)

    def forward(self, x):
        return self.act(super().forward(x))


class Staged(nn.Module):
    """A root as timm's are: features and head, depthwise filters, channels that are weighed, a shortcut."""

    def __init__(self, classes=3):
        super().__init__()
        self.num_classes = classes
        self.conv_stem, self.bn1 = nn.Conv2d(3, 8, 3, 2, 1, bias=False), NormAct(8)
        self.blocks = nn.Sequential(nn.Conv2d(8, 8, 3, 1, 1, groups=8, bias=False), NormAct(8), nn.Conv2d(8, 8, 1))
        self.reduce, self.expand = nn.Conv2d(8, 4, 1), nn.Conv2d(4, 8, 1)
        self.classifier = nn.Linear(8, classes)

    def forward_features(self, images):
        x = self.bn1(self.conv_stem(images))
        y = self.blocks(x)
        return x + y * self.expand(F.relu(self.reduce(y.mean((2, 3), keepdim=True)))).sigmoid()

    def forward_head(self, x, pre_logits: bool = False):
        x = F.adaptive_avg_pool2d(x, 1).flatten(1)
        return x if pre_logits else self.classifier(x)

    def forward(self, images):
        return self.forward_head(self.forward_features(images))


ROOTS = {  # name -> the plain network, images, its first convolution
    "own": lambda: (Branches(), torch.randn(6, 3, 8, 8), "stem"),
    "timm-like": lambda: (Staged(), torch.randn(6, 3, 12, 12), "conv_stem"),
    "transformers": lambda: (zoo.build("ResNet")[0].float(), torch.randn(6, 3, 32, 32), "resnet.embedder.*"),
}
SPECS = {  # of all layers, and of the first convolution
    "decides": ("D(3)-C-R3", "D(3)-C-R3"),
    "inherits": ("H(3)-D-R4 diffusion=0.5", "D(3)-C-R3"),
    "told": ("D(4)-X-R4 closed", "D(4)-X-R4 closed"),
    "told and inherits": ("H(3)-C-R3 closed diffusion=0.7", "D(4)-X-R4 closed"),
    "told two things": ("D(3)-X-R4 dims=2", "D(3)-X-R4 dims=2"),
}


def logits(answer):
    return answer if isinstance(answer, torch.Tensor) else answer.logits


def subject(root, spec):
    """A network after two steps of training, and what it is called with."""
    torch.manual_seed(0)
    plain, images, first = ROOTS[root]()
    rest, stem = SPECS[spec]
    net = sn.convert(plain, {first: stem, "*": rest}, example=images, spread=0.3)
    if "told" in spec:
        noise = {"noise": sn.Condition()} if spec == "told two things" else {}
        net = sn.condition(net, angle=sn.Condition(0, 360), **noise)
    told = {name: net.conditions.at(name, torch.rand(6, 1)).squeeze(1) for name in getattr(net, "conditions", ())}
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        F.cross_entropy(logits(net(images, **told)), LABELS).backward()
        optimizer.step()
    return net.eval(), images, told


# what is done with a network: the network, an example and a folder -> what answers in its place


def compiled(net, example, folder, backend="eager"):
    torch._dynamo.reset()
    return torch.compile(net, fullgraph=True, backend=backend)


def saved(net, example, folder):
    """From the file alone where it says how the network is built, as those of transformers and ours do."""
    inner = getattr(net, "net", net)
    sn.save(net, folder / "net.safetensors")
    return sn.load(folder / "net.safetensors", None if source_of(inner) else copy.deepcopy(inner))


def exported(to):
    def export(net, example, folder):
        sn.export(net, example, folder / f"net.{to}", purpose="throughput")
        return sn.load_export(folder / f"net.{to}")

    return export


def deployed(net, example, folder):
    return sn.deploy(net, example)


def chain(*ways):
    def follow(net, example, folder):
        for way in ways:
            net = way(net, example, folder)
        return net

    return follow


WAYS = {
    "compiled": compiled,
    "saved": saved,
    "deployed": deployed,
    **{to: exported(to) for to in FORMATS},
    "deployed, saved": chain(deployed, saved),
    "deployed, compiled": chain(deployed, compiled),
    "saved, deployed, compiled": chain(saved, deployed, compiled),
    "saved, native": chain(saved, exported("native")),
    "machine code": partial(compiled, backend="inductor"),
}


@torch.no_grad()
def same(net, images, told, way, folder):
    """What answers in place of the network answers as it does, for all images and for some."""
    found = WAYS[way](net, (images, told) if told else images, folder)
    for part in (slice(6), slice(2, 5)):
        some, given = images[part], {name: values[part] for name, values in told.items()}
        expected, answer = logits(net(some, **given)), logits(found(some, **given))
        atol = 0 if way == "saved" else 2e-4 * max(1.0, expected.abs().max().item())
        torch.testing.assert_close(answer, expected, rtol=0, atol=atol)


QUICK = {
    *(("own", "inherits", "onnx"), ("own", "told two things", "native"), ("own", "told and inherits", "saved")),
    *(("timm-like", "told", "compiled"), ("timm-like", "told and inherits", "deployed, saved")),
    *(("transformers", "told", "saved, native"), ("transformers", "inherits", "onnxruntime")),
}
CASES = itertools.product(ROOTS, SPECS, WAYS)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor's own
@pytest.mark.parametrize(("root", "spec", "way"), [case if case in QUICK else slow(*case) for case in CASES])
def test_roots(root, spec, way, tmp_path):
    same(*subject(root, spec), way, tmp_path)


# Runs on a folder of images, as the command line trains them

ANGLE = ["condition=angle", "told=curves"]
RESNET = 'arguments={embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"}'
RUNS = {  # what is set beside the epochs, which are few
    "lenet": [],
    "lenet, told": [*ANGLE, "model=D(7)-X-R4 closed"],
    "air": ["network=air", "widths=4,8,8"],
    "air, told": ["network=air", "widths=4,8,8", *ANGLE, "model=D(7)-X-R4 closed"],
    "resnet": ["network=resnet", "depth=8"],
    "resnet, told": ["network=resnet", "depth=8", *ANGLE, "model=D(5)-X-R4"],
    "transformers": ["network=transformers:resnet", RESNET],
    "transformers, told": ["network=transformers:resnet", RESNET, *ANGLE, "model=D(5)-X-R4 closed"],
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Trains a run unless that was done, and gives its network with what it is called with."""
    place, known = tmp_path_factory.mktemp("runs"), {}
    folder = pictures(place / "pictures", images=10)

    def run(name):
        if name not in known:
            settings = ["epochs=1", *RUNS[name]]
            code, _, err = call(
                "train", f"folder:{folder}", "--out", place / name, *(w for s in settings for w in ("--set", s))
            )
            assert code == 0, err
            net, task, _, _ = load_run(place / name)
            images, *more = task.example(6)
            known[name] = net.eval(), images, dict(zip(getattr(net, "conditions", ()), more, strict=True))
        return known[name]

    return run


QUICK_RUNS = {("lenet", "saved"), ("lenet", "native"), ("lenet, told", "saved, native"), ("lenet, told", "onnx")}
RUN_CASES = itertools.product(RUNS, WAYS)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("name", "way"), [case if case in QUICK_RUNS else slow(*case) for case in RUN_CASES])
def test_runs(name, way, trained, tmp_path):
    same(*trained(name), way, tmp_path)
