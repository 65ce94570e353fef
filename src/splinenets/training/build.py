"""From a recipe to a network, its optimizer and its regulariser."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ..conversion import convert
from ..data import Augmentation, Dataset, Split, augmentation, load, statistics
from ..layers import SplineLayer, check_memory
from ..models import lenet, resnet
from ..regularizer import MutualInformation
from .recipe import Recipe

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
    with torch.device("meta"):
        sketch = build_twin(recipe, task)
    copies = 1 if recipe.spec is None else 1 + recipe.spec.knots * recipe.spec.dims
    size = sum(p.numel() for p in sketch.parameters()) * task.dtype.itemsize
    check_memory(3 * copies * size, f"{recipe.network} with {recipe.model}, its gradients and their momentum")
    torch.manual_seed(recipe.seed)
    twin = build_twin(recipe, task).to(task.dtype)
    if recipe.spec is None:
        return twin
    try:
        net = convert(twin, recipe.spec, example=task.example(), skip=recipe.plain, spread=recipe.spread)
    except ValueError as error:
        raise ValueError(f"model {recipe.model!r} on {recipe.network}: {error}") from None
    if recipe.spec.variance is not None:
        for layer in net.modules():
            if isinstance(layer, SplineLayer):
                layer.reset_knots(recipe.spread)
    return net


def build_twin(recipe: Recipe, task: Task) -> nn.Module:
    """The plain network of a recipe."""
    channels, height, width = task.data.train.images.shape[1:]
    classes = len(task.data.classes)
    if recipe.network == "resnet":
        return resnet(recipe.depth, in_channels=channels, classes=classes)
    if height != width:
        raise ValueError(f"lenet wants square images, those of {recipe.data} are {height} x {width}")
    return lenet(recipe.width, in_channels=channels, image_size=height, classes=classes, dropout=recipe.dropout)


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
