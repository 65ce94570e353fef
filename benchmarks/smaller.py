"""``python -m benchmarks.smaller RUN...``: what trained knots lose when they are stored in fewer bytes.

Whole, in bf16 and int8 as ``sn.deploy`` stores them, and cut to a low rank: the offsets of K knots are K rows, of which
the best few directions are kept. RUN is a folder of ``splinenets reproduce turned --runs FOLDER``, for example. Leaves
benchmarks/results/smaller.json; docs/when.md has the table.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Tensor, nn

import splinenets as sn
from benchmarks.timing import RESULTS, about, markdown, write
from splinenets.conversion import copy_network
from splinenets.layers import SplineLayer
from splinenets.training import load_run, score
from splinenets.training.build import Task

COMMAND = "python -m benchmarks.smaller"
FILE = RESULTS / "smaller.json"
STORED = ("float32", "bf16", "int8")


def cut(knots: Tensor, rank: int) -> Tensor:
    """The nearest knots that lie in ``rank`` dimensions: (K, ...) -> (K, ...)."""
    u, s, v = torch.linalg.svd(knots.flatten(1), full_matrices=False)
    return ((u[:, :rank] * s[:rank]) @ v[:rank]).reshape(knots.shape)


def forms(net: nn.Module, task: Task) -> Iterator[tuple[str, nn.Module, int]]:
    """The network with smaller knots: how, and bytes."""
    example = tuple(part[:8] for part in task.example())
    for stored in STORED:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "net.native"
            sn.export(net, example, path, knots=stored)
            yield stored, sn.deploy(net, example, knots=stored), path.stat().st_size
    deployed = sn.deploy(net, example)
    knots = sum(layer.knots.numel() for layer in deployed.modules() if isinstance(layer, SplineLayer))
    others = sum(p.numel() for p in deployed.parameters()) - knots
    for rank in range(1, max(len(layer.knots) for layer in net.modules() if isinstance(layer, SplineLayer))):
        low = copy_network(net)
        size = others
        for layer in low.modules():
            if isinstance(layer, SplineLayer):
                layer.knots.data = cut(layer.knots.data, rank)
                count, row = len(layer.knots), layer.knots[0].numel()
                size += row + min(rank, count) * (count + row)  # the base, directions, and where each knot lies
        yield f"rank {rank}", low, 4 * size


def main() -> None:
    """Evaluate every form of every run, and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="+", type=Path)
    runs: list[Path] = parser.parse_args().run
    torch.set_num_threads(1)
    accelerator, found = Accelerator(cpu=True), {}
    for run in runs:
        if not (run / "run.json").is_file():
            parser.error(f"{run} is no run: give folders that splinenets train or reproduce wrote")
        print(f"{run.name} ...", file=sys.stderr)
        net, task, *_ = load_run(run)
        found[run.name] = {
            name: {"accuracy": score(form, task, accelerator).accuracy, "bytes": size}
            for name, form, size in forms(net.eval(), task)
        }
    write(FILE, {"about": about(COMMAND), "runs": found})
    print(table())


def table() -> str:
    """A line for each form, two columns for each run."""
    found = json.loads(FILE.read_bytes())["runs"]
    names = list(dict.fromkeys(name for forms in found.values() for name in forms))
    head = ["knots", *(part for run in found for part in (f"{run}, test accuracy, %", "KB"))]
    lines = [[name, *(text for forms in found.values() for text in shown(forms.get(name)))] for name in names]
    return markdown(head, lines)


def shown(form: dict[str, float] | None) -> tuple[str, str]:
    """Accuracy and size of a form, if a run has it."""
    return (f"{100 * form['accuracy']:.2f}", f"{form['bytes'] / 1000:.0f}") if form else ("", "")


if __name__ == "__main__":
    main()
