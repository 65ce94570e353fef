"""``python -m benchmarks.search``: which choices help a SplineNet, tested on images held out of the training set."""

from __future__ import annotations

import sys
from pathlib import Path

from splinenets.reproduce.record import record
from splinenets.training import load_recipe

RESULTS = Path(__file__).parent.parent / "results" / "search"
NO_REGULARIZER = ("utilization=0", "specialization=0")
COMMAND = "python -m benchmarks.search"
SPLINE = "D(5)-D-R3"
# name -> (model, what else is set)
TRIALS: dict[str, tuple[str, tuple[str, ...]]] = {
    "static": ("static", ()),
    "first layer plain": (SPLINE, NO_REGULARIZER),
    "static, learning rate 0.05": ("static", ("learning_rate=0.05",)),
    "learning rate 0.05": (SPLINE, ("learning_rate=0.05", *NO_REGULARIZER)),
    "static, dropout 0.25": ("static", ("dropout=0.25",)),
    "dropout 0.25": (SPLINE, ("dropout=0.25", *NO_REGULARIZER)),
    "regulariser 0.05": (SPLINE, ()),
    "only conv2": (SPLINE, ("plain=conv1,dense*", *NO_REGULARIZER)),
    "only dense layers": (SPLINE, ("plain=conv*", *NO_REGULARIZER)),
    "spread 0.5": (SPLINE, ("spread=0.5", *NO_REGULARIZER)),
    "all layers splines": (SPLINE, ("plain=", *NO_REGULARIZER)),
    "degree 1": (f"{SPLINE} degree=1", NO_REGULARIZER),
    "K = 10": ("D(10)-D-R3", NO_REGULARIZER),
    "hierarchical": ("H(5)-D-R3", NO_REGULARIZER),
}
RUNS = Path("runs/search")
PROBLEMS: dict[str, tuple[str, tuple[str, ...]]] = {
    "cifar10": ("cifar10-lenet", ("width=16", "images=25000", "held_out=5000", "epochs=6")),
    "fashion-mnist": ("fashion-lenet", ("width=16", "images=25000", "held_out=5000", "epochs=6")),
}


def file_name(trial: str) -> str:
    """static, dropout 0.25 -> static-dropout-0.25."""
    return "-".join(trial.replace(",", "").replace("=", "").split())


def main(problems: list[str]) -> None:
    for problem in problems or PROBLEMS:
        recipe_name, shared = PROBLEMS[problem]
        for name, (model, settings) in TRIALS.items():
            recipe = load_recipe(recipe_name, overrides=(*shared, *settings), model=model, seed=0)
            where = file_name(name)
            result = record(recipe, RUNS / problem / where, RESULTS / problem / f"{where}.json", COMMAND)
            loss = result.epochs[-1]["train_loss"]
            print(f"{problem}: {name}: {result.accuracy:.2%}, train loss {loss:.3f}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
