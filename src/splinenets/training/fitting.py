"""What a recipe leaves open, chosen to fit the images of a folder or CSV file, each with its reason."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from ..data.dataset import KNOWN
from ..data.folders import read_shape
from ..data.listing import is_listed, list_images
from .networks import Shape, build_plain, first_convolution, in_colour, later_stages
from .recipe import Recipe

LOOKED_AT = 200  # files whose sizes are read
SIDES = (32, 48, 64)  # of images for our networks
LARGER_SIDES = (32, 64, 96, 128, 160, 192, 224)  # for those from elsewhere, which halve them five times
BATCHES = (16, 128)
EPOCHS = (10, 100)
FIRST = "the first convolution finds edges, which are the same in all images"
NORMALISED = "at the full rate knots cost accuracy where there are batch norms"


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
        fitting.stages(shape_of(fitting.recipe, seen if is_listed(recipe.data) else None))
    if recipe.weights:
        fitting.choose("spread", 0.0, "the SplineNet starts as exactly the network whose weights are given")
    return fitting.choices


def shape_of(recipe: Recipe, seen: Survey | None) -> Shape:
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
        few = seen.images < 5_000
        self.choose("network", "lenet" if few else "resnet", f"{seen.images:,} images")
        if self.recipe.network == "lenet":
            self.choose("width", 32, "enough filters for small images")
            self.choose("dropout", 0.3, f"{seen.images:,} images are soon learned by heart")
        elif self.recipe.network == "resnet":
            self.choose("depth", 20, "the smallest that is usual")
        projection = "D" if self.recipe.network == "lenet" else "C"
        self.choose("model", f"D(5)-{projection}-R3", f"what does well with {self.recipe.network}")

    def images(self, seen: Survey) -> None:
        """Their size, and how they are distorted."""
        sides = SIDES if self.recipe.ours else LARGER_SIDES
        nearest = min(sides, key=lambda side: (abs(side - seen.side), side))
        self.choose("image_size", nearest, f"half of the images are {seen.side} pixels or more on their shorter side")
        if seen.channels == 1:
            self.choose("augment", "affine-elastic", "grey images may be writing, which must not be mirrored")
        else:
            self.choose("augment", "crop-flip", "colour images are mostly of things that may be mirrored and moved")
        self.choose("calibrate", min(seen.images, 2_500), "decisions are to be standardised by undistorted images")

    def steps(self, seen: Survey) -> None:
        """How many images a step, how many steps, and how large ones."""
        low, high = BATCHES
        batch = min(max(2 ** round(math.log2(seen.images / 12)), low), high)
        self.choose("batch", batch, f"about a twelfth of {seen.images:,} images, from {low} to {high}")
        least, most = EPOCHS
        epochs = min(max(round(30 * (10_000 / seen.images) ** 0.35), least), most)
        steps = epochs * math.ceil(seen.images / self.recipe.batch)
        self.choose("epochs", epochs, f"fewer images need more epochs; {steps:,} steps in all")
        given = bool(self.recipe.weights)
        rate = 0.01 if given else 0.05
        self.choose("learning_rate", rate, "given weights are only to be adapted" if given else "works with clipping")
        self.choose("clip", 1.0, "no step is so large that training breaks down")
        self.choose("weight_decay", 5e-4, "few images are soon learned by heart")

    def splines(self) -> None:
        """How splines start and learn."""
        if self.recipe.network == "lenet":
            self.choose("plain", ("conv1",), FIRST)
        else:
            self.choose("knots_rate", 0.1, NORMALISED)
        if self.recipe.network == "resnet":
            self.choose("plain", ("conv",), FIRST)

    def stages(self, shape: Shape) -> None:
        """Which layers of a stranger's network become splines."""
        net = build_plain(self.recipe, shape)
        parameters = sum(parameter.numel() for parameter in net.parameters())
        self.choose("layers", later_stages(net), f"it has {parameters:,} parameters, and splines multiply them")
        self.choose("plain", first_convolution(net), FIRST)
