"""The grids of the paper's sections, as data: what is trained, at which scale, and what the paper says of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from ..models.resnet import WIDTHS as RESNET_WIDTHS
from ..training import Recipe, load_recipe
from ..training.recipe import STATIC, nearest

Settings = Mapping[str, Any]

SCALES = {
    "quick": "minutes, on a few images that ship with the package: shows that all of it runs, and nothing else",
    "standard": "hours, on two cores",
    "paper": "the paper's hyperparameters and budget",
}


def slug(name: str) -> str:
    """The name of a row as part of a file's name."""
    return "-".join(re.sub("[(),:]", "", name.replace(" = ", "=")).split())


@dataclass(frozen=True, kw_only=True)
class Row:
    """One network of an experiment.

    settings  what it changes in the experiment's recipe
    twin      the row of the plain network that stands beside it: the same training, only without splines
    start     the row, trained before it, whose weights its plain network starts from
    paper     its accuracy in the paper, in percent
    """

    name: str
    settings: Settings
    twin: str = ""
    start: str = ""
    paper: float | None = None

    @property
    def slug(self) -> str:
        """Its name as part of a file's name."""
        return slug(self.name)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A section of the paper, or, without ``paper``, one of ours.

    ``layers`` names those whose positions it is about; without any it is about accuracy.
    """

    title: str
    recipe: str
    rows: tuple[Row, ...]
    quick: Settings
    standard: Settings
    seeds: int = 1
    layers: tuple[str, ...] = ()
    paper: bool = True


@dataclass(frozen=True)
class Trial:
    """One training: a row, with one of its seeds."""

    row: Row
    recipe: Recipe

    @property
    def name(self) -> str:
        """What its files are called."""
        return f"{self.row.slug}-seed{self.recipe.seed}"


def _static(name: str, paper: float | None = None, **settings: Any) -> Row:
    return Row(name=name, settings={"model": STATIC, **settings}, paper=paper)


def _splines(
    specs: Sequence[str],
    twin: str,
    paper: Mapping[str, float] | None = None,
    suffix: str = "",
    **settings: Any,
) -> tuple[Row, ...]:
    return tuple(
        Row(
            name=spec + suffix,
            settings={"model": spec, **settings},
            twin=twin,
            paper=(paper or {}).get(spec),
        )
        for spec in specs
    )


def _weighted(spec: str, weight: float, twin: str) -> Row:
    """Both of the regulariser's weights are set."""
    settings = {"model": spec, "utilization": weight, "specialization": weight}
    return Row(name=f"{spec}, w = {weight:g}", settings=settings, twin=twin)


PLAIN = {"knots": "at 1"}  # knots with plain gradients, as in the paper
# on turned images, see docs/search.md: the recipe's rate is for curves that are told, all others learn faster
FASTER = {"learning_rate": 0.015}
# for comparisons with the recipe's Muon
FIRST = {"weight_decay": 0.0, "utilization": 0.05, "specialization": 0.05}
SGD = {"optimizer": "sgd", "learning_rate": 0.1, "clip": 1.0, **FIRST}
ADAMW = {"optimizer": "adamw", "learning_rate": 0.005, **FIRST}
# on CIFAR-10 networks learn as in the recipe cifar10-air, ResNets for a longer time and without label smoothing
RESNET: dict[str, Any] = {
    **{"augment": "crop-flip", "plain": ("conv",), "epochs": 12, "anneal": "one-cycle", "warmup": 0.3},
    "label_smoothing": 0.0,
}
CURVE, CIRCLE = "D(12)-X-R4 closed", "D(8)-D-R4 closed"
LINE = "D(2)-C-R3"  # on CIFAR-10 held-out images want no more knots, see docs/search.md
LINES = f"{LINE} dims=3"  # three of them, each with its own position


def _told(width: int, told: str, name: str = "", **settings: Any) -> Row:
    """A LeNet on turned images that is told the angle, beside the plain one that is told it best."""
    ways = {"nobody": "", "channels": ", told by channels", "scales": ", told by scales", "curves": ", told by a curve"}
    own = {"model": CURVE} if told == "curves" else {"model": STATIC, **FASTER}
    return Row(
        name=f"LeNet-{width}{ways[told]}{name}",
        settings={"width": width, "told": told, **own, **settings},
        twin="" if told in ("nobody", "scales") else f"LeNet-{width}, told by scales",
    )


def _untold(width: int, model: str, name: str = "", **settings: Any) -> Row:
    """A SplineNet on turned images that nobody tells the angle."""
    own = {"width": width, "told": "nobody", "model": model, **FASTER, **settings}
    return Row(name=f"LeNet-{width} {model}{name}", settings=own, twin=f"LeNet-{width}")


def _regime(name: str, model: str, host: str = "LeNet-4", **settings: Any) -> tuple[Row, Row]:
    """A thin plain network on images that vary in some way, and a SplineNet; nobody is told anything."""
    own, plain = {"told": "nobody", **settings}, f"{name}: {host}"
    return (  # trained before the recipe had Muon, each by the optimizer that was best for it
        Row(name=plain, settings={"model": STATIC, **SGD, **own}),
        Row(name=f"{plain} {model}", settings={"model": model, **ADAMW, **own}, twin=plain),
    )


def _air(widths: tuple[int, int, int], *models: str, **settings: Any) -> tuple[Row, ...]:
    """An Air of these widths on CIFAR-10: plain, and SplineNets of it."""
    name, own = f"Air {'-'.join(map(str, widths))}", {"widths": widths, **settings}
    plain = Row(name=name, settings={"model": STATIC, **own})
    return (plain, *(Row(name=f"{name} {m}", settings={"model": m, **own}, twin=name) for m in models))


def _resnet(depth: int, widths: tuple[int, int, int] = RESNET_WIDTHS, *models: str) -> tuple[Row, ...]:
    """A ResNet of this depth, plain, and SplineNets of it."""
    usual = widths == RESNET_WIDTHS
    name = f"ResNet-{depth}" if usual else f"ResNet-{depth} {'-'.join(map(str, widths))}"
    network = {"network": "splinenets.models:resnet", "arguments": {"depth": depth, "widths": list(widths)}}
    own = {**RESNET, **({"network": "resnet", "depth": depth} if usual else network)}
    plain = Row(name=name, settings={"model": STATIC, **own})
    return (plain, *(Row(name=f"{name} {m}", settings={"model": m, **own}, twin=name) for m in models))


def _upgrades(name: str, model: str, widths: tuple[int, int, int]) -> tuple[Row, Row]:
    """The trained plain network of the row ``name``, trained on: as it is, for a longer time, and as a SplineNet."""
    shared = {"widths": widths, "learning_rate": 0.02}
    plain = Row(name=f"{name}, trained on", settings={"model": STATIC, "epochs": 6, **shared}, start=name)
    spline = {"model": model, "epochs": 4, **shared}
    return plain, Row(name=f"{name}, upgraded to {model}", settings=spline, start=name, twin=plain.name)


def _rivals(name: str, host: str, **settings: Any) -> tuple[Row, ...]:
    """Other dynamic weights on the host of the row ``name``."""
    network = {"model": STATIC, "network": "splinenets.reproduce.rivals:rival", **settings}
    return tuple(
        Row(name=f"{name} {kind}", settings={**network, "arguments": {"kind": kind, "host": host}}, twin=name)
        for kind in ("SE", "CondConv", "ODConv")
    )


THREE: dict[str, Any] = {"data": "mnist+fashion-mnist+cifar10", "condition": "", "epochs": 6}
# as in the recipe cifar10-air, but for augmentation: a mirrored digit is none
THIN_AIR: dict[str, Any] = {
    **{"network": "air", "widths": (8, 16, 16), "plain": ("whitening",), "anneal": "triangular", "warmup": 0.2},
    **{"optimizer": "nesterov", "learning_rate": 0.3, "weight_decay": 5e-4, "clip": 1.0, "label_smoothing": 0.2},
}
SECTORS = tuple((float(low), low + 30.0) for low in range(0, 360, 30))
LENET_QUICK = {"data": "embedded", "images": 500, "epochs": 1, "batch": 100}
RESNET_QUICK = {**LENET_QUICK, "depth": 8, "images": 150, "batch": 50}
RESNET_PAPER = {"D(5)-C-R3": 93.4, "H(5)-C-R3": 93.4, "H(5)-D-R4": 93.5, "H(5)-D-R3": 93.6}
KNOTS = (2, 3, 4, 5)
OPTIONS = ("C-R4", "C-R3", "D-R4", "D-R3")
ORIGINAL, AUGMENTED = ", original", ", augmented"

EXPERIMENTS = {
    "mnist": Experiment(
        title="MNIST",
        recipe="mnist-lenet",
        rows=(
            _static("LeNet-32, original", 99.52, augment="none"),
            *_splines(["H(2)-D-R3"], "LeNet-32, original", {"H(2)-D-R3": 99.61}, ORIGINAL, augment="none"),
            _static("LeNet-32, augmented", 99.60),
            *_splines(
                ["H(2)-D-R3", "H(4)-D-R3"],
                "LeNet-32, augmented",
                {"H(2)-D-R3": 99.65, "H(4)-D-R3": 99.71},
                AUGMENTED,
            ),
        ),
        quick=LENET_QUICK,
        standard={"epochs": 24, **PLAIN},
    ),
    "fashion-specialization": Experiment(
        title="Fashion-MNIST, specialization of positions",
        recipe="fashion-lenet",
        rows=(
            _static("LeNet"),
            _static("LeNet-18", width=18),  # a few more MACs than the SplineNets
            *(_weighted("D(5)-D-R3", weight, "LeNet") for weight in (0.0, 0.05, 0.2, 1.0)),
        ),
        quick=LENET_QUICK,
        standard={"width": 16, "epochs": 6, **PLAIN},
        seeds=3,
        layers=("conv2", "dense1"),
    ),
    "cifar10-lenet": Experiment(
        title="CIFAR-10, LeNet",
        recipe="cifar10-lenet",
        rows=(
            # 35: a few more MACs than D(5)-D-R3
            *(_static(f"LeNet-{width}", width=width) for width in (32, 35, 64, 128)),
            *_splines([f"{kind}({k})-D-R3" for kind in "DH" for k in KNOTS], "LeNet-32"),
            _weighted("D(5)-D-R3", 1.0, "LeNet-32"),
            *_splines(["D(5)-D-R3"], "LeNet-32", suffix=", calibrated", calibrate=2500),
        ),
        quick=LENET_QUICK,
        standard={"epochs": 16, "calibrate": 0, **PLAIN},  # what that brings is a row of its own
        seeds=2,
    ),
    "cifar10-resnet-knots": Experiment(
        title="CIFAR-10, ResNet, the number of knots",
        recipe="cifar10-resnet",
        rows=(
            _static("ResNet-32", 92.5),
            *_splines([f"D({k})-C-R3" for k in KNOTS], "ResNet-32", RESNET_PAPER),
            *_splines([f"H({k})-C-R3" for k in KNOTS], "ResNet-32", RESNET_PAPER),
        ),
        quick=RESNET_QUICK,
        standard={},
    ),
    "cifar10-resnet-options": Experiment(
        title="CIFAR-10, ResNet, decisions and ranks",
        recipe="cifar10-resnet",
        rows=(
            _static("ResNet-32", 92.5),
            _static("ResNet-110", 93.6, depth=110),
            *_splines([f"D(5)-{option}" for option in OPTIONS], "ResNet-32", RESNET_PAPER),
            *_splines([f"H(5)-{option}" for option in OPTIONS], "ResNet-32", RESNET_PAPER),
        ),
        quick=RESNET_QUICK,
        standard={},
    ),
    "turned": Experiment(
        title="Fashion-MNIST turned by any angle",
        recipe="turned-lenet",
        rows=(
            *(_told(width, "nobody") for width in (4, 6, 8, 10)),
            *(_untold(width, CIRCLE) for width in (4, 8)),
            *_rivals("LeNet-4", "lenet4", told="nobody", **FASTER),
            *(_told(width, "scales") for width in (4, 8, 10)),
            *(_told(width, "curves") for width in (4, 8)),
            _told(4, "channels"),
            _told(4, "curves", ", open", model="D(12)-X-R4"),
            # trained before the recipe had Muon
            *(_told(4, told, ", SGD", **SGD, **PLAIN) for told in ("nobody", "scales")),
            _told(4, "curves", ", SGD", **SGD),
            _told(4, "curves", ", AdamW", **ADAMW),
            _untold(4, CIRCLE, ", AdamW", **ADAMW),
            *(
                _told(4, "nobody", f", {low:g} to {high:g} degrees", between=(low, high), **SGD, **PLAIN)
                for low, high in SECTORS
            ),
        ),
        quick=LENET_QUICK,
        standard={},
        seeds=5,
        paper=False,
    ),
    "regimes": Experiment(
        title="One thin network for images that vary, and nobody tells it how",
        recipe="turned-lenet",
        rows=(
            *_regime("three data sets", "D(8)-D-R4", **THREE),
            *_regime("three data sets", "D(5)-C-R3", "Air 8-16-16", **THREE, **THIN_AIR),
            *_regime("any size", "D(8)-D-R4", condition="scale"),
            *_regime("any noise", "D(8)-D-R4", condition="noise"),
            *_regime("any exposure", "D(8)-D-R4", condition="exposure"),
        ),
        quick=LENET_QUICK,
        standard={},
        seeds=3,
        paper=False,
    ),
    "frontier": Experiment(
        title="CIFAR-10, thin networks, other dynamic weights, and trained networks that get splines",
        recipe="cifar10-air",
        rows=(
            *_air((8, 16, 16), LINE, LINES),
            *_air((12, 24, 24), LINE),
            *_air((16, 32, 32), LINE, LINES),
            *_rivals("Air 16-32-32", "air16-32-32", widths=(16, 32, 32)),
            *_air((16, 32, 64), LINE, LINES),
            *_air((16, 48, 64)),  # the times of the SplineNets above
            *_air((16, 64, 64)),
            *_air((32, 64, 64), LINE, LINES),
            *_air((64, 128, 128), epochs=12),  # as the recipe has it
            *_resnet(8, RESNET_WIDTHS, LINE, LINES),
            *_resnet(8, (16, 32, 80)),  # the time of the one above
            *_resnet(14, RESNET_WIDTHS, LINE),
            *_resnet(20),
            *_upgrades("Air 16-32-32", LINE, (16, 32, 32)),
        ),
        quick={**LENET_QUICK, "images": 150, "batch": 50},
        standard={"epochs": 8},
        seeds=5,
        paper=False,
    ),
    "utilization": Experiment(
        title="Fashion-MNIST, utilization of positions",
        recipe="fashion-lenet",
        rows=tuple(
            Row(
                name=name,
                settings={"model": "D(5)-D-R3", "bins": bins, "utilization": weight, "specialization": 0.0},
            )
            for name, bins, weight in (
                ("without regulariser", 50, 0.0),
                *((f"B = {bins}", bins, 0.2) for bins in (2, 3, 5, 50)),
            )
        ),
        quick=LENET_QUICK,
        standard={"width": 16, "epochs": 3, **PLAIN},
        layers=("conv2", "dense1"),
    ),
}


def find(name: str) -> Experiment:
    """An experiment by name."""
    if name not in EXPERIMENTS:
        raise ValueError(f"unknown experiment {name!r}{nearest(name, EXPERIMENTS)}")
    return EXPERIMENTS[name]


def trials(name: str, scale: str, seeds: int | None = None, only: Sequence[str] = ()) -> list[Trial]:
    """Everything an experiment trains: each row with seeds 0, 1, ... (default: as many as its tables have).

    ``only`` picks rows by patterns of their names.
    """
    if scale not in SCALES:
        raise ValueError(f"unknown scale {scale!r}{nearest(scale, SCALES)}")
    experiment = find(name)
    if scale == "paper" and not experiment.paper:
        raise ValueError(f"{name} is not in the paper, so it has no such scale: choose quick or standard")
    for pattern in only:
        if not any(fnmatchcase(row.name, pattern) for row in experiment.rows):
            raise ValueError(f"no row of {name} fits {pattern!r}{nearest(pattern, [r.name for r in experiment.rows])}")
    if seeds is None:
        seeds = 1 if scale == "quick" else experiment.seeds
    if seeds < 1:
        raise ValueError(f"seeds must be 1 or more, got {seeds}")
    return list(_trials(experiment, scale, seeds, only or ("*",)))


def _trials(experiment: Experiment, scale: str, seeds: int, only: Sequence[str]) -> Iterator[Trial]:
    for seed in range(seeds):  # the first seed of everything comes first
        for row in experiment.rows:
            if any(fnmatchcase(row.name, pattern) for pattern in only):
                yield Trial(row, recipe_of(experiment, row, scale, seed))


def recipe_of(experiment: Experiment, row: Row, scale: str, seed: int) -> Recipe:
    """What one training of a row is."""
    shared = {"quick": experiment.quick, "standard": experiment.standard}.get(scale, {})
    settings = {**shared, **row.settings}
    if scale == "quick":
        settings |= {key: shared[key] for key in ("data", "epochs")}  # whatever a row has otherwise
    if row.start:
        settings["weights"] = f"{slug(row.start)}-seed{seed}"  # a run beside its own, see ``record``
    return load_recipe(experiment.recipe, "paper" if scale == "paper" else "fast", seed=seed, **settings)
