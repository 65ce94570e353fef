"""From a recipe to a network, its optimizer and its regulariser."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from torch import Tensor, nn

from ..conditions import condition
from ..conversion import convert, copy_network
from ..data import Augmentation, Dataset, Split, augmentation, load, seeded, statistics
from ..data.augment import check_images
from ..data.changes import Change, changed
from ..data.listing import is_listed
from ..layers import SplineLayer
from ..models import Air
from ..projection import Projection
from ..regularizer import MutualInformation
from ..spec import check_memory
from .networks import Shape, build_plain, check_answer, in_colour
from .recipe import VALUE, Recipe
from .told import ToldByChannels, ToldByScales, told_features
from .weights import load_weights

WHITENED = 2_000  # images whose patches an Air whitens
MEASURED = 20_000  # images on disk by whose brightness all are normalised
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
    size = recipe.image_size if is_listed(recipe.data) else None
    data = load(recipe.data, size=size, stream=recipe.stream, broken=recipe.broken)
    data = choose_images(data, recipe.images, recipe.held_out)
    if in_colour(recipe):
        data = data.in_colour()
    measured = data.train.images if isinstance(data.train.images, Tensor) else data.train.images.narrow(slice(MEASURED))
    mean, deviation = statistics(measured.split(250))
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
        raise ValueError(f"condition={VALUE!r} needs a number for each image, and {recipe.data} has none")
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
    test = whole.narrow(slice(left, None)) if held_out else data.test
    return replace(data, train=whole.narrow(slice(images or left)), test=test)


def build_twin(recipe: Recipe, task: Task, note: Callable[[str], object] = str) -> nn.Module:
    """The plain network of a recipe as it starts, by its seed or with given weights; ``note`` is told what is odd."""
    shape = shape_of(recipe, task)
    torch.manual_seed(recipe.seed)
    twin = build_plain(recipe, shape)
    if isinstance(twin, Air):
        twin.whiten(task.example(WHITENED)[0])
    twin = twin.to(task.dtype)
    if recipe.weights and (kept := load_weights(twin, recipe.weights, shape.classes)):
        note(f"{' and '.join(kept)} start from random weights: {recipe.weights} has other classes")
    if not recipe.ours and recipe.told != "channels":
        check_answer(recipe, twin, task.example(2)[0], shape.classes)
    return twin


def shape_of(recipe: Recipe, task: Task) -> Shape:
    """What the network of a recipe must fit."""
    channels, height, width = task.data.train.images.shape[1:]
    if recipe.network == "lenet" and height != width:
        raise ValueError(f"lenet needs square images, and those of {recipe.data} are {height} x {width}")
    if recipe.told == "channels" and task.change:
        channels += told_features(task.change)
    return Shape(channels=channels, size=height, classes=len(task.data.classes))


def check_size(recipe: Recipe, task: Task) -> None:
    """Raise if a network of ours is too large for this machine, before it is built; strangers cannot be sketched."""
    if not recipe.ours:
        return
    with torch.device("meta"):
        sketch = build_plain(recipe, shape_of(recipe, task))
    copies = 1 if recipe.spec is None else 1 + recipe.spec.knots * recipe.spec.dims
    size = sum(p.numel() for p in sketch.parameters()) * task.dtype.itemsize
    check_memory(3 * copies * size, f"{recipe.network} with {recipe.model}, its gradients and their momentum")


def build_network(recipe: Recipe, task: Task, note: Callable[[str], object] = str) -> nn.Module:
    """The network of a recipe as it starts: a static twin and its SplineNets have the same first weights.

    With ``variance`` in the spec, splines start as in the paper instead.
    """
    check_size(recipe, task)
    twin = build_twin(recipe, task, note)
    if recipe.spec is None:
        return _told(recipe, task, twin).to(task.dtype)
    specs = dict.fromkeys(recipe.layers, recipe.spec)
    try:
        net = convert(twin, specs, example=task.example()[:1], skip=recipe.plain, spread=recipe.spread)
    except ValueError as error:
        raise ValueError(f"model {recipe.model!r} on {recipe.network}: {error}") from None
    for layer in net.modules():
        if isinstance(layer, SplineLayer) and recipe.spec.variance is not None:
            layer.reset_knots(recipe.spread)
        if isinstance(layer, SplineLayer | Projection):
            layer.balanced = recipe.knots_share is None
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


def build_average(recipe: Recipe, net: nn.Module) -> nn.Module | None:
    """The network that follows the one that learns, where a recipe has one."""
    return copy_network(net).eval().requires_grad_(False) if recipe.average else None
