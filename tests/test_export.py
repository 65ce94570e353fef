"""Exports equal the networks they come from, in every format, or are not written."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import onnxruntime
import pytest
import torch
from safetensors.torch import load_file
from tests.helpers.commands import call
from tests.helpers.exports import LENET_SPECS, RESNET_SPECS, images, network
from tests.helpers.marks import slow, slow_where
from torch import nn

import splinenets as sn
from splinenets.exporting import checked as exporting
from splinenets.exporting.formats import FORMATS, KEY

PURPOSES = ["latency", "throughput"]
SMALL = [
    ("lenet4", "H(3)-D-G2 degree=1 diffusion=0.75 dims=2"),
    ("resnet8", {"*": "H(5)-C-R3", "stages.1.*": "D(4)-C-R4 degree=3"}),
]


def check(path, net, some, tolerance=1e-4):
    """A file answers as the network does, alone and in batches."""
    exported = sn.load_export(path)
    with torch.no_grad():
        expected = torch.cat([net(part) for part in some.split(250)])
    close = expected.topk(2).values.diff().abs().squeeze(1) < 2 * tolerance * max(1, expected.abs().max())
    assert close.float().mean() < 0.02
    batches = (1, 2, 3, 17, 64) if exported.metadata["purpose"] == "throughput" else (1,)
    for size in batches:
        found = torch.cat([exported(part) for part in some.split(size)])
        assert (found - expected).abs().max() <= tolerance * max(1, expected.abs().max())
        assert (found.argmax(1) == expected.argmax(1))[~close].all()
    return exported


CASES = [(*network_and_spec, to, purpose) for network_and_spec in SMALL for to in FORMATS for purpose in PURPOSES]


def takes_long(name, spec, to, purpose):
    """torch.export takes its time; a pt2 file is written and read by tests below, and by those of docs."""
    return to == "pt2" or (to in ("onnx", "onnxruntime") and (to, purpose) != ("onnx", "latency"))


@pytest.mark.parametrize(
    ("name", "spec", "to", "purpose"),
    [slow(*case) if takes_long(*case) else case for case in CASES],
)
def test_exports_equal_the_network(name, spec, to, purpose, tmp_path):
    net, some = network(name, spec)
    path = tmp_path / f"net.{to}"
    made = sn.export(net, some, path, purpose=purpose, metadata={"classes": list("abcdefghij")})
    assert made.metadata["difference"] < 1e-4
    assert made.metadata["agreeing"] == len(some)
    exported = check(path, net, some)
    assert exported.metadata["classes"] == list("abcdefghij")
    assert exported.metadata["input"] == list(some.shape[1:])
    assert set(exported.metadata["layers"].values()) <= ({spec} if isinstance(spec, str) else set(spec.values()))
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.slow
@pytest.mark.parametrize("to", FORMATS)
@pytest.mark.parametrize("purpose", PURPOSES)
@pytest.mark.parametrize(
    ("name", "spec"), [*(("resnet32", s) for s in RESNET_SPECS), *(("lenet32", s) for s in LENET_SPECS)]
)
def test_every_network_of_the_paper(name, spec, to, purpose, tmp_path):
    net, some = network(name, spec)
    sn.export(net, some[:2], tmp_path / f"net.{to}", purpose=purpose)
    check(tmp_path / f"net.{to}", net, images(some.shape[1]))


@pytest.mark.slow
@pytest.mark.parametrize("spec", RESNET_SPECS)
def test_in_float64_nothing_is_lost(spec):
    net, some = network("resnet32", spec)
    net, some = net.double(), some[:8].double()
    with torch.no_grad():
        torch.testing.assert_close(sn.deploy(net, some)(some), net(some), rtol=0, atol=1e-8)


@pytest.mark.parametrize("to", slow_where("pt2".__eq__, FORMATS))
@pytest.mark.parametrize("knots", ["bf16", slow("int8")])
def test_smaller_knots(to, knots, tmp_path):
    net, some = network("lenet4", "H(5)-D-R3")
    sizes = {}
    for each in ("float32", knots):
        path = tmp_path / f"{each}.{to}"
        sn.export(net, some, path, knots=each)
        sizes[each] = path.stat().st_size
        assert torch.equal(sn.load_export(path)(some).argmax(1), net(some).argmax(1))
    assert (
        sizes["float32"] - sizes[knots] > 290_000 * {"bf16": 0.3, "int8": 0.5}[knots]
    )  # bytes of knots; longer graphs take some back


def test_other_runtimes_find_everything_in_the_file(tmp_path):
    net, some = network("lenet4", "D(3)-D-R3")
    sn.export(net, some, tmp_path / "net.onnx", purpose="throughput", metadata={"classes": ["a"]})
    session = onnxruntime.InferenceSession(tmp_path / "net.onnx")
    assert json.loads(session.get_modelmeta().custom_metadata_map[KEY])["classes"] == ["a"]
    (logits,) = session.run(["logits"], {"images": some.numpy()})
    torch.testing.assert_close(torch.from_numpy(logits), net(some), rtol=0, atol=1e-4)


@pytest.mark.parametrize("to", FORMATS)
def test_files_that_are_something_else(to, tmp_path):
    path = tmp_path / f"net.{to}"
    for content in (b"", b"something else", bytes(5000)):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"net\.\w+ is damaged or not an export of this package"):
            sn.load_export(path)


@pytest.mark.parametrize("to", FORMATS)
def test_no_change_of_a_file_passes_unnoticed(to, tmp_path):
    """Anywhere in its middle are weights, which no runtime looks at twice."""
    net, some = network("lenet2", "D(3)-D-R3")
    path, dice = tmp_path / f"net.{to}", random.Random(0)
    sn.export(net, some, path)
    content = path.read_bytes()
    for place in [dice.randrange(len(content)) for _ in range(40)] + [len(content) - 1]:
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(ValueError, match="is damaged or not an export of this package"):
            sn.load_export(path)


class Strange(nn.Module):
    """Decides while it runs."""

    def forward(self, x):
        return x if x.sum() > 0 else -x


class Unknown(nn.Module):
    """An operation that neither ONNX nor the native runtime has."""

    def forward(self, x):
        return torch.special.bessel_j0(x)


@pytest.mark.parametrize(
    ("layer", "to", "complaint"),
    [
        (Strange(), "onnx", r"^layer 'odd' \(Strange\) cannot be exported: "),
        (Strange(), "pt2", r"^layer 'odd' \(Strange\) cannot be exported: "),
        (Strange(), "native", r"^layer 'odd' \(Strange\) cannot be exported: "),
        (Unknown(), "onnx", r"^layer 'odd' \(Unknown\) cannot be exported: "),
        (Unknown(), "native", r"^layer 'odd' \(Unknown\) cannot be exported: the native runtime does not know aten"),
        (nn.Softmax(1), "native", r"^layer 'odd' \(Softmax\) .* does not know aten.softmax.int$"),
        (nn.ReflectionPad2d(1), "native", r"^layer 'odd' \(ReflectionPad2d\) .* pads with zeros$"),
    ],
)
def test_layers_that_cannot_be_exported_are_named(layer, to, complaint, tmp_path, capfd):
    net = nn.Sequential()
    net.add_module("first", nn.Conv2d(1, 2, 3))
    net.add_module("odd", layer)
    net.add_module("last", nn.Flatten())
    with pytest.raises(ValueError, match=complaint) as caught:
        sn.export(net, images()[:4], tmp_path / f"net.{to}")
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_a_network_that_answers_with_several_tensors_is_refused(tmp_path):
    class Two(nn.Sequential):
        def forward(self, images):
            answer = super().forward(images)
            return answer, answer

    net = sn.convert(Two(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(72, 3)), "D(3)-C-R3")
    with pytest.raises(ValueError, match="answers with a tensor, or with something that has logits, not with tuple"):
        sn.export(net, torch.randn(4, 1, 8, 8), tmp_path / "net.native")
    assert list(tmp_path.iterdir()) == []


def test_an_export_that_answers_otherwise_is_not_written(tmp_path, monkeypatch):
    net, some = network("lenet4", "D(3)-D-R3")
    (tmp_path / "net.native").write_text("what was there before")
    monkeypatch.setattr(exporting, "deploy", lambda net, *args, **kwargs: sn.deploy(sn.collapse(net), *args))
    with pytest.raises(ValueError, match="the export differs from the network by"):
        sn.export(net, some, tmp_path / "net.native")
    assert (tmp_path / "net.native").read_text() == "what was there before"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_full_disk_leaves_what_was_there(tmp_path, monkeypatch):
    net, some = network("lenet4")
    (tmp_path / "net.native").write_text("what was there before")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        sn.export(net, some, tmp_path / "net.native")
    assert (tmp_path / "net.native").read_text() == "what was there before"
    assert len(list(tmp_path.iterdir())) == 1


def test_wrong_arguments(tmp_path):
    net, some = network("lenet4")
    for arguments, complaint in (
        ({"path": tmp_path / "net.tflite"}, "unknown format 'tflite', choose from"),
        ({"path": tmp_path / "net"}, "unknown format '', choose from"),
        ({"path": tmp_path / "net.onnx", "purpose": "speed"}, "unknown purpose 'speed'"),
        ({"path": tmp_path / "net.onnx", "knots": "int4"}, "'int4'"),
        ({"path": tmp_path / "net.onnx", "example": torch.zeros(0, 1, 28, 28)}, "a batch of images"),
        ({"path": tmp_path / "none" / "net.onnx"}, "there is no folder"),
        ({"path": tmp_path, "to": "onnx"}, "is a folder"),
    ):
        with pytest.raises((ValueError, OSError), match=complaint):
            sn.export(net, **{"example": some, **arguments})
    with pytest.raises(TypeError, match="JSON"):
        sn.export(net, some, tmp_path / "net.onnx", metadata={"classes": {1}})
    assert list(tmp_path.iterdir()) == []


def test_the_network_stays_as_it_was(tmp_path):
    net, some = network("lenet4", "H(3)-D-R3")
    net.train()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    sn.export(net, some.double(), tmp_path / "net.native")
    assert net.training
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    sn.export(net.double(), some.double(), tmp_path / "net.native")


def test_from_a_run_to_a_file(tmp_path):
    run = tmp_path / "run"
    small = [word for field in ("epochs=1", "width=2", "batch=1500") for word in ("--set", field)]
    assert call("train", "demo", *small, "--out", run)[0] == 0
    for to in FORMATS:
        code, out, err = call("export", run, "--to", to, "--for", "throughput")
        assert code == 0, err
        assert "the same answer on 1,000 of 1,000 test images" in out
    about = sn.load_export(run / "throughput.onnx").metadata
    assert about["classes"] == list(sn.data.load("embedded").classes)
    assert about["preparation"]["kind"] == "normalise"
    assert about["model"] == "D(5)-D-R3"
    for words, complaint in (
        (["--to", "tflite"], "'tflite'"),
        (["--for", "speed"], "'speed'"),
        (["--knots", "int4"], "'int4'"),
        (["--out", tmp_path / "none" / "x.onnx"], "no folder"),
    ):
        code, _, err = call("export", run, *words)
        assert code == 2
        assert complaint in err
        assert len(err.strip().splitlines()) == 1
    assert call("export", tmp_path / "nothing")[0] == 2
    assert sorted(p.name for p in run.glob("*put.*")) == [f"throughput.{to}" for to in sorted(FORMATS)]


def test_without_onnx_there_is_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    net, some = network("lenet4")
    with pytest.raises(ValueError, match=r"pip install 'splinenets\[export\]'"):
        sn.export(net, some, tmp_path / "net.onnx")


OLD = Path(__file__).parent / "fixtures" / "0.1" / "exports"


@pytest.mark.parametrize("file", sorted(p.name for kind in FORMATS for p in OLD.glob(f"*.{kind}")))
def test_files_of_version_0_1(file):
    answers = load_file(OLD / "answers.safetensors")
    exported = sn.load_export(OLD / file)
    torch.testing.assert_close(exported(answers["images"]), answers[file], rtol=0, atol=1e-6)
    assert exported.metadata["classes"] == list("abcdefghij")


@pytest.mark.slow
def test_a_pt2_file_needs_torch_alone(tmp_path):
    """In a process that has never heard of this package."""
    net, some = network("lenet4", "H(3)-C-R3")
    some = some[:3]
    sn.export(net, some, tmp_path / "net.pt2", purpose="throughput")
    torch.save(some, tmp_path / "images.pt")
    code = (
        "import sys, torch; sys.modules['splinenets'] = None; module = torch.export.load(sys.argv[1]).module(); "
        "torch.save(module(torch.load(sys.argv[2])), sys.argv[3])"
    )
    files = [str(tmp_path / name) for name in ("net.pt2", "images.pt", "logits.pt")]
    done = subprocess.run([sys.executable, "-c", code, *files], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    with torch.no_grad():
        expected = net.eval()(some)
    torch.testing.assert_close(torch.load(files[2], weights_only=True), expected, rtol=1e-3, atol=1e-3)


class Wave(nn.Module):
    """Makes more of every rounding error."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 1)

    def forward(self, x):
        return torch.sin(5 * self.conv(x))


def noisy_network():
    """Deep and narrow: in float32 it differs from itself in float64 by more than the tolerance."""
    torch.manual_seed(0)
    deep = [Wave() for _ in range(14)]
    return nn.Sequential(nn.Conv2d(1, 4, 5, stride=4), *deep, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 10))


def test_rounding_errors_of_the_networks_own_are_no_reason_to_refuse(tmp_path):
    net, some = noisy_network().eval(), images()[:64]
    made = sn.export(net, some, tmp_path / "net.onnx")
    with torch.no_grad():
        noise = (net(some) - net.double()(some.double())).abs().max().item()
    assert 1e-4 < noise < 1e-2
    assert 1e-4 < made.metadata["difference"] < exporting.NOISE * noise


@pytest.mark.parametrize(
    ("network_of", "to"), [(noisy_network, "onnx"), (lambda: network("lenet4", "D(3)-D-R3")[0], "native")]
)
def test_real_errors_are(network_of, to, tmp_path, monkeypatch):
    """A weight that is off by a hundredth in the file, beside noise or not."""
    net = network_of()

    def deploy(*args, **kwargs):
        deployed = sn.deploy(*args, **kwargs)
        with torch.no_grad():
            list(deployed.parameters())[-1][0] += 0.1
        return deployed

    monkeypatch.setattr(exporting, "deploy", deploy)
    complaint = (
        r"by 0\.\d+, more than .* \(the network in float32 differs from itself in float64 by .*, of which 8 times"
    )
    with pytest.raises(ValueError, match=complaint):
        sn.export(net, images()[:8], tmp_path / f"net.{to}")


def test_a_blank_example_is_not_all_that_is_compared(tmp_path, monkeypatch):
    """A file may answer as the network does on nothing, and only there."""
    net = nn.Sequential(nn.Flatten(), nn.Linear(784, 3)).eval()

    def deploy(*args, **kwargs):
        deployed = sn.deploy(*args, **kwargs)
        with torch.no_grad():
            deployed[1].weight *= 1.01
        return deployed

    monkeypatch.setattr(exporting, "deploy", deploy)
    with pytest.raises(ValueError, match="the export differs from the network"):
        sn.export(net, torch.zeros(1, 1, 28, 28), tmp_path / "net.native")


class Grid(nn.Module):
    """Adds a code of the place, made anew for every batch and kept, as position encodings often are."""

    def __init__(self):
        super().__init__()
        self.register_buffer("code", None, persistent=False)

    def forward(self, x):
        if self.code is None or self.code.shape[-2:] != x.shape[-2:]:
            rows = (~torch.zeros(1, *x.shape[-2:], dtype=torch.bool)).cumsum(1, dtype=torch.float32)
            self.code = (rows / (rows[:, -1:] + 1e-6)).sin().unsqueeze(1)
        return x + self.code


@pytest.mark.parametrize("purpose", PURPOSES)
@pytest.mark.parametrize("to", FORMATS)
def test_position_codes_that_are_made_on_the_fly(to, purpose, tmp_path):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 4, 3), Grid(), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))
    if to == "native":
        with pytest.raises(ValueError, match=r"layer '1' \(Grid\) cannot be exported"):
            sn.export(net, images()[:4], tmp_path / f"net.{to}", purpose=purpose)
    else:
        sn.export(net, images()[:4], tmp_path / f"net.{to}", purpose=purpose)


@pytest.mark.parametrize(("knots", "to"), [("bf16", "onnx"), ("int8", "native"), slow("int8", "onnx")])
def test_rounded_knots_are_compared_with_the_network_in_float32(knots, to, tmp_path):
    net, some = network("lenet4", "D(4)-C-R3")
    labels = torch.arange(len(some)) % 10
    made = sn.export(net, some, tmp_path / f"net.{to}", knots=knots, labels=labels)
    with torch.no_grad():
        expected, found = net(some), made(some)
        rounded = sn.deploy(net, some, knots=knots)(some)
    assert made.metadata["difference"] == pytest.approx((found - expected).abs().max().item())
    assert made.metadata["difference"] > 10 * (found - rounded).abs().max()
    assert made.metadata["agreeing"] == int((found.argmax(1) == expected.argmax(1)).sum())
    right = {"network": expected.argmax(1) == labels, "file": found.argmax(1) == labels}
    assert made.metadata["accuracy"] == pytest.approx({name: r.float().mean().item() for name, r in right.items()})


class Gated(nn.Module):
    """A layer of a user's own, on our functions: filters for each image, and a curve that the caller indexes."""

    def __init__(self):
        super().__init__()
        self.route, self.experts = nn.Linear(1, 3), nn.Parameter(torch.randn(3, 4, 1, 3, 3))
        self.knots = nn.Parameter(torch.randn(4, 4 * 4 * 9))

    def forward(self, x):
        mean = x.mean((2, 3))
        filters = torch.einsum("nk,koihw->noihw", self.route(mean).sigmoid(), self.experts)
        y = sn.conv2d_per_sample(x, filters, padding=1).relu()
        return sn.spline_conv2d(y, mean.sigmoid(), self.knots.unflatten(1, (4, 4, 3, 3))).mean((2, 3))


@pytest.mark.parametrize("purpose", [slow("latency"), "throughput"])
@pytest.mark.parametrize("to", ["onnx", "pt2"])
def test_layers_on_our_functions(to, purpose, tmp_path):
    torch.manual_seed(0)
    net, path = Gated().eval(), tmp_path / f"net.{to}"
    sn.export(net, images()[:6], path, purpose=purpose)
    for size in (1, 6) if purpose == "throughput" else (1,):
        found = sn.load_export(path)(images()[:size])
        torch.testing.assert_close(found, net(images()[:size]), rtol=1e-4, atol=1e-4)
