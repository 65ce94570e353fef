"""What can hardly be learned, said before any time is spent on it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torch import Tensor, nn

from ..data.dataset import Dataset
from ..data.listing import is_listed
from .build import Task
from .recipe import Recipe

TELLING = 20  # test images, below which accuracy is hardly more than luck
HANDFUL = 50  # steps in which the averages of a batch norm still remember how they began: 0.9 ** 50 is 0.5%


def cautions(recipe: Recipe, task: Task, net: nn.Module) -> Iterator[str]:
    """Sentences about a training that will learn little, and what would help."""
    labels, classes, tests = task.data.train.labels, len(task.data.classes), len(task.data.test.labels)
    steps = recipe.epochs * math.ceil(len(labels) / recipe.batch)
    normalised = any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in net.modules())
    if len(labels.unique()) < 2:
        yield "all training images are of one class, so there is nothing to tell apart"
    if steps < classes:
        yield f"{steps} steps are too few to learn {classes} classes: train more epochs, or with a smaller batch"
    elif steps < HANDFUL and normalised:
        yield (
            f"{steps} steps are too few for batch norms, whose averages are what counts in tests: "
            f"train more epochs, or with a smaller batch"
        )
    if tests < TELLING:
        yield f"{tests} test images say little: each is {1 / tests:.0%} of the accuracy"
    if is_listed(recipe.data) and (known := seen_before(task.data)):
        yield f"{known} of {tests} test images are training images too, pixel by pixel, so the accuracy flatters"
    if recipe.batch >= len(labels):
        yield f"a batch of {recipe.batch} holds all {len(labels)} training images, so every epoch is a single step"


def seen_before(data: Dataset) -> int:
    """How many test images equal a training image; those on disk are not looked at."""
    train, test = (
        [hash(image.numpy().tobytes()) for image in part.images] if isinstance(part.images, Tensor) else []
        for part in (data.train, data.test)
    )
    known = set(train)
    return sum(image in known for image in test)
