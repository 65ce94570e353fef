"""Networks as torch.compile makes them, beside the same networks in eager mode, interleaved.

python -m benchmarks.compiled [--repeats 5]
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.engine import network
from benchmarks.timing import RESULTS, about, interleaved, markdown, write
from splinenets.tables import text_table

FILE = RESULTS / "compiled.json"
SPEC = "D(5)-C-R3"
# training or not, numbers, batch
CASES = (
    (False, "float32", 1),
    (False, "float32", 250),
    (False, "bf16", 250),
    (True, "float32", 250),
    (True, "bf16", 250),
)


def job(spec: str | None, compiled: bool, training: bool, numbers: str, batch: int) -> Callable[[], object]:
    """One training step, or one forward pass, of a ResNet-32."""
    net, channels, size = network("resnet32", spec)
    net.to(memory_format=torch.channels_last).train(training)  # type: ignore[call-overload]
    images = torch.randn(batch, channels, size, size).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, 10, (batch,))
    precision = torch.autocast("cpu", torch.bfloat16, enabled=numbers == "bf16")
    call = torch.compile(net, fullgraph=True) if compiled else net
    if not training:

        def infer() -> None:
            with torch.no_grad(), precision:
                call(images)

        return infer
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)

    def step() -> None:
        with precision:
            logits = call(images)
        optimizer.zero_grad()
        F.cross_entropy(logits.float(), labels).backward()
        optimizer.step()

    return step


def rows() -> dict[str, tuple[str | None, bool]]:
    return {
        "plain": (None, False),
        "plain, compiled": (None, True),
        SPEC: (SPEC, False),
        f"{SPEC}, compiled": (SPEC, True),
    }


def compiled() -> str:
    """The table of the docs."""
    cases = json.loads(FILE.read_text())["times"]
    head = ["ResNet-32, milliseconds", *(f"{c['mode']}, batch {c['batch']}, {c['numbers']}" for c in cases)]
    return markdown(head, [[row, *(f"{1e3 * c['seconds'][row]:,.1f}" for c in cases)] for row in rows()])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    began = time.perf_counter()
    results: dict[str, Any] = {"about": about("python -m benchmarks.compiled", repeats=options.repeats), "times": []}
    for training, numbers, batch in CASES:
        torch._dynamo.reset()
        jobs = {name: job(*row, training, numbers, batch) for name, row in rows().items()}
        seconds = interleaved(jobs, options.repeats * (1 if batch > 1 else 20))
        mode = "training" if training else "inference"
        results["times"].append({"mode": mode, "numbers": numbers, "batch": batch, "seconds": seconds})
        results["about"]["seconds"] = round(time.perf_counter() - began, 1)
        write(FILE, results)
        body = [[row, f"{1e3 * t:.1f}", f"{seconds['plain'] / t:.2f}"] for row, t in seconds.items()]
        print(f"\n{mode}, batch {batch}, {numbers}\n" + text_table(["", "ms", "speed over plain"], body), flush=True)


if __name__ == "__main__":
    main()
