"""From a recipe to a network, its optimizer and its regulariser."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor, nn

from ..conditions import condition
from ..conversion import convert
from ..data import Augmentation, Dataset, Split, augmentation, load, seeded, statistics
from ..data.augment import check_images
from ..data.changes import Change, changed
from ..layers import SplineLayer
from ..models import lenet, resnet
from ..regularizer import MutualInformation
from .recipe import VALUE, Recipe
from .told import ToldByChannels, ToldByScales, told_channels

EXAMPLES = 100  # images that show a converted network its sizes and first statistics
DTYPES = {"float64": torch.float64}
Inputs: TypeAlias = tuple[Tensor, ...]  # images (N, C, H, W), and values (N,) where a network is told them


@dataclass(frozen=True, kw_only=True)
class Task:
    """A data set as a recipe sees it.

    change    what happens to training images, by a number drawn for each; test images have been changed already
    told      whether the network is told that number, or the one that the data have for each image
    original  the test images before they were changed; None if nothing changes them
    """

    data: Dataset
    augment: Augmentation
    dtype: torch.dtype
    change: Change | None = None
    told: bool = False
    original: Split | None = None

    def example(self, count: int = EXAMPLES) -> Inputs:
        """The first training images, as a network would see them."""
        return self.show(self.data.train, slice(count))

    def train(self, part: Split, generator: torch.Generator) -> Inputs:
        """Distorted images as networks want them: channels last, which is how convolutions are fastest."""
        check_images(part.images)
        return self.ready(replace(part, images=self.augment.distort(part.images, generator)), generator)

    def show(self, split: Split, part: slice | Tensor, device: torch.device | None = None) -> Inputs:
        """Some images of a split without distortion; training images have some value of the condition."""
        return self.ready(split.part(part, device), seeded("condition", 0))

    def ready(self, part: Split, generator: torch.Generator) -> Inputs:
        """Images that are changed, if they are to be, and prepared; and their values."""
        images, values = part.images, part.values
        if self.change is not None and values is None:
            values = self.change.draw(len(images), generator)
            images = self.change(images, values, generator)
        images = self.augment.prepare(images).to(self.dtype, memory_format=torch.channels_last)
        return (images, values.to(images.device, self.dtype)) if self.told and values is not None else (images,)


def load_task(recipe: Recipe) -> Task:
    """Load and verify the data of a recipe."""
    data = load(recipe.data, size=recipe.image_size if recipe.data.startswith("folder:") else None)
    data = choose_images(data, recipe.images, recipe.held_out)
    mean, deviation = statistics(data.train.images)
    augment = augmentation(recipe.augment, mean=mean, std=[max(d, 1e-3) for d in deviation])
    change, original = recipe.change, None
    if change is not None:
        original = data.test
        data = replace(data, test=changed(original, change, "test"))
    elif recipe.condition:
        change = _range_of(recipe, data)
    return Task(
        data=data,
        augment=augment,
        dtype=DTYPES.get(recipe.precision, torch.float32),
        change=change,
        told=recipe.told != "nobody",
        original=original,
    )


def _range_of(recipe: Recipe, data: Dataset) -> Change:
    """The range of the numbers that the data have for each image."""
    if data.train.values is None or data.test.values is None:
        raise ValueError(f"condition={VALUE!r} wants a number for each image, and {recipe.data} has none")
    values = torch.cat([data.train.values, data.test.values])
    low, high = recipe.between or (float(values.min()), float(values.max()))
    if not low < high or not bool(((values >= low) & (values <= high)).all()):
        raise ValueError(
            f"the numbers of {recipe.data} lie between {values.min():g} and {values.max():g}, got {low:g} to {high:g}"
        )
    return Change(name=VALUE, low=low, high=high, apply=lambda images, values, generator: images)


def choose_images(data: Dataset, images: int = 0, held_out: int = 0) -> Dataset:
    """The first ``images`` to train on (0: all), and, if any are ``held_out``, the last so many as test images."""
    whole = data.train
    labels = whole.labels
    left = len(labels) - held_out
    if left < max(images, 1):
        raise ValueError(
            f"{data.name} has {len(labels)} training images, too few to train on {images or 'some'} "
            f"and hold out {held_out}"
        )
    test = whole.part(slice(left, None)) if held_out else data.test
    return replace(data, train=whole.part(slice(images or left)), test=test)


def build_network(recipe: Recipe, task: Task) -> nn.Module:
    """The network of a recipe as it starts: a static twin and its SplineNets have the same first weights.

    With ``variance`` in the spec, splines start as in the paper instead.
    """
    channels, height, width = task.data.train.images.shape[1:]
    if recipe.told == "channels" and task.change:
        channels += told_channels(task.change)
    torch.manual_seed(recipe.seed)
    twin: nn.Module
    if recipe.network == "lenet":
        if height != width:
            raise ValueError(f"lenet wants square images, those of {recipe.data} are {height} x {width}")
        classes = len(task.data.classes)
        twin = lenet(recipe.width, in_channels=channels, image_size=height, classes=classes, dropout=recipe.dropout)
    else:
        twin = resnet(recipe.depth, in_channels=channels, classes=len(task.data.classes))
    if recipe.spec is None:
        return _told(recipe, task, twin).to(task.dtype)
    twin = twin.to(task.dtype)
    try:
        net = convert(twin, recipe.spec, example=task.example()[:1], skip=recipe.plain, spread=recipe.spread)
    except ValueError as error:
        raise ValueError(f"model {recipe.model!r} on {recipe.network}: {error}") from None
    if recipe.spec.variance is not None:
        for layer in net.modules():
            if isinstance(layer, SplineLayer):
                layer.reset_knots(recipe.spread)
    return _told(recipe, task, net)


def _told(recipe: Recipe, task: Task, net: nn.Module) -> nn.Module:
    """A network that is called with the values of its condition, if it is told them."""
    if recipe.told == "nobody" or task.change is None:
        return net
    if recipe.told == "curves":
        return condition(net, task.change.low, task.change.high, name=task.change.name)
    return (ToldByChannels if recipe.told == "channels" else ToldByScales)(net, task.change)


def build_regularizer(recipe: Recipe, task: Task) -> MutualInformation | None:
    """The mutual-information regulariser, where there are splines for it."""
    if not recipe.regularized:
        return None
    return MutualInformation(
        len(task.data.classes),
        bins=recipe.bins,
        bin_slope=recipe.bin_slope,
        utilization=recipe.utilization,
        specialization=recipe.specialization,
        full_gradient=recipe.full_gradient,
    )


def build_optimizer(recipe: Recipe, net: nn.Module) -> torch.optim.SGD:
    """SGD with momentum; weight decay only for weights and knots. A group has its "share" of the learning rate.

    Biases and normalisations are not decayed, nor are the matrices that match inherited positions: these are logits,
    and decay would make every row an average. Knots that are offsets from a shared weight learn at their own rate.
    """
    names = {name for name, _ in net.named_parameters()}
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in net.named_parameters():
        decay = 0.0 if parameter.dim() < 2 or ".matching." in name else recipe.weight_decay
        offsets = name.endswith("knots") and name.removesuffix("knots") + "weight" in names
        share = recipe.knots_rate if offsets else 1.0
        groups.setdefault((decay, share), []).append(parameter)
    return torch.optim.SGD(
        [{"params": some, "weight_decay": decay, "share": share} for (decay, share), some in groups.items()],
        lr=recipe.learning_rate,
        momentum=recipe.momentum,
    )
