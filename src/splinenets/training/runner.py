"""Train a recipe in a run's folder: everything around the loop."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from accelerate import Accelerator
from torch.distributed import DistError

from . import checkpoint
from .build import build_network, build_optimizer, load_task
from .journal import Journal
from .loop import Draw, Loop
from .precision import accelerate_with, ranks, resolve
from .ranks import on_main
from .recipe import Recipe
from .run import Run
from .signals import stopping
from .state import State
from .trackers import Trackers, check_trackers
from .watcher import Watcher


class LostError(ConnectionError):
    """Another rank is gone; a launcher that allows restarts starts all of them again."""

    exit_code = 1


@contextmanager
def watching_others(accelerator: Accelerator, journal: Journal) -> Iterator[None]:
    """Say in one sentence that another rank is gone."""
    try:
        yield
    except RuntimeError as error:
        if accelerator.num_processes == 1 or not ("gloo" in str(error) or isinstance(error, DistError)):
            raise
        raise LostError(f"another worker was lost; {journal.last_saved()}") from None


def train(
    recipe: Recipe,
    out: str | Path,
    *,
    resume: bool = False,
    trackers: Sequence[str] = (),
    watcher: Watcher | None = None,
    draw: Draw | None = None,
) -> State:
    """Train a recipe in the folder ``out``; with ``resume``, go on from its last good checkpoint if it has one.

    A worker that a launcher has restarted always goes on. ``draw`` makes pictures for TensorBoard at the end of epochs.
    Returns the state at the end.
    """
    check_trackers(trackers)
    watcher = watcher or Watcher()
    resume = resume or int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    task = load_task(recipe)
    net = build_network(recipe, task)
    run = Run(Path(out))

    def begin() -> bytes:
        run.open(recipe, resolve(recipe.precision), resume)
        found = checkpoint.read_last(run.checkpoints, watcher.note)
        head = run.read()["precision"].encode().ljust(16)
        return head if found is None else head + checkpoint.pack(found)

    try:
        begun = on_main(ranks(), begin)  # the first rank alone knows the folder
        accelerator = accelerate_with(begun[:16].decode().strip(), trackers, str(out))
        state = State(net.to(accelerator.device), build_optimizer(recipe, net))
        length = state.restore(checkpoint.unpack(begun[16:])) if begun[16:] else 0
        tracked = Trackers(accelerator, trackers, recipe, state.step)
        journal = Journal(run, recipe, accelerator, tracked, watcher, length)
        try:
            loop = Loop(recipe, task, accelerator, state, journal, draw)
            watcher.begin(state.step, loop.steps, recipe.batch)
            with stopping() as stop, watching_others(accelerator, journal):
                loop.run(stop)
        finally:
            journal.close()
    finally:
        run.close()
    return state
