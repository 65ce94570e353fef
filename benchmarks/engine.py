"""``make bench``: whole networks in training and inference, plain and spline, each way of computing them, interleaved.

python -m benchmarks.engine [--repeats 3] [--only training]

The tables of docs/performance.md are made of what it leaves.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch import nn

import splinenets as sn
from benchmarks.timing import RESULTS, about, interleaved, markdown, write
from splinenets.operators import LinearMap, choice
from splinenets.tables import text_table

FILE = RESULTS / "engine.json"
TITLES = {"resnet32": "Spline-ResNet-32", "lenet32": "Spline-LeNet-32"}
SPECS = {"resnet32": ("D(5)-C-R4", "D(5)-C-R3", "D(5)-D-R4", "H(5)-C-R3"), "lenet32": ("D(5)-D-R3",)}
KNOTS = (2, 5, 10, 20)
IMAGES = {"resnet32": (3, 32), "lenet32": (1, 28)}
# plain: torch's own network; ours: what auto chooses; grouped: a matmul mixes weights, then one convolution with a
# group for each sample, as libraries of dynamic convolutions write it; bank: the paper's training form
FORMS = ("ours", "grouped", "bank")
SMALLER = ((32, "bf16"), (1, "bf16"), (250, "float32"), (32, "float32"), (1, "float32"))
Results: TypeAlias = dict[str, Any]


@contextmanager
def form(name: str) -> Iterator[None]:
    """Convolutions in one form; linear layers always in their best one, so that they decide nothing."""
    choose: Callable[..., tuple[str, ...]] = choice.choose

    def chosen(*given: object) -> tuple[str, ...]:
        return choose(*given) if any(isinstance(each, LinearMap) for each in given) else (name,)

    if name in ("plain", "ours"):
        yield
    else:
        with patch.object(choice, "choose", chosen):
            yield


def network(name: str, spec: str | None) -> tuple[nn.Module, int, int]:
    torch.manual_seed(0)
    channels, size = IMAGES[name]
    net = sn.models.build(name, in_channels=channels, image_size=size)
    if spec:
        net = sn.convert(net, spec, example=torch.randn(8, channels, size, size), spread=0.1)
    return net, channels, size


def job(name: str, spec: str | None, how: str, batch: int, numbers: str, training: bool) -> Callable[[], None]:
    """One step, or one forward pass; every network in the memory format that suits its form best."""
    net, channels, size = network(name, spec)
    last = how in ("plain", "ours", "fused")
    images = torch.randn(batch, channels, size, size)
    if last:
        net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, 10, (batch,))
    precision = torch.autocast("cpu", torch.bfloat16, enabled=numbers == "bf16")
    if not training:
        net = sn.fold_batchnorm(net.eval())

        def infer() -> None:
            with form(how), torch.inference_mode(), precision:
                net(images)

        return infer
    optimizer = torch.optim.SGD(net.train().parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        with form(how):
            with precision:
                logits = net(images)
            optimizer.zero_grad()
            F.cross_entropy(logits.float(), labels).backward()
            optimizer.step()

    return step


def groups() -> Iterator[tuple[str, str, int, bool, dict[str, tuple[str | None, str]]]]:
    """What is compared: network, numbers, batch, training or not, and the rows (spec, form)."""
    for name, specs in SPECS.items():
        for training in (True, False):
            for numbers in ("bf16", "float32"):
                for batch in (250, 32, 1):
                    rows: dict[str, tuple[str | None, str]] = {"plain": (None, "plain")}
                    rows |= {f"{spec} {how}": (spec, how) for spec in specs for how in FORMS}
                    yield name, numbers, batch, training, rows
    more = {f"D({k})-C-{rank} ours": (f"D({k})-C-{rank}", "ours") for rank in ("R4", "R3") for k in KNOTS}
    yield "resnet32", "bf16", 250, True, {"plain": (None, "plain"), **more}


def measure(repeats: int, only: str) -> Iterator[Results]:
    for name, numbers, batch, training, rows in groups():
        mode = "training" if training else "inference"
        if only not in ("", mode):
            continue
        # batch norm has no variance of one sample's one value, but 8 x 8 places are enough of them
        jobs = {row: job(name, *rows[row], batch, numbers, training) for row in rows}
        times = interleaved(jobs, repeats if batch > 1 else 5 * repeats, hopeless=4)
        result = {"network": name, "numbers": numbers, "batch": batch, "mode": mode, "seconds": times}
        print(table(result), flush=True)
        yield result


def table(result: Results) -> str:
    times = result["seconds"]
    rows = [
        [row, f"{times['plain'] / t:.2f}", f"{result['batch'] / t:,.0f}", f"{1e3 * t:.1f}"] for row, t in times.items()
    ]
    title = f"{result['network']}, {result['mode']}, batch {result['batch']}, {result['numbers']}"
    return f"\n{title}\n" + text_table(["", "speed over plain", "images/s", "ms"], rows)


def peak(name: str, spec: str | None, how: str) -> int:
    """Bytes that three training steps of 250 images need beyond the network itself, in a process of their own."""
    code = f"from benchmarks import engine; engine.print_peak({name!r}, {spec!r}, {how!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return int(done.stdout)


def print_peak(name: str, spec: str | None, how: str) -> None:
    """In a process of its own, because memory that was once used stays with it; Linux only."""
    step = job(name, spec, how, 250, "bf16", True)
    status = Path("/proc/self/status")
    before = kilobytes(status.read_text(), "VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    for _ in range(3):
        step()
    print(1024 * (kilobytes(status.read_text(), "VmHWM") - before))


def kilobytes(status: str, field: str) -> int:
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith(field))


def measure_memory() -> list[Results]:
    results = []
    for name, specs in SPECS.items():
        rows = [(None, "plain"), *((spec, how) for spec in specs for how in FORMS)]
        sizes = {f"{spec or ''} {how}".strip(): peak(name, spec, how) for spec, how in rows}
        results.append({"network": name, "bytes": sizes})
        body = [[row, f"{size / sizes['plain']:.2f}", f"{size / 2**20:.0f}"] for row, size in sizes.items()]
        print(f"\n{name}, peak memory of a training step, batch 250, bf16")
        print(text_table(["", "over plain", "MB"], body), flush=True)
    return results


def measured() -> Results:
    """What the last run left."""
    return dict(json.loads(FILE.read_bytes()))


def times(network: str, mode: str, batch: int, numbers: str, row: str) -> dict[str, float]:
    """The measured group that has this row."""
    want = {"network": network, "mode": mode, "batch": batch, "numbers": numbers}
    groups = (t for t in measured()["times"] if all(t[k] == v for k, v in want.items()))
    return next(dict(t["seconds"]) for t in groups if row in t["seconds"])


def networks() -> Iterator[tuple[str, str, str]]:
    """Network, spec and the title of its row."""
    for name, specs in SPECS.items():
        yield from ((name, spec, f"{TITLES[name]} `{spec}`") for spec in specs)


def training() -> str:
    rows = []
    for name, spec, title in networks():
        seconds = times(name, "training", 250, "bf16", f"{spec} ours")
        cells = [f"{seconds['plain'] / seconds[f'{spec} {form}']:.2f}" for form in FORMS]
        over = seconds[f"{spec} bank"] / seconds[f"{spec} ours"]
        rows.append([title, *cells, f"{over:.1f}", f"{250 / seconds['plain']:,.0f}"])
    return markdown(["", *FORMS, "ours over bank", "plain, images/s"], rows)


def grid(mode: str, cases: tuple[tuple[int, str], ...]) -> str:
    """Each form of each network, against the plain network of the same case."""
    rows = []
    for name, spec, title in networks():
        for form in FORMS:
            row = f"{spec} {form}"
            groups = [times(name, mode, batch, numbers, row) for batch, numbers in cases]
            rows.append([title, form, *(f"{seconds['plain'] / seconds[row]:.2f}" for seconds in groups)])
    return markdown(["", "", *(f"batch {batch}, {numbers}" for batch, numbers in cases)], rows)


def small_batches() -> str:
    return grid("training", SMALLER)


def inference() -> str:
    return grid("inference", ((250, "bf16"), *SMALLER))


def knots() -> str:
    seconds = times("resnet32", "training", 250, "bf16", "D(20)-C-R4 ours")
    rows = []
    for rank in ("R4", "R3"):
        cells = [f"{seconds[f'D({k})-C-{rank} ours'] / seconds[f'D(5)-C-{rank} ours']:.2f}" for k in KNOTS]
        rows.append([f"`D(K)-C-{rank}`", *cells])
    return markdown(["", *(f"K = {k}" for k in KNOTS)], rows)


def memory() -> str:
    sizes = {entry["network"]: entry["bytes"] for entry in measured()["memory"]}
    rows = []
    for name, spec, title in networks():
        cells = [f"{sizes[name][f'{spec} {form}'] / sizes[name]['plain']:.2f}" for form in FORMS]
        rows.append([title, *cells, f"{sizes[name]['plain'] / 2**20:.0f}"])
    return markdown(["", *FORMS, "plain, MB"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="", choices=["", "training", "inference"])
    options = parser.parse_args()
    began = time.perf_counter()
    results: Results = {"about": about("make bench", repeats=options.repeats), "times": [], "memory": measure_memory()}
    for result in measure(options.repeats, options.only):
        results["times"].append(result)
        results["about"]["seconds"] = round(time.perf_counter() - began, 1)
        write(FILE, results)  # so that nothing is lost if it is stopped
    print(f"\nwritten to {FILE}", file=sys.stderr)


if __name__ == "__main__":
    main()
