"""``python -m benchmarks.folders``: images of one's own with nothing set, beside the best setting that was found.

Each of five small folders (``benchmarks/pictures.py``) is trained on as ``splinenets train folder:PATH`` does, static
and spline, and by the best of the settings that were tried by hand. What is trained is tested on fresh images of the
same classes, equally many of each, so that a network that always answers with the largest class gains nothing.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
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
FRESH = 400  # test images, over all classes
BEST: Mapping[str, Sequence[str]] = {}


def measure(kind: str, folder: Path) -> list[dict[str, object]]:
    """Both twins of a folder, with nothing set and by the best setting."""
    classes = len(KINDS[kind].counts)
    data = f"folder:{make(kind, folder / 'images')}"
    fresh = make(kind, folder / "fresh", (math.ceil(FRESH / classes),) * classes, seed=1)
    rows = []
    for setting, overrides in (("nothing set", ()), ("best", BEST[kind])):
        chosen = load_recipe(data, overrides=overrides)
        for model in (STATIC, chosen.model):
            recipe = load_recipe(data, overrides=overrides, model=model)
            run = folder / f"{setting}-{model}"
            train(recipe, run)
            rows.append({"folder": kind, "setting": setting, "model": model, **outcome(run, fresh, recipe)})
            print(rows[-1], flush=True)
    return rows


def outcome(run: Path, fresh: Path, recipe: Recipe) -> dict[str, object]:
    """How good a run is on fresh images, and whether all that it wrote down is finite."""
    net, task, _, _ = load_run(run)
    data = load_folder(fresh, recipe.image_size)
    images, labels = (torch.cat(parts) for parts in zip(*((s.images, s.labels) for s in (data.train, data.test)), strict=True))
    with evaluating(net), torch.no_grad():
        right = sum(
            int((net(task.augment.evaluate(some)).argmax(1) == answers).sum())
            for some, answers in zip(images.split(100), labels.split(100), strict=True)
        )
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    numbers = [value for line in lines for value in line.values() if isinstance(value, float)]
    settings = {key: value for key, value in recipe.as_dict().items() if key not in ("data", "name")}
    return {"accuracy": right / len(labels), "finite": all(map(math.isfinite, numbers)), "recipe": settings}


def table() -> str:
    """What came out, a line for each folder."""
    rows = json.loads(FILE.read_text())["rows"]
    found = {(row["folder"], row["setting"], row["model"] == STATIC): row["accuracy"] for row in rows}
    head = ["folder", "images", "static, nothing set", "static, best", "SplineNet, nothing set", "SplineNet, best"]
    lines = []
    for kind in dict.fromkeys(row["folder"] for row in rows):
        cells = [found[kind, setting, static] for static in (True, False) for setting in ("nothing set", "best")]
        lines.append([kind, str(sum(KINDS[kind].counts)), *(f"{100 * cell:.1f}" for cell in cells)])
    return markdown(head, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="*", help=f"some of: {', '.join(KINDS)}")
    kinds = parser.parse_args().kinds or list(KINDS)
    kept = json.loads(FILE.read_text())["rows"] if FILE.exists() else []
    for kind in kinds:
        with TemporaryDirectory() as folder:
            rows = measure(kind, Path(folder))
        kept = [row for row in kept if row["folder"] != kind] + rows
        write(FILE, {"about": about("python -m benchmarks.folders", fresh=FRESH), "rows": kept})


if __name__ == "__main__":
    main()
