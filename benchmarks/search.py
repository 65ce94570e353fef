"""``python -m benchmarks.search``: which choices help a SplineNet, tested on images held out of the training set."""

from __future__ import annotations

from pathlib import Path

from splinenets.reproduce import record
from splinenets.training import load_recipe

COMMAND = "python -m benchmarks.search"
RESULTS = Path(__file__).parent / "results" / "search"
RUNS = Path("runs/search")
SPLINE = "D(5)-D-R3"
SHARED = ("width=16", "images=25000", "held_out=5000", "epochs=6", "learning_rate=0.05", "plain=conv1", "spread=0.1")
UNREGULARIZED = ("utilization=0", "specialization=0")
# name -> (model, what else is set)
TRIALS: dict[str, tuple[str, tuple[str, ...]]] = {
    "static, learning rate 0.1": ("static", ("learning_rate=0.1",)),
    "splines, learning rate 0.1": (SPLINE, ("learning_rate=0.1",)),
    "static": ("static", ()),
    "splines": (SPLINE, ()),
    "regulariser 0.05": (SPLINE, ("utilization=0.05", "specialization=0.05")),
    "only dense layers": (SPLINE, ("plain=conv*",)),
    "only the second convolution": (SPLINE, ("plain=conv1,dense*",)),
    "spread 0.5": (SPLINE, ("spread=0.5",)),
    "first layer too": (SPLINE, ("plain=",)),
    "degree 1": (f"{SPLINE} degree=1", ()),
    "hierarchical": ("H(5)-D-R3", ()),
    "K = 10": ("D(10)-D-R3", ()),
}


def file_name(trial: str) -> str:
    """static, learning rate 0.1 -> static-learning-rate-0.1."""
    return "-".join(trial.replace(",", "").replace("=", "").split())


def main() -> None:
    for name, (model, settings) in TRIALS.items():
        shared = SHARED if model == "static" else (*SHARED, *UNREGULARIZED)
        recipe = load_recipe("cifar10-lenet", overrides=(*shared, *settings), model=model, seed=0)
        where = file_name(name)
        result = record(recipe, RUNS / where, RESULTS / f"{where}.json", COMMAND)
        loss = result.epochs[-1]["train_loss"]
        print(f"{name}: {result.accuracy:.2%}, train loss {loss:.3f}", flush=True)


if __name__ == "__main__":
    main()
