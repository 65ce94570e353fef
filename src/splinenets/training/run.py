"""A run's folder: its recipe, versions and command; metrics; checkpoints; and the network out of it.

runs/x/run.json           recipe, versions, command; written once
runs/x/metrics.jsonl      what training computed, a line for every few steps and one for each epoch; nothing that
                          depends on the clock, so two runs with one seed have the same bytes
runs/x/timings.jsonl      how long each epoch took
runs/x/checkpoints/       the last few, and the best
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import BinaryIO, TypedDict

import torch
from torch import nn

from .. import __version__
from ..files import DamagedError, Json, check_fields, lock, naming, read_sealed, write_sealed
from . import checkpoint
from .build import Task, build_network, load_task
from .checkpoint import restore_outcome
from .ranks import ranks
from .recipe import PRECISIONS, Recipe

FORMAT = 1
CHOICES = ("last", "best")


class Description(TypedDict):
    """What run.json holds, beside its format and the command."""

    recipe: dict[str, object]
    precision: str
    versions: dict[str, object]


class Run:
    """An open run folder; one process at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoints = folder / "checkpoints"
        self.lock: BinaryIO | None = None

    @property
    def description(self) -> Path:
        """The file that makes a folder a run."""
        return self.folder / "run.json"

    def open(self, recipe: Recipe, precision: str, resume: bool) -> None:
        """Begin a run in a new or empty folder, or, with ``resume``, go on with one of the same recipe."""
        if self.description.exists():
            if not resume:
                raise ValueError(
                    f"{self.folder} already holds a run: continue it with --resume, or choose another --out"
                )
            self._hold()
            self._same(recipe)
            return
        ours = {".lock", f".{self.description.name}.tmp"}  # what a run that was killed at its beginning may leave
        if self.folder.exists() and (
            not self.folder.is_dir() or any(p.name not in ours for p in self.folder.iterdir())
        ):
            raise ValueError(f"{self.folder} is in use by something that is not a run: choose another --out")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._hold()
        content = {
            "format": FORMAT,
            "recipe": recipe.as_dict(),
            "precision": precision,
            "versions": versions(),
            "command": sys.argv,
        }
        write_sealed(self.description, content)

    def close(self) -> None:
        """Let others in."""
        if self.lock is not None:
            self.lock.close()
            self.lock = None

    def look(self) -> Json:
        """What run.json holds, whatever its format."""
        if not self.description.is_file():
            why = f"it has no {self.description.name}" if self.folder.exists() else "there is no such folder"
            raise ValueError(f"{self.folder} is not a run: {why}")
        return read_sealed(self.description)

    def read(self) -> Json:
        """What run.json holds."""
        content = self.look()
        if content.get("format") != FORMAT:
            raise ValueError(f"{self.description} has format {content.get('format')}, this version reads {FORMAT}")
        check_fields(content, Description, self.description)
        if content["precision"] not in PRECISIONS:
            raise DamagedError(f"{self.description} is damaged: its precision is {content['precision']!r}")
        return content

    def check_loss(self, note: Callable[[str], None]) -> None:
        """A run that was begun has no checkpoint: say that it begins anew, or raise if it had one."""
        metrics = self.folder / "metrics.jsonl"
        text = metrics.read_bytes() if metrics.exists() else b""
        if re.search(rb'"epoch": ([2-9]|1\d)', text):  # an epoch ends with a checkpoint
            raise ValueError(
                f"{self.folder} has metrics and no checkpoint with its .json file in {self.checkpoints}: put them back "
                "to continue, or start again with another --out"
            )
        note(f"WARNING: {self.folder} has no checkpoint with its .json file, so training starts again at step 0")

    def metrics_are_whole(self) -> bool:
        """Whether metrics begin with those that lead to the last checkpoint, as far as that is known."""
        found = checkpoint.read_last(self.checkpoints, lambda damage: None)
        metrics = self.folder / "metrics.jsonl"
        text = metrics.read_bytes() if metrics.exists() else b""
        expected = None if found is None else found.state.get("metrics_sha256")
        if found is None or expected is None:
            return True
        return hashlib.sha256(text[: found.state["metrics_length"]]).hexdigest() == expected

    def recipe(self) -> Recipe:
        """By which it was begun."""
        return Recipe.stored(self.read()["recipe"], str(self.description))

    def _hold(self) -> None:
        with naming(self.folder):
            self.lock = (self.folder / ".lock").open("wb")
        if not lock(self.lock):
            self.close()
            raise ValueError(f"another process trains in {self.folder}: wait for it, or choose another --out")

    def _same(self, recipe: Recipe) -> None:
        changed = recipe.change_since(self.read()["recipe"], str(self.description))
        if changed is not None:
            key, before, now = changed
            raise ValueError(
                f"{self.folder} was begun with {key}={before!r}, now {key} is {now!r}: "
                f"resume with the same recipe, or choose another --out"
            )


def load_run(folder: str | Path, which: str = "last") -> tuple[nn.Module, Task, Recipe, int]:
    """The network of a run, its data, its recipe and the step of its checkpoint, "last" or "best".

    The best is that with the highest test accuracy: it was chosen by looking at the test set, so quote the last.
    """
    if which not in CHOICES:
        raise ValueError(f"unknown checkpoint {which!r}, choose from {', '.join(CHOICES)}")
    run = Run(Path(folder))
    recipe = run.recipe()
    notes: list[str] = []
    found = checkpoint.read_last(run.checkpoints, notes.append)
    if found is None:
        raise ValueError(f"{folder} has no checkpoint yet")
    if notes and which == "last":
        raise ValueError(f"{notes[0].removeprefix('WARNING: ')}; 'splinenets train ... --resume' continues from it")
    if which == "best":
        if found.state["best"] is None:
            raise ValueError(f"{folder} has no best checkpoint yet: no epoch is complete")
        found = checkpoint.read(run.checkpoints, found.state["best"]["step"])
    task = load_task(recipe)
    net = build_network(replace(recipe, weights=""), task)  # the checkpoint has better ones
    restore_outcome(net, found)
    return net.to(ranks().device).eval(), task, recipe, found.step


class Lines:
    """A file of JSON lines that can be taken back to an earlier length."""

    def __init__(self, path: Path, length: int | None = None, sha256: str | None = None) -> None:
        """Open for appending, and forget what stands behind the first ``length`` bytes, whose digest may be known."""
        self.path = path
        with naming(path):
            before = path.read_bytes() if path.exists() else b""
            self.digest = hashlib.sha256(before[:length])
            if length is not None and len(before) < length:
                raise ValueError(f"{path} should hold {length} bytes or more, but holds {len(before)}: lines were lost")
            if sha256 is not None and self.digest.hexdigest() != sha256:
                raise DamagedError(
                    f"{path} is damaged: its first {length} bytes do not have the SHA-256 of the checkpoint that they "
                    "lead to; put back a copy of it, or start again with another --out"
                )
            self.file = path.open("ab")
            if length is not None:
                self.file.truncate(length)

    def add(self, values: Mapping[str, object]) -> None:
        """One more line."""
        line = json.dumps(values).encode() + b"\n"
        self.digest.update(line)
        with naming(self.path):
            self.file.write(line)

    def settle(self) -> tuple[int, str]:
        """Put everything on disk; the length in bytes, and the SHA-256."""
        with naming(self.path):
            self.file.flush()
            os.fsync(self.file.fileno())
        return self.file.tell(), self.digest.hexdigest()

    def close(self) -> None:
        """Put what is there into the file."""
        with naming(self.path):
            self.file.close()


def versions() -> dict[str, str]:
    """What a run depends on."""
    return {
        "splinenets": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": str(torch.__version__),  # says for which device it was built, which its package's version may not
        **{name: version(name) for name in ("accelerate", "safetensors", "numpy")},
    }
