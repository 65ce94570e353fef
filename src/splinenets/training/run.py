"""A run's folder: its recipe, versions and command; metrics; checkpoints; and the network out of it.

runs/x/run.json           recipe, versions, command; written once
runs/x/metrics.jsonl      what training computed, a line for every few steps and one for each epoch; nothing that
                          depends on the clock, so two runs with one seed have the same bytes
runs/x/timings.jsonl      how long each epoch took
runs/x/checkpoints/       the last few, and the best
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import nn

from .. import __version__
from ..files import lock, naming, read_sealed, write_sealed
from . import checkpoint
from .build import Task, build_network, load_task
from .checkpoint import restore_outcome
from .ranks import ranks
from .recipe import Recipe

FORMAT = 1
CHOICES = ("last", "best")


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
                raise ValueError(f"{self.folder} holds a run already: go on with --resume, or choose another --out")
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

    def look(self) -> dict[str, Any]:
        """What run.json holds, whatever its format."""
        if not self.description.is_file():
            raise ValueError(f"{self.folder} is not a run: it has no {self.description.name}")
        return read_sealed(self.description)

    def read(self) -> dict[str, Any]:
        """What run.json holds."""
        content = self.look()
        if content.get("format") != FORMAT:
            raise ValueError(f"{self.description} has format {content.get('format')}, this version reads {FORMAT}")
        return content

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
        raise ValueError(f"{notes[0].removeprefix('WARNING: ')}; 'splinenets train ... --resume' goes on from it")
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

    def __init__(self, path: Path, length: int | None = None) -> None:
        """Open for appending, and forget what stands behind the first ``length`` bytes."""
        self.path = path
        with naming(path):
            self.file = path.open("ab")
            there = self.file.tell()
            if length is not None and there < length:
                self.file.close()
                raise ValueError(f"{path} should hold {length} bytes or more, but holds {there}: lines were lost")
            if length is not None:
                self.file.truncate(length)

    def add(self, values: Mapping[str, object]) -> None:
        """One more line."""
        with naming(self.path):
            self.file.write(json.dumps(values).encode() + b"\n")

    def settle(self) -> int:
        """Put everything on disk; the length in bytes."""
        with naming(self.path):
            self.file.flush()
            os.fsync(self.file.fileno())
        return self.file.tell()

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
