"""What a run writes while it trains: metrics, timings, trackers, checkpoints. Only the first rank writes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from accelerate import Accelerator
from torch import Tensor

from . import checkpoint
from .ranks import on_main
from .recipe import Recipe
from .run import Lines, Run
from .state import State
from .trackers import Trackers
from .watcher import Watcher


class Journal:
    """Writes into a run's folder and tells trackers and the watcher."""

    def __init__(
        self, run: Run, recipe: Recipe, accelerator: Accelerator, trackers: Trackers, watcher: Watcher, length: int
    ) -> None:
        """``length`` is that of the metrics at the checkpoint from which this run goes on."""
        self.run, self.recipe, self.accelerator = run, recipe, accelerator
        self.trackers, self.watcher, self.writes = trackers, watcher, accelerator.is_main_process
        if self.writes:
            self.metrics = Lines(run.folder / "metrics.jsonl", length)
            self.timings = Lines(run.folder / "timings.jsonl")

    def step(self, epoch: int, step: int, rate: float, sums: Mapping[str, float]) -> None:
        """A line about one step."""
        samples = sums["samples"]
        values = {
            "cross_entropy": sums["cross_entropy"] / samples,
            "regularizer": sums["regularizer"] / samples,
            "accuracy": sums["right"] / samples,
            "learning_rate": rate,
        }
        if self.writes:
            self.metrics.add({"kind": "step", "epoch": epoch + 1, "step": step, **values})
        self.trackers.log({f"train/{name}": value for name, value in values.items()}, step)

    def epoch(self, line: dict[str, Any], seconds: float, waited: float, samples: int) -> None:
        """A line about an epoch."""
        names = ("train_loss", "train_accuracy", "regularizer", "test_loss", "test_accuracy")
        numbers = {f"epoch/{name}": line[name] for name in names}
        for layer in line.get("layers", ()):
            for measure in ("entropy", "information", "deviation"):
                numbers[f"{measure}/{layer['layer']}"] = layer[measure]
        self.trackers.log(numbers, line["step"])
        if self.writes:
            self.metrics.add(line)
            time = {"epoch": line["epoch"], "seconds": seconds, "waited_for_data": waited, "samples": samples}
            self.timings.add(time)
            self.timings.settle()  # how long a run took must not be forgotten when it is killed
        self.watcher.epoch(line, seconds)

    def positions(self, positions: Mapping[str, Tensor], step: int) -> None:
        """Where test images are, for trackers that draw."""
        self.trackers.histograms(positions, step)

    def save(self, state: State) -> None:
        """A checkpoint, behind the metrics that lead to it."""

        def work() -> bytes:
            best = state.best["step"] if state.best else None
            saved = state.checkpoint(self.metrics.settle())
            checkpoint.write(self.run.checkpoints, saved, self.recipe.keep, best)
            return b""

        on_main(self.accelerator, work)

    def last_saved(self) -> str:
        """Where the last good checkpoint is, in words."""
        steps = checkpoint.steps(self.run.checkpoints)
        if not steps:
            return "there is no checkpoint yet"
        return f"the last good checkpoint is {self.run.checkpoints / f'{steps[-1]:08d}.safetensors'}"

    def close(self) -> None:
        """Close what is open."""
        if self.writes:
            self.metrics.close()
            self.timings.close()
        self.trackers.close()
