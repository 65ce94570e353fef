"""Another version of splinenets beside this one: the same jobs in two processes, in turn.

python -m benchmarks.versions ../other-clone [--repeats 7] [--numbers float32]
python -m benchmarks.versions ../other-clone --job "batch 1, float32, inference"  (prints, writes no file)
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any, TypeAlias

from benchmarks.timing import RESULTS, about, markdown, write
from splinenets.tables import text_table

FILE = RESULTS / "versions.json"
HERE = Path(__file__).resolve().parent.parent
# network, spec or "", batch, numbers, training or not
Job: TypeAlias = tuple[str, str, int, str, bool]
JOBS: list[Job] = [
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

    def seconds(self, job: Job, repeats: int) -> float:
        """The mean time of some calls; 0 repeats make the job anew and warm it up."""
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(f"{(*job, repeats)!r}\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())


def words(network: str, spec: str, batch: int, numbers: str, training: bool) -> list[str]:
    """What a job is called."""
    return [f"{network} {spec or 'plain'}", f"batch {batch}", numbers, "training" if training else "inference"]


def versions() -> str:
    """The table of the docs."""
    rows = json.loads(FILE.read_text())["rows"]
    head = ["", "batch", "numbers", "", "other version, ms", "this version, ms", "times as fast"]
    body = []
    for *job, other, own in rows:
        name, batch, numbers, mode = words(*job)
        times = [f"{1e3 * other:,.1f}", f"{1e3 * own:,.1f}", f"{other / own:.2f}"]
        body.append([name, batch.removeprefix("batch "), numbers, mode, *times])
    return markdown(head, body)


def compare(pair: Sequence[Version], job: Job, repeats: int) -> tuple[float, float]:
    """Median seconds of a job in two versions, in turn."""
    for version in pair:
        version.seconds(job, 0)
    single = job[2] == 1
    calls, turns = (30, 4 * repeats) if single else (1, repeats)  # what takes a moment is blurred by moments
    rounds = [[version.seconds(job, calls) for version in pair] for _ in range(turns)]
    others, owns = zip(*rounds, strict=True)
    other, own = median(others), median(owns)
    times = f"{1e3 * other:.2f} ms, {1e3 * own:.2f} ms, {other / own:.3f} times as fast"
    print(f"{', '.join(words(*job))}: {times}; {min(others) / min(owns):.3f} by the shortest times", flush=True)
    return other, own


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--numbers", choices=["bf16", "float32"], help="only these, where a processor has no others")
    parser.add_argument(
        "--job", action="append", help='only jobs in whose words this stands, "R4, batch 1,"; repeatable'
    )
    options = parser.parse_args()
    jobs = [job for job in JOBS if options.numbers in (None, job[3])]
    if options.job:
        jobs = [job for job in jobs if any(text in ", ".join(words(*job)) for text in options.job)]
    began, pair = time.perf_counter(), [Version(options.other.resolve()), Version(HERE)]
    rows = [[*job, *compare(pair, job, options.repeats)] for job in jobs]
    if options.job:
        return
    columns = ["network", "spec", "batch", "numbers", "training", "other", "own"]
    only = f" --numbers {options.numbers}" if options.numbers else ""
    setting = about(
        f"python -m benchmarks.versions OTHER{only}", repeats=options.repeats, duration=time.perf_counter() - began
    )
    write(FILE, {"about": setting, "columns": columns, "rows": rows})
    print(text_table(columns, [[str(cell) for cell in row] for row in rows]))


if __name__ == "__main__":
    main()
