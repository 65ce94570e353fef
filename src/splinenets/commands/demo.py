"""``splinenets demo``: a SplineNet and its static twin, trained alike and compared."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import typer
from torch import Tensor, nn

EXAMPLES = "Example: [bold]splinenets demo --out runs/demo[/bold]"


def demo(
    out: Path = typer.Option(Path("runs/demo"), help="Folder of the two runs."),  # noqa: B008
    recipe: str = typer.Option("demo", help="The recipe by which both are trained."),
    settings: list[str] | None = typer.Option(None, "--set", metavar="KEY=VALUE", help="Set a field of the recipe."),  # noqa: B008
) -> None:
    """Train a SplineNet and its static twin by the same recipe, compare them, and write a report.

    Trained networks are kept: a second call goes on where the first one stopped, or only compares.
    """
    from ..analysis.observe import CALLS, latencies
    from ..tables import text_table
    from ..training.recipe import load_recipe
    from ..training.run import load_run
    from ..training.runner import train
    from .display import Display
    from .train import slug

    chosen = [load_recipe(recipe, overrides=settings or (), model=model) for model in ("static", None)]
    nets: dict[str, nn.Module] = {}
    rows: dict[str, list[str]] = {}
    for each in chosen:
        folder = out / slug(each.model)
        display = Display(each.model)
        try:
            train(each, folder, resume=True, watcher=display)
        finally:
            display.end()
        nets[each.model], task, _, _ = load_run(folder)
        rows[each.model] = judge_run(nets[each.model], task.example(1), folder)
    times = latencies(list(nets.values()), [task.example(1)] * len(nets))
    for row, latency in zip(rows.values(), times, strict=True):
        row.append(f"{latency * 1e3:.2f} ms")
    head = ("accuracy", "loss", "parameters", "MACs", "positions", "latency")
    body = [(name, *(row[i] for row in rows.values())) for i, name in enumerate(head)]
    typer.echo(f"\n{chosen[0].network} on {chosen[0].data}, {chosen[0].epochs} epochs, seed {chosen[0].seed}\n")
    typer.echo(text_table(("", *rows), body))
    typer.echo(
        f"\nTest accuracy after the last epoch; latency: median of {CALLS} single images, one thread. Runs: {out}"
    )
    if find_spec("matplotlib"):
        from ..analysis.report import write_report

        write_report([out / slug(each.model) for each in chosen], out / "report.html")
        typer.echo(f"Figures and more: {out / 'report.html'}")
    else:
        typer.echo("For figures: pip install 'splinenets[figures]', then splinenets report with both runs")


def judge_run(net: nn.Module, image: Tensor, folder: Path) -> list[str]:
    """Accuracy, loss, parameters, MACs and health of a trained network, in words."""
    import json

    from ..costs import cost

    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    last = [line for line in lines if line["kind"] == "epoch"][-1]
    price = cost(net, image)
    layers = last.get("layers", [])
    healthy = sum(layer["verdict"] == "healthy" for layer in layers)
    health = f"{healthy} of {len(layers)} layers healthy" if layers else "-"
    return [
        f"{last['test_accuracy']:.1%}",
        f"{last['test_loss']:.3f}",
        f"{price.parameters:,}",
        f"{price.macs:,}",
        health,
    ]
