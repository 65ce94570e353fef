"""Train a recipe in a run's folder: everything around the loop."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

from accelerate import Accelerator
from torch.distributed import DistError

from . import checkpoint
from .build import build_average, build_network, load_task
from .cautions import cautions
from .checkpoint import Checkpoint, State
from .journal import Journal, Trackers, Watcher, check_trackers
from .loop import Draw, Loop, Stop
from .optimizer import build_optimizer
from .ranks import accelerate_with, on_main, ranks, resolve_precision
from .recipe import Recipe
from .run import Run


class LostError(ConnectionError):
    """Another rank is gone; a launcher that allows restarts starts all of them again."""

    exit_code = 1


def train(
    recipe: Recipe,
    out: str | Path,
    *,
    resume: bool = False,
    trackers: Sequence[str] = (),
    watcher: Watcher | None = None,
    draw: Draw | None = None,
) -> State:
    """Train a recipe in the folder ``out``; with ``resume``, continue from its last good checkpoint if it has one.

    A worker that a launcher has restarted always continues. ``draw`` makes pictures for TensorBoard after epochs.
    Returns the state at the end.
    """
    check_trackers(trackers)
    watcher = watcher or Watcher()
    resume = resume or int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    run = Run(Path(out))
    begun = resume and bool(checkpoint.steps(run.checkpoints))
    task = load_task(recipe)
    net = build_network(replace(recipe, weights="") if begun else recipe, task, watcher.note)
    try:
        precision, found = begin(run, recipe, resume, watcher)
        watcher.built(recipe, task, net)
        for caution in cautions(recipe, task, net):
            watcher.note(f"WARNING: {caution}")
        accelerator = accelerate_with(precision, trackers, str(out))
        net = net.to(accelerator.device)
        state = State(net, build_optimizer(recipe, net), build_average(recipe, net))
        metrics = state.restore(found) if found else (0, None)
        tracking = Trackers(accelerator, trackers, recipe, state.step)
        journal = Journal(run, recipe, accelerator, tracking, watcher, metrics)
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


def begin(run: Run, recipe: Recipe, resume: bool, watcher: Watcher) -> tuple[str, Checkpoint | None]:
    """Open a run's folder, which the first rank alone knows; on all ranks its precision, and where to go on from."""

    def work() -> bytes:
        begun_before = run.description.exists()
        run.open(recipe, resolve_precision(recipe.precision), resume)
        found = checkpoint.read_last(run.checkpoints, watcher.note)
        if found is None and begun_before:
            run.check_loss(watcher.note)
        if found is not None:  # one that was killed may not have come to removing what is no longer wanted
            checkpoint.tidy(run.checkpoints, found, recipe.keep)
        head = run.read()["precision"].encode().ljust(16)
        return head if found is None else head + checkpoint.pack(found)

    begun = on_main(ranks(), work)
    return begun[:16].decode().strip(), checkpoint.unpack(begun[16:]) if begun[16:] else None


@contextmanager
def watching_others(accelerator: Accelerator, journal: Journal) -> Iterator[None]:
    """Say in one sentence that another rank is gone."""
    try:
        yield
    except RuntimeError as error:
        if accelerator.num_processes == 1 or not ("gloo" in str(error) or isinstance(error, DistError)):
            raise
        raise LostError(f"another worker was lost; {journal.last_saved()}") from None


@contextmanager
def stopping() -> Iterator[Stop]:
    """Let Ctrl-C and SIGTERM ask the loop to stop at the next step; a second Ctrl-C does not ask.

    Outside the main thread signals are somebody else's.
    """
    asked = 0

    def wish(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked = number

    ours = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.signal(number, wish) for number in ours}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
