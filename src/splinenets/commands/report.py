"""``splinenets report``: runs in one HTML file."""

from __future__ import annotations

from pathlib import Path

import typer

EXAMPLES = "Example: [bold]splinenets report runs/static runs/spline --out report.html[/bold]"


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
