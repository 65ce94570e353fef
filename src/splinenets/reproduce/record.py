"""Train a recipe once and keep what came out as a small JSON file, which is all that tables and figures read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict

import torch

from ..analysis.counts import by_class, telling
from ..analysis.observe import travel
from ..costs import cost
from ..files import replacing
from ..training import Recipe, Run, Watcher, train
from ..training.build import build_network, load_task
from ..training.recipe import STATIC
from ..training.run import load_run

KEPT = ("epoch", "train_loss", "train_accuracy", "test_loss", "test_accuracy")
LINE = 280  # letters of JSON that stand on one line


class Layer(TypedDict):
    """How a layer's positions were spread at the end, and what they told about labels."""

    layer: str
    entropy: float
    information: float


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one training came to.

    epochs       for each epoch its losses and accuracies
    layers       positions of the layers that the experiment is about; files of 0.1 have all layers, and more of each
    test_images  on which accuracy was measured
    parameters   of the deployed network, and its ``macs`` for one sample
    seconds      that the epochs took, in which the machine may have had other things to do
    maps         layer -> class -> test images in each of 50 bins, on the layer's spline that tells most about classes
    """

    recipe: dict[str, Any]
    epochs: list[dict[str, float]]
    layers: list[Layer]
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
    def seed(self) -> int:
        """Of the training."""
        return int(self.recipe["seed"])

    @property
    def accuracy(self) -> float:
        """After the last epoch: the best epoch would have been chosen by looking at the test set."""
        return self.epochs[-1]["test_accuracy"]


def record(
    recipe: Recipe, run: Path, file: Path, command: str, watcher: Watcher | None = None, layers: Sequence[str] = ()
) -> Result:
    """Train a recipe in the folder ``run`` and write ``file``, unless it is there; what was cut off goes on.

    ``command`` is what the file says of its making, and ``layers`` are those whose positions it keeps. A file of
    another recipe is an error: results of different recipes never stand under one name. ``weights`` of a recipe name
    a run beside this one.
    """
    if file.exists():
        result = read_result(file)
        _same(recipe, result, file)
        return result
    start = str(run.parent / recipe.weights) if recipe.weights else ""
    train(replace(recipe, weights=start), run, resume=True, watcher=watcher)
    result = summarize(recipe, run, command, layers)
    file.parent.mkdir(parents=True, exist_ok=True)
    with replacing(file) as opened:
        opened.write(readable_json(asdict(result)).encode())
    return result


def summarize(recipe: Recipe, run: Path, command: str, layers: Sequence[str] = ()) -> Result:
    """What a finished run's folder tells."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    epochs = [line for line in lines if line["kind"] == "epoch"]
    timings = [json.loads(line) for line in (run / "timings.jsonl").read_text().splitlines()]
    about = Run(run).read()
    task = load_task(recipe)
    price = cost(build_network(replace(recipe, weights=""), task).eval(), task.example(1))
    return Result(
        recipe=recipe.as_dict(),
        epochs=[{key: line[key] for key in KEPT} for line in epochs],
        layers=[
            Layer(layer=each["layer"], entropy=each["entropy"], information=each["information"])
            for each in epochs[-1].get("layers", [])
            if each["layer"] in layers
        ],
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


def readable_json(content: object, indent: int = 0) -> str:
    """JSON in which what is short stands on one line: an epoch, a layer, a timing. Such files are easy to compare."""
    line = json.dumps(content)
    if not isinstance(content, dict | list) or (indent and len(line) <= LINE):
        return line
    named = isinstance(content, dict)
    pairs = content.items() if isinstance(content, dict) else (("", value) for value in content)
    margin, (left, right) = " " * (indent + 1), "{}" if named else "[]"
    items = [
        f"{margin}{f'{json.dumps(key)}: ' if named else ''}{readable_json(value, indent + 1)}" for key, value in pairs
    ]
    return "\n".join([left, ",\n".join(items), margin[1:] + right]) + "\n" * (not indent)


def reuse(recipe: Recipe, file: Path, among: Iterable[Path]) -> Path:
    """``file``, or while it is not there, the first other that has the same recipe: experiments share networks."""
    if file.exists():
        return file
    return next((other for other in among if holds(recipe, read_result(other), other)), file)


def holds(recipe: Recipe, result: Result, where: object) -> bool:
    """Whether a result is that of this recipe."""
    return recipe.change_since(result.recipe, str(where)) is None


def _same(recipe: Recipe, result: Result, file: Path) -> None:
    changed = recipe.change_since(result.recipe, str(file))
    if changed is not None:
        key, before, now = changed
        raise ValueError(
            f"{file} holds a result with {key}={before!r}, now {key} is {now!r}: remove it, or choose another --out"
        )
