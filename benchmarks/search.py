"""``python -m benchmarks.search``: which choices help a SplineNet, tested on images held out of the training set."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from splinenets.reproduce import record
from splinenets.reproduce.experiments import CIRCLE, CURVE
from splinenets.training import Recipe, load_recipe
from splinenets.training.recipe import nearest

COMMAND = "python -m benchmarks.search"
RESULTS = Path(__file__).parent / "results" / "search"
RUNS = Path("runs/search")
OLD = ("learning_rate=0.05", "clip=0", "dropout=0.5")  # the LeNet recipes' before the search
NEW = ("learning_rate=0.1", "clip=1", "dropout=0")
GENTLE = "D(5)-D-R3 slope=0.8"
PLAIN = "knots=at 1"  # knots had plain gradients when most of these were trained
NESTEROV, REGULARISER = ("optimizer=nesterov", "weight_decay=5e-4"), ("utilization=0.05", "specialization=0.05")
ADAMW = ("optimizer=adamw", "learning_rate=0.005", "weight_decay=0")
RATES = ("0.006", "0.015", "0.04", "0.08")
RIVAL = "network=splinenets.reproduce.rivals:rival"
COND_LENET = 'arguments={kind = "CondConv", host = "lenet4"}'
DOT, CONV, TREE = "D(5)-D-R3", "D(5)-C-R3", "H(5)-C-R3"
SMALL_RESNET = ("network=resnet", "depth=8", "plain=conv", "held_out=1000", "epochs=2", "learning_rate=0.3")
ADAPTIVE = ("learning_rate=0.003", "weight_decay=0.05", "clip=0")
THREE = {"static": ("static", ()), "plain gradients": (CONV, (PLAIN,)), "balanced": (CONV, ())}


@dataclass(frozen=True)
class Search:
    """Trials of one recipe: name -> (model, what else is set); some of them with more seeds than the first."""

    recipe: str
    shared: tuple[str, ...]
    trials: dict[str, tuple[str, tuple[str, ...]]]
    repeated: dict[str, int] = field(default_factory=dict)


SEARCHES = {
    "MNIST, LeNet-32": Search(
        "mnist-lenet",
        ("held_out=10000", "epochs=6", "calibrate=0", PLAIN),
        {
            "static": ("static", OLD),
            "splines": ("H(4)-D-R3", OLD),
            "static, rate 0.1, clipped": ("static", (*NEW, "dropout=0.3")),
            "splines, rate 0.1, clipped, slope 0.8": ("H(4)-D-R3 slope=0.8", (*NEW, "dropout=0.3")),
            "splines, rate 0.1, clipped, calibrated": ("H(4)-D-R3", (*NEW, "dropout=0.3", "calibrate=2500")),
        },
    ),
    "Fashion-MNIST, LeNet-16": Search(
        "fashion-lenet",
        ("width=16", "held_out=10000", "epochs=6", PLAIN),
        {
            "static": ("static", ()),
            **{f"weights {w}": (DOT, (f"utilization={w}", f"specialization={w}")) for w in ("0.05", "1", "5")},
        },
    ),
    "LeNet-16": Search(
        "cifar10-lenet",
        ("width=16", "held_out=5000", "epochs=10", "plain=conv1", "spread=0.1", "calibrate=0", PLAIN),
        {
            "static": ("static", OLD),
            "splines": (DOT, OLD),
            "static, no dropout": ("static", (*OLD, "dropout=0")),
            "splines, no dropout": (DOT, (*OLD, "dropout=0")),
            "static, rate 0.1, clipped": ("static", NEW),
            "splines, rate 0.1, clipped": (DOT, NEW),
            "splines, calibrated": (DOT, (*NEW, "calibrate=2500")),
            "spread 0.5": (DOT, (*NEW, "spread=0.5")),
            "K = 10": ("D(10)-D-R3", NEW),
            "hierarchical": ("H(5)-D-R3", NEW),
            "no regulariser": (DOT, (*NEW, "utilization=0", "specialization=0")),
            "knots at 3 times the rate": (DOT, (*NEW, "knots=at 3")),
            "decisions by convolution": ("D(5)-C-R3", NEW),
            "surfaces": ("D(5)-D-R3 dims=2", NEW),
            "degree 1": ("D(5)-D-R3 degree=1", NEW),
            "weights 1": (DOT, (*NEW, "utilization=1", "specialization=1")),
            "full gradient": (DOT, (*NEW, "full_gradient=true")),
            "slope 0.8": (GENTLE, NEW),
            "slope 3.4": ("D(5)-D-R3 slope=3.4", NEW),
            "slope 1.2": ("D(5)-D-R3 slope=1.2", NEW),
            "slope 0.4": ("D(5)-D-R3 slope=0.4", NEW),
            "degree 4": ("D(5)-D-R3 degree=4", NEW),
            "slope 0.8, degree 3": ("D(5)-D-R3 degree=3 slope=0.8", NEW),
            "slope 0.8, hierarchical": ("H(5)-D-R3 slope=0.8", NEW),
            "slope 0.8, one spline a layer": ("D(5)-D-R4 slope=0.8", NEW),
            "slope 0.8, eight splines a layer": ("D(5)-D-G8 slope=0.8", NEW),
            "slope 0.8, no plain layer": (GENTLE, (*NEW, "plain=")),
            "knots at 0.3 of the rate": (DOT, (*NEW, "knots=at 0.3")),
            "independent knots": ("D(5)-D-R3 independent", NEW),
            "variance 0.05": ("D(5)-D-R3 variance=0.05", NEW),
            "raw projections": ("D(5)-D-R3 raw", NEW),
            "diffusion 0.5": ("D(5)-D-R3 diffusion=0.5", NEW),
            "static, rate 0.25": ("static", (*NEW, "learning_rate=0.25")),
            "splines, rate 0.25": (DOT, (*NEW, "learning_rate=0.25")),
            "static, batch 50, rate 0.02": ("static", (*NEW, "batch=50", "learning_rate=0.02")),
            "static, batch 50, rate 0.05": ("static", (*NEW, "batch=50", "learning_rate=0.05")),
            "splines, batch 50, rate 0.05": (DOT, (*NEW, "batch=50", "learning_rate=0.05")),
            "static, batch 100, rate 0.07": ("static", (*NEW, "batch=100", "learning_rate=0.07")),
            "slope 0.8, batch 100, rate 0.07": (GENTLE, (*NEW, "batch=100", "learning_rate=0.07")),
        },
        {"static, rate 0.1, clipped": 3, "splines, rate 0.1, clipped": 3, "splines, calibrated": 3, "slope 0.8": 3},
    ),
    "LeNet-16, 40 epochs": Search(
        "cifar10-lenet",
        ("width=16", "held_out=5000", "epochs=40", *NEW, "calibrate=0", PLAIN),
        {
            "static": ("static", ()),
            "splines": (DOT, ()),
            "static, dropout 0.3": ("static", ("dropout=0.3",)),
            "slope 0.8, dropout 0.3": (GENTLE, ("dropout=0.3",)),
        },
    ),
    "LeNet-32": Search(
        "cifar10-lenet",
        ("held_out=5000", "epochs=10", "dropout=0", "calibrate=0", PLAIN),
        {
            "static": ("static", ()),
            "splines": (DOT, ()),
            "plain dense layers": (DOT, ("plain=conv1,dense*",)),
        },
    ),
    "LeNet-32, 16 epochs": Search(
        "cifar10-lenet",
        ("held_out=5000", "epochs=16", "dropout=0.3", "calibrate=0", PLAIN),
        {
            "splines": (DOT, ()),
            "static": ("static", ()),
            "weights 1": (DOT, ("utilization=1", "specialization=1")),
            "slope 0.8": (GENTLE, ()),
        },
        {"splines": 2, "static": 2, "slope 0.8": 2},
    ),
    "ResNet-14": Search(
        "cifar10-resnet",
        (
            *("depth=14", "images=10000", "held_out=2000", "epochs=5", "batch=100", "learning_rate=0.3", "clip=1"),
            *("optimizer=sgd", "weight_decay=5e-4", *REGULARISER),
        ),
        {
            "static": ("static", ("knots=at 0.1",)),
            "splines": (CONV, ("knots=at 1",)),
            "knots at 0.3 of the rate": (CONV, ("knots=at 0.3",)),
            "knots at 0.1 of the rate": (CONV, ("knots=at 0.1",)),
            "knots at 0.03 of the rate": (CONV, ("knots=at 0.03",)),
            "knots that stay": (CONV, ("knots=at 0",)),
            "hierarchical, knots at 0.1 of the rate": (TREE, ("knots=at 0.1",)),
            "hierarchical, knots at 0.03 of the rate": (TREE, ("knots=at 0.03",)),
            "hierarchical, knots that stay": (TREE, ("knots=at 0",)),
        },
    ),
    "ResNet-8, embedded images": Search(
        "demo",
        SMALL_RESNET,
        {
            "static": ("static", ()),
            "plain gradients": (CONV, (PLAIN,)),
            "balanced": (CONV, ()),
            "plain gradients, knots at 0.1 of the rate": (CONV, ("knots=at 0.1",)),
        },
        {"static": 2, "plain gradients": 2, "balanced": 2},
    ),
    "ResNet-8, embedded images, AdamW": Search("demo", (*SMALL_RESNET, "optimizer=adamw", *ADAPTIVE), THREE),
    "ResNet-8, embedded images, Muon": Search("demo", (*SMALL_RESNET, "optimizer=muon", *ADAPTIVE), THREE),
    "LeNet-16, embedded images": Search(
        "demo",
        ("held_out=1000", "epochs=4"),
        {"static": ("static", ()), "plain gradients": (DOT, (PLAIN,)), "balanced": (DOT, ())},
        {"static": 3, "plain gradients": 3, "balanced": 3},
    ),
    "Air 16-32-32": Search(
        "cifar10-air",
        ("widths=16,32,32", "held_out=5000", "epochs=8"),
        {
            "static, Muon 0.04": ("static", ()),
            "K = 3": ("D(3)-C-R3", ()),
            "K = 2": ("D(2)-C-R3", ()),
            "K = 2, spread 1": ("D(2)-C-R3", ("spread=1",)),
            "K = 2, slope 0.6": ("D(2)-C-R3 slope=0.6", ()),
            "K = 4, degree 1, spread 1": ("D(4)-C-R3 degree=1", ("spread=1",)),
            "K = 2, one position a layer, spread 1": ("D(2)-C-R4", ("spread=1",)),
            "two lines": ("D(2)-C-R3 dims=2", ()),
            "two lines, spread 1": ("D(2)-C-R3 dims=2", ("spread=1",)),
            "three lines, spread 1": ("D(2)-C-R3 dims=3", ("spread=1",)),
        },
        {"static, Muon 0.04": 2, "K = 3": 2, "K = 2": 2},
    ),
    "Turned images, LeNet-4": Search(
        "turned-lenet",
        ("held_out=10000", "told=nobody"),
        {
            **{f"static, Muon {rate}": ("static", (f"learning_rate={rate}",)) for rate in RATES},
            "static, Muon 0.04, no decay": ("static", ("learning_rate=0.04", "weight_decay=0")),
            "splines, AdamW 0.005, regulariser": (CIRCLE, (*ADAMW, *REGULARISER)),
            "splines, AdamW 0.005": (CIRCLE, ADAMW),
            **{f"splines, Muon {rate}": (CIRCLE, (f"learning_rate={rate}",)) for rate in RATES[:3]},
            "splines, Muon 0.04, no decay": (CIRCLE, ("learning_rate=0.04", "weight_decay=0")),
            **{f"D({k})-C-R3, Muon 0.04": (f"D({k})-C-R3", ("learning_rate=0.04",)) for k in (2, 3, 5)},
            **{
                f"told by scales, Muon {rate}": ("static", ("told=scales", f"learning_rate={rate}"))
                for rate in RATES[:3]
            },
            **{
                f"told by a curve, Muon {rate}": (CURVE, ("told=curves", f"learning_rate={rate}")) for rate in RATES[:3]
            },
            **{
                f"CondConv, Muon {rate}": ("static", (COND_LENET, RIVAL, f"learning_rate={rate}"))
                for rate in RATES[1:3]
            },
        },
    ),
    "Turned images, LeNet-8 told by a curve": Search(
        "turned-lenet",
        ("held_out=10000", "told=curves", "width=8"),
        {
            **{f"Muon {rate}": (CURVE, (f"learning_rate={rate}",)) for rate in RATES[:2]},
            "Muon 0.015, no decay": (CURVE, ("learning_rate=0.015", "weight_decay=0")),
            "AdamW 0.005": (CURVE, ("optimizer=adamw", "learning_rate=0.005", "weight_decay=0")),
        },
    ),
    "Other dynamic weights": Search(
        "cifar10-air",
        (RIVAL, "widths=16,32,32", "held_out=5000", "epochs=8"),
        {
            f"{kind}, {name}": ("static", (f'arguments={{kind = "{kind}", host = "air16-32-32"}}', *settings))
            for kind in ("SE", "CondConv", "ODConv")
            for name, settings in (("Muon 0.04", ()), ("Nesterov 0.3", (*NESTEROV, "learning_rate=0.3")))
        },
    ),
}


def file_of(search: str, trial: str, seed: int) -> Path:
    """LeNet-16, "static, no dropout" and 1 -> LeNet-16/static-no-dropout-seed-1; the first seed has no number."""
    folder, name = ("-".join(text.replace(",", "").replace("=", "").split()) for text in (search, trial))
    return Path(folder, f"{name}-seed-{seed}" if seed else name)


def recipe_of(search: str, trial: str, seed: int) -> Recipe:
    """What a trial trains."""
    chosen = SEARCHES[search]
    model, settings = chosen.trials[trial]
    return load_recipe(chosen.recipe, overrides=(*chosen.shared, *settings), model=model, seed=seed)


def trainings(search: str) -> Iterator[tuple[str, int]]:
    """The trials of a search and their seeds, first all trials with the first seed."""
    chosen = SEARCHES[search]
    for seed in range(max(chosen.repeated.values(), default=1)):
        yield from ((trial, seed) for trial in chosen.trials if seed < chosen.repeated.get(trial, 1))


def main() -> None:
    """All trials, or those of the searches that are named, as in ``python -m benchmarks.search ResNet-14``."""
    chosen = sys.argv[1:] or list(SEARCHES)
    for where in chosen:
        if where not in SEARCHES:
            print(f"unknown search {where!r}{nearest(where, SEARCHES)}", file=sys.stderr)
            sys.exit(2)
    for where in chosen:
        for name, seed in trainings(where):
            file = file_of(where, name, seed)
            result = record(recipe_of(where, name, seed), RUNS / file, RESULTS / f"{file}.json", COMMAND)
            loss = result.epochs[-1]["train_loss"]
            print(f"{where}, {name}, seed {seed}: {result.accuracy:.2%}, train loss {loss:.3f}", flush=True)


if __name__ == "__main__":
    main()
