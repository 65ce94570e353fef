"""The native runtime: every kind of step against torch, on one thread and several."""

import platform
import subprocess
import sys
import threading

import numpy
import pytest
import torch
from tests.helpers.exports import network
from torch import nn

import splinenets as sn
from splinenets.deployment import deploy
from splinenets.exporting.capture import capture
from splinenets.exporting.native import Engine, build, native_program, to_bytes


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


def test_global_averaging():
    images = torch.randn(2, 3, 6, 5)
    for net in (nn.AdaptiveAvgPool2d(1), Mean()):
        whole = nn.Sequential(nn.Conv2d(3, 20, 3), net, nn.Flatten(), nn.Dropout()).eval()
        torch.testing.assert_close(engine(whole, images, 2)(images), whole(images), rtol=1e-4, atol=1e-5)


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
    ],
)
def test_spline_layers(spec, knots):
    images = torch.randn(4, 3, 9, 7)
    net = nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(12, 18, 3, stride=2, padding=1),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(18 * 2 * 2, 6),
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
    with pytest.raises(ValueError, match="threads must be 1 or more"):
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
        (
            "int64_t activation;",
            "int64_t activation, more;",
            r"its step has 'kernel_h 168 i8' where a program has 'kernel_h 160 i8'",
        ),
        ("double diffusion, slope,", "double slope, diffusion,", r"'diffusion 424 f8' where a program has"),
        ("double diffusion, slope,", "double diffusion; float slope; double", r"'slope 424 f4' where a program has"),
        ("#define LANES 16", "#define LANES 8", r"'lanes 8' where"),
        ("INPUT, CONV, LINEAR", "INPUT, LINEAR, CONV", r"its step has 'kinds INPUT, LINEAR, CONV"),
        ("NONE, RELU, RELU6", "NONE, RELU6, RELU", r"its step has 'activations NONE, RELU6, RELU"),
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


def test_importing_needs_no_numpy():
    code = (
        "import sys, splinenets.exporting; "
        "mine = {n: vars(m) for n, m in sys.modules.items() if n.startswith('splinenets.exporting')}; "
        "print([n for n, names in mine.items() if {'np', 'numpy', 'NDArray'} & names.keys()], "
        "[n for n in ('splinenets.exporting.native', 'safetensors', 'onnx') if n in sys.modules], len(mine) > 3)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[] [] True"
