"""``splinenets train`` and ``splinenets evaluate``."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from ..files import slug
from .busy import busy
from .export import evaluate_file

if TYPE_CHECKING:
    from ..analysis.gallery import Drawing
    from ..training import Recipe

TRAIN_EXAMPLES = (
    "splinenets train demo",
    "splinenets train folder:pictures --show",
    "splinenets train labels.csv",
    "splinenets train folder:pictures --set network=torchvision:resnet18 --from weights.safetensors",
    "splinenets train cifar10-lenet --model static --set epochs=5 --out runs/static",
    "torchrun --nproc-per-node 2 -m splinenets train demo",
)
EVALUATE_EXAMPLES = ("splinenets evaluate runs/demo-D5-D-R3", "splinenets evaluate runs/demo-D5-D-R3/latency.onnx")
SET = typer.Option(None, "--set", metavar="KEY=VALUE", help="Set a field of the recipe; may be given several times.")
TRACKERS = typer.Option(
    None, "--tracker", metavar="NAME", help="tensorboard, or another tracker that Accelerate knows."
)


def train(
    recipe: str = typer.Argument(
        "demo", metavar="RECIPE", help="A recipe's name, the path of a .toml file, folder:PATH or FILE.csv."
    ),
    model: str | None = typer.Option(None, help='A spec such as "H(5)-D-R3", or static for the plain twin.'),
    weights: str | None = typer.Option(
        None,
        "--from",
        metavar="FILE",
        help="Weights for the plain network: a .safetensors file, a file written by torch.save, or a run.",
    ),
    twin: bool | None = typer.Option(
        None, "--twin/--no-twin", help="Train the static twin too, and compare them (default: with --from)."
    ),
    out: Path | None = typer.Option(None, help="Folder of the run (default: runs/RECIPE-MODEL)."),  # noqa: B008
    schedule: str = typer.Option("fast", help="One of the recipe's schedules."),
    settings: list[str] | None = SET,
    seed: int | None = typer.Option(None, help="Decides first weights, order, augmentation and dropout."),
    resume: bool = typer.Option(False, "--resume", help="Continue from the last good checkpoint, if there is one."),
    tracker: list[str] | None = TRACKERS,
    figures_every: int | None = typer.Option(
        None, min=1, metavar="N", help="Draw figures for TensorBoard after every N epochs and after the last."
    ),
    show: bool = typer.Option(False, "--show", help="Print the recipe and the reasons for its choices, and stop."),
) -> None:
    """Train a network from a recipe, or on images of your own.

    For a folder or a CSV file of images, settings that you leave open are chosen to fit them; --show prints them.

    Ctrl-C and SIGTERM save and stop, and --resume continues to exactly the same result. Exit codes: 2 if something is
    wrong with the input, 3 if the loss is not finite, 130 or 143 if stopped. docs/training.md has more.
    """
    from ..training import Run, draft_recipe

    draft = draft_recipe(recipe, schedule, settings or (), model=model, seed=seed, weights=weights)
    folder = out or Path("runs") / f"{draft.recipe.name}-{slug(draft.recipe.model)}"
    if resume and Run(folder).description.exists():
        draft = draft.going_on(Run(folder).recipe())
    if draft.choices:
        typer.echo(str(draft), err=True)
    if show:
        typer.echo(json.dumps(draft.recipe.as_dict(), indent=1))
        return
    trainings = {folder: draft.recipe}
    if draft.recipe.spec and (bool(weights) if twin is None else twin):
        trainings[folder.with_name(f"{folder.name}-twin")] = replace(draft.recipe, model="static")
    for place, chosen in trainings.items():
        train_in(place, chosen, resume, tracker or (), figures_every)
    if len(trainings) > 1 and is_first_rank():
        from .demo import side_by_side

        typer.echo(f"\n{side_by_side([*trainings])}")


def train_in(folder: Path, recipe: Recipe, resume: bool, trackers: Sequence[str], figures_every: int | None) -> None:
    """One training, and a line about its end."""
    from ..training import train as run_training
    from ..training.ranks import part, ranks
    from .display import Display

    draw = drawing(folder, figures_every, recipe.epochs) if figures_every else None
    names = [*dict.fromkeys([*trackers, *(["tensorboard"] if draw else [])])]
    with Display(recipe.model) as display:
        state = run_training(recipe, folder, resume=resume, trackers=names, watcher=display, draw=draw)
    part(ranks())
    if is_first_rank() and state.best:
        from ..analysis.records import read_epochs
        from ..training.evaluation import balanced_in_words

        last, evenly = read_epochs(folder)[0][-1], recipe.sampling == "classes"
        typer.echo(
            f"{folder}: {state.step} steps, test accuracy {last.test_accuracy:.2%}"
            f"{balanced_in_words(last.test_balanced_accuracy)}; "
            f"best{' balanced' if evenly and last.test_balanced_accuracy is not None else ''} test accuracy "
            f"{state.best['accuracy']:.2%}"
        )
        typer.echo(f"next: splinenets evaluate, report, explore or export {folder}", err=True)


def drawing(folder: Path, every: int, last: int) -> Drawing:
    """What draws figures while a network trains; matplotlib is needed for that alone."""
    from ..analysis.gallery import Drawing

    return Drawing(folder, every=every, last=last)


def evaluate(
    run: Path = typer.Argument(metavar="RUN", help="Folder of a run, or a file that was exported from one."),  # noqa: B008
    checkpoint: str = typer.Option("last", help="last, or best (chosen by looking at the test set)."),
) -> None:
    """Test a trained network: accuracy, loss, and the health of its positions. For an exported file: accuracy."""
    if run.is_file():
        evaluate_file(run)
        return
    from ..training import Run, score
    from ..training.evaluation import judge
    from ..training.ranks import accelerate_with, part
    from ..training.run import load_run

    with busy(f"reading {run}, and testing its network") if is_first_rank() else nullcontext():
        net, task, recipe, step = load_run(run, checkpoint)
        accelerator = accelerate_with(Run(run).read()["precision"])
        net = accelerator.prepare_model(net, evaluation_mode=True)
        result = score(net, task, accelerator)
    if is_first_rank():
        typer.echo(f"{run}: {recipe.model} on {recipe.data}, checkpoint of step {step}")
        typer.echo(str(result))
        if (seen := judge(net, task, accelerator.device)) and seen[0].layers:
            typer.echo(str(seen[0]))
    part(accelerator)


def is_first_rank() -> bool:
    """Whether this process is the one that speaks; launchers number the others."""
    return os.environ.get("RANK", "0") == "0"
