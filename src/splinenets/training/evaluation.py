"""How good a network is, every test sample counted once however many ranks there are; and which layer went bad."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import Tensor, nn

from ..calibration import calibrate
from ..data import in_order
from ..data.batches import is_uneven
from ..health_check import FEWEST, Health, health
from ..tracing import Positions, evaluating, hooked, join_positions, trace
from .build import Inputs, Task
from .ranks import total

JUDGED = 1_000  # test images whose positions are looked at


@dataclass(frozen=True)
class Score:
    """Mean cross entropy, right answers of so many samples, and the mean over classes of each one's accuracy.

    ``balanced`` is None where classes have about as many test images, so that it says no more than the accuracy.
    """

    loss: float
    right: int
    samples: int
    balanced: float | None = None

    @property
    def accuracy(self) -> float:
        """The share of right answers."""
        return self.right / self.samples

    def __str__(self) -> str:
        text = f"accuracy {self.accuracy:.2%} ({self.right} of {self.samples})"
        return f"{text}{balanced_in_words(self.balanced)}, loss {self.loss:.4f}"


def balanced_in_words(balanced: float | None) -> str:
    """What stands behind an accuracy."""
    return "" if balanced is None else f", {balanced:.2%} balanced"


def calibrate_on(net: nn.Module, task: Task, count: int, device: torch.device, order: Tensor | None = None) -> None:
    """Standardise decisions by so many undistorted training images, from all over the set; every rank does the same.

    ``order`` names those that training draws from, where these are not each image once.
    """
    split = task.data.train
    count = min(count, len(split.labels))
    if count < 2:
        return
    chosen, parts = torch.arange(count) * len(split.labels) // count, max(count // 250, 1)
    chosen = chosen if order is None else order[chosen]
    calibrate(net, (task.show(split, chosen[part::parts], device) for part in range(parts)))


@torch.no_grad()
def score(net: nn.Module, task: Task, accelerator: Accelerator) -> Score:
    """Test a network; each rank does its share and all know the result."""
    split, device, classes = task.data.test, accelerator.device, len(task.data.classes)
    sums = torch.zeros(1 + 2 * classes, dtype=torch.float64, device=device)  # loss; right and all, of each class
    with evaluating(net):
        for part in in_order(len(split.labels), 500, accelerator.process_index, accelerator.num_processes):
            labels = split.labels[part].to(device)
            logits = net(*task.show(split, part, device))
            loss = F.cross_entropy(logits.double(), labels, reduction="sum")
            right = labels[logits.argmax(1) == labels]
            counts = [some.bincount(minlength=classes) for some in (right, labels)]
            sums += torch.cat([loss.unsqueeze(0), *counts])
    loss_sum, right_by_class, by_class = total(accelerator, sums).split([1, classes, classes])
    present = by_class > 0
    uneven = is_uneven(by_class[present].tolist())
    balanced = float((right_by_class[present] / by_class[present]).mean()) if uneven else None
    samples = int(by_class.sum())
    return Score(float(loss_sum) / samples, int(right_by_class.sum()), samples, balanced)


@torch.no_grad()
def see_positions(net: nn.Module, task: Task, device: torch.device) -> tuple[Positions, Tensor]:
    """Where the first test images go, and their labels."""
    split = task.data.test
    shown = in_order(min(JUDGED, len(split.labels)), 250)
    with evaluating(net):
        parts = [trace(net, *task.show(split, part, device))[1] for part in shown]
    return join_positions(parts), split.labels[:JUDGED].to(device)


def judge(
    net: nn.Module, task: Task, device: torch.device, history: list[dict[str, Tensor]] | None = None
) -> tuple[Health, Positions] | None:
    """The health of a network's positions on test images; None for a plain network or too few images."""
    positions, labels = see_positions(net, task, device)
    if not positions or len(labels) < FEWEST:
        return None
    # the quantiles of an earlier epoch stand for its positions: their own quantiles are themselves
    return health(positions, labels, list(history or ())), positions


@torch.no_grad()
def first_bad_layer(net: nn.Module, inputs: Inputs) -> str:
    """Run a batch again and name the first layer whose weights or output are not finite."""
    found: list[str] = []
    names = {module: name for name, module in net.named_modules()}

    def watch(module: nn.Module, args: tuple[object, ...], output: object) -> None:
        if found:
            return
        if not all(bool(p.isfinite().all()) for p in module.parameters(recurse=False)):
            found.append(f"the weights of layer {names[module]!r}")
        elif isinstance(output, Tensor) and not bool(output.isfinite().all()):
            inputs = [a for a in args if isinstance(a, Tensor)]
            if all(bool(a.isfinite().all()) for a in inputs):
                found.append(f"the output of layer {names[module]!r}")

    with hooked([module.register_forward_hook(watch) for name, module in net.named_modules() if name]):
        net(*inputs)
    if found:
        return found[0]
    return "the images" if not all(bool(x.isfinite().all()) for x in inputs) else "the loss"
