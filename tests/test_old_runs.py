"""Runs that splinenets 0.1 trained are evaluated, reported and resumed with the same numbers. See fixtures/0.1."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.helpers.commands import call

from splinenets.training import Recipe, Run, load_run, train

RUNS = Path(__file__).parent / "fixtures/0.1/runs"


def lines(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("name", ["static", "spline"])
@pytest.mark.parametrize("which", ["last", "best"])
def test_evaluate(name, which):
    code, out, _ = call("evaluate", RUNS / name, "--checkpoint", which)
    last = lines(RUNS / name)[-1]
    assert code == 0
    assert "checkpoint of step 40" in out
    assert f"accuracy {last['test_accuracy']:.2%} ({round(200 * last['test_accuracy'])} of 200)" in out
    assert f"loss {last['test_loss']:.4f}" in out
    assert ("conv2" in out) == (name == "spline")


def test_weights_have_their_places():
    net, _, recipe, step = load_run(RUNS / "spline")
    assert (recipe.model, recipe.width, step) == ("H(3)-C-R3", 2, 40)
    saved = load_file(RUNS / "spline/checkpoints/00000040.safetensors")
    found = net.state_dict()
    assert {f"model.{name}" for name in found} == {name for name in saved if name.startswith("model.")}
    assert all(torch.equal(saved[f"model.{name}"], tensor) for name, tensor in found.items())


def test_resume(tmp_path):
    """The stopped run ends as the one that was never stopped, up to the last digits of another machine's arithmetic."""
    run = shutil.copytree(RUNS / "stopped", tmp_path / "run")
    recipe = Recipe.stored(Run(run).read()["recipe"], "the run")
    assert train(recipe, run, resume=True).step == 40
    before = (RUNS / "stopped/metrics.jsonl").read_bytes()
    assert (run / "metrics.jsonl").read_bytes().startswith(before)
    for found, expected in zip(lines(run), lines(RUNS / "spline"), strict=True):
        assert [found[key] for key in ("kind", "epoch", "step")] == [expected[key] for key in ("kind", "epoch", "step")]
        for key in ("cross_entropy", "regularizer", "learning_rate", "train_loss", "test_loss"):
            if key in expected:
                assert found[key] == pytest.approx(expected[key], rel=1e-4), key


def test_a_finished_run_stays_as_it_is(tmp_path):
    run = shutil.copytree(RUNS / "static", tmp_path / "run")
    before = {path.name: path.read_bytes() for path in run.rglob("*.*") if path.is_file()}
    train(Recipe.stored(Run(run).read()["recipe"], "the run"), run, resume=True)
    assert {
        path.name: path.read_bytes() for path in run.rglob("*.*") if path.is_file() and path.name != ".lock"
    } == before


@pytest.mark.slow
def test_report(tmp_path):
    pytest.importorskip("matplotlib")
    code, _, err = call("report", RUNS / "static", RUNS / "spline", "--out", tmp_path / "report.html")
    assert code == 0
    assert [line for line in err.splitlines() if "no positions" not in line] == []  # all of it could be read
    page = (tmp_path / "report.html").read_text()
    for name in ("static", "spline"):
        assert f"{lines(RUNS / name)[-1]['test_accuracy']:.1%}" in page
