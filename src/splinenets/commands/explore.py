"""``splinenets explore``: an image travels the splines, in a browser."""

from __future__ import annotations

from pathlib import Path

import typer

EXAMPLES = "Example: [bold]splinenets explore runs/spline --open[/bold]"


def explore(
    run: Path = typer.Argument(metavar="RUN", help="Folder of a run with splines."),  # noqa: B008
    port: int = typer.Option(8642, min=0, max=65535, help="Port of the page; 0 takes any that is free."),
    open_: bool = typer.Option(False, "--open", help="Open the page in your browser."),
) -> None:
    """Open a page, for this machine alone, on which an image travels through a trained network.

    Pick a test image, upload one or draw one; drag its positions and watch the answer change. Nothing is written.
    Ctrl-C ends it.
    """
    import torch

    from ..analysis.explorer import Explorer
    from ..analysis.server import Server
    from ..kernels import without

    torch.set_num_threads(1)  # one small image is no work to share
    with without(), Server(Explorer.of_run(run), port) as server:
        typer.echo(f"{server.address} shows {server.explorer.name}; Ctrl-C ends it")
        if open_:
            typer.launch(server.address)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            typer.echo("ended")
