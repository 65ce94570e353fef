"""``splinenets demo``: a SplineNet and its static twin, trained alike and compared."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import torch
import typer
from torch import Tensor, nn

EXAMPLES = "Example: [bold]splinenets demo --out runs/demo[/bold]"
CALLS = 200  # of each network, to measure latency


def demo(
    out: Path = typer.Option(Path("runs/demo"), help="Folder of the two runs."),  # noqa: B008
    recipe: str = typer.Option("demo", help="The recipe by which both are trained."),
    settings: list[str] | None = typer.Option(None, "--set", metavar="KEY=VALUE", help="Set a field of the recipe."),  # noqa: B008
) -> None:
    """Train a SplineNet and its static twin by the same recipe, and compare them.

    Trained networks are kept: a second call goes on where the first one stopped, or only compares.
    """
    from ..tables import text_table
    from ..training.recipes import load_recipe
    from ..training.restore import load_run
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
    for (_, row), latency in zip(rows.items(), latencies(list(nets.values()), task.example(1)), strict=True):
        row.append(f"{latency * 1e3:.2f} ms")
    head = ("accuracy", "loss", "parameters", "MACs", "positions", "latency")
    body = [(name, *(row[i] for row in rows.values())) for i, name in enumerate(head)]
    typer.echo(f"\n{chosen[0].network} on {chosen[0].data}, {chosen[0].epochs} epochs, seed {chosen[0].seed}\n")
    typer.echo(text_table(("", *rows), body))
    typer.echo(
        f"\nTest accuracy after the last epoch; latency: median of {CALLS} single images, one thread. Runs: {out}"
    )


def judge_run(net: nn.Module, image: Tensor, folder: Path) -> list[str]:
    """Accuracy, loss, parameters, MACs and health of a trained network, in words."""
    import json

    from ..cost import cost

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


@torch.inference_mode()
def latencies(nets: list[nn.Module], image: Tensor) -> list[float]:
    """The median time of one image through each network, in seconds; they take turns, so that noise hits all alike."""
    times: list[list[float]] = [[] for _ in nets]
    torch.set_num_threads(1)  # one small image is no work to share
    for _ in range(CALLS):
        for net, spent in zip(nets, times, strict=True):
            began = time.perf_counter()
            net(image)
            spent.append(time.perf_counter() - began)
    return [statistics.median(spent[CALLS // 10 :]) for spent in times]
