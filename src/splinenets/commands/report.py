"""``splinenets report``, ``splinenets figures`` and ``splinenets explore``: looking at runs."""

from __future__ import annotations

from pathlib import Path

import typer

from .busy import busy

REPORT_EXAMPLES = ("splinenets report runs/static runs/spline --out report.html",)
FIGURES_EXAMPLES = (
    "splinenets figures runs/spline --out figures",
    "splinenets figures runs/spline --out figures --only flow --format png",
)
EXPLORE_EXAMPLES = ("splinenets explore runs/spline --open",)
ONLY = typer.Option(None, metavar="NAME", help="positions, utilization, specialization, flow, filters or health.")


def report(
    runs: list[Path] = typer.Argument(metavar="RUN...", help="Folders of runs, such as both twins."),  # noqa: B008
    out: Path | None = typer.Option(None, help="The file to write (default: report.html in the first run)."),  # noqa: B008
) -> None:
    """Compare runs in one HTML file that holds all figures and opens without a network connection.

    If something of a run cannot be read (a newer format, a lost checkpoint), the report says so and shows the rest.
    """
    from ..analysis.text import printable

    target = out or runs[0] / "report.html"
    with busy("testing networks and drawing figures"):
        from ..analysis.report import write_report

        notes = write_report(runs, target)
    for note in notes:
        typer.echo(note, err=True)
    typer.echo(f"{printable(target)}: {target.stat().st_size / 1e6:.1f} MB")


def figures(
    run: Path = typer.Argument(metavar="RUN", help="Folder of a run."),  # noqa: B008
    out: Path = typer.Option(Path("figures"), help="Folder of the files."),  # noqa: B008
    only: list[str] | None = ONLY,
    format_: str | None = typer.Option(None, "--format", help="svg or png (default: both)."),
) -> None:
    """Write a run's figures as files: SVG, and PNG with 300 dots an inch."""
    from ..analysis.text import printable

    with busy("drawing figures"):
        from ..analysis.gallery import write_figures

        paths = write_figures(run, out, only or (), format_)
    for path in paths:
        typer.echo(printable(path))


def explore(
    run: Path = typer.Argument(metavar="RUN", help="Folder of a run with splines."),  # noqa: B008
    port: int = typer.Option(8642, min=0, max=65535, help="Port of the page; 0 takes any free one."),
    open_: bool = typer.Option(False, "--open", help="Open the page in your browser."),
) -> None:
    """Open a page, on this machine only, where you move an image along the curves of a trained network.

    Pick a test image, upload one or draw one; drag its positions and watch the answer change. Nothing is written.
    Ctrl-C stops it.
    """
    import torch

    from ..analysis.explorer import Explorer
    from ..analysis.server import Server
    from ..kernels import without

    torch.set_num_threads(1)  # one small image is no work to share
    with without():
        with busy(f"reading {run}"):
            explorer = Explorer.of_run(run)
        with Server(explorer, port) as server:
            typer.echo(f"{server.address} shows {explorer.name}; Ctrl-C stops it")
            if open_:
                typer.launch(server.address)
            try:
                server.serve_forever()
            except KeyboardInterrupt:
                typer.echo("stopped")
