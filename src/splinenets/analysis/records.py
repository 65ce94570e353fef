"""Runs as the report sees them: whatever can be read is there, and notes say what is not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from ..files import Json, slug
from ..training import Run
from ..training.build import Task
from ..training.recipe import STATIC
from ..training.run import FORMAT, load_run
from .counts import BINS
from .history import Epoch, LayerEpoch
from .text import printable, unique

DATA = {
    "embedded": "a part of Fashion-MNIST",
    "fashion-mnist": "Fashion-MNIST",
    "mnist": "MNIST",
    "cifar10": "CIFAR-10",
}


@dataclass(frozen=True, kw_only=True)
class Record:
    """One run; ``loaded`` is None if its network or data could not be."""

    name: str
    recipe: dict[str, object]
    precision: str
    versions: dict[str, object]
    command: list[str]
    epochs: list[Epoch]
    notes: list[str]  # what is wrong with it
    loaded: tuple[nn.Module, Task] | None

    @property
    def model(self) -> str:
        """The spec, or static."""
        return printable(self.recipe.get("model", "unknown"), 60)

    @property
    def title(self) -> str:
        """Name and model."""
        return self.name if self.name == self.model else f"{self.name}: {self.model}"

    @property
    def is_static(self) -> bool:
        """Whether this is a plain network."""
        return self.recipe.get("model") == STATIC

    @property
    def remarks(self) -> list[str]:
        """What is as it should be, and explains why something is not shown."""
        if self.is_static:
            return ["A static network has no positions, so there are no figures of them."]
        if self.recipe.get("told") == "curves":
            return ["It is told its positions, so they are drawn but not judged."]
        return []

    @property
    def data(self) -> str:
        """The data set's name."""
        return printable(self.recipe.get("data", "unknown"), 60)

    @property
    def about(self) -> str:
        """What was trained on what, in words."""
        return f"{network_name(self.recipe)} {self.model} on {data_name(self.data)}"


def data_name(name: str) -> str:
    """A data set as people call it."""
    return DATA.get(name, printable(name, 60))


def network_name(recipe: dict[str, object]) -> str:
    """LeNet-16 or ResNet-32, as people say it, and others as their recipes do."""
    names = {"lenet": f"LeNet-{recipe.get('width')}", "resnet": f"ResNet-{recipe.get('depth')}"}
    network = str(recipe.get("network", "unknown"))
    return printable(names.get(network, network), 40)


def read_records(folders: Sequence[Path]) -> list[Record]:
    """All runs; what is not a run at all is an error."""
    contents = [Run(folder).look() for folder in folders]
    names = unique([_name(folder, content) for folder, content in zip(folders, contents, strict=True)])
    return [_read(folder, name, content) for folder, name, content in zip(folders, names, contents, strict=True)]


def _name(folder: Path, content: dict[str, object]) -> str:
    """A run is called by its folder, but by its model where the folder is named after that."""
    recipe, name = content.get("recipe"), folder.resolve().name
    model = str(recipe.get("model", "")) if isinstance(recipe, dict) else ""
    return printable(model if name == slug(model) else name, 60)


def _read(folder: Path, name: str, content: dict[str, object]) -> Record:
    notes: list[str] = []
    recipe, versions, command = content.get("recipe"), content.get("versions"), content.get("command")
    recipe = recipe if isinstance(recipe, dict) else {}
    epochs, unreadable = read_epochs(folder)
    if unreadable:
        notes.append(f"{unreadable} of its lines of metrics could not be read.")
    loaded: tuple[nn.Module, Task] | None = None
    if content.get("format") != FORMAT:
        notes.append(
            f"This run has format {printable(content.get('format'), 20)}; this version of splinenets reads {FORMAT}. "
            "Its network cannot be loaded: what follows comes from its metrics."
        )
    else:
        try:
            loaded = load_run(folder)[:2]
            if not Run(folder).metrics_are_whole():
                notes.append("Its metrics are not those that were written: metrics.jsonl is damaged.")
        except (ValueError, OSError) as error:
            notes.append(f"Its network could not be loaded: {printable(error)}. What follows comes from its metrics.")
    planned = recipe.get("epochs")
    if isinstance(planned, int) and len(epochs) < planned:
        notes.append(f"This run is not finished: {len(epochs)} of {planned} epochs.")
    chosen = recipe.get("model") != STATIC and recipe.get("told") != "curves"
    if chosen and epochs and not any(e.histograms for e in epochs):
        notes.append("Its metrics hold no histograms of positions, so there is no figure of them over time.")
    return Record(
        name=name,
        recipe=recipe,
        precision=printable(content.get("precision", "unknown"), 40),
        versions=versions if isinstance(versions, dict) else {},
        command=[str(word) for word in command] if isinstance(command, list) else [],
        epochs=epochs,
        notes=notes,
        loaded=loaded,
    )


def read_epochs(folder: Path) -> tuple[list[Epoch], int]:
    """The epochs in a run's metrics, and how many lines could not be read."""
    try:
        lines = (folder / "metrics.jsonl").read_bytes().splitlines()
    except FileNotFoundError:
        return [], 0
    epochs: list[Epoch] = []
    unreadable = 0
    for text in lines:
        try:
            line = json.loads(text)
            if line["kind"] == "epoch":
                epochs.append(parse_epoch(line))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):  # noqa: PERF203
            unreadable += 1
    return epochs, unreadable


def parse_epoch(line: Json) -> Epoch:
    """A line of metrics, with its types checked by converting them."""
    layers = {
        printable(layer["layer"], 120): LayerEpoch(
            entropy=float(layer["entropy"]),
            information=float(layer["information"]),
            verdict=printable(layer["verdict"], 20),
            histogram=tuple(min(max(int(count), 0), 10**12) for count in layer.get("histogram", ()))[:BINS],
        )
        for layer in line.get("layers", ())
    }
    balanced = line.get("test_balanced_accuracy")
    return Epoch(
        number=int(line["epoch"]),
        train_accuracy=float(line["train_accuracy"]),
        test_accuracy=float(line["test_accuracy"]),
        test_loss=float(line["test_loss"]),
        test_balanced_accuracy=None if balanced is None else float(balanced),
        layers=layers,
    )
