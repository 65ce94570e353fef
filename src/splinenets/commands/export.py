"""``splinenets export``: from a run to a file for another runtime."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from .busy import busy

if TYPE_CHECKING:
    from ..data import Split
    from ..exporting import Exported
    from ..files import Json
    from ..training import Recipe
    from ..training.build import Task

EXAMPLES = (
    "splinenets export runs/demo-D5-D-R3 --to onnx",
    "splinenets export runs/demo-D5-D-R3 --to native --for latency --knots bf16 --out net.native",
)
C = "c"  # not a file, but a folder
CHECKED = 1_000  # test images on which an export must agree with the network


def export(
    run: Path = typer.Argument(metavar="RUN", help="Folder of a run."),  # noqa: B008
    to: str = typer.Option("onnx", help="onnx, onnxruntime, pt2 (torch.export), native (our runtime) or c (a folder)."),
    purpose: str = typer.Option("latency", "--for", help="latency: one image at a time; throughput: any batch."),
    knots: str = typer.Option("float32", help="How knots are stored: float32, bf16 or int8."),
    tolerance: float = typer.Option(1e-4, help="How far a logit may differ from the network's."),
    out: Path | None = typer.Option(None, help="The file (default: RUN/LATENCY-OR-THROUGHPUT.FORMAT)."),  # noqa: B008
    checkpoint: str = typer.Option("last", help="last, or best (chosen by looking at the test set)."),
) -> None:
    """Write a trained network for another runtime, and check it there on test images first."""
    from ..exporting import FORMATS, PURPOSES, export_c
    from ..exporting import export as write
    from ..training.run import load_run

    for value, choices, name in ((to, (*FORMATS, C), "--to"), (purpose, PURPOSES, "--for")):
        if value not in choices:
            raise ValueError(f"{name} is one of {', '.join(choices)}, got {value!r}")
    with busy(f"reading {run}"):
        net, task, recipe, step = load_run(run, checkpoint)
    path = out or run / f"{purpose}.{to}"
    test = task.data.test
    inputs, labels = task.show(test, slice(CHECKED)), test.labels[:CHECKED]
    options: dict[str, Any] = {
        "purpose": purpose,
        "knots": knots,
        "tolerance": tolerance,
        "labels": labels,
        "metadata": {**what_is_known(task, recipe), "step": step},
    }
    with busy(f"writing {path}, and checking it on {len(labels):,} test images"):
        exported = export_c(net, inputs, path, **options) if to == C else write(net, inputs, path, to=to, **options)
    size = sum(file.stat().st_size for file in (path.iterdir() if to == C else (path,)))
    found = exported.metadata
    typer.echo(
        f"{path}: {size / 1e6:.2f} MB, for {purpose}, knots in {knots}; compared with the network in float32: "
        f"the same answer on {found['agreeing']:,} of {len(labels):,} test images, "
        f"logits within {found['difference']:.0e}, "
        f"accuracy {found['accuracy']['file']:.2%}, the network's {found['accuracy']['network']:.2%}"
    )


def what_is_known(task: Task, recipe: Recipe) -> Json:
    """What an exported file says of the run that it comes from."""
    known: Json = {
        "classes": list(task.data.classes),
        "preparation": task.augment.preparation,
        "data": recipe.data,
        "network": recipe.network_name,
        "model": recipe.model,
    }
    if task.change:
        known |= {"condition": recipe.condition, "between": [task.change.low, task.change.high]}
    return known


def evaluate_file(path: Path) -> None:
    """The accuracy of an exported run, in the runtime it was exported for, on all test images of its data set."""
    from ..data import in_order, load
    from ..data.changes import CHANGES, changed
    from ..data.listing import is_listed
    from ..exporting import load_export

    exported = load_export(path)
    about = exported.metadata
    if "preparation" not in about:
        raise ValueError(f"{path} does not say what it was trained on: only exports of runs do")
    channels, size, _ = about["input"]
    data = load(about["data"], size=size if is_listed(about["data"]) else None)
    if channels != data.test.images.shape[1]:
        data = data.in_colour()
    test = data.test
    if change := CHANGES.get(about.get("condition", "")):
        test = changed(test, change.within(*about["between"]), "test")
    with busy(f"testing {path}"):
        right = sum(_right(exported, test.part(part)) for part in in_order(len(test.labels), 250))
    typer.echo(f"{path}: {about['model']} on {about['data']}, knots in {about['knots']}, {path.stat().st_size:,} bytes")
    typer.echo(f"accuracy {right / len(test.labels):.2%} ({right} of {len(test.labels)})")


def _right(exported: Exported, part: Split) -> int:
    """How many answers to these images are right."""
    from ..data import prepare

    images = prepare(part.images, exported.metadata["preparation"])
    told = (part.values,) if "conditions" in exported.metadata else ()
    return int((exported(images, *told).argmax(1) == part.labels).sum())
