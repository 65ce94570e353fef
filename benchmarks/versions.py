"""Another version of splinenets beside this one: the same jobs in two processes, in turn.

python -m benchmarks.versions ../other-clone [--repeats 7] [--numbers float32]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.timing import RESULTS, about, markdown, write
from splinenets.tables import text_table

FILE = RESULTS / "versions.json"
HERE = Path(__file__).resolve().parent.parent
# network, spec or "", batch, numbers, training or not
JOBS = [
    ("resnet32", spec, batch, numbers, training)
    for spec in ("", "D(5)-C-R4", "D(5)-C-R3", "H(5)-C-R3")
    for training, batch, numbers in (
        *((True, 250, "bf16"), (True, 250, "float32"), (True, 32, "float32")),
        *((False, 250, "bf16"), (False, 250, "float32"), (False, 1, "float32")),
    )
] + [("lenet32", "D(5)-D-R3", batch, "float32", training) for training, batch in ((True, 250), (False, 1))]
# plain torch and what every version of the package has, so that it runs with any of them
WORKER = """
import sys, time, torch, torch.nn.functional as F, splinenets as sn
def job(name, spec, batch, numbers, training):
    torch.manual_seed(0)
    channels, size = (3, 32) if name.startswith("resnet") else (1, 28)
    net = sn.models.build(name, in_channels=channels, image_size=size)
    if spec:
        net = sn.convert(net, spec, example=torch.randn(8, channels, size, size), spread=0.1)
    net.to(memory_format=torch.channels_last).train(training)
    images = torch.randn(batch, channels, size, size).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, 10, (batch,))
    precision = torch.autocast("cpu", torch.bfloat16, enabled=numbers == "bf16")
    if not training:
        net = sn.fold_batchnorm(net)
        def run():
            with torch.inference_mode(), precision:
                net(images)
        return run
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    def run():
        optimizer.zero_grad()
        with precision:
            logits = net(images)
        F.cross_entropy(logits.float(), labels).backward()
        optimizer.step()
    return run
for line in sys.stdin:
    name, spec, batch, numbers, training, repeats = eval(line)
    current = job(name, spec, batch, numbers, training) if repeats == 0 else current
    began = time.perf_counter()
    for _ in range(max(1, repeats)):
        current()
    print((time.perf_counter() - began) / max(1, repeats), flush=True)
"""


# glibc gives memory back between two steps, or not, by the luck of where blocks lie: 10% of a step, in any version
KEEP_MEMORY = {"MALLOC_TRIM_THRESHOLD_": "4000000000", "MALLOC_MMAP_THRESHOLD_": "4000000000"}


class Version:
    """A process that imports one version of the package."""

    def __init__(self, root: Path) -> None:
        environment = {**os.environ, **KEEP_MEMORY, "PYTHONPATH": str(root / "src")}
        command = [sys.executable, "-c", WORKER]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environment}
        self.process = subprocess.Popen(command, **pipes)

    def seconds(self, job: tuple[object, ...], repeats: int) -> float:
        """The mean time of some calls; 0 repeats make the job anew and warm it up."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{(*job, repeats)!r}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())


def versions() -> str:
    """The table of the docs."""
    rows = json.loads(FILE.read_text())["rows"]
    head = ["", "batch", "numbers", "", "other version, ms", "this version, ms", "times as fast"]
    body = []
    for network, spec, batch, numbers, training, other, own in rows:
        mode = "training" if training else "inference"
        times = [f"{1e3 * other:,.1f}", f"{1e3 * own:,.1f}", f"{other / own:.2f}"]
        body.append([f"{network} {spec or 'plain'}", str(batch), numbers, mode, *times])
    return markdown(head, body)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--numbers", choices=["bf16", "float32"], help="only these, where a processor has no others")
    options = parser.parse_args()
    began, rows = time.perf_counter(), []
    versions = [Version(options.other.resolve()), Version(HERE)]
    for job in (job for job in JOBS if options.numbers in (None, job[3])):
        calls = 30 if job[2] == 1 else 1
        for version in versions:
            version.seconds(job, 0)
        pairs = [[version.seconds(job, calls) for version in versions] for _ in range(options.repeats)]
        other, own = (median(times) for times in zip(*pairs, strict=True))
        rows.append([*job, other, own])
        print(job, f"{1e3 * other:.2f} ms, {1e3 * own:.2f} ms, {other / own:.3f} times as fast", flush=True)
    columns = ["network", "spec", "batch", "numbers", "training", "other", "own"]
    only = f" --numbers {options.numbers}" if options.numbers else ""
    setting = about(
        f"python -m benchmarks.versions OTHER{only}", repeats=options.repeats, duration=time.perf_counter() - began
    )
    write(FILE, {"about": setting, "columns": columns, "rows": rows})
    print(text_table(columns, [[str(cell) for cell in row] for row in rows]))


if __name__ == "__main__":
    main()
