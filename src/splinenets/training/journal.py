"""Who is told how training goes: the run's own files, trackers such as TensorBoard, and a watcher.

Only the first rank writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from accelerate import Accelerator
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers
from torch import Tensor, nn

from ..files import Json
from . import checkpoint
from .build import Task
from .checkpoint import State
from .ranks import on_main
from .recipe import Recipe, nearest
from .run import Lines, Run

PACKAGES = {"tensorboard": "pip install 'splinenets[tensorboard]'"}


class Watcher:
    """Hears what happens. This one keeps silent; the command line shows it."""

    def built(self, recipe: Recipe, task: Task, net: nn.Module) -> None:
        """The network is there, as it starts."""

    def begin(self, step: int, steps: int, batch: int) -> None:
        """Training starts, or goes on, after ``step`` of ``steps`` steps of ``batch`` samples."""

    def step(self, step: int, loss: float, accuracy: float) -> None:
        """A step is done; loss and accuracy are those of the epoch so far."""

    def epoch(self, line: Json, seconds: float) -> None:
        """An epoch is done; ``line`` is its line of metrics."""

    def note(self, text: str) -> None:
        """One sentence."""


class Journal:
    """Writes into a run's folder and tells trackers and the watcher."""

    def __init__(
        self,
        run: Run,
        recipe: Recipe,
        accelerator: Accelerator,
        trackers: Trackers,
        watcher: Watcher,
        metrics: tuple[int, str | None],
    ) -> None:
        """``metrics`` are their length at the checkpoint from which this run goes on, and their digest if known."""
        self.run, self.recipe, self.accelerator = run, recipe, accelerator
        self.trackers, self.watcher, self.writes = trackers, watcher, accelerator.is_main_process
        if self.writes:
            self.metrics = Lines(run.folder / "metrics.jsonl", *metrics)
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

    def epoch(self, line: Json, seconds: float, waited: float, samples: int) -> None:
        """A line about an epoch."""
        names = ("train_loss", "train_accuracy", "regularizer", "test_loss", "test_accuracy", "test_balanced_accuracy")
        numbers = {f"epoch/{name}": line[name] for name in names if name in line}
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
            saved = state.checkpoint(*self.metrics.settle())
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


# TensorBoard, or any other tracker that Accelerate knows by name


def check_trackers(names: Sequence[str]) -> None:
    """Raise unless every tracker is known and installed."""
    known = sorted(str(name) for name in LOGGER_TYPE_TO_CLASS)
    there = {str(getattr(name, "value", name)) for name in get_available_trackers()}
    for name in names:
        if name not in known:
            raise ValueError(f"--tracker: unknown tracker {name!r}{nearest(name, known)}")
        if name not in there:
            raise ValueError(f"--tracker {name} is not installed: {PACKAGES.get(name, f'install the package {name}')}")


class Trackers:
    """Sends numbers to the trackers of a run; there may be none."""

    def __init__(self, accelerator: Accelerator, names: Sequence[str], recipe: Recipe, step: int) -> None:
        self.accelerator, self.names = accelerator, names
        if names:
            # what TensorBoard saw of steps that a resumed run does again is taken back
            options = {"tensorboard": {"purge_step": step}} if "tensorboard" in names else {}
            config = {k: str(v) if isinstance(v, list | dict) else v for k, v in recipe.as_dict().items()}
            accelerator.init_trackers("splinenets", config=config, init_kwargs=options)

    def log(self, values: Mapping[str, object], step: int) -> None:
        """Numbers of a step."""
        if self.names:
            self.accelerator.log(dict(values), step=step)

    def histograms(self, positions: Mapping[str, Tensor], step: int) -> None:
        """The paper's own view: how positions of each layer are spread, over time."""
        if "tensorboard" in self.names and self.accelerator.is_main_process:
            writer = self.accelerator.get_tracker("tensorboard", unwrap=True)
            for name, position in positions.items():
                writer.add_histogram(f"positions/{name}", position.float().flatten().cpu(), step, bins=50)

    def images(self, images: Mapping[str, Tensor], step: int) -> None:
        """Pictures of bytes, {name: (H, W, 3)}."""
        if "tensorboard" in self.names and self.accelerator.is_main_process:
            writer = self.accelerator.get_tracker("tensorboard", unwrap=True)
            for name, image in images.items():
                writer.add_image(f"figures/{name}", image, step, dataformats="HWC")

    def close(self) -> None:
        """Let trackers finish."""
        if self.names:
            self.accelerator.end_training()
