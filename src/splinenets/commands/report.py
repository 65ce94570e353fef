"""``splinenets report`` and ``splinenets figures``."""

from __future__ import annotations

from pathlib import Path

import typer

REPORT_EXAMPLES = "Example: [bold]splinenets report runs/static runs/spline --out report.html[/bold]"
FIGURES_EXAMPLES = (
    "Examples: [bold]splinenets figures runs/spline --out figures[/bold], "
    "[bold]splinenets figures runs/spline --out figures --only flow --format png[/bold]"
)
ONLY = typer.Option(None, metavar="NAME", help="positions, utilization, specialization, flow, filters or health.")


def report(
    runs: list[Path] = typer.Argument(metavar="RUN...", help="Folders of runs; a static twin is compared."),  # noqa: B008
    out: Path | None = typer.Option(None, help="The file to write (default: report.html in the first run)."),  # noqa: B008
) -> None:
    """Write what runs did into one HTML file, with all figures, that opens without a network.

    What cannot be read of a run (a newer format, a lost checkpoint) is named in the file, and the rest is shown.
    """
    from ..analysis.report import write_report
    from ..analysis.text import printable

    target = out or runs[0] / "report.html"
    for note in write_report(runs, target):
        typer.echo(note, err=True)
    typer.echo(f"{printable(target)}: {target.stat().st_size / 1e6:.1f} MB")


def figures(
    run: Path = typer.Argument(metavar="RUN", help="Folder of a run."),  # noqa: B008
    out: Path = typer.Option(Path("figures"), help="Folder of the files."),  # noqa: B008
    only: list[str] | None = ONLY,
    format_: str = typer.Option("svg", "--format", help="svg or png."),
) -> None:
    """Write a run's figures as files."""
    from ..analysis.gallery import write_figures
    from ..analysis.text import printable

    for path in write_figures(run, out, only or (), format_):
        typer.echo(printable(path))
