"""``python -m benchmarks.folders``: images of one's own with nothing set, beside other settings.

Each of five small folders (``benchmarks/pictures.py``) is trained on as ``splinenets train folder:PATH`` does, static
and spline, and with some settings changed. What is trained is tested on fresh images of the same classes, equally many
of each, so that a network that always answers with the largest class gains nothing. Defaults are never chosen by these
images: whoever looks at them to choose one raises the folder's number in ``DRAWN``, so that they are drawn anew, and
measures again. Today's were chosen on drawing 0, the number of steps for few images also on drawing 1, what an Air has
for few images on drawings 10 and 11.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory

import torch

from benchmarks.pictures import KINDS, make
from benchmarks.timing import RESULTS, about, markdown, write
from splinenets.data import load_folder
from splinenets.tracing import evaluating
from splinenets.training import Recipe, load_recipe, load_run, train
from splinenets.training.recipe import STATIC

FILE = RESULTS / "folders.json"
TOLD = ("network_name", "model", "augment", "batch", "epochs", "optimizer", "learning_rate", "seed")  # kept
FRESH = 400  # test images, over all classes
DRAWN = dict.fromkeys(KINDS, 1) | {"mixed sizes": 2, "100 classes": 2}  # which drawing of all images and strokes
NOTHING = "nothing set"
AUGMENTS = {"affine-flip": "crop-flip", "affine-elastic": "affine-flip"}
SETTINGS: Mapping[str, Callable[[Recipe], dict[str, object]]] = {  # what was tried, in terms of what is chosen
    NOTHING: lambda recipe: {},
    "other augmentation": lambda recipe: {"augment": AUGMENTS[recipe.augment]},
    "a third of the rate": lambda recipe: {"learning_rate": recipe.learning_rate / 3},
    "three times the rate": lambda recipe: {"learning_rate": 3 * recipe.learning_rate},
    "twice the width": lambda recipe: {"width": 2 * recipe.width, "widths": tuple(2 * w for w in recipe.widths)},
    "twice the epochs": lambda recipe: {"epochs": 2 * recipe.epochs},
    "a sixth of the decay": lambda recipe: {"weight_decay": recipe.weight_decay / 6} if adaptive(recipe) else {},
    "five knots": lambda recipe: {"model": recipe.model.replace("(3)", "(5)")} if "(3)" in recipe.model else {},
    "no regulariser": lambda recipe: {"utilization": 0.0, "specialization": 0.0} if recipe.spec else {},
}
SAME = ("folder", "setting", "static", "seed", "drawn")  # what names a row


def adaptive(recipe: Recipe) -> bool:
    """Whether the optimizer scales steps, so that weight decay weighs little beside them."""
    return recipe.optimizer in ("adamw", "muon")


def measure(kind: str, setting: str, model: str | None, seed: int = 0) -> dict[str, object] | None:
    """Train on a folder as the command does, and test on fresh images; ``model`` None is the one that is chosen.

    None if the setting changes nothing here.
    """
    with TemporaryDirectory() as place:
        folder, classes, drawn = Path(place), len(KINDS[kind].counts), DRAWN[kind]
        data = f"folder:{make(kind, folder / 'images', seed=2 * drawn, strokes=drawn)}"
        equal = (math.ceil(FRESH / classes),) * classes
        fresh = make(kind, folder / "fresh", equal, seed=2 * drawn + 1, strokes=drawn)
        chosen = load_recipe(data, model=model, seed=seed)
        recipe = replace(chosen, **SETTINGS[setting](chosen))  # type: ignore[arg-type]
        if recipe == chosen and setting != NOTHING:
            return None
        train(recipe, folder / "run")
        found = outcome(folder / "run", fresh, recipe)
    return {"folder": kind, "setting": setting, "static": model == STATIC, "drawn": drawn, **found}


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
    accuracy = round(float((answers == labels).double().mean()), 4)
    return {"accuracy": accuracy, "finite": all(map(math.isfinite, numbers)), **settings}


def table() -> str:
    """What came out, a line for each folder: with nothing set, and the best of all settings that were tried.

    Accuracies are means over seeds; after them, in brackets, how many settings were tried.
    """
    found: dict[tuple[str, bool], dict[str, list[float]]] = {}
    for row in json.loads(FILE.read_text())["rows"]:
        if row["drawn"] != DRAWN[row["folder"]]:
            continue
        settings = found.setdefault((row["folder"], row["static"]), {})
        settings.setdefault(row["setting"], []).append(row["accuracy"])
    words = (NOTHING, "best", "share")
    head = ["folder", "images", "classes", *(f"{name}, {word}" for name in ("static", "SplineNet") for word in words)]
    lines = []
    for kind, images in KINDS.items():
        cells = [kind, str(sum(images.counts)), str(len(images.counts))]
        for static in (True, False):
            tried = {setting: mean(values) for setting, values in found.get((kind, static), {}).items()}
            chosen, best = tried.get(NOTHING), max(tried.values()) if len(tried) > 1 else None
            share = chosen / best if chosen is not None and best else None
            cells += [percent(chosen), f"{percent(best)} ({len(tried)})", percent(share)]
        lines.append(cells)
    return markdown(head, lines)


def percent(share: float | None) -> str:
    """A share in percent, or that there is none."""
    return "not run yet" if share is None else f"{100 * share:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=KINDS, action="append", help="a folder; all of them unless named")
    parser.add_argument("--setting", choices=SETTINGS, action="append", help="what to try; all unless named")
    parser.add_argument("--seeds", type=int, default=1, help="how many, from 0 on")
    chosen = parser.parse_args()
    for setting, seed, kind, model in product(
        chosen.setting or SETTINGS, range(chosen.seeds), chosen.only or KINDS, (STATIC, None)
    ):
        kept = json.loads(FILE.read_text())["rows"] if FILE.exists() else []
        wanted = {"folder": kind, "setting": setting, "static": model == STATIC, "seed": seed, "drawn": DRAWN[kind]}
        if any(all(old[key] == wanted[key] for key in SAME) for old in kept):
            continue  # delete a row to have it measured again
        row = measure(kind, setting, model, seed)
        if row is None:
            continue
        print(*wanted.values(), row["accuracy"], flush=True)
        kept = json.loads(FILE.read_text())["rows"] if FILE.exists() else []  # another process may have added some
        write(FILE, {"about": about("python -m benchmarks.folders", fresh=FRESH), "rows": [*kept, row]})


if __name__ == "__main__":
    main()
