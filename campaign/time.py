"""Time: the whole suite again and again without a flake; thousands of steps and calls in flat memory."""

from __future__ import annotations

import gc
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from tests.helpers.states import IMAGES, LABELS, Net

import splinenets as sn
from campaign.harness import GIGABYTE, Kind, Trial

TITLE = "time"
ROOT = Path(__file__).resolve().parent.parent
SPECS = ("D(5)-C-R3", "H(5)-D-R4", "H(4)-C-G2 degree=3 dims=2", "D(3)-D-R3 independent", "H(5)-C-R3 diffusion=0.5")
MOST = 8 << 20  # bytes by which memory may grow while nothing new is done
HOUR = 3600


def prepare(shared: Path) -> None:
    """Nothing is needed."""


def suite(trial: Trial) -> None:
    """Every test passes, in an order of its own."""
    resource.setrlimit(resource.RLIMIT_AS, (resource.getrlimit(resource.RLIMIT_AS)[1],) * 2)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "2"]
    environment = os.environ | {"PYTHONHASHSEED": str(trial.dice.randrange(2**32))}
    found = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    failed = re.findall(r"^FAILED (\S+)", found.stdout, flags=re.MULTILINE)
    assert found.returncode == 0, failed or found.stdout[-300:]


def resident() -> int:
    """Bytes of memory that this process holds."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def flat(work: Callable[[], object], count: int) -> None:
    """Memory after all calls is what it was after the first fifth of them."""
    for _ in range(count // 5):
        work()
    before = resident()
    for _ in range(count - count // 5):
        work()
    grown = resident() - before
    assert grown <= MOST, f"memory grew by {grown / 1e6:.1f} MB in {count} calls"


def steps(trial: Trial) -> None:
    """2,000 steps of training, with the regulariser."""
    spec = SPECS[trial.number % len(SPECS)]
    net = sn.convert(Net(), spec, example=IMAGES, spread=0.1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
    regularizer = sn.MutualInformation(classes=3)

    def step() -> None:
        logits, positions = sn.trace(net, IMAGES)
        loss = F.cross_entropy(logits, LABELS) + regularizer(positions, LABELS)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    flat(step, 2_000)


def inferences(trial: Trial) -> None:
    """20,000 answers: eager, deployed, steered, or in the native runtime."""
    spec, how = SPECS[trial.number % len(SPECS)], trial.number // len(SPECS) % 4
    net = sn.convert(Net(), spec, example=IMAGES, spread=0.1).eval()
    call: Callable[[torch.Tensor], torch.Tensor] = net
    if how == 1:
        call = sn.deploy(net, IMAGES)
    if how == 2:
        layer = next(name for name, each in net.named_modules() if isinstance(each, sn.SplineLayer))
        call = steered(net, layer)
    if how == 3:
        sn.export(net, IMAGES, trial.folder / "net.native")
        call = sn.load_export(trial.folder / "net.native")
    with torch.no_grad():
        flat(lambda: call(IMAGES[:1]), 20_000)


def steered(net: torch.nn.Module, layer: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """A network one of whose layers is told where to be."""
    width = sn.trace(net, IMAGES[:1])[1][layer].shape[1:]

    def call(images: torch.Tensor) -> torch.Tensor:
        with sn.steer(net, {layer: torch.full(tuple(width), 0.5)}):
            return net(images)

    return call


KINDS = {
    "runs of the whole suite": Kind(run=suite, trials=20, seconds=HOUR, memory=64 * GIGABYTE, long=True),
    "2,000 training steps": Kind(run=steps, trials=10, seconds=HOUR),
    "20,000 inferences": Kind(run=inferences, trials=20, seconds=HOUR),
}
