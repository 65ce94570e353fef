"""Recipe: everything that decides what a training run computes, checked before any work starts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from difflib import get_close_matches
from functools import cache
from typing import get_type_hints

from ..data.augment import augmentation
from ..data.changes import CHANGES, Change
from ..data.dataset import KNOWN, parts_of
from ..data.folders import BROKEN
from ..data.listing import CSV_PREFIX, FOLDER_PREFIX, TAR_PREFIX, is_listed
from ..data.streams import CHOICES as STREAMS
from ..files import Json
from ..spec import SplineSpec
from .values import from_text, from_value

STATIC = "static"
VALUE = "value"  # the condition that the data have a column of
TOLD = ("nobody", "curves", "channels", "scales")
BALANCED = "balanced"
NETWORKS = ("lenet", "resnet", "air")  # ours; all others have a colon in their names
ANNEALS = ("one-cycle", "steps", "triangular")
OPTIMIZERS = ("sgd", "nesterov", "adamw", "muon")
SAMPLINGS = ("images", "classes")
PRECISIONS = ("auto", "float32", "bf16", "float64")
RANGES: dict[str, tuple[float, float]] = {
    "image_size": (4, 1024),
    "workers": (0, 256),
    "images": (0, 1_000_000_000),
    "held_out": (0, 1_000_000_000),
    "width": (1, 1024),
    "depth": (8, 1202),
    "dropout": (0, 0.99),
    "spread": (0, 100),
    "batch": (1, 1_000_000),
    "epochs": (1, 100_000),
    "learning_rate": (0, 1000),
    "momentum": (0, 0.9999),
    "label_smoothing": (0, 0.99),
    "mixup": (0, 0.5),
    "average": (0, 0.999999),
    "weight_decay": (0, 10),
    "clip": (0, 1e6),
    "warmup": (0, 0.9),
    "drop_factor": (0, 1),
    "bins": (2, 1000),
    "calibrate": (0, 1_000_000_000),
    "utilization": (0, 1000),
    "specialization": (0, 1000),
    "log_every": (1, 1_000_000_000),
    "checkpoint_every": (0, 1_000_000_000),
    "keep": (1, 1000),
    "seed": (0, 2**62),
}
UNSEEN = ("stream", "workers")  # fields that change nothing in what a run computes


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What to train, on what and how; ``splinenets train NAME --set key=value`` sets any of these.

    data              a data set's name, folder:PATH, csv:PATH or tar:PATH; mnist+cifar10 joins both
    image_size        of the images in a folder, CSV file or archives, in pixels
    stream            always: such images are decoded when they are needed; never: all are kept in memory; auto: in
                      memory, unless they would take more than half of it
    workers           processes that decode them ahead; 0: none besides the training itself
    broken            stop: a file that cannot be read ends the run; skip: all files are decoded once to begin with,
                      and such files are left out with a warning
    images            train on the first so many images; 0: on all
    held_out          test on so many images from the end of the training set, which are then not trained on, instead
                      of the test set, to choose among recipes; 0: on the test set
    augment           none, crop-flip, shift-flip, affine-flip or affine-elastic
    condition         angle, scale, blur, exposure or noise: each image is changed by a number drawn for it; value: the
                      data have a number for each image; empty: no condition
    between           the lowest and the highest number; empty: those of the condition or of the data
    told              who is told the number: curves, those of a model with X such as D(7)-X-R4; channels, a network
                      with more input channels; scales, a network whose layers it scales and shifts (FiLM); or nobody
    network           lenet, resnet or air; timm:NAME, torchvision:NAME or transformers:TYPE; or
                      package.module:function, which is then called: a recipe can run code
    arguments         a table of further arguments of the network; not for ours
    weights           a file, or the folder of a run, whose weights the plain network starts from; empty: from random
                      ones
    width             filters in LeNet's first convolution
    depth             layers of a ResNet, 6n + 2
    widths            filters in each of the three groups of an Air
    dropout           of a LeNet
    model             a spec such as D(5)-D-R3, or static for the plain twin
    spline_options    options of the spec, such as diffusion=0.875, unless ``model`` sets them
    layers            name patterns of layers that become splines
    plain             name patterns of layers that stay plain even so
    spread            how far knots start from the twin's weight, in its standard deviations
    batch             samples a step, over all ranks
    sampling          images: each image comes once in an epoch; classes: each class comes equally often, however few
                      images it has
    anneal            one-cycle: the learning rate rises linearly and falls as a cosine;
                      steps: it is constant, but multiplied by ``drop_factor`` at each of ``drops``;
                      triangular: it rises and falls linearly
    optimizer         sgd, nesterov, adamw or muon: Muon for weights and knots, AdamW for the rest, at one rate
    momentum          of SGD and Muon
    warmup            share of the steps in which the learning rate rises
    drops             shares of the steps at which it drops
    knots             balanced: they learn at the rate of everything else (see ``operators/mixing.py``); at 0.1: as
                      before version 0.2, with plain gradients and at this share of the rate
    weight_decay      of weights and knots; never of biases, normalisations and inherited positions' matrices
    clip              the norm above which gradients are scaled down to it, 0: never
    label_smoothing   share of the loss that treats all classes alike
    mixup             each image is blended with another of its batch by a share between 0 and this, drawn for the batch
    average           test and keep a running average of the weights, of which each step keeps this share; 0: the
                      weights themselves
    utilization       w_u of the regulariser; with both weights 0 there is none
    specialization    w_s
    bins, bin_slope   of its histograms
    full_gradient     let it train features and parents too, as in the paper
    calibrate         number of undistorted training images by which decisions are standardised after each epoch, until
                      training continues (see ``splinenets.calibrate``); 0: by the distorted ones that training saw last
    precision         float32, bf16, float64, or auto: bf16 where the processor has instructions for it
    log_every         steps between two lines of metrics
    checkpoint_every  steps between two checkpoints within an epoch; 0: only at its end
    keep              how many checkpoints are kept, beside the best
    """

    name: str
    data: str = "embedded"
    image_size: int = 32
    stream: str = "auto"
    workers: int = 2
    broken: str = "stop"
    images: int = 0
    held_out: int = 0
    augment: str = "none"
    condition: str = ""
    between: tuple[float, ...] = ()
    told: str = "nobody"
    network: str = "lenet"
    arguments: Json = field(default_factory=dict)
    weights: str = ""
    width: int = 32
    depth: int = 32
    widths: tuple[int, ...] = (64, 128, 128)
    dropout: float = 0.5
    model: str = "D(5)-D-R3"
    spline_options: str = ""
    layers: tuple[str, ...] = ("*",)
    plain: tuple[str, ...] = ()
    spread: float = 0.1
    batch: int = 250
    sampling: str = "images"
    epochs: int = 10
    anneal: str = "one-cycle"
    optimizer: str = "sgd"
    learning_rate: float = 0.1
    knots: str = BALANCED
    momentum: float = 0.9
    weight_decay: float = 0.0
    clip: float = 0.0
    label_smoothing: float = 0.0
    mixup: float = 0.0
    average: float = 0.0
    warmup: float = 0.3
    drops: tuple[float, ...] = (0.5, 0.75)
    drop_factor: float = 0.1
    utilization: float = 0.05
    specialization: float = 0.05
    bins: int = 50
    bin_slope: float = 100.0
    full_gradient: bool = False
    calibrate: int = 0
    precision: str = "auto"
    log_every: int = 10
    checkpoint_every: int = 0
    keep: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        for name, (low, high) in RANGES.items():
            if not low <= getattr(self, name) <= high:
                raise ValueError(f"{name} must lie between {low:,} and {high:,}, got {getattr(self, name)}")
        if self.knots != BALANCED and self.knots_share is None:
            raise ValueError(
                f"knots must be {BALANCED!r} or 'at' a share of the rate, such as 'at 0.1', got {self.knots!r}"
            )
        if not 1 < self.bin_slope < math.inf:
            raise ValueError(f"bin_slope must be a number above 1, got {self.bin_slope}")
        if any(not 0 < drop < 1 for drop in self.drops) or list(self.drops) != sorted(set(self.drops)):
            raise ValueError(f"drops must be shares of the steps, between 0 and 1 and rising, got {self.drops}")
        choices_of = {"anneal": ANNEALS, "optimizer": OPTIMIZERS, "precision": PRECISIONS, "told": TOLD}
        choices_of |= {"stream": STREAMS, "broken": BROKEN, "sampling": SAMPLINGS}
        for name, choices in choices_of.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"unknown {name} {getattr(self, name)!r}, choose from {', '.join(choices)}")
        self._check_network()
        if self.data not in KNOWN and not is_listed(self.data) and not parts_of(self.data):
            raise ValueError(
                f"unknown data {self.data!r}, choose from {', '.join(sorted(KNOWN))}, several of these with a + "
                f"between them, {FOLDER_PREFIX}PATH, {CSV_PREFIX}PATH or {TAR_PREFIX}PATH"
            )
        try:
            augmentation(self.augment)
        except ValueError as error:
            raise ValueError(f"augment: {error}") from None
        try:
            self.spec  # noqa: B018
        except ValueError as error:
            raise ValueError(f"model: {error}, or {STATIC!r}") from None
        self._check_condition()

    def _check_condition(self) -> None:
        if self.condition not in ("", VALUE, *CHANGES):
            raise ValueError(f"unknown condition {self.condition!r}, choose from {', '.join([*CHANGES, VALUE])}")
        if len(self.between) not in (0, 2) or (self.between and not self.between[0] < self.between[1] < math.inf):
            raise ValueError(f"between must be two numbers, the lower one first, got {self.between}")
        self.change  # noqa: B018
        external = self.spec is not None and self.spec.external
        if external != (self.told == "curves"):
            raise ValueError(
                f"told={self.told!r} does not go with model={self.model!r}: curves are told in models with X, "
                f"such as D(7)-X-R4, and only there"
            )
        if self.told != "nobody" and not self.condition:
            raise ValueError(f"told={self.told!r} needs a condition, one of {', '.join([*CHANGES, VALUE])}")
        if self.told != "nobody" and self.mixup:
            raise ValueError(f"told={self.told!r} does not go with mixup={self.mixup}: a blend has no value of its own")
        if self.told in ("channels", "scales") and self.model != STATIC:
            raise ValueError(f"told={self.told!r} is for static networks, got model={self.model!r}")

    @property
    def change(self) -> Change | None:
        """What happens to images, by a number drawn for each; None if nothing does."""
        change = CHANGES.get(self.condition)
        return change.within(*self.between) if change and self.between else change

    def _check_network(self) -> None:
        source, colon, name = self.network.partition(":")
        if self.ours and self.arguments:
            raise ValueError(f"arguments are for networks of other packages, and {self.network} is one of ours")
        if not self.ours and not (source and colon and name):
            raise ValueError(
                f"unknown network {self.network!r}, choose from {', '.join(NETWORKS)}, or one of another package as "
                f"timm:NAME, torchvision:NAME, transformers:TYPE or package.module:function"
            )
        if self.network == "resnet" and (self.depth - 2) % 6:
            raise ValueError(f"depth of a ResNet must be 6n + 2, such as 20, 32, 44, 56 or 110, got {self.depth}")
        if len(self.widths) != 3 or not all(1 <= width <= 1024 for width in self.widths):
            raise ValueError(f"widths must be 3 numbers between 1 and 1,024, such as 64,128,128, got {self.widths}")
        if not self.layers:
            raise ValueError('layers must hold a name pattern, such as "*"')

    @property
    def ours(self) -> bool:
        """Whether the network is one of this package."""
        return self.network in NETWORKS

    @property
    def spec(self) -> SplineSpec | None:
        """The kind of splines, with the recipe's options where ``model`` leaves them open; None for a plain network."""
        if self.model == STATIC:
            return None
        said = {word.partition("=")[0] for word in self.model.split()}
        more = [word for word in self.spline_options.split() if word.partition("=")[0] not in said]
        return SplineSpec.parse(" ".join([self.model, *more]))

    @property
    def knots_share(self) -> float | None:
        """The share of the learning rate that knots with plain gradients get; None where they are balanced."""
        match = re.fullmatch(r"at (\d+(?:\.\d*)?(?:e-?\d+)?)", self.knots)
        return float(match[1]) if match else None

    @property
    def network_name(self) -> str:
        """The plain network by name, such as "resnet32" or "timm:resnet18"."""
        sizes = {"lenet": self.width, "resnet": self.depth, "air": "-".join(map(str, self.widths))}
        return f"{self.network}{sizes.get(self.network, '')}"

    @property
    def regularized(self) -> bool:
        """Whether the mutual-information regulariser has anything to do."""
        return self.model != STATIC and self.told != "curves" and self.utilization + self.specialization > 0

    def as_dict(self) -> dict[str, object]:
        """Plain values, as JSON and TOML know them."""
        return {name: list(v) if isinstance(v, tuple) else v for name, v in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, object], where: str = "the recipe") -> Recipe:
        """Read plain values; what is unknown or of another type is an error that names it."""
        hints = recipe_types()
        for key in values:
            check_key(key, where)
        if "name" not in values:
            raise ValueError(f"{where}: name is missing")
        try:
            checked: Json = {key: from_value(key, value, hints[key]) for key, value in values.items()}
            return cls(**checked)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None

    @classmethod
    def stored(cls, values: Mapping[str, object], where: str) -> Recipe:
        """Read what a run or a result keeps; those of before version 0.2 had knots with plain gradients."""
        return cls.from_dict(renamed({"knots_rate": 1.0, **values}), where)

    def change_since(self, earlier: Mapping[str, object], where: str) -> tuple[str, object, object] | None:
        """The first field that differs from an earlier recipe, then and now; fields younger than that had defaults."""
        before, now = Recipe.stored(earlier, where).as_dict(), self.as_dict()
        told_apart = (key for key in now if before[key] != now[key] and key not in UNSEEN)
        return next(((key, before[key], now[key]) for key in told_apart), None)


@cache
def recipe_types() -> dict[str, type]:
    """Field -> type."""
    hints = get_type_hints(Recipe)
    return {field.name: hints[field.name] for field in fields(Recipe)}


def check_key(key: str, where: str) -> None:
    """Raise unless a recipe has this field; the message has the nearest that it has."""
    known = list(recipe_types())
    if key not in known:
        raise ValueError(f"{where}: unknown key {key!r}{nearest(key, known)}")


def renamed(values: Mapping[str, object]) -> dict[str, object]:
    """Fields in today's words: before version 0.2 there was a ``knots_rate``."""
    values = dict(values)
    rate = values.pop("knots_rate", None)
    return values if rate is None else {"knots": f"at {str(rate).removesuffix('.0')}", **values}


def parse_override(text: str) -> tuple[str, object]:
    """``key=value``, as after ``--set``, read by the field's type."""
    key, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--set needs key=value, such as --set epochs=3, got {text!r}")
    key = key.strip()
    check_key(key, "--set")
    if key == "name":
        raise ValueError("--set: name is the recipe's own and cannot be set")
    return key, from_text(key, value.strip(), recipe_types()[key])


def nearest(wrong: str, right: Iterable[str]) -> str:
    """', did you mean ...?', or a list of choices."""
    right = list(right)
    close = get_close_matches(wrong, right, 1, 0.5)
    return f", did you mean {close[0]!r}?" if close else f", choose from {', '.join(right)}"
