"""``splinenets bench``: measurements."""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

import typer

app = typer.Typer(no_args_is_help=True)


@app.callback()
def group() -> None:
    """Measure: ratios side by side, in one run."""


@app.command(
    epilog="Examples: [bold]splinenets bench latency[/bold], "
    "[bold]splinenets bench latency --network 'ResNet*' --runtime native --threads 1[/bold]"
)
def latency(
    network: list[str] | None = typer.Option(None, help="Name patterns of networks (default: all)."),  # noqa: B008
    runtime: list[str] | None = typer.Option(None, help="Runtimes (default: all but aotinductor)."),  # noqa: B008
    threads: list[int] = typer.Option([1, 2], help="Numbers of threads."),  # noqa: B008
    rounds: int = typer.Option(15, min=0, help="How many turns each has, of ten calls; 0 only prepares."),
    keep: Path | None = typer.Option(None, help="Folder in which exports are kept and found again."),  # noqa: B008
    out: Path = typer.Option(Path("benchmarks/results/latency.json"), help="Where the numbers go."),  # noqa: B008
) -> None:
    """The time of one image through the paper's networks and their static twins, in every runtime."""
    from fnmatch import fnmatchcase

    from ..bench import latency as bench

    patterns = network or ["*"]
    networks = [name for name in bench.NETWORKS if any(fnmatchcase(name, pattern) for pattern in patterns)]
    if not networks:
        raise ValueError(f"no network fits {', '.join(patterns)}; there are {', '.join(bench.NETWORKS)}")
    for name in runtime or ():
        if name not in bench.RUNTIMES:
            raise ValueError(f"unknown runtime {name!r}, choose from {', '.join(bench.RUNTIMES)}")
    if min(threads) < 1:
        raise ValueError(f"threads must be 1 or more, got {min(threads)}")
    out.parent.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()

    def note(text: str) -> None:
        typer.echo(text, err=True)

    with tempfile.TemporaryDirectory() as folder:
        place = keep or Path(folder)
        timings = bench.measure(networks, runtime or bench.USUAL, threads, rounds=rounds, folder=place, note=note)
    if not timings:
        return
    result = {"about": bench.about(time.perf_counter() - began), "timings": [asdict(t) for t in timings]}
    out.write_text(json.dumps(result, indent=1) + "\n")
    typer.echo(bench.report(timings))
    typer.echo(f"\nwritten to {out}", err=True)
