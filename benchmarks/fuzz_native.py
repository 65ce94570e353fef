"""Files for the native runtime that an enemy made, in a build with address and undefined behaviour sanitizers.

python -m benchmarks.fuzz_native [--files 10000] [--seed 0] [--keep broken] [--out results.json]

Small networks that have every kind of step are written, then numbers of their steps, headers and parameters are
changed, and the digest is corrected. Every file must be refused, or run without an access outside of its own memory,
without undefined behaviour and within a minute. Exit code 1 if one does not; ``--keep`` keeps those. Leaves
benchmarks/results/fuzz_native.json, of which a table of docs/reliability.md is made.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import splinenets as sn
from benchmarks.timing import RESULTS, about, markdown, write
from splinenets.exporting.native import STEP
from splinenets.exporting.native.engine import SOURCE
from splinenets.kernels.build import SOURCE as KERNELS

SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
FLAGS = ("-std=c++17", "-O1", "-g1", "-march=native", "-pthread", *SANITIZERS)
HEADER, PARTS, DIGEST = 64, 128, slice(20, 52)  # see file.h
FILE = RESULTS / "fuzz_native.json"
BATCH = 250  # files for one process
# numbers at which programs break
EDGES = (-(2**63), -(2**31), -17, -16, -2, -1, 0, 1, 2, 3, 8, 9, 15, 16, 17, 63, 64, 65, 255, 4096, 2**24, 2**31, 2**62)
FLOATS = (np.nan, np.inf, -np.inf, -1.0, 0.0, 1e308, 1e-308)


class Meeting(nn.Module):
    """Two ways that meet, by a sum, by a product with one number for each channel, and side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow, self.wide = nn.Conv2d(6, 6, 3, padding=1, groups=6), nn.Conv2d(6, 6, 3, padding=1, groups=3)
        self.squeeze = nn.Conv2d(6, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(N, 6, H, W) -> (N, 24, H, W)."""
        y = torch.nn.functional.silu(self.narrow(x)) * torch.sigmoid(self.squeeze(x.mean((2, 3), keepdim=True)))
        return torch.cat([y, self.wide(x) + x, x - y, torch.nn.functional.gelu(x * 0.5)], 1)


def body() -> nn.Module:
    """A small network with much in it."""
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.GroupNorm(2, 6), Meeting(), nn.MaxPool2d(2, ceil_mode=True)),
        *(nn.Conv2d(24, 18, 3, stride=2, padding=1), nn.Hardswish(), nn.AvgPool2d(2, 1, 1), nn.BatchNorm2d(18)),
        *(nn.Conv2d(18, 18, 1, groups=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(18, 5)),
    )


def networks() -> Iterator[tuple[nn.Module, tuple[Tensor, ...], str]]:
    """Networks that together have every kind of step, what they are called with, and how they are stored."""
    images = torch.randn(4, 3, 8, 9)
    for spec, knots in (
        *(("D(5)-C-R4", "float32"), ("H(4)-D-R3 diffusion=0.5", "int8"), ("H(3)-C-G2 closed", "bf16")),
        *(("D(2)-C-R3 dims=3", "float32"), ("D(2)-C-R3 dims=3", "int8")),
    ):
        yield sn.convert(body(), spec, example=images, spread=0.3).eval(), (images,), knots
    yield sn.models.build("resnet8").eval(), (torch.randn(2, 3, 16, 16),), "float32"
    told = sn.condition(sn.convert(body(), "D(4)-X-R4 dims=2", example=None, spread=0.3), (0, 0), (360, 1))
    yield told.eval(), (images, torch.rand(4, 2)), "float32"


def originals(folder: Path) -> list[bytes]:
    """The files that are changed afterwards."""
    files = []
    for number, (net, example, knots) in enumerate(networks()):
        path = folder / f"{number}.native"
        sn.export(net, example if len(example) > 1 else example[0], path, knots=knots)
        files.append(path.read_bytes())
    return files


class Changed:
    """A file's content that changes: its header, its steps, and the bytes behind them."""

    def __init__(self, content: bytes, rng: np.random.Generator) -> None:
        self.content, self.rng = bytearray(content), rng
        told, steps = (int(n) for n in self.header()[1:3])
        self.first, self.count = PARTS + -(-told * 64 // 64) * 64, steps

    def header(self) -> NDArray[np.int64]:
        """Its eight numbers."""
        return np.frombuffer(self.content, np.int64, 8, HEADER)

    def steps(self) -> NDArray[np.void]:
        """Its steps, to be written to."""
        return np.frombuffer(self.content, STEP, self.count, self.first)

    def number(self, old: int) -> int:
        """Another number in the place of an old one."""
        near = (old - 1, old + 1, 2 * old, old // 2, old ^ (1 << int(self.rng.integers(63))), -old)
        chosen = int(self.rng.choice([0, 1, 2]))
        pool = (near, EDGES, tuple(int(n) for n in self.header()[:6]))[chosen]
        return int((pool[self.rng.integers(len(pool))] + 2**63) % 2**64 - 2**63)

    def change(self) -> None:
        """One of the changes there are."""
        ways = (
            self.change_field,
            self.change_field,
            self.change_field,
            self.move,
            self.change_header,
            self.change_bytes,
        )
        ways[self.rng.integers(len(ways))]()

    def change_field(self) -> None:
        """One number of one step, sometimes that of another step."""
        steps = self.steps()
        place = steps[self.rng.integers(self.count)]
        name = STEP.names[self.rng.integers(len(STEP.names or ()))]  # type: ignore[index]
        if self.rng.random() < 0.2:
            place[name] = steps[self.rng.integers(self.count)][name]
        elif STEP[name].names:
            inner = STEP[name].names[self.rng.integers(len(STEP[name].names or ()))]  # type: ignore[index]
            place[name][inner] = self.number(int(place[name][inner]))
        elif STEP[name].kind == "f":
            place[name] = FLOATS[self.rng.integers(len(FLOATS))]
        else:
            place[name] = self.number(int(place[name]))

    def move(self) -> None:
        """A step in the place of another."""
        steps = self.steps()
        steps[self.rng.integers(self.count)] = steps[self.rng.integers(self.count)].copy()

    def change_header(self) -> None:
        """One of its numbers."""
        header = self.header()
        place = self.rng.integers(len(header))
        header[place] = self.number(int(header[place]))

    def change_bytes(self) -> None:
        """Any bytes, and sometimes an early end."""
        for _ in range(self.rng.integers(1, 9)):
            self.content[self.rng.integers(HEADER, len(self.content))] = self.rng.integers(256)
        if self.rng.random() < 0.2:
            del self.content[self.rng.integers(PARTS, len(self.content)) :]

    def sealed(self) -> bytes:
        """All of it, with the digest that it should have."""
        self.content[DIGEST] = hashlib.sha256(self.content[DIGEST.stop :]).digest()
        return bytes(self.content)


def mutations(files: Sequence[bytes], count: int, seed: int) -> Iterator[bytes]:
    """So many changed files."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        changed = Changed(files[int(rng.integers(len(files)))], rng)
        try:
            for _ in range(rng.integers(1, 5)):
                changed.change()
        except ValueError:  # too short by now for another change
            pass
        yield changed.sealed()


def build(folder: Path) -> Path:
    """The engine with sanitizers, as a program that runs files."""
    driver = Path(__file__).with_suffix(".cpp")
    program = folder / "fuzz_native"
    folders = (f"-I{SOURCE.parent}", f"-I{KERNELS.parent}")
    subprocess.run(["c++", *FLAGS, *folders, str(driver), str(SOURCE), "-o", str(program)], check=True)
    return program


def run(program: Path, paths: Sequence[Path]) -> Iterator[tuple[Path, str]]:
    """What became of each file: "ran", "refused: ..." or how it broke the program, which then begins anew."""
    left = list(paths)
    while left:
        names = "\n".join(map(str, left)) + "\n"
        done = subprocess.run([program], input=names, capture_output=True, text=True, check=False, errors="replace")
        lines = done.stdout.splitlines()
        for line in lines[: len(left)]:
            path = left.pop(0)
            outcome = line.removeprefix(f"{path} ") if line.startswith(f"{path} ") else ""
            yield path, outcome or f"broke: {_reason(done)}"
        if done.returncode and len(lines) == len(paths):
            return


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    found = [line for line in done.stderr.splitlines() if "ERROR" in line or "runtime error" in line]
    return found[0] if found else f"exit code {done.returncode}"


def fuzz(count: int, seed: int = 0, keep: Path | None = None) -> Counter[str]:
    """How many files were refused, ran or broke out, by their outcome."""
    outcomes: Counter[str] = Counter()
    torch.manual_seed(seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files, program = originals(folder), build(folder)
        changed = mutations(files, count, seed)
        for start in range(0, count, BATCH):
            paths = [folder / f"changed-{start + i}.native" for i in range(min(BATCH, count - start))]
            for path in paths:
                path.write_bytes(next(changed))
            for path, outcome in run(program, paths):
                outcomes[outcome if outcome.startswith("broke") else outcome.partition(":")[0]] += 1
                if outcome.startswith("broke") and keep is not None:
                    keep.mkdir(exist_ok=True)
                    shutil.copy(path, keep)
                path.unlink()
            print(f"{sum(outcomes.values()):,} files: {dict(outcomes)}", file=sys.stderr, flush=True)
    return outcomes


def table() -> str:
    """What the last run left, for a page of the docs."""
    found = json.loads(FILE.read_bytes())["outcomes"]
    broke = sum(count for outcome, count in found.items() if outcome.startswith("broke"))
    counts = (sum(found.values()), found.get("refused", 0), found.get("ran", 0), broke)
    return markdown(["changed files", "refused", "ran in their own memory", "broke out"], [[f"{n:,}" for n in counts]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for files that broke out")
    parser.add_argument("--out", type=Path, default=FILE)
    options = parser.parse_args()
    outcomes = fuzz(options.files, options.seed, options.keep)
    print(", ".join(f"{count:,} {outcome}" for outcome, count in outcomes.most_common()))
    command = f"python -m benchmarks.fuzz_native --files {options.files} --seed {options.seed}"
    write(options.out, {"about": about(command), "outcomes": dict(outcomes)})
    sys.exit(any(outcome.startswith("broke") for outcome in outcomes))


if __name__ == "__main__":
    main()
