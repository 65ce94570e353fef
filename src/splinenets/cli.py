"""The command line: ``splinenets COMMAND``."""

from __future__ import annotations

import os
import sys

import typer

from . import __version__
from .commands import bench, data, demo, explore, export, profile, report, reproduce, train

app = typer.Typer(
    help="SplineNets: CNN layers whose weights lie on B-splines.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(epilog=train.TRAIN_EXAMPLES)(train.train)
app.command(epilog=train.EVALUATE_EXAMPLES)(train.evaluate)
app.command(epilog=demo.EXAMPLES)(demo.demo)
app.command(epilog=report.REPORT_EXAMPLES)(report.report)
app.command(epilog=report.FIGURES_EXAMPLES)(report.figures)
app.command(epilog=explore.EXAMPLES)(explore.explore)
app.command(epilog=profile.EXAMPLES)(profile.profile)
app.command(epilog=export.EXAMPLES)(export.export)
app.command(epilog=reproduce.EXAMPLES)(reproduce.reproduce)
app.add_typer(bench.app, name="bench", help="Measure: ratios side by side, in one run.")
app.add_typer(data.app, name="data", help="Get data sets and show what is there.")


@app.callback(invoke_without_command=True)
def options(version: bool = typer.Option(False, "--version", help="Show the version and exit.")) -> None:
    """SplineNets: CNN layers whose weights lie on B-splines."""
    if version:
        typer.echo(__version__)
        raise typer.Exit


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; what a user can mend is one sentence and exit code 2."""
    try:
        app(arguments)
    except (ValueError, OSError) as error:
        # with several ranks, one a machine speaks
        if os.environ.get("LOCAL_RANK", "0") == "0":
            typer.echo(f"splinenets: {error}", err=True)
        sys.exit(getattr(error, "exit_code", 2))
