"""What the mutual-information term adds to a training step.

python -m benchmarks.regularizer [--threads 2] [--repeats 15] [--bf16] [--write]

Steps with and without the term take turns, in one process. "fastest" compares the fastest step of each kind, which
others who use the machine disturb least; medians and quartiles are of the ratios within a turn.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import splinenets as sn
from benchmarks.timing import RESULTS, about, markdown, write

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


def alone(term: nn.Module, positions: sn.Positions, labels: Tensor, repeats: int) -> float:
    """Median seconds of the term by itself, on positions that are leaves."""
    leaves = sn.Positions({k: p.detach().requires_grad_() for k, p in positions.items()})
    return statistics.median(clocks(lambda: torch.autograd.backward(term(leaves, labels)))[0] for _ in range(repeats))


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
    _, positions = sn.trace(net, images)
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
            "alone_ms": 1000 * alone(terms[key], positions, labels, repeats + 3),
        }
    return result


def added() -> str:
    """What the term adds to a step, as a table: by the fastest steps, and in brackets by the median of turns."""
    rows = []
    for precision in ("float32", "bf16"):
        file = RESULTS / f"regularizer_{precision}_2_threads.json"
        for row in json.loads(file.read_bytes())["rows"]:
            both = [row[name] for name in ("bins", "kernel")]
            shares = [f"{100 * one['fastest']:+.1f} ({100 * one['wall']:+.1f})" for one in both]
            alone = [f"{one['alone_ms']:.1f}" for one in both]
            step, most = f"{row['step_ms']:.0f}", f"{100 * row['most']:.0f}"
            rows.append([f"{row['case']}, {precision}", step, *shares, *alone, most])
    head = ["network", "step, ms", "bins add %", "kernels add %", "bins alone, ms", "kernels alone, ms", "at most %"]
    return markdown(head, rows)


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
        made = about(f"python -m benchmarks.regularizer {flags}", seed=0, seconds=round(time.perf_counter() - began, 1))
        write(RESULTS / f"regularizer_{kind}.json", {**made, "rows": rows})


if __name__ == "__main__":
    main()
