"""Train a recipe once and keep what came out as a small JSON file, which is all that tables and figures read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from ..analysis.counts import by_class, telling
from ..analysis.observe import travel
from ..costs import cost
from ..files import replacing
from ..training.build import build_network, load_task
from ..training.journal import Watcher
from ..training.recipe import STATIC, Recipe
from ..training.run import Run, load_run
from ..training.runner import train

KEPT = ("epoch", "train_loss", "train_accuracy", "test_loss", "test_accuracy")


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one training came to.

    epochs       for each epoch its losses and accuracies
    layers       the health of each spline layer's positions at the end
    test_images  on which accuracy was measured
    parameters   of the deployed network, and its ``macs`` for one sample
    seconds      that the epochs took, in which the machine may have had other things to do
    maps         layer -> class -> test images in each of 50 bins, on the layer's spline that tells most about classes
    """

    recipe: dict[str, Any]
    epochs: list[dict[str, float]]
    layers: list[dict[str, Any]]
    test_images: int
    parameters: int
    macs: int
    seconds: float
    threads: int
    precision: str
    versions: dict[str, str]
    command: str
    maps: dict[str, dict[str, list[int]]] = field(default_factory=dict)

    @property
    def accuracy(self) -> float:
        """After the last epoch: the best epoch would have been chosen by looking at the test set."""
        return self.epochs[-1]["test_accuracy"]


def record(
    recipe: Recipe, run: Path, file: Path, command: str, watcher: Watcher | None = None, layers: Sequence[str] = ()
) -> Result:
    """Train a recipe in the folder ``run`` and write ``file``, unless it is there; what was cut off goes on.

    ``command`` is what the file says of its making, and ``layers`` are those of which it holds maps. A file of another
    recipe is an error: results of different recipes never stand under one name.
    """
    if file.exists():
        result = read_result(file)
        _same(recipe, result, file)
        return result
    train(recipe, run, resume=True, watcher=watcher)
    result = summarize(recipe, run, command, layers)
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as opened:
        opened.write(json.dumps(asdict(result), indent=1).encode() + b"\n")
    return result


def summarize(recipe: Recipe, run: Path, command: str, layers: Sequence[str] = ()) -> Result:
    """What a finished run's folder tells."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    epochs = [line for line in lines if line["kind"] == "epoch"]
    timings = [json.loads(line) for line in (run / "timings.jsonl").read_text().splitlines()]
    about = Run(run).read()
    task = load_task(recipe)
    price = cost(build_network(recipe, task).eval(), task.example(1))
    return Result(
        recipe=recipe.as_dict(),
        epochs=[{key: line[key] for key in KEPT} for line in epochs],
        layers=epochs[-1].get("layers", []),
        test_images=len(task.data.test.labels),
        parameters=price.parameters,
        macs=price.macs,
        seconds=round(sum(line["seconds"] for line in timings), 1),
        threads=torch.get_num_threads(),
        precision=about["precision"],
        versions=about["versions"],
        command=command,
        maps=_maps(run, layers) if layers and recipe.model != STATIC else {},
    )


def _maps(run: Path, layers: Sequence[str]) -> dict[str, dict[str, list[int]]]:
    net, task, *_ = load_run(run)
    test = task.data.test
    _, positions = travel(net, task, test, len(test.labels))
    maps = {}
    for layer in layers:
        position = positions[layer].flatten(1)
        told = by_class(position[:, telling(position, test.labels)[:1]], test.labels, len(task.data.classes))
        maps[layer] = dict(zip(task.data.classes, told[:, 0].int().tolist(), strict=True))
    return maps


def read_result(file: Path) -> Result:
    """A result out of its file."""
    try:
        return Result(**json.loads(file.read_bytes()))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{file} is not a result: {error}") from None


def reuse(recipe: Recipe, file: Path, among: Iterable[Path]) -> Path | None:
    """Copy the result of the same recipe to ``file``, from the first that has it: experiments share networks."""
    same = (other for other in among if recipe.change_since(read_result(other).recipe, str(other)) is None)
    found = None if file.exists() else next(same, None)
    if found:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as opened:
            opened.write(found.read_bytes())
    return found


def _same(recipe: Recipe, result: Result, file: Path) -> None:
    changed = recipe.change_since(result.recipe, str(file))
    if changed is not None:
        key, before, now = changed
        raise ValueError(
            f"{file} holds a result with {key}={before!r}, now {key} is {now!r}: remove it, or choose another --out"
        )
