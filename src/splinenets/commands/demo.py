"""``splinenets demo``: a SplineNet and its static twin, trained alike and compared."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import typer

from ..files import slug
from ..tables import text_table

EXAMPLES = ("splinenets demo --out runs/demo",)


def demo(
    out: Path = typer.Option(Path("runs/demo"), help="Folder of the two runs."),  # noqa: B008
    recipe: str = typer.Option("demo", help="The recipe for both."),
    settings: list[str] | None = typer.Option(None, "--set", metavar="KEY=VALUE", help="Set a field of the recipe."),  # noqa: B008
) -> None:
    """Train a SplineNet and its static twin by the same recipe, compare them, and write a report.

    Trained networks are kept: a second call continues where the first one stopped, or just compares.
    """
    from ..analysis.observe import CALLS
    from ..training import load_recipe, train
    from .display import Display

    chosen = [load_recipe(recipe, overrides=settings or (), model=model) for model in ("static", None)]
    folders = [out / slug(each.model) for each in chosen]
    for each, folder in zip(chosen, folders, strict=True):
        with Display(each.model) as display:
            train(each, folder, resume=True, watcher=display)
    typer.echo(f"\n{chosen[0].network} on {chosen[0].data}, {chosen[0].epochs} epochs, seed {chosen[0].seed}\n")
    typer.echo(side_by_side(folders))
    typer.echo(
        f"\nTest accuracy after the last epoch; latency: median of {CALLS} single images, one thread. Runs: {out}"
    )
    if find_spec("matplotlib"):
        from ..analysis.report import write_report

        write_report(folders, out / "report.html")
        typer.echo(f"Figures and more: {out / 'report.html'}")
    else:
        typer.echo("For figures: pip install 'splinenets[figures]', then run splinenets report with both runs")


def side_by_side(folders: Sequence[Path]) -> str:
    """A table with a column for each run."""
    from ..analysis.observe import in_torch_and_deployed
    from ..analysis.records import read_epochs
    from ..costs import cost
    from ..training.run import load_run

    runs = [load_run(folder) for folder in folders]
    times, _ = in_torch_and_deployed([(net, task) for net, task, *_ in runs])
    columns = []
    for folder, (net, task, *_), (latency, deployed) in zip(folders, runs, times, strict=True):
        last, price = read_epochs(folder)[0][-1], cost(net, task.example(1))
        verdicts = [layer.verdict for layer in last.layers.values()]
        health = f"{verdicts.count('healthy')} of {len(verdicts)} layers healthy" if verdicts else "-"
        accuracy, loss = f"{last.test_accuracy:.1%}", f"{last.test_loss:.3f}"
        spent = [f"{1e3 * seconds:.3f} ms" if seconds else "-" for seconds in (latency, deployed)]
        columns.append([accuracy, loss, f"{price.parameters:,}", f"{price.macs:,}", health, *spent])
    names = ["accuracy", "loss", "parameters", "MACs", "positions", "latency in torch", "latency when deployed"]
    return text_table(["", *(recipe.model for _, _, recipe, _ in runs)], [*zip(names, *columns, strict=True)])
