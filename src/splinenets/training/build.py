"""From a recipe to a network, its optimizer and its regulariser."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ..conversion import convert, copy_network
from ..data import Augmentation, Dataset, Split, augmentation, load, statistics
from ..layers import SplineLayer
from ..models import Air, build
from ..projection import Projection
from ..regularizer import MutualInformation
from .recipe import Recipe

WHITENED = 2_000  # images whose patches an Air whitens
EXAMPLES = 100  # images that show a converted network its sizes and first statistics
DTYPES = {"float64": torch.float64}


@dataclass(frozen=True, kw_only=True)
class Task:
    """A data set as a recipe sees it."""

    data: Dataset
    augment: Augmentation
    dtype: torch.dtype

    def example(self, count: int = EXAMPLES) -> Tensor:
        """The first training images, as a network would see them: (count, C, H, W)."""
        return self.evaluate(self.data.train.images[:count])

    def train(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Distorted images as networks want them: channels last, which is how convolutions are fastest."""
        return self.augment.train(images, generator).to(self.dtype, memory_format=torch.channels_last)

    def evaluate(self, images: Tensor) -> Tensor:
        """The same without distortion."""
        return self.augment.evaluate(images).to(self.dtype, memory_format=torch.channels_last)


def load_task(recipe: Recipe) -> Task:
    """Load and verify the data of a recipe."""
    data = load(recipe.data, size=recipe.image_size if recipe.data.startswith("folder:") else None)
    data = choose_images(data, recipe.images, recipe.held_out)
    mean, deviation = statistics(data.train.images)
    augment = augmentation(recipe.augment, mean=mean, std=[max(d, 1e-3) for d in deviation])
    return Task(data=data, augment=augment, dtype=DTYPES.get(recipe.precision, torch.float32))


def choose_images(data: Dataset, images: int = 0, held_out: int = 0) -> Dataset:
    """The first ``images`` to train on (0: all), and, if any are ``held_out``, the last so many as test images."""
    pixels, labels = data.train.images, data.train.labels
    left = len(labels) - held_out
    if left < max(images, 1):
        raise ValueError(
            f"{data.name} has {len(labels)} training images, too few to train on {images or 'some'} "
            f"and hold out {held_out}"
        )
    test = Split(pixels[left:], labels[left:]) if held_out else data.test
    train = Split(pixels[: images or left], labels[: images or left])
    return replace(data, train=train, test=test)


def build_network(recipe: Recipe, task: Task) -> nn.Module:
    """The network of a recipe as it starts: a static twin and its SplineNets have the same first weights.

    With ``variance`` in the spec, splines start as in the paper instead.
    """
    channels, height, width = task.data.train.images.shape[1:]
    if recipe.network == "lenet" and height != width:
        raise ValueError(f"lenet wants square images, those of {recipe.data} are {height} x {width}")
    options = {"dropout": recipe.dropout} if recipe.network == "lenet" else {}
    torch.manual_seed(recipe.seed)
    classes = len(task.data.classes)
    twin = build(recipe.network_name, in_channels=channels, image_size=height, classes=classes, **options)
    twin = twin.to(task.dtype)
    if isinstance(twin, Air):
        twin.whiten(task.example(WHITENED))
    if recipe.spec is None:
        return twin
    try:
        net = convert(twin, recipe.spec, example=task.example(), skip=recipe.plain, spread=recipe.spread)
    except ValueError as error:
        raise ValueError(f"model {recipe.model!r} on {recipe.network}: {error}") from None
    for layer in net.modules():
        if isinstance(layer, SplineLayer) and recipe.spec.variance is not None:
            layer.reset_knots(recipe.spread)
        if isinstance(layer, SplineLayer | Projection):
            layer.balanced = recipe.knots_share is None
    return net


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


def build_average(recipe: Recipe, net: nn.Module) -> nn.Module | None:
    """The network that follows the one that learns, where a recipe has one."""
    return copy_network(net).eval().requires_grad_(False) if recipe.average else None
