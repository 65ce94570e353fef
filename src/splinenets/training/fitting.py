"""What a recipe leaves open, chosen to fit the images of a folder or CSV file, each with its reason."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from ..data.batches import UNEVEN, is_uneven
from ..data.dataset import KNOWN, parts_of
from ..data.decoding import read_shape
from ..data.listing import File, is_listed, list_images
from .networks import Shape, build_plain, first_convolution, in_colour, later_stages
from .recipe import Recipe

LOOKED_AT = 200  # files whose sizes are read
FEW = 5_000  # training images, below which a small network is enough
VERY_FEW = 2_000  # below which a narrow one is
MANY = 20  # classes, above which a LeNet, which has no batch norms, hardly begins to learn
SIDES = {"lenet": (32,), "air": (32, 48), "resnet": (32, 48, 64)}
SPECS = {"lenet": "D(5)-D-R3", "air": "D(5)-C-R3", "resnet": "D(5)-C-R3"}
FIRSTS = {"lenet": "conv1", "air": "whitening", "resnet": "conv"}  # layers that stay plain
LARGER_SIDES = (32, 64, 96, 128, 160, 192, 224)  # for networks from elsewhere, which halve them five times
BATCHES = (16, 128)
MANY_BATCH = 32  # images a step at most, where classes are many
EPOCHS = (10, 60)
STEPS = 30  # for each class
FEWEST_STEPS = 600  # in all, for which images may come twice as often
BY_HEART = "few images are easily memorised"
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
    """What there is to learn from: training images, classes, the median of the shorter sides, channels.

    ``counts`` are the training images of the smallest and of the largest class, ``tests`` all test images, and
    ``own_tests`` says whether these were set apart by whoever made the data.
    """

    images: int
    classes: int
    counts: tuple[int, int]
    side: int
    channels: int
    tests: int
    own_tests: bool

    def __str__(self) -> str:
        few, many = self.counts
        each = f"{few:,}" if few == many else f"{few:,} to {many:,}"
        kept = "" if self.own_tests else " that are held out"
        trained = f"{self.images:,} training images, {each} of each of {self.classes:,} classes"
        return f"{trained}; {self.tests:,} test images{kept}"


def survey(recipe: Recipe) -> Survey:
    """Look at the files of a recipe's data."""
    listing = list_images(recipe.data)
    count = len(listing.train) - recipe.held_out
    images = max(min(recipe.images or count, count), 1)
    by_class = Counter(file.label for file in listing.train[:images]).values()
    shapes = readable_shapes(listing.train[:LOOKED_AT], recipe.broken)
    if not shapes:
        raise ValueError(f"none of the first {LOOKED_AT} files of {recipe.data} can be read as an image")
    return Survey(
        images=images,
        classes=len(listing.classes),
        counts=(min(by_class), max(by_class)),
        tests=recipe.held_out or len(listing.test),
        own_tests=not recipe.held_out and any(file.part for file in listing.test),
        side=int(median(min(height, width) for _, height, width in shapes)),
        channels=max(channels for channels, _, _ in shapes),
    )


def readable_shapes(files: Iterable[File], broken: str) -> list[tuple[int, int, int]]:
    """Channels, heights and widths; of files that cannot be read, none if they are to be skipped."""
    shapes = []
    for file in files:
        with suppress(*[ValueError] if broken == "skip" else []):
            shapes.append(read_shape(file.path))
    return shapes


def fit(recipe: Recipe, said: Collection[str]) -> Fitting:
    """What a recipe is to have in the fields that nobody has said anything about.

    For data sets with a name that is nothing but which layers of a stranger's network become splines.
    """
    fitting = Fitting(recipe, said)
    if is_listed(recipe.data):
        fitting.seen = seen = survey(recipe)
        fitting.network(seen)
        fitting.images(seen)
        fitting.steps(seen)
        fitting.splines()
    if not recipe.ours and not {"layers", "plain"} <= set(said):
        fitting.stages(expected_shape(fitting.recipe, fitting.seen))
    if recipe.weights:
        fitting.choose("spread", 0.0, "the SplineNet starts as exactly the network whose weights are given")
    return fitting


def expected_shape(recipe: Recipe, seen: Survey | None) -> Shape:
    """What a recipe's network must fit."""
    if seen is None:
        parts = [KNOWN[name] for name in parts_of(recipe.data) or [recipe.data]]
        channels, size = (min(part.shape[axis] for part in parts) for axis in (0, 1))
        classes = sum(len(part.classes) for part in parts)
    else:
        channels, size, classes = seen.channels, recipe.image_size, seen.classes
    return Shape(channels=3 if in_colour(recipe) else channels, size=size, classes=classes)


class Fitting:
    """Choices so far, the recipe with them, and what was seen of its images if they are a user's own."""

    def __init__(self, recipe: Recipe, said: Collection[str]) -> None:
        self.recipe, self.said = recipe, said
        self.seen: Survey | None = None
        self.choices: dict[str, Choice] = {}

    def choose(self, key: str, value: Any, reason: str) -> None:
        """Set a field, unless somebody else has."""
        if key not in self.said:
            self.choices[key] = Choice(value, reason)
            self.recipe = replace(self.recipe, **{key: value})

    def network(self, seen: Survey) -> None:
        """Which network, and with which splines."""
        if seen.images >= FEW:
            self.choose("network", "resnet", f"{seen.images:,} images: a ResNet from {FEW:,} on")
        elif seen.classes > MANY:
            reason = f"{seen.images:,} images, below {FEW:,}, but more than {MANY} classes: small, with batch norms"
            self.choose("network", "air", reason)
        else:
            reason = f"{seen.images:,} images, below {FEW:,}, and at most {MANY} classes: small"
            self.choose("network", "lenet", reason)
        width = 16 if seen.images < VERY_FEW else 32
        reason = f"{seen.images:,} images: 16 filters below {VERY_FEW:,}, 32 above"
        if self.recipe.network == "lenet":
            self.choose("width", width, reason)
            self.choose("dropout", 0.3, BY_HEART)
        elif self.recipe.network == "air":
            self.choose("widths", (width, 2 * width, 2 * width), reason)
        elif self.recipe.network == "resnet":
            self.choose("depth", 20, "the smallest usual depth")
        if self.recipe.network == "air" and seen.images < FEW:
            self.choose("model", "D(3)-C-R3", "while images are few, each should teach all knots of its curve")
        else:
            self.choose("model", SPECS.get(self.recipe.network, "D(5)-C-R3"), f"does well in {self.recipe.network}")

    def images(self, seen: Survey) -> None:
        """Their size, and how they are distorted."""
        sides = SIDES.get(self.recipe.network, LARGER_SIDES)
        nearest = min(sides, key=lambda side: (abs(side - seen.side), side))
        found = f"half of the images have {seen.side} pixels or more on their shorter side"
        self.choose("image_size", nearest, found if len(sides) > 1 else f"what {self.recipe.network} is made for")
        if seen.channels == 1:
            self.choose("augment", "affine-elastic", "grey images may be writing, which must not be mirrored")
        else:
            self.choose("augment", "affine-flip", "things in colour images may be mirrored, moved and turned")
        reason = "images are distorted in training: so many that are not tell the curves what comes afterwards"
        self.choose("calibrate", min(seen.images, 2_500), reason)

    def steps(self, seen: Survey) -> None:
        """How many images a step, how many steps, and how large ones."""
        low, high = BATCHES if seen.classes <= MANY else (BATCHES[0], MANY_BATCH)
        batch = min(max(2 ** round(math.log2(seen.images / 24)), low), high, max(seen.images // 2, 1))
        reason = f"about 24 steps an epoch, of {low} to {high} images and at most half of all"
        self.choose("batch", batch, reason)
        if is_uneven(seen.counts):
            few, many = seen.counts
            reason = f"{few:,} images of the smallest class, {many:,} of the largest: at least {UNEVEN} times as many"
            self.choose("sampling", "classes", reason)
        least, most = EPOCHS
        per_epoch = math.ceil(seen.images / self.recipe.batch)
        wanted = max(round(16 * (10_000 / seen.images) ** 0.35), math.ceil(STEPS * seen.classes / per_epoch), least)
        epochs = max(min(wanted, most), min(math.ceil(FEWEST_STEPS / per_epoch), 2 * most))
        reason = (
            f"more for fewer images: {STEPS} steps for each class or more, within {least} to {most} epochs, "
            f"and {FEWEST_STEPS} steps in all, within {2 * most}"
        )
        self.choose("epochs", epochs, reason)
        if self.recipe.network == "air":
            self.choose("optimizer", "adamw", "many classes are learned in fewer steps than by sgd")
        adaptive = self.recipe.optimizer in ("adamw", "muon")
        rate = 0.01 if adaptive else 0.1
        if self.recipe.weights:
            self.choose("learning_rate", rate / 10, "given weights are only to be adapted")
        else:
            self.choose(
                "learning_rate",
                rate,
                f"safe for {self.recipe.network} with {self.recipe.optimizer} and clipped gradients",
            )
        self.choose("anneal", "one-cycle", "the learning rate falls to 0 however few the steps")
        self.choose("clip", 1.0, "no single step may be so large that training breaks down")
        heavy = self.recipe.network == "air" and seen.images < FEW
        self.choose("weight_decay", (0.3 if heavy else 0.05) if adaptive else 5e-4, BY_HEART)

    def splines(self) -> None:
        """Which layer of ours stays plain."""
        if self.recipe.ours:
            self.choose("plain", (FIRSTS[self.recipe.network],), FIRST)

    def stages(self, shape: Shape) -> None:
        """Which layers of a stranger's network become splines."""
        net = build_plain(self.recipe, shape)
        parameters = sum(parameter.numel() for parameter in net.parameters())
        self.choose("layers", later_stages(net), f"it has {parameters:,} parameters, and splines multiply them")
        self.choose("plain", first_convolution(net), FIRST)
