"""The command line: ``splinenets COMMAND``."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import NoReturn

import typer

from . import __version__
from .commands import add, data, demo, examples, export, profile, report, reproduce, serve, train

app = typer.Typer(
    help="SplineNets: CNN layers whose weights lie on B-splines.",
    epilog=examples("splinenets demo", "splinenets train folder:pictures", "splinenets train --help"),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
add(app, train.train, *train.TRAIN_EXAMPLES)
add(app, train.evaluate, *train.EVALUATE_EXAMPLES)
add(app, demo.demo, *demo.EXAMPLES)
add(app, report.report, *report.REPORT_EXAMPLES)
add(app, report.figures, *report.FIGURES_EXAMPLES)
add(app, report.explore, *report.EXPLORE_EXAMPLES)
add(app, profile.profile, *profile.EXAMPLES)
add(app, export.export, *export.EXAMPLES)
add(app, serve.serve, *serve.EXAMPLES)
add(app, reproduce.reproduce, *reproduce.EXAMPLES)
sets = typer.Typer(no_args_is_help=True, epilog=examples(*data.GET_EXAMPLES, *data.LIST_EXAMPLES))
add(sets, data.get, *data.GET_EXAMPLES)
add(sets, data.list_, *data.LIST_EXAMPLES, name="list")
app.add_typer(sets, name="data", help="Get data sets and show what is there.")
bench = typer.Typer(no_args_is_help=True)
app.add_typer(bench, name="bench", hidden=True, help="Commands of 0.1 that say what took their place.")
ANYTHING = {"allow_extra_args": True, "ignore_unknown_options": True}


@bench.command(context_settings=ANYTHING)
def latency() -> None:
    """Moved: ``python -m benchmarks.latency`` in a clone of the repository."""
    raise ValueError("'bench latency' is now 'python -m benchmarks.latency', in a clone of the repository")


@bench.command(context_settings=ANYTHING)
def strategies() -> None:
    """Gone: the fastest way to compute a layer is chosen by rule."""
    raise ValueError("the fastest way to compute a layer is chosen by rule; 'make bench' measures whole networks")


@app.callback(invoke_without_command=True)
def options(version: bool = typer.Option(False, "--version", help="Show the version and exit.")) -> None:
    """SplineNets: CNN layers whose weights lie on B-splines."""
    if version:
        typer.echo(__version__)
        raise typer.Exit


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; what a user can mend is one sentence and exit code 2."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = partial(show_warning, warnings.showwarning)
            app(arguments)
    except (ValueError, OSError) as error:
        fail(in_words(error), getattr(error, "exit_code", 2))
    except (MemoryError, RuntimeError) as error:
        from .operators import out_of_memory

        if not out_of_memory(error):
            raise
        fail("this machine has not enough memory for that: try a smaller batch, network or number of knots", 2)


def in_words(error: Exception) -> str:
    """What an error says; those of the system without their numbers."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{os.fsdecode(error.filename)}: {error.strerror[:1].lower()}{error.strerror[1:]}"
    return str(error)


def show_warning(
    others: Callable[..., None], message: Warning | str, category: type[Warning], filename: str, *more: object
) -> None:
    """A warning of ours is one sentence; those of others look as they always do."""
    if Path(filename).is_relative_to(Path(__file__).parent) and issubclass(category, UserWarning):
        typer.echo(f"WARNING: {message}", err=True)
    else:
        others(message, category, filename, *more)


def fail(reason: str, exit_code: int) -> NoReturn:
    """End with one sentence; with several ranks, one a machine speaks."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        typer.echo(f"splinenets: {reason}", err=True)
    sys.exit(exit_code)
