"""A network out of a run's folder."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from . import checkpoint
from .build import Task, build_network, load_task
from .precision import ranks
from .recipe import Recipe
from .run import Run
from .state import restore_weights

CHOICES = ("last", "best")


def load_run(folder: str | Path, which: str = "last") -> tuple[nn.Module, Task, Recipe, int]:
    """The network of a run, its data, its recipe and the step of its checkpoint, "last" or "best".

    The best is that with the highest test accuracy: it was chosen by looking at the test set, so quote the last.
    """
    if which not in CHOICES:
        raise ValueError(f"unknown checkpoint {which!r}, choose from {', '.join(CHOICES)}")
    run = Run(Path(folder))
    recipe = Recipe.from_dict(run.read()["recipe"], str(run.description))
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
    net = build_network(recipe, task)
    restore_weights(net, found)
    return net.to(ranks().device).eval(), task, recipe, found.step
