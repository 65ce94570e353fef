"""The training loop. What is random in a step is a function of (seed, epoch, step, rank), so nothing random is stored.

With several ranks each has its share of the batch, and DDP takes the mean of their gradients. Cross entropy is summed
over the rank's samples and scaled by ranks / batch, so that the mean is the gradient of the batch's mean. The
regulariser is computed whole on every rank, from histograms summed over ranks; the backward pass of such a sum adds up
all ranks' gradients, so that the mean is again that of one rank with the whole batch.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from typing import NamedTuple, NoReturn, TypeAlias

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import Tensor, nn

from ..data import Batches, flip, in_batches, mirrored, seeded
from ..files import Json
from ..health_check import Health
from ..histograms import histogram
from ..loops import Regularized
from ..tracing import Positions
from .build import Inputs, Task, build_regularizer
from .checkpoint import TOTALS, State
from .evaluation import calibrate_on, first_bad_layer, judge, score
from .journal import Journal
from .ranks import total
from .recipe import Recipe

# network, data, positions of the first test images and the epoch's metrics -> pictures {name: (H, W, 3)}, bytes
Draw: TypeAlias = Callable[[nn.Module, Task, Positions, Json], Mapping[str, Tensor]]
Stop: TypeAlias = Callable[[], int]  # the signal that asks to stop, 0 for none
REMEMBERED = 5  # epochs whose positions are compared with today's
WORRY = {"shifting": 1.0}  # the share of a training before which a verdict is no warning; others have a half


class Batch(NamedTuple):
    """What the network is called with, labels (n,), and where images are blended, the others' labels."""

    inputs: Inputs
    labels: Tensor
    others: Tensor | None = None
    share: float = 0.0  # of the others


class Stopped(InterruptedError):
    """A signal stopped a run, and its work is saved; ``exit_code`` is 128 + the signal's number."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + number


class DivergedError(ValueError):
    """Training cannot go on: the loss is not finite."""

    exit_code = 3


class Loop:
    """Trains ``state.net`` from where ``state`` stands to the end of the recipe."""

    def __init__(
        self,
        recipe: Recipe,
        task: Task,
        accelerator: Accelerator,
        state: State,
        journal: Journal,
        draw: Draw | None = None,
    ) -> None:
        self.recipe, self.task, self.accelerator, self.state, self.journal = recipe, task, accelerator, state, journal
        self.draw = draw
        self.rank, self.world, self.device = accelerator.process_index, accelerator.num_processes, accelerator.device
        self.data = task.data.train.whole(self.device)
        labels = self.data.labels if recipe.sampling == "classes" else None
        self.batches = Batches(samples=len(self.data.labels), batch=recipe.batch, seed=recipe.seed, labels=labels)
        self.steps = recipe.epochs * len(self.batches)
        self.net = accelerator.prepare_model(state.net)  # the same network, in DDP where there are several ranks
        self.objective = Regularized(self.net, build_regularizer(recipe, task))
        self.waited = 0.0  # seconds spent on waiting for batches in this epoch

    def run(self, stop: Stop) -> None:
        """All steps that are left; evaluates and saves after each epoch, and saves before it stops for a signal."""
        first, last = self.state.step, self.steps
        if first < last:
            chosen = (self.chosen(step) for step in range(first, last))
            with (
                closing(in_batches(self.data.images, chosen, self.recipe.workers)) as images,
                closing(ahead(lambda step: self.batch(step, next(images)), first, last)) as batches,
            ):
                self.train(batches, stop)

    def train(self, batches: Iterator[Batch], stop: Stop) -> None:
        """A step for each batch."""
        state, recipe, began = self.state, self.recipe, time.perf_counter()
        self.net.train()
        while state.step < self.steps:
            asked = time.perf_counter()
            batch = next(batches)
            self.waited += time.perf_counter() - asked
            stopped = self.step(batch, stop)
            ended = state.step % len(self.batches) == 0
            saves = ended or stopped or (recipe.checkpoint_every and state.step % recipe.checkpoint_every == 0)
            if saves and not all(bool(p.isfinite().all()) for p in state.net.parameters()):
                self.diverge("weights are not finite", state.step, batch.inputs)  # what is saved is good
            if ended:
                self.end_epoch(time.perf_counter() - began)
                began = time.perf_counter()
            if saves:
                self.journal.save(state)
            if stopped and state.step < self.steps:
                raise Stopped(f"stopped at step {state.step} of {self.steps}, and saved it", stopped)

    def chosen(self, step: int) -> Tensor:
        """The samples (n,) that are the rank's share of a step."""
        epoch, at = divmod(step, len(self.batches))
        return self.batches.indices(epoch, at, self.rank, self.world).to(self.device)

    def batch(self, step: int, images: Tensor) -> Batch:
        """The rank's share of a step, of which the images are here."""
        epoch, at = divmod(step, len(self.batches))
        chosen, when = self.chosen(step), (self.recipe.seed, epoch, at, self.rank)
        part = self.data.part(chosen, self.device, images)
        if self.task.augment.alternates:
            turned = mirrored(len(self.data.labels), self.recipe.seed, epoch)
            part = replace(part, images=flip(part.images, turned.to(self.device)[chosen]))
        made = Batch(self.task.train(part, seeded("augment", *when)), part.labels)
        return blend(made, self.recipe.mixup, seeded("mixup", *when)) if self.recipe.mixup else made

    def step(self, batch: Batch, stop: Stop) -> int:
        """One step of gradient descent; returns the signal that asks any rank to stop, or 0."""
        state, inputs, labels = self.state, batch.inputs, batch.labels
        epoch, at = divmod(state.step, len(self.batches))
        # dropout draws from torch's own generator
        torch.manual_seed(dropout := seeded("dropout", self.recipe.seed, epoch, at, self.rank).initial_seed())
        logits, positions = self.objective.trace(*inputs)
        cross_entropy = summed_entropy(logits, batch, self.recipe.label_smoothing)
        right = (logits.argmax(1) == labels).sum()
        mine = [cross_entropy.detach(), right, labels.new_tensor(len(labels)), labels.new_tensor(bool(stop()))]
        summed, right_sum, samples, stopped = total(self.accelerator, torch.stack([m.double() for m in mine])).tolist()
        if not math.isfinite(summed):
            torch.manual_seed(dropout)
            self.diverge(f"the loss is {summed / samples}", state.step + 1, inputs)
        penalty = self.objective.penalty(positions, labels)
        loss = cross_entropy * (self.world / samples) + penalty
        rate = learning_rate(self.recipe, state.step, self.steps)
        for group in state.optimizer.param_groups:
            group["lr"] = rate * group["share"]
        state.optimizer.zero_grad()
        self.accelerator.backward(loss)
        if self.recipe.clip:
            nn.utils.clip_grad_norm_(state.net.parameters(), self.recipe.clip)
        state.optimizer.step()
        state.step += 1
        state.follow(self.recipe.average)
        numbers = (summed, float(penalty.detach()) * samples, right_sum, samples)
        state.totals = [t + n for t, n in zip(state.totals, numbers, strict=True)]
        if state.step % self.recipe.log_every == 0:
            self.journal.step(epoch, state.step, rate, dict(zip(TOTALS, numbers, strict=True)))
        self.journal.watcher.step(state.step, state.totals[0] / state.totals[3], state.totals[2] / state.totals[3])
        return (stop() or signal.SIGTERM) if stopped else 0

    def end_epoch(self, seconds: float) -> None:
        """Test the network, look at its positions, and write a line about both."""
        state = self.state
        drawn = None if self.batches.labels is None else self.batches.order(0)
        calibrate_on(state.outcome, self.task, self.recipe.calibrate, self.device, order=drawn)
        result = score(state.outcome, self.task, self.accelerator)
        entropy, regularizer, right, samples = state.totals
        line: Json = {
            "kind": "epoch",
            "epoch": state.step // len(self.batches),
            "step": state.step,
            "train_loss": entropy / samples,
            "train_accuracy": right / samples,
            "regularizer": regularizer / samples,
            "test_loss": result.loss,
            "test_accuracy": result.accuracy,
        }
        if result.balanced is not None:
            line["test_balanced_accuracy"] = result.balanced
        reached = result.accuracy if drawn is None or result.balanced is None else result.balanced
        if state.best is None or reached > state.best["accuracy"]:
            state.best = {"step": state.step, "accuracy": reached}
        if self.accelerator.is_main_process:
            self.look(line)
        state.totals = [0.0] * len(TOTALS)
        self.journal.epoch(line, seconds, self.waited, int(samples))
        self.waited = 0.0

    def look(self, line: Json) -> None:
        """Add the health of the network's positions to an epoch's line, warn of unhealthy layers, and draw."""
        state, watcher = self.state, self.journal.watcher
        if (seen := judge(state.outcome, self.task, self.device, state.quantiles)) is None:
            return
        report, positions = seen
        state.quantiles = [*state.quantiles, {h.layer: h.quantiles for h in report.layers}][-REMEMBERED:]
        line["layers"] = [
            {k: v for k, v in row.items() if k != "advice"} | {"histogram": histogram(positions[row["layer"]]).tolist()}
            for row in report.rows()
        ]
        # while a network learns its positions gather and move, which is nothing to worry about unless it stays so
        settled = Health(tuple(h for h in report.layers if state.step >= WORRY.get(h.verdict, 0.5) * self.steps))
        if settled.unhealthy and not state.warned:  # once a run; metrics have every epoch's verdicts
            state.warned = [layer.layer for layer in settled.unhealthy]
            watcher.note(f"WARNING: {settled.warning()}")
        self.journal.positions(positions, state.step)
        if self.draw is not None:
            self.journal.trackers.images(self.draw(state.outcome, self.task, positions, line), state.step)

    def diverge(self, what: str, step: int, inputs: Inputs) -> NoReturn:
        """Say which layer went bad first, where the last good weights are, and what to try."""
        clipped = 0 < self.recipe.clip <= 1
        cure = "" if clipped else "clip=1, which scales down gradients that are too large, and if that is not enough "
        culprit = first_bad_layer(self.state.net, inputs)
        epoch = (step - 1) // len(self.batches) + 1
        raise DivergedError(
            f"{what} at step {step}, epoch {epoch}: first bad are {culprit}; {self.journal.last_saved()}; "
            f"try {cure}a smaller learning_rate"
        )


def blend(batch: Batch, most: float, generator: torch.Generator) -> Batch:
    """Mixup: every image with some of another, the same share for all of them."""
    share = most * float(torch.rand((), generator=generator))
    order = torch.randperm(len(batch.labels), generator=generator).to(batch.labels.device)
    (images,) = batch.inputs
    return Batch((torch.lerp(images, images[order], share),), batch.labels, batch.labels[order], share)


def summed_entropy(logits: Tensor, batch: Batch, smoothing: float) -> Tensor:
    """Cross entropy with labels, and with those that are blended in: (N, classes) -> ()."""
    entropy = F.cross_entropy(logits, batch.labels, reduction="sum", label_smoothing=smoothing)
    if batch.others is None:
        return entropy
    other = F.cross_entropy(logits, batch.others, reduction="sum", label_smoothing=smoothing)
    return torch.lerp(entropy, other, batch.share)


def learning_rate(recipe: Recipe, step: int, steps: int) -> float:
    """That of step 0 .. steps - 1, a function of the step: nothing to store."""
    done = (step + 1) / steps
    if done <= recipe.warmup:
        return recipe.learning_rate * done / recipe.warmup
    if recipe.anneal == "steps":
        return recipe.learning_rate * recipe.drop_factor ** sum(done > drop for drop in recipe.drops)
    left = min((steps - step) / max(steps * (1 - recipe.warmup), 1), 1)
    return recipe.learning_rate * (left if recipe.anneal == "triangular" else (1 - math.cos(math.pi * left)) / 2)


def ahead(make: Callable[[int], Batch], first: int, last: int) -> Generator[Batch, None, None]:
    """make(first), .., make(last - 1), each begun in another thread while the one before is in use."""
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(make, first)
        for step in range(first, last):
            made = coming.result()
            if step + 1 < last:
                coming = pool.submit(make, step + 1)
            yield made
