"""How training looks in a terminal."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import replace

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from torch import nn

from ..costs import cost
from ..files import Json
from ..layers import SplineLayer
from ..tables import text_table
from ..training import Recipe, Watcher
from ..training.build import Task, build_twin
from ..training.evaluation import balanced_in_words
from .train import is_first_rank


class Display(Watcher):
    """A progress bar with loss, accuracy, speed and time left; a line for each epoch. Only the first rank prints."""

    def __init__(self, name: str = "training") -> None:
        self.name = name
        self.console = Console(stderr=True, quiet=not is_first_rank())
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
            TextColumn("loss {task.fields[loss]:.3f}  accuracy {task.fields[accuracy]:.1%}"),
            TextColumn("{task.fields[speed]:,.0f} images/s"),
            TimeRemainingColumn(),
        )
        # without a terminal there is no bar, only lines
        self.bar = Progress(*columns, console=self.console, disable=not self.console.is_terminal, transient=True)
        self.waiting = ExitStack()  # until the first step: images are read, and a network is built
        self.task: TaskID | None = None
        self.batch = 0

    def built(self, recipe: Recipe, task: Task, net: nn.Module) -> None:
        """What a SplineNet costs, beside its static twin."""
        if recipe.spec is not None and is_first_rank():
            self.note(price(recipe, task, net))

    def begin(self, step: int, steps: int, batch: int) -> None:
        """Show the bar."""
        self.batch = batch
        if step:
            self.note(f"continuing after step {step} of {steps}")
        self.waiting.close()
        self.bar.start()
        self.task = self.bar.add_task(self.name, total=steps, completed=step, loss=0.0, accuracy=0.0, speed=0.0)

    def step(self, step: int, loss: float, accuracy: float) -> None:
        """Move the bar."""
        assert self.task is not None
        speed = self.bar.tasks[0].speed or 0.0
        self.bar.update(self.task, completed=step, loss=loss, accuracy=accuracy, speed=speed * self.batch)

    def epoch(self, line: Json, seconds: float) -> None:
        """One line."""
        if is_first_rank():
            text = (
                f"{self.name}: epoch {line['epoch']:>3}  train loss {line['train_loss']:.4f}, "
                f"accuracy {line['train_accuracy']:.2%}  test loss {line['test_loss']:.4f}, "
                f"accuracy {line['test_accuracy']:.2%}{balanced_in_words(line.get('test_balanced_accuracy'))}  "
                f"{seconds:.1f} s"
            )
            self.bar.console.print(text, markup=False, highlight=False, soft_wrap=True)
            sys.stderr.flush()

    def note(self, text: str) -> None:
        """One line."""
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def __enter__(self) -> Display:
        """Say that images are being read, which takes its time if there are many."""
        if self.console.is_terminal and is_first_rank():
            self.waiting.enter_context(self.console.status("reading images"))
        return self

    def __exit__(self, *error: object) -> None:
        """Take the bar away."""
        self.waiting.close()
        self.bar.stop()


def price(recipe: Recipe, task: Task, net: nn.Module) -> str:
    """How many layers became splines, and a table of what the network cost before and costs now."""
    splines = sum(isinstance(module, SplineLayer) for module in net.modules())
    inputs = task.example(1)
    before, after = cost(build_twin(replace(recipe, weights=""), task), inputs[:1]), cost(net, inputs)
    amounts = [
        ("parameters", before.parameters, after.parameters),
        ("  in training", before.trained, after.trained),
        ("MACs", before.macs, after.macs),
    ]
    body = [(name, f"{old:,}", f"{new:,}", f"{new / old:.2f}") for name, old, new in amounts]
    return f"{splines} layers are splines\n{text_table(('one image', 'plain', recipe.model, 'times'), body)}"
