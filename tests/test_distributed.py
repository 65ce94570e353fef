"""Two ranks compute what one computes; a rank that dies is restarted and the run goes on."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tests.helpers.marks import slow
from tests.helpers.runs import as_rank, files, fork, free_port, outcome, recipe, tiny_task, train
from torch.testing import assert_close

from splinenets.training import Watcher, checkpoint

EXACT = {
    "precision": "float64",
    "augment": "none",
    "dropout": 0.0,
    "epochs": 4,
    "batch": 25,  # 103 images: steps of 20 and 21, shares of 10 and 11
    "checkpoint_every": 1,
    "keep": 100,
    "utilization": 0.2,
    "specialization": 0.1,
    # the regulariser's bins are steep: at a usual rate they multiply a difference in the last bit by ten in every step
    "learning_rate": 1e-6,
}


def on_ranks(world, work):
    port = free_port()
    children = [as_rank(rank, world, port, work) for rank in range(world)]
    assert [outcome(child) for child in children] == [0] * world


@pytest.mark.parametrize(
    ("model", "full_gradient"),
    [("H(4)-D-R3 diffusion=0.9", False), slow("H(4)-D-R3 diffusion=0.9", True), slow("static", False)],
)
def test_two_ranks_equal_one(model, full_gradient, tmp_path):
    """20 steps in float64: losses, and by the momentum the gradients, of every step."""
    chosen = recipe(**EXACT, model=model, full_gradient=full_gradient)
    assert outcome(fork(lambda: train(chosen, tmp_path / "one"))) == 0
    on_ranks(2, lambda: train(chosen, tmp_path / "two"))
    one, two = (
        [json.loads(line) for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()]
        for name in ("one", "two")
    )
    assert len(one) == 20 + 4
    for left, right in zip(one, two, strict=True):
        for key in set(left) - {"layers"}:
            assert left[key] == pytest.approx(right[key], abs=1e-10), key
    for step in range(1, 21):
        left, right = (checkpoint.read(tmp_path / name / "checkpoints", step).tensors for name in ("one", "two"))
        assert any(name.startswith("momentum.") for name in left)
        for name in left:
            assert_close(
                left[name].double(), right[name].double(), rtol=0, atol=1e-10, msg=lambda m, n=name: f"{n}: {m}"
            )


def test_two_ranks_resume_as_two(tmp_path):
    chosen = recipe(epochs=2)
    on_ranks(2, lambda: train(chosen, tmp_path / "whole"))

    def stopped():
        with pytest.raises(KeyboardInterrupt):
            train(chosen, tmp_path / "parts", watcher=Interrupts())

    on_ranks(2, stopped)
    on_ranks(2, lambda: train(chosen, tmp_path / "parts", resume=True))
    assert files(tmp_path / "parts") == files(tmp_path / "whole")


class Interrupts(Watcher):
    """A watcher that breaks off on every rank after the fifth step."""

    def step(self, step, loss, accuracy):
        if step == 5:
            raise KeyboardInterrupt


def test_every_test_sample_is_counted_once(tmp_path):
    """41 images do not divide by 2."""
    chosen = recipe(epochs=1)
    assert len(tiny_task(chosen).data.test.labels) % 2 == 1
    on_ranks(2, lambda: train(chosen, tmp_path / "run"))
    line = json.loads((tmp_path / "run/metrics.jsonl").read_text().splitlines()[-1])
    assert line["test_accuracy"] * 41 == pytest.approx(round(line["test_accuracy"] * 41), abs=1e-9)


def test_wrong_input_stops_all_ranks(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/letter").write_text("dear")

    def refused():
        with pytest.raises((ValueError, SystemExit)):
            train(recipe(), tmp_path / "run")

    on_ranks(2, refused)


TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-addr", "127.0.0.1"]
SMALL = ["--set", "epochs=2", "--set", "width=4", "--set", "batch=1000", "--set", "checkpoint_every=2"]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(10))
def test_killed_rank_is_restarted(number, tmp_path):
    """Whichever rank dies, whenever: the run ends as if nothing had been, within a minute, and leaves no process."""
    rank, step = number % 2, 1 + number
    command = [
        *TORCHRUN,
        *("--max-restarts", "1", "--master-port", str(free_port()), "--monitor-interval", "0.2"),
        str(Path(__file__).parent / "helpers" / "die_once.py"),
        *(str(rank), str(step), "train", "demo", *SMALL, "--out", str(tmp_path / "run")),
    ]
    began = time.monotonic()
    launcher = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        _, err = launcher.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        os.killpg(launcher.pid, signal.SIGKILL)
        raise
    assert launcher.returncode == 0, err
    assert time.monotonic() - began < 60
    assert [p for p in Path("/proc").glob("[0-9]*/cmdline") if str(tmp_path).encode() in read(p)] == []
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines if line["kind"] == "epoch"] == [1, 2]


@pytest.mark.slow
def test_two_launchers_stand_for_two_machines(tmp_path):
    """As docs/distributed.md shows it; a worker dies, and the folder is needed only where the first rank is."""
    endpoint = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-id", "test", "--max-restarts", "3"]
    command += [str(Path(__file__).parent / "helpers" / "die_once.py"), "1", "3", "train", "demo", *SMALL]
    launchers = [
        subprocess.Popen(
            [*command, "--out", str(tmp_path / "run")],
            stderr=subprocess.PIPE, text=True, start_new_session=True,
            env=os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
        )
        for _ in range(2)
    ]  # fmt: skip
    try:
        errors = [launcher.communicate(timeout=150)[1] for launcher in launchers]
    except subprocess.TimeoutExpired:
        for launcher in launchers:
            os.killpg(launcher.pid, signal.SIGKILL)
        raise
    assert [launcher.returncode for launcher in launchers] == [0, 0], errors
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines if line["kind"] == "epoch"] == [1, 2]


def read(path):
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.slow
def test_accelerate_launch_and_torchrun_agree(tmp_path):
    train_it = ["-m", "splinenets", "train", "demo", *SMALL, "--out"]
    accelerate = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"]
    accelerate += ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    for name, launcher in (("torchrun", TORCHRUN), ("accelerate", accelerate)):
        port = ["--main_process_port" if name == "accelerate" else "--master-port", str(free_port())]
        subprocess.run(
            [*launcher, *port, *train_it, str(tmp_path / name)], check=True, capture_output=True, timeout=300
        )
    assert files(tmp_path / "torchrun") == files(tmp_path / "accelerate")
    evaluated = subprocess.run(
        [*TORCHRUN, "--master-port", str(free_port()), "-m", "splinenets", "evaluate", str(tmp_path / "torchrun")],
        check=True, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert evaluated.stdout.count(" of 1000), loss") == 1


def test_gradients_flow_through_sums():
    """On one rank a sum over ranks is the identity, gradients included."""
    from splinenets.collectives import sum_over_ranks

    x = torch.ones(3, requires_grad=True)
    sum_over_ranks(x).sum().backward()
    assert_close(x.grad, torch.ones(3))
