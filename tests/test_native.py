"""The native runtime: every kind of step against torch, on one thread and several."""

import platform
import subprocess
import sys
import threading
from functools import lru_cache

import numpy
import pytest
import torch
from benchmarks.fuzz_native import Changed, fuzz
from tests.helpers.exports import network
from tests.helpers.marks import slow
from torch import nn

import splinenets as sn
from splinenets.deployment import deploy
from splinenets.exporting.capture import capture
from splinenets.exporting.native import Engine, Kind, build, native_program, to_bytes


def compiled(net, example, knots="float32"):
    return to_bytes(native_program(capture(deploy(net, example, knots=knots), example[:1], any_batch=False)), "{}")


def engine(net, example, threads=1):
    return Engine(compiled(net, example), threads)


class Shortcut(nn.Module):
    def __init__(self, inside, outside=None):
        super().__init__()
        self.inside, self.outside = inside, outside or nn.Identity()

    def forward(self, x):
        return torch.relu(self.inside(x) + self.outside(x))


# channels that do not fill blocks, images that are not square, sizes that leave rests
PLAIN = {
    "one convolution": lambda: nn.Conv2d(3, 5, 3),
    "wide": lambda: nn.Conv2d(3, 40, (3, 5), padding=(1, 2)),
    "strided": lambda: nn.Conv2d(3, 32, 3, stride=2, padding=1, bias=False),
    "dilated": lambda: nn.Conv2d(3, 16, 3, dilation=2, padding=2),
    "same": lambda: nn.Conv2d(3, 16, 4, padding="same"),
    "deep": lambda: nn.Sequential(nn.Conv2d(3, 20, 1), nn.ReLU(), nn.Conv2d(20, 33, 3, padding=1), nn.BatchNorm2d(33)),
    "pooling": lambda: nn.Sequential(nn.Conv2d(3, 17, 3), nn.MaxPool2d(3, 2, padding=1), nn.ReLU()),
    "shortcut": lambda: Shortcut(nn.Conv2d(3, 3, 3, padding=1)),
    "two convolutions meet": lambda: Shortcut(nn.Conv2d(3, 20, 3, padding=1), nn.Conv2d(3, 20, 1)),
    "added to itself": lambda: Shortcut(nn.Identity()),
    "used twice": lambda: nn.Sequential(nn.Conv2d(3, 8, 3), Shortcut(nn.ReLU())),
}


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
def test_plain_layers(name):
    body = PLAIN[name]().eval()
    images = torch.randn(5, 3, 11, 13)
    features = body(images).flatten(1).shape[1]
    net = nn.Sequential(body, nn.Flatten(), nn.Linear(features, 7)).eval()
    program = compiled(net, images)
    for threads in (1, 3):
        found = Engine(program, threads)
        for batch in (images, images[:1], images[:0]):
            torch.testing.assert_close(found(batch), net(batch), rtol=1e-4, atol=1e-5)


# a tile has up to 4 whole rows, or part of one; some leave rests, threads begin anywhere
SIZES = [
    *((1, 1), (1, 40), (5, 1), (7, 2), (3, 3), (4, 4), (9, 5), (6, 6), (7, 7), (8, 8)),
    *((5, 11), (3, 13), (2, 25), (2, 33)),
]


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_images_of_any_size(size):
    torch.manual_seed(0)
    images = torch.randn(2, 5, *size)
    body = nn.Sequential(
        *(nn.Conv2d(5, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 64, 1), nn.Conv2d(64, 64, 3, padding=1, groups=64)),
        *(Shortcut(nn.Conv2d(64, 64, 3, padding=1)), nn.Conv2d(64, 32, 3, stride=2, padding=1), nn.GELU()),
    )
    net = nn.Sequential(body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 7)).eval()
    program = compiled(net, images)
    for threads in (1, 2, 3):
        torch.testing.assert_close(Engine(program, threads)(images[:1]), net(images[:1]), rtol=1e-4, atol=1e-5)


def test_global_averaging():
    images = torch.randn(2, 3, 6, 5)
    for net in (nn.AdaptiveAvgPool2d(1), Mean()):
        whole = nn.Sequential(nn.Conv2d(3, 20, 3), net, nn.Flatten(), nn.Dropout()).eval()
        torch.testing.assert_close(engine(whole, images, 2)(images), whole(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "body",
    [nn.Identity(), nn.MaxPool2d(2), nn.AvgPool2d(2), nn.GELU(), Shortcut(nn.Hardswish())],
    ids=lambda body: type(body).__name__,
)
def test_who_makes_an_image_adds_up_its_channels(body):
    images = torch.randn(3, 20, 6, 5)
    net = nn.Sequential(body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(20, 4)).eval()
    program = native_program(capture(deploy(net, images), images[:1], any_batch=False))
    assert Kind.SUM not in program.steps["kind"]
    for threads in (1, 2):
        found = Engine(to_bytes(program, "{}"), threads)
        torch.testing.assert_close(found(images[:1]), net(images[:1]), rtol=1e-4, atol=1e-5)


class Mean(nn.Module):
    def forward(self, x):
        return x.mean((2, 3))


@pytest.mark.parametrize("knots", ["float32", "bf16", "int8"])
@pytest.mark.parametrize(
    "spec",
    [
        "D(5)-C-R4",
        "H(5)-C-R3 diffusion=0.75",
        "H(5)-D-R4 degree=4 diffusion=tree(2)",
        "H(3)-D-G2 degree=0 dims=2",
        "D(9)-D-R3 degree=8 raw",
        "D(2)-C-R3 dims=3",
        "D(3)-C-G2 dims=4",
    ],
)
def test_spline_layers(spec, knots):
    images = torch.randn(4, 3, 9, 7)
    net = nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(12, 36, 3, stride=2, padding=1),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(36 * 2 * 2, 6),
    )
    net = sn.convert(net, spec, example=images, spread=0.5).eval()
    expected, program = deploy(net, images, knots=knots)(images), compiled(net, images, knots)
    for threads in (1, 2, 5):
        found = Engine(program, threads)
        torch.testing.assert_close(found(images), expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found(images[:1]), expected[:1], rtol=1e-4, atol=1e-5)


def test_answers_do_not_depend_on_what_came_before():
    net, some = network("lenet4", "H(5)-D-R3")
    found = engine(net, some, 2)
    first = found(some[:1])
    found(some * 100)
    found(torch.full_like(some, torch.nan))
    assert torch.equal(found(some[:1]), first)


@pytest.mark.parametrize("spec", ["D(5)-C-R4", "D(4)-C-R3 degree=0", "H(5)-D-G2", "H(3)-D-R3 dims=2 diffusion=0.5"])
def test_not_a_number_stays_with_its_image(spec):
    images = torch.randn(3, 3, 9, 9)
    net = nn.Sequential(
        *(nn.Conv2d(3, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 18, 3), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(18, 6)),
    )
    net = sn.convert(net, {"0": spec, "3": spec}, example=images, spread=0.5).eval()
    found = engine(net, images, 2)
    images[1, 0, 4, 4] = torch.nan
    for answers in (found(images), torch.cat([found(image) for image in images.split(1)])):
        assert answers.isnan().all(1).tolist() == [False, True, False]
        torch.testing.assert_close(answers[[0, 2]], net(images[[0, 2]]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layer", [nn.ReLU(), nn.MaxPool2d(2), nn.MaxPool2d(3, 1, padding=1)])
def test_not_a_number_passes_as_in_torch(layer):
    images = torch.randn(2, 16, 6, 6)
    net = nn.Sequential(nn.Conv2d(16, 16, 1), layer, nn.Flatten()).eval()
    net.append(nn.Linear(net(images).shape[1], 3))
    found = engine(net, images)
    images[0, 3, 2, 2] = torch.nan
    torch.testing.assert_close(found(images), net(images), rtol=1e-4, atol=1e-5, equal_nan=True)
    assert found(images).isnan().any(1).tolist() == [True, False]


def test_many_callers():
    net, some = network("lenet4", "D(3)-D-R3")
    shared = engine(net, some, 2)
    expected = shared(some)
    wrong = []

    def work():
        wrong.append(max((shared(some) - expected).abs().max().item() for _ in range(50)))

    callers = [threading.Thread(target=work) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(wrong) == 3
    assert max(wrong) < 1e-5


def test_wrong_images():
    net, some = network("lenet4")
    found = engine(net, some)
    for wrong in (some[0], some[:, :, 1:], some.double(), some.repeat(1, 2, 1, 1)):
        with pytest.raises(ValueError, match=r"\(N, 1, 28, 28\), got"):
            found(wrong)
    with pytest.raises(ValueError, match="threads must lie between 1 and"):
        engine(net, some, 0)


@pytest.mark.parametrize(
    ("environment", "complaint"),
    [
        ({"CXX": "no-such-compiler"}, "no C.. compiler"),
        ({"CXX": "false"}, "cannot compile engine.cpp"),
        ({"SPLINENETS_NATIVE": "0"}, "switched off"),
        ({"XDG_CACHE_HOME": "/dev/null"}, "cannot be kept in"),
    ],
)
def test_it_steps_aside(environment, complaint, tmp_path, monkeypatch):
    for name, value in {"XDG_CACHE_HOME": str(tmp_path), **environment}.items():
        monkeypatch.setenv(name, value)
    build.cache_clear()
    try:
        with pytest.raises(ValueError, match=complaint) as caught:
            sn.export(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)), torch.ones(1, 1, 2, 2), tmp_path / "x.native")
    finally:
        build.cache_clear()
    assert "onnx instead" in str(caught.value)
    assert not (tmp_path / "x.native").exists()


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        slow(
            "int64_t activation;",
            "int64_t activation, more;",
            r"its step has 'kernel_h 168 i8' where a program has 'kernel_h 160 i8'",
        ),
        slow(
            "double diffusion, slope,", "double slope, diffusion,", r"'diffusion \d+ f8' where a program has 'diffusion"
        ),
        slow(
            "double diffusion, slope,",
            "double diffusion; float slope; double",
            r"'slope \d+ f4' where a program has 'slope",
        ),
        slow("int LANES = 16;", "int LANES = 32;", r"'lanes 32' where"),
        ("INPUT, CONV, LINEAR", "INPUT, LINEAR, CONV", r"its step has 'kinds INPUT, LINEAR, CONV"),
        slow("NONE, RELU, RELU6", "NONE, RELU6, RELU", r"its step has 'activations NONE, RELU6, RELU"),
    ],
)
def test_another_layout_of_steps_is_refused(before, after, complaint, tmp_path, monkeypatch):
    module = sys.modules[build.__module__]
    for file in (module.SOURCE, *module.SOURCE.parent.glob("*.h")):
        (tmp_path / file.name).write_text(file.read_text())
    text = (tmp_path / "step.h").read_text()
    assert before in text
    (tmp_path / "step.h").write_text(text.replace(before, after))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(module, "SOURCE", tmp_path / "engine.cpp")
    monkeypatch.setattr(module, "FLAGS", (*module.FLAGS, "-O0"))
    build.cache_clear()
    try:
        with pytest.raises(ValueError, match=complaint):
            build()
    finally:
        build.cache_clear()


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="processors of another family")
@pytest.mark.parametrize("processor", ["x86-64", "haswell"])
def test_older_processors(processor, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    module = sys.modules[build.__module__]
    monkeypatch.setattr(module, "FLAGS", tuple(f.replace("native", processor) for f in module.FLAGS))
    build.cache_clear()
    try:
        for spec in ("D(5)-C-R4", "H(5)-D-R3"):
            net, some = network("lenet8", spec)
            torch.testing.assert_close(engine(net, some, 2)(some), net(some), rtol=1e-4, atol=1e-4)
    finally:
        build.cache_clear()


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="processors of another family")
@pytest.mark.parametrize("processor", ["x86-64-v4", "sapphirerapids"])
def test_newer_processors(processor, tmp_path):
    """AVX-512, with whole numbers and without: compiled at least, where nothing can run it."""
    module = sys.modules[build.__module__]
    flags = [flag.replace("native", processor) for flag in module.FLAGS]
    subprocess.run(["c++", *flags, str(module.SOURCE), "-o", str(tmp_path / "engine.so")], check=True)


def test_damaged_files_are_refused(tmp_path):
    net, some = network("lenet4", "D(3)-D-R3")
    path = tmp_path / "net.native"
    sn.export(net, some, path)
    content = path.read_bytes()
    for place in numpy.linspace(0, len(content) - 1, 40).astype(int):
        path.write_bytes(content[:place] + bytes([content[place] ^ 16]) + content[place + 1 :])
        with pytest.raises(ValueError, match="damaged"):
            sn.load_export(path)
    path.write_bytes(content[:-9])
    with pytest.raises(ValueError, match="damaged"):
        sn.load_export(path)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="damaged"):
        sn.load_export(path)


@pytest.mark.slow
def test_files_of_an_enemy_stay_inside_their_memory():
    outcomes = fuzz(300, seed=1)
    assert set(outcomes) == {"ran", "refused"}
    assert outcomes["ran"] > 30


@lru_cache(maxsize=1)
def small_file():
    return compiled(*network("lenet4", "H(3)-D-R3"))


def changed(content, which, **fields):
    """A file in which the first step of a kind has other numbers, and the digest that it should have."""
    steps = Changed(content, numpy.random.default_rng(0))
    place = next(step for step in steps.steps() if step["kind"] == which)
    for name, value in fields.items():
        outer, _, inner = name.partition("__")
        if inner:
            place[outer][inner] = value
        else:
            place[outer] = value
    return steps.sealed()


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (Kind.CONV, {"output__offset": -(2**40)}),
        (Kind.CONV, {"input__channels": 2**40}),
        (Kind.CONV, {"kernel_h": 9}),
        (Kind.CONV, {"groups": 0}),
        (Kind.CONV, {"other__width": 2**62}),  # of an image that is not there
        (Kind.CONV, {"stride_h": 0}),
        (Kind.CONV, {"length": 2**23}),
        (Kind.MIX, {"degree": 40}),
        (Kind.MIX, {"knots": 10**6}),
        (Kind.MIX, {"splines": 0}),
        (Kind.MIX, {"blocked": 2}),
        (Kind.MIX, {"blocked": 1, "dims": 30}),
        (Kind.MIX, {"blocked": 1, "degree": 1}),
        (Kind.MIX, {"blocked": 0, "based": 1}),
        (Kind.MIX, {"blocked": 1, "splines": 3}),
        (Kind.LOCATE, {"blocked": 1}),  # of a large image
        (Kind.INPUT, {"sums": 2**27}),
        (Kind.MAXPOOL, {"sums": 2**27}),
        (Kind.LOCATE, {"decision_knots": 10**6}),
        (Kind.LOCATE, {"basis": 2**27}),
        (Kind.LINEAR, {"weight__offset": 2}),
        (Kind.LINEAR, {"weight__type": 7}),
        (Kind.MAXPOOL, {"dilation_h": 0}),
        (Kind.OUTPUT, {"kind": 99}),
        (Kind.OUTPUT, {"kind": Kind.SUM}),
        (Kind.INPUT, {"output__width": 10**6}),
    ],
)
def test_steps_that_reach_outside_are_refused(kind, fields):
    with pytest.raises(ValueError, match=r"^step \d+ of kind|it needs one input"):
        Engine(changed(small_file(), kind, **fields))


def test_a_file_that_was_not_changed_runs():
    unchanged = changed(small_file(), Kind.CONV)
    assert unchanged == small_file()
    assert Engine(unchanged)(torch.zeros(1, 1, 28, 28)).isfinite().all()


def test_files_of_a_later_version_are_refused(tmp_path):
    net, some = network("lenet4")
    path = tmp_path / "net.native"
    sn.export(net, some, path)
    content = path.read_bytes()
    first = b"splinenets native 2\n"
    assert content.startswith(first)
    for version in (3, 10):
        path.write_bytes(b"splinenets native %d\n" % version + content[len(first) :])
        with pytest.raises(ValueError, match=rf"net\.native is of version {version} of the native format") as caught:
            sn.load_export(path)
        assert "damaged" not in str(caught.value)


def test_the_same_network_gives_the_same_file():
    net, some = network("resnet8", "H(5)-C-R3")
    first, second = (compiled(net, some) for _ in range(2))
    assert first == second


# layers that networks in use have, beside those of ResNets: grouped, activated, normalised, cut and put together
class Calls(nn.Module):
    def __init__(self, call, *parts):
        super().__init__()
        self.call, self.parts = call, nn.ModuleList(parts)

    def forward(self, x):
        return self.call(x, *self.parts)


MORE = {
    "depthwise": lambda: nn.Sequential(nn.Conv2d(3, 20, 1), nn.Conv2d(20, 20, 3, padding=1, groups=20), nn.ReLU6()),
    "depthwise, strided": lambda: nn.Sequential(nn.Conv2d(3, 20, 1), nn.Conv2d(20, 20, 5, stride=2, groups=20)),
    "groups in a block": lambda: nn.Sequential(nn.Conv2d(3, 24, 1), nn.Conv2d(24, 18, 3, groups=6, padding=1)),
    "groups across blocks": lambda: nn.Sequential(nn.Conv2d(3, 40, 1), nn.Conv2d(40, 60, 3, groups=5, dilation=2)),
    "large groups": lambda: nn.Sequential(nn.Conv2d(3, 32, 1), nn.Conv2d(32, 64, 3, groups=2, stride=(2, 1))),
    "more filters than channels": lambda: nn.Conv2d(3, 12, 3, groups=3),
    "patches": lambda: nn.Conv2d(3, 10, 4, stride=4),
    "padded on one side": lambda: nn.Sequential(nn.ZeroPad2d((0, 1, 0, 1)), nn.Conv2d(3, 8, 3, stride=2)),
    "padded and pooled": lambda: nn.Sequential(nn.ZeroPad2d((2, 1, 0, 1)), nn.MaxPool2d(3, 2, ceil_mode=True)),
    "average": lambda: nn.AvgPool2d(3, 2, padding=1, ceil_mode=True),
    "average without borders": lambda: nn.AvgPool2d((3, 2), 1, padding=1, count_include_pad=False),
    "adaptive": lambda: nn.AdaptiveAvgPool2d((4, 5)),
    "adaptive largest": lambda: nn.Sequential(nn.ZeroPad2d((0, 1, 0, 1)), nn.AdaptiveMaxPool2d((2, 7))),
    "largest of all": lambda: nn.AdaptiveMaxPool2d(1),
    "dilated pooling": lambda: nn.MaxPool2d(2, 1, dilation=(2, 3)),
    "squeeze": lambda: Calls(
        lambda x, down, up: x * torch.sigmoid(up(nn.functional.silu(down(x.mean((2, 3), keepdim=True))))),
        *(nn.Conv2d(3, 2, 1), nn.Conv2d(2, 3, 1)),
    ),
    "batch norm first": lambda: nn.BatchNorm2d(3).train().eval(),
    "group norm": lambda: nn.Sequential(nn.Conv2d(3, 30, 1), nn.GroupNorm(5, 30)),
    "layer norm": lambda: Calls(
        lambda x, norm, mix: mix(norm(x.permute(0, 2, 3, 1))).permute(0, 3, 1, 2) * 0.5,
        *(nn.LayerNorm(3), nn.Linear(3, 20)),
    ),
    "cut": lambda: Calls(lambda x, a: torch.cat([x[:, 1:], a(x), *a(x).split([5, 14], 1)], 1), nn.Conv2d(3, 19, 1)),
    "tokens": lambda: Calls(
        lambda x, mix: mix(x.flatten(2).transpose(1, 2)).transpose(1, 2).reshape(len(x), 6, 11, 13), nn.Linear(3, 6)
    ),
    "one channel for all": lambda: Calls(lambda x: x[:, :1] * x - x / 3.0 + 1),
    **{
        type(layer).__name__ + str(number): lambda layer=layer: nn.Sequential(nn.Conv2d(3, 20, 1), layer)
        for number, layer in enumerate(
            [
                *(nn.ReLU6(), nn.SiLU(), nn.Hardswish(), nn.Hardsigmoid(), nn.Sigmoid(), nn.GELU(), nn.Tanh()),
                *(nn.GELU(approximate="tanh"), nn.LeakyReLU(0.2)),
            ]
        )
    },
}


@pytest.mark.parametrize("name", MORE)
def test_layers_of_networks_in_use(name):
    torch.manual_seed(0)
    body = MORE[name]().eval()
    for module in body.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-1, 1)
            module.running_var.uniform_(0.5, 2)
    images = torch.randn(3, 3, 11, 13) * 3
    net = nn.Sequential(body, nn.Flatten(), nn.Linear(body(images).flatten(1).shape[1], 7)).eval()
    program = compiled(net, images)
    for threads in (1, 3):
        found = Engine(program, threads)
        for batch in (images, images[:1]):
            torch.testing.assert_close(found(batch), net(batch), rtol=1e-4, atol=2e-5)


def test_signals():
    images = torch.randn(3, 4, 30)
    net = nn.Sequential(
        nn.Conv1d(4, 18, 5, stride=2, padding=2), nn.ReLU(), nn.Conv1d(18, 18, 3, groups=18), nn.Flatten()
    )
    net.append(nn.Linear(net(images).shape[1], 5)).eval()
    torch.testing.assert_close(engine(net, images, 2)(images), net(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("knots", ["float32", "int8"])
@pytest.mark.parametrize("spec", ["D(5)-C-R4", "H(4)-D-R3 closed diffusion=0.6", "D(3)-C-G2"])
def test_splines_in_groups(spec, knots):
    torch.manual_seed(0)
    images = torch.randn(4, 3, 9, 8)
    net = nn.Sequential(
        *(nn.Conv2d(3, 20, 1), nn.SiLU(), nn.Conv2d(20, 20, 3, stride=2, padding=1, groups=20), nn.Hardswish()),
        *(
            nn.Conv2d(20, 30, 3, padding=1, groups=5),
            Calls(lambda x, mix: mix(x.permute(0, 2, 3, 1)), nn.Linear(30, 10)),
        ),
        *(nn.LayerNorm(10), Calls(lambda x: x.permute(0, 3, 1, 2).mean((2, 3)))),
    )
    net = sn.convert(net, spec, example=images, spread=0.5).eval()
    expected = deploy(net, images, knots=knots)(images)
    captured = capture(deploy(net, images, knots=knots), images[:1], any_batch=False, many_rows=True)
    for threads in (1, 2):
        found = Engine(to_bytes(native_program(captured), "{}"), threads)
        torch.testing.assert_close(found(images), expected, rtol=1e-4, atol=3e-5)
        torch.testing.assert_close(found(images[:1]), expected[:1], rtol=1e-4, atol=3e-5)
