"""What a recipe leaves open, chosen to fit the images of a folder or CSV file, each with its reason."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from ..data.dataset import KNOWN
from ..data.decoding import read_shape
from ..data.listing import is_listed, list_images
from .networks import Shape, build_plain, first_convolution, in_colour, later_stages
from .recipe import Recipe

LOOKED_AT = 200  # files whose sizes are read
FEW = 5_000  # training images, below which a LeNet is enough
SIDES = {"lenet": (32,), "resnet": (32, 48, 64)}
LARGER_SIDES = (32, 64, 96, 128, 160, 192, 224)  # for networks from elsewhere, which halve them five times
BATCHES = (16, 128)
EPOCHS = (10, 60)
BY_HEART = "few images are soon learned by heart"
FIRST = "the first convolution finds edges, which are the same in all images"


@dataclass(frozen=True)
class Choice:
    """A value that nobody has set, and why it is that."""

    value: Any
    reason: str

    @property
    def text(self) -> str:
        """As one would write it after --set."""
        return ",".join(map(str, self.value)) if isinstance(self.value, tuple) else str(self.value)


@dataclass(frozen=True, kw_only=True)
class Survey:
    """What there is to learn from: training images, classes, the median of the shorter sides, channels."""

    images: int
    classes: int
    side: int
    channels: int


def survey(recipe: Recipe) -> Survey:
    """Look at the files of a recipe's data."""
    listing = list_images(recipe.data)
    count = len(listing.train) - recipe.held_out
    shapes = [read_shape(file.path) for file in listing.train[:LOOKED_AT]]
    return Survey(
        images=max(min(recipe.images or count, count), 1),
        classes=len(listing.classes),
        side=int(median(min(height, width) for _, height, width in shapes)),
        channels=max(channels for channels, _, _ in shapes),
    )


def fit(recipe: Recipe, said: Collection[str]) -> dict[str, Choice]:
    """What a recipe is to have in the fields that nobody has said anything about.

    For data sets with a name that is nothing but which layers of a stranger's network become splines.
    """
    fitting = Fitting(recipe, said)
    if is_listed(recipe.data):
        seen = survey(recipe)
        fitting.network(seen)
        fitting.images(seen)
        fitting.steps(seen)
        fitting.splines()
    if not recipe.ours and not {"layers", "plain"} <= set(said):
        fitting.stages(expected_shape(fitting.recipe, seen if is_listed(recipe.data) else None))
    if recipe.weights:
        fitting.choose("spread", 0.0, "the SplineNet starts as exactly the network whose weights are given")
    return fitting.choices


def expected_shape(recipe: Recipe, seen: Survey | None) -> Shape:
    """What a recipe's network must fit."""
    if seen is None:
        known = KNOWN[recipe.data]
        channels, size, classes = known.shape[0], known.shape[1], len(known.classes)
    else:
        channels, size, classes = seen.channels, recipe.image_size, seen.classes
    return Shape(channels=3 if in_colour(recipe) else channels, size=size, classes=classes)


class Fitting:
    """Choices so far, and the recipe with them."""

    def __init__(self, recipe: Recipe, said: Collection[str]) -> None:
        self.recipe, self.said = recipe, said
        self.choices: dict[str, Choice] = {}

    def choose(self, key: str, value: Any, reason: str) -> None:
        """Set a field, unless somebody else has."""
        if key not in self.said:
            self.choices[key] = Choice(value, reason)
            self.recipe = replace(self.recipe, **{key: value})

    def network(self, seen: Survey) -> None:
        """Which network, and with which splines."""
        few = seen.images < FEW
        self.choose("network", "lenet" if few else "resnet", f"{seen.images:,} images, LeNet below {FEW:,}")
        if self.recipe.network == "lenet":
            self.choose("width", 32, "as in the paper")
            self.choose("dropout", 0.3, BY_HEART)
        elif self.recipe.network == "resnet":
            self.choose("depth", 20, "the smallest that is usual")
        kind = "D(5)-D-R3" if self.recipe.network == "lenet" else "D(5)-C-R3"
        self.choose("model", kind, f"what does well in {self.recipe.network}")

    def images(self, seen: Survey) -> None:
        """Their size, and how they are distorted."""
        sides = SIDES.get(self.recipe.network, LARGER_SIDES)
        nearest = min(sides, key=lambda side: (abs(side - seen.side), side))
        found = f"half of the images have {seen.side} pixels or more on their shorter side"
        self.choose("image_size", nearest, found if len(sides) > 1 else f"what {self.recipe.network} is made for")
        if seen.channels == 1:
            self.choose("augment", "affine-elastic", "grey images may be writing, which must not be mirrored")
        else:
            self.choose("augment", "crop-flip", "things in colour images are mostly as good mirrored and moved")
        self.choose("calibrate", min(seen.images, 2_500), "images are distorted in training and not afterwards")

    def steps(self, seen: Survey) -> None:
        """How many images a step, how many steps, and how large ones."""
        low, high = BATCHES
        batch = min(max(2 ** round(math.log2(seen.images / 24)), low), high, max(seen.images // 2, 1))
        reason = f"about 24 steps for {seen.images:,} images, but from {low} to {high} and at most half of them"
        self.choose("batch", batch, reason)
        least, most = EPOCHS
        epochs = min(max(round(16 * (10_000 / seen.images) ** 0.35), least), most)
        self.choose("epochs", epochs, f"the fewer images the more, from {least} to {most}")
        if self.recipe.weights:
            self.choose("learning_rate", 0.01, "given weights are only to be adapted")
        else:
            self.choose("learning_rate", 0.1, f"with clip, safe for {self.recipe.network}")
        self.choose("anneal", "one-cycle", "the learning rate falls to 0 however few the steps")
        self.choose("clip", 1.0, "no single step may be so large that training breaks down")
        self.choose("weight_decay", 5e-4, BY_HEART)

    def splines(self) -> None:
        """Which layer of ours stays plain."""
        first = {"lenet": "conv1", "resnet": "conv"}.get(self.recipe.network)
        if first:
            self.choose("plain", (first,), FIRST)

    def stages(self, shape: Shape) -> None:
        """Which layers of a stranger's network become splines."""
        net = build_plain(self.recipe, shape)
        parameters = sum(parameter.numel() for parameter in net.parameters())
        self.choose("layers", later_stages(net), f"it has {parameters:,} parameters, and splines multiply them")
        self.choose("plain", first_convolution(net), FIRST)
