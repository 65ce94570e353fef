"""The commands around the loop, trackers, and the wheel."""

import io
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.helpers.commands import call
from tests.helpers.runs import recipe, tiny_task, train

from splinenets.commands.busy import busy
from splinenets.commands.display import Display
from splinenets.data import load
from splinenets.health_check import Health
from splinenets.layers import SplineLayer
from splinenets.projection import Projection
from splinenets.training import Watcher, loop
from splinenets.training.build import build_network, choose_images
from splinenets.training.evaluation import first_bad_layer, judge
from splinenets.training.optimizer import build_optimizer
from splinenets.training.ranks import resolve_precision

SMALL = ["--set", "epochs=1", "--set", "width=2", "--set", "batch=1500"]


def test_train_and_evaluate(tmp_path):
    code, out, err = call("train", "demo", *SMALL, "--out", tmp_path / "run")
    assert code == 0
    assert "4 steps, test accuracy" in out
    assert "epoch   1" in err
    assert json.loads((tmp_path / "run/run.json").read_text())["content"]["versions"]["torch"] == torch.__version__
    line = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[-1])
    for which in ("last", "best"):
        code, out, _ = call("evaluate", tmp_path / "run", "--checkpoint", which)
        assert code == 0
        assert f"accuracy {line['test_accuracy']:.2%}" in out
        assert "conv2" in out
    assert "choose from last, best" in call("evaluate", tmp_path / "run", "--checkpoint", "first")[2]


@pytest.mark.slow
def test_the_demo(tmp_path):
    for _ in range(2):  # the second time there is nothing to train
        code, out, _ = call("demo", *SMALL, "--out", tmp_path / "demo")
        assert code == 0
        for row in ("accuracy", "parameters", "MACs", "latency in torch", "latency when deployed", "positions"):
            assert f"\n{row} " in out
        assert str(tmp_path / "demo/report.html") in out
        assert (tmp_path / "demo/report.html").is_file()


@pytest.mark.slow
def test_figures_in_tensorboard(tmp_path):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    small = ["--set", "epochs=3", "--set", "width=2", "--set", "batch=3000"]
    assert call("train", "demo", *small, "--figures-every", 2, "--out", tmp_path / "run")[0] == 0
    events = reader.EventAccumulator(str(tmp_path / "run/splinenets"), size_guidance={"images": 0})
    events.Reload()
    tags = events.Tags()["images"]
    assert {"figures/Positions over time", "figures/Flow from layer to layer", "figures/Which class is where"} <= set(
        tags
    )
    for tag in tags:
        assert [image.step for image in events.Images(tag)] == [4, 6]  # every second epoch, and the last
    assert call("train", "demo", *small, "--figures-every", 1, "--model", "static", "--out", tmp_path / "plain")[0] == 0
    code, _, err = call("train", "demo", *small, "--figures-every", 0, "--out", tmp_path / "none")
    assert code == 2
    assert "--figures-every" in err


def test_evaluate_refuses_damaged_checkpoints(tmp_path):
    assert call("train", "demo", *SMALL, "--out", tmp_path / "run")[0] == 0
    (last,) = (tmp_path / "run/checkpoints").glob("*.safetensors")
    last.write_bytes(last.read_bytes()[:-1])
    code, _, err = call("evaluate", tmp_path / "run")
    assert code == 2
    assert "damaged" in err


def test_tensorboard(tmp_path):
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    train(recipe(epochs=2), tmp_path / "run", trackers=["tensorboard"])
    events = reader.EventAccumulator(str(tmp_path / "run/splinenets"), size_guidance={"histograms": 0})
    events.Reload()
    tags = events.Tags()
    assert {"train/cross_entropy", "train/regularizer", "train/accuracy", "train/learning_rate"} <= set(tags["scalars"])
    assert {"epoch/test_accuracy", "entropy/conv1", "information/dense2"} <= set(tags["scalars"])
    assert set(tags["histograms"]) == {f"positions/{name}" for name in ("conv1", "conv2", "dense1", "dense2")}
    assert [e.step for e in events.Histograms("positions/conv1")] == [4, 8]


def test_health_warns_once_a_run_in_plain_words(tmp_path):
    notes = []

    class Hears(Watcher):
        def note(self, text):
            notes.append(text)

    flat = recipe(epochs=3, model="D(4)-D-R3 slope=0.001", utilization=0.0, specialization=0.0)
    train(flat, tmp_path / "run", watcher=Hears())
    (note,) = notes
    assert note.startswith("WARNING: In conv1, conv2, dense1, dense2 all samples share one position")
    assert "figure" not in note


class Terminal(io.StringIO):
    """Somebody is looking."""

    def isatty(self):
        return True


@pytest.mark.parametrize("seen", [True, False])
def test_a_terminal_shows_that_something_is_being_done(seen, monkeypatch):
    where = Terminal() if seen else io.StringIO()
    monkeypatch.setattr(sys, "stderr", where)
    with busy("reading [/runs]"):
        pass
    with Display("D(3)-C-R3") as display:
        display.note("3 layers are splines")
        display.begin(0, 10, 5)
    shown = where.getvalue()
    assert "3 layers are splines" in shown
    assert ("reading [/runs]" in shown) == ("reading images" in shown) == ("step 0/10" in shown) == seen


@pytest.mark.parametrize(
    ("verdicts", "warned"),
    [
        (["healthy", "shifting", "healthy"], False),
        (["shifting", "healthy", "shifting"], True),
        (["binary", "healthy", "healthy"], False),
        (["healthy", "binary", "healthy"], True),
    ],
)
def test_positions_may_move_and_gather_while_a_network_learns(verdicts, warned, tmp_path, monkeypatch):
    """Those that still shift after the last epoch are worth a warning, other verdicts from the middle on."""
    notes, epoch = [], iter(verdicts)

    class Hears(Watcher):
        def note(self, text):
            notes.append(text)

    def judged(*given):
        report, positions = judge(*given)
        moved = [replace(report.layers[0], verdict=next(epoch)), *report.layers[1:]]
        return Health(tuple(moved)), positions

    monkeypatch.setattr(loop, "judge", judged)
    train(recipe(epochs=3), tmp_path / "run", watcher=Hears())
    assert [note for note in notes if "move together" in note or "at two positions" in note] == notes
    assert len(notes) == warned


def test_weight_decay_spares_biases_norms_and_matching():
    chosen = recipe(network="resnet", depth=8, model="H(4)-C-R3", weight_decay=0.1)
    net = build_network(chosen, tiny_task(chosen))
    decayed, free = build_optimizer(chosen, net).param_groups
    assert (decayed["weight_decay"], free["weight_decay"]) == (0.1, 0.0)
    matching = [p for name, p in net.named_parameters() if ".matching." in name]
    assert matching
    assert {id(p) for p in free["params"]} >= {id(p) for p in (*matching, net.norm.weight, net.dense.bias)}
    assert sum(map(len, (decayed["params"], free["params"]))) == len(list(net.parameters()))


@pytest.mark.slow
@pytest.mark.parametrize("model", ["static", "H(5)-D-R3"])
def test_the_papers_learning_rate_does_not_break_a_lenet(model, tmp_path):
    small = [word for each in ("width=8", "images=2000", "epochs=20", "seed=1") for word in ("--set", each)]
    code, *_ = call("train", "demo", "--schedule", "paper", "--model", model, *small, "--out", tmp_path / "run")
    assert code == 0
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["train_loss"] < 1.5  # chance has 2.3


def test_knots_of_earlier_versions_learn_at_their_own_rate():
    chosen = recipe(model="H(4)-D-R3", knots="at 0.25")
    net = build_network(chosen, tiny_task(chosen))
    shares = {id(p): group["share"] for group in build_optimizer(chosen, net).param_groups for p in group["params"]}
    slow = {name for name, p in net.named_parameters() if shares[id(p)] == 0.25}
    assert slow == {name for name, _ in net.named_parameters() if name.endswith("knots")}
    assert {"conv2.knots", "conv2.projection.knots"} <= slow
    assert not any(m.balanced for m in net.modules() if isinstance(m, SplineLayer | Projection))
    for other in (recipe(model="D(4)-C-R3 independent", knots="at 0.25"), recipe(model="H(4)-D-R3")):
        net = build_network(other, tiny_task(other))
        assert {group["share"] for group in build_optimizer(other, net).param_groups} == {1.0}
    assert all(m.balanced for m in net.modules() if isinstance(m, SplineLayer | Projection))


def test_paper_initialisation():
    chosen = recipe(model="D(4)-C-R3 variance=0.05 independent")
    net = build_network(chosen, tiny_task(chosen))
    layers = [m for m in net.modules() if isinstance(m, SplineLayer)]
    assert layers
    assert all(layer.base is None for layer in layers)
    knots = net.dense1.knots
    assert (knots.var() * net.dense1.fan_in).item() == pytest.approx(0.05, rel=0.1)


def test_first_bad_layer_is_named():
    chosen = recipe(model="static")
    task = tiny_task(chosen)
    net, images = build_network(chosen, task), task.example(5)
    assert first_bad_layer(net, images) == "the loss"
    assert first_bad_layer(net, (images[0] * torch.nan,)) == "the images"
    with torch.no_grad():
        net.conv2.weight[0, 0, 0, 0] = torch.inf
    assert first_bad_layer(net, images) == "the weights of layer 'conv2'"
    with torch.no_grad():
        net.conv2.weight[0, 0, 0, 0] = 0
        net.dense1.weight.fill_(torch.finfo(torch.float32).max)
    assert first_bad_layer(net, images) == "the output of layer 'dense1'"


@pytest.mark.parametrize("has", [{}, {"avx512_bf16": True, "amx_bf16": True}])
def test_a_precision_that_is_given_is_kept(has, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: has)
    for given in ("float32", "bf16", "float64"):
        assert resolve_precision(given) == given


@pytest.mark.parametrize(
    ("has", "expected"),
    [
        ({"avx2": True, "avx512_f": True, "avx512_bf16": False, "amx_bf16": False}, "float32"),
        ({"avx512_bf16": True, "amx_bf16": False}, "bf16"),
        ({"avx512_bf16": False, "amx_bf16": True}, "bf16"),
        ({"architecture": "aarch64"}, "float32"),
    ],
)
def test_the_processor_decides_what_auto_means(has, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: has)
    assert resolve_precision("auto") == expected


@pytest.mark.parametrize(("supported", "expected"), [(True, "bf16"), (False, "float32")])
def test_a_graphics_card_decides_where_there_is_one(supported, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    # emulated, every card has it: that would be slower, not faster
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation or supported
    )
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": not supported})
    assert resolve_precision("auto") == expected


def test_bf16_trains(tmp_path):
    rough, fine = (train(recipe(epochs=1, precision=p), tmp_path / p).net for p in ("bf16", "float32"))
    assert all(p.dtype == torch.float32 for p in rough.parameters())
    difference = (rough.conv1.weight - fine.conv1.weight).abs().max()
    assert 1e-6 < difference < 0.1  # the weights are not bf16, but what is computed with them is


@pytest.mark.slow
def test_wheel_runs_elsewhere(tmp_path):
    """Recipes and images travel in the wheel."""
    here = Path(__file__).parent.parent
    source = tmp_path / "source"
    shutil.copytree(here, source, ignore=shutil.ignore_patterns(".git", ".venv", "runs", "*.egg-info", "build"))
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}

    def run(*command, **more):
        return subprocess.run(
            command, check=True, capture_output=True, text=True, cwd=tmp_path, timeout=600, env=environment | more
        )

    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path / "dist"), str(source))
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    shutil.rmtree(source)
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--quiet", "--target", str(tmp_path / "site"), str(wheel))
    where = "import splinenets; print(splinenets.__file__)"
    assert str(tmp_path / "site") in run(sys.executable, "-c", where, PYTHONPATH=str(tmp_path / "site")).stdout
    done = run(sys.executable, "-m", "splinenets", "train", "demo", *SMALL, PYTHONPATH=str(tmp_path / "site"))
    assert "4 steps, test accuracy" in done.stdout
    assert (tmp_path / "runs/demo-D5-D-R3/metrics.jsonl").exists()


def test_images_are_chosen_and_held_out():
    whole = load("embedded")
    part = choose_images(whole, images=100, held_out=50)
    assert torch.equal(part.train.images, whole.train.images[:100])
    assert torch.equal(part.test.images, whole.train.images[-50:])
    assert torch.equal(part.test.labels, whole.train.labels[-50:])
    assert len(choose_images(whole, held_out=50).train.labels) == len(whole.train.labels) - 50
    assert choose_images(whole).test is whole.test
    with pytest.raises(ValueError, match="too few to train on 5951 and hold out 50"):
        choose_images(whole, images=5951, held_out=50)
    with pytest.raises(ValueError, match="too few to train on some and hold out 6000"):
        choose_images(whole, held_out=6000)


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (FileNotFoundError(2, "No such file or directory", "gone/x"), "gone/x: no such file or directory"),
        (PermissionError(13, "Permission denied", b"x.html"), "x.html: permission denied"),
        (OSError("there is no file x"), "there is no file x"),
    ],
)
def test_errors_of_the_system_are_sentences(error, sentence, tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise error

    monkeypatch.setattr("splinenets.training.train", fail)
    code, _, err = call("train", "demo", "--out", tmp_path / "run")
    assert (code, err) == (2, f"splinenets: {sentence}\n")
