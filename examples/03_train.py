"""Train by a recipe from Python: the folder holds everything, and ``resume=True`` goes on after any interruption."""

import tempfile
from pathlib import Path

from splinenets.training import load_recipe, train


def main() -> None:
    recipe = load_recipe("demo", overrides=["epochs=1", "width=4", "batch=500"], model="D(5)-D-R3")
    with tempfile.TemporaryDirectory() as folder:
        state = train(recipe, Path(folder) / "run", resume=True)
        print(f"{state.step} steps, best {state.best}")
        print(sorted(path.name for path in (Path(folder) / "run").iterdir()))


if __name__ == "__main__":
    main()
