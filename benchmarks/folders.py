"""``python -m benchmarks.folders``: images of one's own with nothing set, beside other settings.

Each of five small folders (``benchmarks/pictures.py``) is trained on as ``splinenets train folder:PATH`` does, static
and spline, and with some settings changed. What is trained is tested on fresh images of the same classes, equally many
of each, so that a network that always answers with the largest class gains nothing.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from benchmarks.pictures import KINDS, make
from benchmarks.timing import RESULTS, about, markdown, write
from splinenets.data import load_folder
from splinenets.tracing import evaluating
from splinenets.training import Recipe, load_recipe, load_run, train
from splinenets.training.recipe import STATIC

FILE = RESULTS / "folders.json"
TOLD = ("model", "width", "augment", "batch", "sampling", "epochs", "learning_rate")  # fields that a result keeps
FRESH = 400  # test images, over all classes
NOTHING = "nothing set"
AUGMENTS = {"crop-flip": "affine-elastic", "affine-elastic": "crop-flip"}
WIDTHS = {16: 32, 32: 16}
SETTINGS: Mapping[str, Callable[[Recipe], dict[str, object]]] = {  # what was tried, in terms of what is chosen
    NOTHING: lambda recipe: {},
    "other augmentation": lambda recipe: {"augment": AUGMENTS[recipe.augment]},
    "a third of the rate": lambda recipe: {"learning_rate": recipe.learning_rate / 3},
    "other width": lambda recipe: {"width": WIDTHS[recipe.width]},
}


def measure(kind: str, setting: str, model: str | None) -> dict[str, object]:
    """Train on a folder as the command does, and test on fresh images; ``model`` None is the one that is chosen."""
    with TemporaryDirectory() as place:
        folder, classes = Path(place), len(KINDS[kind].counts)
        data = f"folder:{make(kind, folder / 'images')}"
        fresh = make(kind, folder / "fresh", (math.ceil(FRESH / classes),) * classes, seed=1)
        recipe = load_recipe(data, model=model)
        recipe = replace(recipe, **SETTINGS[setting](recipe))  # type: ignore[arg-type]
        train(recipe, folder / "run")
        found = outcome(folder / "run", fresh, recipe)
    return {"folder": kind, "setting": setting, "static": model == STATIC, **found}


def outcome(run: Path, fresh: Path, recipe: Recipe) -> dict[str, object]:
    """How good a run is on fresh images, and whether all that it wrote down is finite."""
    net, task, _, _ = load_run(run)
    data = load_folder(fresh, recipe.image_size)
    images, labels = (
        torch.cat([getattr(part, key) for part in (data.train, data.test)]) for key in ("images", "labels")
    )
    with evaluating(net), torch.no_grad():
        answers = torch.cat([net(task.augment.evaluate(some)).argmax(1) for some in images.split(100)])
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    numbers = [value for line in lines for value in line.values() if isinstance(value, float)]
    settings = {key: getattr(recipe, key) for key in TOLD}
    accuracy = float((answers == labels).double().mean())
    return {"accuracy": accuracy, "finite": all(map(math.isfinite, numbers)), **settings}


def table() -> str:
    """What came out, a line for each folder: with nothing set, and the best of all settings that were tried."""
    found: dict[tuple[str, bool], dict[str, float]] = {}
    for row in json.loads(FILE.read_text())["rows"]:
        found.setdefault((row["folder"], row["static"]), {})[row["setting"]] = row["accuracy"]
    head = ["folder", "images", "classes", *(f"{n}, {w}" for n in ("static", "SplineNet") for w in (NOTHING, "best"))]
    lines = []
    for kind, images in KINDS.items():
        cells = [kind, str(sum(images.counts)), str(len(images.counts))]
        for static in (True, False):
            tried = found.get((kind, static), {})
            best = max(tried.values()) if len(tried) > 1 else None
            cells += [percent(tried.get(NOTHING)), percent(best)]
        lines.append(cells)
    return markdown(head, lines)


def percent(share: float | None) -> str:
    """A share in percent, or that there is none."""
    return "not run yet" if share is None else f"{100 * share:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=KINDS, action="append", help="a folder; all of them unless named")
    parser.add_argument("--setting", choices=SETTINGS, action="append", help="what to try; all unless named")
    chosen = parser.parse_args()
    for setting in chosen.setting or SETTINGS:
        for kind in chosen.only or KINDS:
            for model in (STATIC, None):
                row = measure(kind, setting, model)
                print(kind, setting, row["static"], row["accuracy"], flush=True)
                same = ("folder", "setting", "static")
                kept = json.loads(FILE.read_text())["rows"] if FILE.exists() else []
                kept = [old for old in kept if any(old[key] != row[key] for key in same)]
                write(FILE, {"about": about("python -m benchmarks.folders", fresh=FRESH), "rows": [*kept, row]})


if __name__ == "__main__":
    main()
