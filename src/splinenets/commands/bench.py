"""``splinenets bench``: measurements."""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import track

app = typer.Typer(no_args_is_help=True)

STRATEGIES_EXAMPLES = """
Examples:

  splinenets bench strategies

  splinenets bench strategies --repeats 9 --out mine.json
"""


@app.callback()
def group() -> None:
    """Measure: ratios side by side, in one run."""


@app.command(epilog=STRATEGIES_EXAMPLES)
def strategies(
    repeats: Annotated[int, typer.Option(min=1, help="How often each strategy is timed.")] = 5,
    out: Annotated[Path | None, typer.Option(help="Where the numbers go, if not where layers look for them.")] = None,
) -> None:
    """Time every strategy on this machine, so that spline layers choose by it from now on. Takes some minutes."""
    from ..bench import strategies as bench
    from ..bench.timing import about
    from ..operators import STRATEGIES
    from ..operators.measured import Case, own_file
    from ..tables import text_table

    path = out or own_file()
    if path.is_dir():
        raise ValueError(f"--out must be a file, got the folder {path}")
    path.parent.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    console = Console(stderr=True)
    cases = [
        bench.measure(setting, repeats)
        for setting in track(bench.settings(), "measuring", console=console, disable=not console.is_terminal)
    ]
    content = {
        "about": about("splinenets bench strategies", repeats=repeats, seconds=round(time.perf_counter() - began, 1)),
        "columns": [*Case._fields, *STRATEGIES],
        "rows": [[*case, *(float(f"{t.get(n, 0):.3g}") for n in STRATEGIES)] for case, t in cases],
    }
    lines = ",\n  ".join(json.dumps(row) for row in content.pop("rows"))
    path.write_text(json.dumps(content, indent=1)[:-2] + f',\n "rows": [\n  {lines}\n ]\n}}\n')
    typer.echo(text_table(["fastest", "of cases", "times as fast as the next, median"], bench.summary(cases)))
    typer.echo(f"\nwritten to {path}", err=True)


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
    result = {
        "about": bench.about(time.perf_counter() - began),
        "macs": {name: bench.macs(name) for name in networks},
        "timings": [asdict(t) for t in timings],
    }
    out.write_text(json.dumps(result, indent=1) + "\n")
    typer.echo(bench.report(timings))
    typer.echo(f"\nwritten to {out}", err=True)
