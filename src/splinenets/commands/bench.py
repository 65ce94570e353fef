"""``splinenets bench``: measurements."""

from __future__ import annotations

import json
import time
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
