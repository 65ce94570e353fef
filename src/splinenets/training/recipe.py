"""Recipe: everything that decides what a training run computes, checked before any work starts.

Recipes are TOML files: those that ship with the package, and a user's own.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from ..data.augment import augmentation
from ..data.dataset import KNOWN
from ..data.store import FOLDER_PREFIX
from ..spec import SplineSpec

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

RECIPES = Path(__file__).parent.parent / "recipes"
DEFAULT_SCHEDULE = "fast"
STATIC = "static"
NETWORKS = ("lenet", "resnet")
ANNEALS = ("one-cycle", "steps")
PRECISIONS = ("auto", "float32", "bf16", "float64")
RANGES: dict[str, tuple[float, float]] = {
    "image_size": (4, 1024),
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
    "weight_decay": (0, 10),
    "clip": (0, 1e6),
    "knots_rate": (0, 100),
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
WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
TRUTHS = {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What to train, on what and how; ``splinenets train NAME --set key=value`` sets any of these.

    data              a data set's name, or folder:PATH
    image_size        of the images in a folder, in pixels
    images            train on the first so many images; 0: on all
    held_out          test on so many images from the end of the training set, which are then not trained on, instead
                      of the test set: for choosing among recipes; 0: on the test set
    augment           none, crop-flip or affine-elastic
    network           lenet or resnet
    width             filters in LeNet's first convolution
    depth             layers of a ResNet, 6n + 2
    dropout           LeNet's
    model             a spec such as D(5)-D-R3, or static for the plain twin
    spline_options    what a spec has beyond its notation, unless ``model`` says otherwise, such as diffusion=0.875
    plain             name patterns of layers that stay plain
    spread            how far knots start from the twin's weight, in its standard deviations
    batch             samples a step, over all ranks
    anneal            one-cycle: the learning rate goes up in a line and down in a cosine;
                      steps: it is constant, and multiplied by ``drop_factor`` at each of ``drops``
    warmup            share of the steps in which the learning rate rises
    drops             shares of the steps at which it drops
    knots_rate        the learning rate of knots around a shared weight, as a share of the others'
    weight_decay      of weights and knots; never of biases, normalisations and inherited positions' matrices
    clip              the norm above which gradients are scaled down to it, 0: never
    utilization       w_u of the regulariser; with both weights 0 there is none
    specialization    w_s
    bins, bin_slope   of its histograms
    full_gradient     let it train features and parents too, as in the paper
    calibrate         undistorted training images by which decisions are standardised from the end of an epoch until
                      training goes on (see ``splinenets.calibrate``); 0: by the distorted ones that training saw last
    precision         float32, bf16, float64, or auto: bf16 where the processor has instructions for it
    log_every         steps between two lines of metrics
    checkpoint_every  steps between two checkpoints within an epoch; 0: only at its end
    keep              how many checkpoints are kept, beside the best
    """

    name: str
    data: str = "embedded"
    image_size: int = 32
    images: int = 0
    held_out: int = 0
    augment: str = "none"
    network: str = "lenet"
    width: int = 32
    depth: int = 32
    dropout: float = 0.5
    model: str = "D(5)-D-R3"
    spline_options: str = ""
    plain: tuple[str, ...] = ()
    spread: float = 0.1
    batch: int = 250
    epochs: int = 10
    anneal: str = "one-cycle"
    learning_rate: float = 0.1
    knots_rate: float = 1.0
    momentum: float = 0.9
    weight_decay: float = 0.0
    clip: float = 0.0
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
        if not 1 < self.bin_slope < math.inf:
            raise ValueError(f"bin_slope must be a number above 1, got {self.bin_slope}")
        if any(not 0 < drop < 1 for drop in self.drops) or list(self.drops) != sorted(set(self.drops)):
            raise ValueError(f"drops must be shares of the steps, between 0 and 1 and rising, got {self.drops}")
        for name, choices in (("network", NETWORKS), ("anneal", ANNEALS), ("precision", PRECISIONS)):
            if getattr(self, name) not in choices:
                raise ValueError(f"unknown {name} {getattr(self, name)!r}, choose from {', '.join(choices)}")
        if self.network == "resnet" and (self.depth - 2) % 6:
            raise ValueError(f"depth of a ResNet must be 6n + 2, such as 20, 32, 44, 56 or 110, got {self.depth}")
        if self.data not in KNOWN and not self.data.startswith(FOLDER_PREFIX):
            raise ValueError(
                f"unknown data {self.data!r}, choose from {', '.join(sorted(KNOWN))} or {FOLDER_PREFIX}PATH"
            )
        try:
            augmentation(self.augment)
        except ValueError as error:
            raise ValueError(f"augment: {error}") from None
        try:
            self.spec  # noqa: B018
        except ValueError as error:
            raise ValueError(f"model: {error}, or {STATIC!r}") from None

    @property
    def spec(self) -> SplineSpec | None:
        """The kind of splines, with the recipe's options where ``model`` leaves them open; None for a plain network."""
        if self.model == STATIC:
            return None
        said = {word.partition("=")[0] for word in self.model.split()}
        more = [word for word in self.spline_options.split() if word.partition("=")[0] not in said]
        return SplineSpec.parse(" ".join([self.model, *more]))

    @property
    def regularized(self) -> bool:
        """Whether the mutual-information regulariser has anything to do."""
        return self.model != STATIC and self.utilization + self.specialization > 0

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
            checked: dict[str, Any] = {key: from_value(key, value, hints[key]) for key, value in values.items()}
            return cls(**checked)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None

    def change_since(self, earlier: Mapping[str, object], where: str) -> tuple[str, object, object] | None:
        """The first field that differs from an earlier recipe, then and now; fields younger than that had defaults."""
        before = Recipe.from_dict(earlier, where).as_dict()
        return next(((key, before[key], now) for key, now in self.as_dict().items() if before[key] != now), None)


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


# Recipes by name


def recipe_names() -> list[str]:
    """The recipes that ship with the package."""
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def load_recipe(
    name: str, schedule: str = DEFAULT_SCHEDULE, overrides: Sequence[str] = (), **settings: object
) -> Recipe:
    """A recipe by name or by the path of a .toml file, with one of its schedules and some fields set.

    A file holds fields, and tables ``[schedule.NAME]`` of fields that belong to a schedule. ``overrides`` are texts
    such as "epochs=3", and come last; ``settings`` that are None are left alone.
    """
    path = find_recipe(name)
    values = read_toml(path)
    schedules = values.pop("schedule", {})
    if not isinstance(schedules, Mapping) or not all(isinstance(table, Mapping) for table in schedules.values()):
        raise ValueError(f"{path}: schedule must hold tables such as [schedule.{DEFAULT_SCHEDULE}]")
    for chosen, table in schedules.items():
        for key in table:
            check_key(key, f"{path}, schedule {chosen!r}")
    if schedules and schedule not in schedules:
        raise ValueError(f"{path} has no schedule {schedule!r}{nearest(schedule, schedules)}")
    values |= schedules.get(schedule, {})
    values |= {key: value for key, value in settings.items() if value is not None}
    values |= dict(map(parse_override, overrides))
    values.setdefault("name", path.stem)
    return Recipe.from_dict(values, f"recipe {name!r}")


def find_recipe(name: str) -> Path:
    """The file of a recipe that ships, or of a user's own."""
    shipped = RECIPES / f"{name}.toml"
    if name in recipe_names():
        return shipped
    path = Path(name).expanduser()
    if path.suffix == ".toml":
        try:
            if path.is_file():
                return path
        except (OSError, ValueError):  # a name no file can have
            pass
        raise ValueError(f"there is no recipe file {name!r}; recipes that ship are {', '.join(recipe_names())}")
    raise ValueError(f"unknown recipe {name!r}{nearest(name, recipe_names())} A file of your own must end in .toml")


def read_toml(path: Path) -> dict[str, object]:
    """What a TOML file holds."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a TOML file: {error}") from None
    except RecursionError:
        raise ValueError(f"{path} is not a recipe: its values are nested too deeply") from None


# Values of fields: from text by type, from TOML with their types checked, and near misses named


def parse_override(text: str) -> tuple[str, object]:
    """``key=value``, as after ``--set``, read by the field's type."""
    key, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--set wants key=value, such as --set epochs=3, got {text!r}")
    key = key.strip()
    check_key(key, "--set")
    if key == "name":
        raise ValueError("--set: name is the recipe's own and cannot be set")
    return key, from_text(key, value.strip(), recipe_types()[key])


def nearest(wrong: str, right: Iterable[str]) -> str:
    """', did you mean ...?', or a list of what there is."""
    right = list(right)
    close = get_close_matches(wrong, right, 1, 0.5)
    return f", did you mean {close[0]!r}?" if close else f"; there are {', '.join(right)}"


def from_text(key: str, text: str, kind: type) -> object:
    """Read what a user typed for a field of this type; a tuple's members stand between commas."""
    if get_origin(kind) is tuple:
        return tuple(from_text(key, part.strip(), get_args(kind)[0]) for part in text.split(",") if part.strip())
    try:
        if kind is bool:
            return TRUTHS[text.lower()]
        if kind is str:
            return text
        return kind(text)
    except (ValueError, KeyError):
        raise ValueError(f"{key} wants {WORDS[kind]}, got {text!r}") from None


def from_value(key: str, value: object, kind: type) -> object:
    """Check a value that has a type already; whole numbers are numbers, and truths are not."""
    if get_origin(kind) is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{key} wants a list, got {value!r}")
        return tuple(from_value(key, part, get_args(kind)[0]) for part in value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53:
        return float(value)
    if type(value) is not kind:
        raise ValueError(f"{key} wants {WORDS[kind]}, got {value!r}")
    return value
