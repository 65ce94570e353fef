"""``splinenets reproduce``: the paper's experiments, each SplineNet beside its static twin."""

from __future__ import annotations

from pathlib import Path

import typer

EXAMPLES = (
    "splinenets reproduce mnist --scale quick",
    "splinenets reproduce cifar10-lenet --seeds 2 --only LeNet-32 --only 'D(5)*'",
)
NAMES = (
    "mnist, fashion-specialization, cifar10-lenet, cifar10-resnet-knots, cifar10-resnet-options, turned, regimes, "
    "frontier, utilization"
)
COMMAND = "splinenets reproduce"
ONLY = typer.Option(None, "--only", metavar="PATTERN", help="Only rows of this name; may be given several times.")
RESULTS = typer.Option(Path("results"), help="Where result files go: OUT/NAME/SCALE.")
RUNS = typer.Option(Path("runs/reproduce"), help="Where trainings keep their checkpoints.")
FIGURE = typer.Option(None, metavar="FILE.svg", help="Draw accuracy against cost, or maps of classes by position.")


def reproduce(
    name: str = typer.Argument(metavar="NAME", help=f"One of {NAMES}."),
    scale: str = typer.Option("standard", help="quick (minutes), standard (hours on two cores) or paper."),
    seeds: int | None = typer.Option(None, help="Number of seeds (default: as in docs/results.md)."),
    only: list[str] | None = ONLY,
    out: Path = RESULTS,
    runs: Path = RUNS,
    figure: Path | None = FIGURE,
) -> None:
    """Train the networks of one section of the paper, and print its table.

    Networks that are already trained, here or for another experiment, are skipped; interrupted trainings continue.
    Each training leaves a small result file.
    """
    from ..reproduce import collect, draw, find, record, reuse, table, trials
    from .display import Display

    todo, experiment = trials(name, scale, seeds, only or ()), find(name)
    folder, made_by = out / name / scale, f"{COMMAND} {name} --scale {scale}"
    for number, trial in enumerate(todo, 1):
        others = sorted(out.glob(f"*/{scale}/*-seed{trial.recipe.seed}.json"))
        file = reuse(trial.recipe, folder / f"{trial.name}.json", others)
        done, place = file.exists(), runs / name / scale / trial.name
        with Display(trial.name) as display:
            result = record(trial.recipe, place, file, made_by, display, experiment.layers)
        how = "done before" if done else f"{result.seconds:.0f} s"
        typer.echo(f"{number} of {len(todo)}: {trial.name}: {result.accuracy:.2%}, {how}", err=True)
    results = collect(name, out, scale)
    typer.echo(f"{experiment.title}, {scale}\n\n{table(experiment, results)}\n")
    typer.echo(f"Mean and standard error over seeds, after the last epoch. Results: {folder}", err=True)
    if figure:
        draw(results, figure)
        typer.echo(f"Figure: {figure}", err=True)
