"""What the mutual-information term adds to a training step.

python -m benchmarks.regularizer [--threads 2] [--repeats 15] [--bf16] [--write]

Steps with and without the term take turns, in one process. "fastest" compares the fastest step of each kind, which
others who use the machine disturb least; medians and quartiles are of the ratios within a turn.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import splinenets as sn

RESULTS = Path(__file__).parent / "results"
BATCH = 250


def resnet() -> tuple[nn.Module, Tensor]:
    images = torch.rand(BATCH, 3, 32, 32)
    return sn.convert(sn.models.resnet(32), "D(5)-C-R3", example=images[:2], spread=0.1), images


def lenet() -> tuple[nn.Module, Tensor]:
    images = torch.rand(BATCH, 1, 28, 28)
    return sn.convert(sn.models.lenet(32), "D(5)-D-R3", example=images[:2], spread=0.1), images


CASES: dict[str, tuple[Callable[[], tuple[nn.Module, Tensor]], float]] = {
    "Spline-LeNet-32 D(5)-D-R3": (lenet, 0.15),
    "Spline-ResNet-32 D(5)-C-R3": (resnet, 0.08),
}


def step(net: nn.Module, images: Tensor, labels: Tensor, term: nn.Module | None, bf16: bool) -> None:
    """Forward and backward, without the optimizer."""
    net.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        logits, positions = (net(images), None) if term is None else sn.trace(net, images)
    loss = F.cross_entropy(logits.float(), labels)
    if term is not None:
        loss = loss + term(positions, labels)
    torch.autograd.backward(loss)


def clocks(work: Callable[[], None]) -> tuple[float, float]:
    """Wall-clock and CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def measure(name: str, repeats: int, bf16: bool) -> dict[str, Any]:
    torch.manual_seed(0)
    build, most = CASES[name]
    net, images = build()
    labels = torch.randint(10, (BATCH,))
    terms = {"bins": sn.MutualInformation(10), "kernel": sn.MutualInformation(10, estimator="kernel")}
    steps = {"none": None} | terms
    times: dict[str, list[tuple[float, float]]] = {key: [] for key in steps}
    for turn in range(repeats + 1):
        order = list(steps.items())
        for key, term in order[turn % 3 :] + order[: turn % 3]:  # what comes first finds the memory in another state
            taken = clocks(lambda t=term: step(net, images, labels, t, bf16))  # type: ignore[misc]
            if turn:  # the first turn warms up
                times[key].append(taken)
    # the term alone, on positions that are leaves
    _, positions = sn.trace(net, images)
    leaves = sn.Positions({k: p.detach().requires_grad_() for k, p in positions.items()})
    alone = {
        key: statistics.median(
            clocks(lambda t=term: torch.autograd.backward(t(leaves, labels)))[0]  # type: ignore[misc]
            for _ in range(repeats + 3)
        )
        for key, term in terms.items()
    }
    none = times.pop("none")
    result: dict[str, Any] = {
        "case": name,
        "positions": sum(p[0].numel() for p in positions.values()),
        "most": most,
        "step_ms": 1000 * min(none)[0],
    }
    for key, with_term in times.items():
        ratios = [(a[0] / b[0] - 1, a[1] / b[1] - 1) for a, b in zip(with_term, none, strict=True)]
        wall, cpu = (statistics.quantiles(r, n=4) for r in zip(*ratios, strict=True))
        result[key] = {
            "fastest": min(with_term)[0] / min(none)[0] - 1,
            "wall": wall[1],
            "wall_quartiles": wall[::2],
            "cpu": cpu[1],
            "alone_ms": 1000 * alone[key],
        }
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--bf16", action="store_true", help="the network in bfloat16")
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/regularizer*.json")
    chosen = parser.parse_args()
    torch.set_num_threads(chosen.threads)
    began = time.perf_counter()
    rows = []
    for name in CASES:
        row = measure(name, chosen.repeats, chosen.bf16)
        rows.append(row)
        print(f"{name}, batch {BATCH}, {row['positions']} positions a sample: a step takes {row['step_ms']:.0f} ms")
        for key in ("bins", "kernel"):
            one, (low, high) = row[key], row[key]["wall_quartiles"]
            share = f"{one['alone_ms'] / row['step_ms']:.1%}; asked: at most {row['most']:.0%}"
            print(
                f"  {key:6}  adds {one['fastest']:+.1%} to the fastest step; median of turns {one['wall']:+.1%} "
                f"({low:+.1%} to {high:+.1%}), {one['cpu']:+.1%} of CPU time; "
                f"alone {one['alone_ms']:.1f} ms = {share}",
                flush=True,
            )
    if chosen.write:
        kind = f"{'bf16' if chosen.bf16 else 'float32'}_{chosen.threads}_threads"
        flags = f"--threads {chosen.threads} --repeats {chosen.repeats}{' --bf16' if chosen.bf16 else ''} --write"
        result = {
            "command": f"python -m benchmarks.regularizer {flags}",
            "seed": 0,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "machine": platform.machine(),
            "threads": chosen.threads,
            "precision": "bf16" if chosen.bf16 else "float32",
            "seconds": round(time.perf_counter() - began, 1),
            "rows": rows,
        }
        RESULTS.mkdir(exist_ok=True)
        (RESULTS / f"regularizer_{kind}.json").write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
