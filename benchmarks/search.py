"""``python -m benchmarks.search``: which choices help a SplineNet, tested on images held out of the training set."""

from __future__ import annotations

from pathlib import Path

from splinenets.reproduce import record
from splinenets.training import load_recipe

COMMAND = "python -m benchmarks.search"
RESULTS = Path(__file__).parent / "results" / "search"
RUNS = Path("runs/search")
SPLINE = "D(5)-D-R3"
SHARED = ("width=16", "held_out=5000", "epochs=10", "plain=conv1", "spread=0.1")
OLD = ("learning_rate=0.05", "clip=0", "dropout=0.5")  # the recipe's before the search
NEW = ("learning_rate=0.1", "clip=1", "dropout=0")
# name -> (model, what else is set)
TRIALS: dict[str, tuple[str, tuple[str, ...]]] = {
    "static": ("static", OLD),
    "splines": (SPLINE, OLD),
    "static, no dropout": ("static", (*OLD, "dropout=0")),
    "splines, no dropout": (SPLINE, (*OLD, "dropout=0")),
    "static, rate 0.1, clipped": ("static", NEW),
    "splines, rate 0.1, clipped": (SPLINE, NEW),
    "spread 0.5": (SPLINE, (*NEW, "spread=0.5")),
    "K = 10": ("D(10)-D-R3", NEW),
    "hierarchical": ("H(5)-D-R3", NEW),
    "no regulariser": (SPLINE, (*NEW, "utilization=0", "specialization=0")),
}


def file_name(trial: str) -> str:
    """static, learning rate 0.1 -> static-learning-rate-0.1."""
    return "-".join(trial.replace(",", "").replace("=", "").split())


def main() -> None:
    for name, (model, settings) in TRIALS.items():
        recipe = load_recipe("cifar10-lenet", overrides=(*SHARED, *settings), model=model, seed=0)
        where = file_name(name)
        result = record(recipe, RUNS / where, RESULTS / f"{where}.json", COMMAND)
        loss = result.epochs[-1]["train_loss"]
        print(f"{name}: {result.accuracy:.2%}, train loss {loss:.3f}", flush=True)


if __name__ == "__main__":
    main()
