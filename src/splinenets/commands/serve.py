"""``splinenets serve``: an exported network behind HTTP."""

from __future__ import annotations

from pathlib import Path

import typer

EXAMPLES = (
    "splinenets serve net.native",
    "curl --data-binary @shirt.png http://127.0.0.1:8643/classify",
)


def serve(
    file: Path = typer.Argument(metavar="FILE", help="An export of a run: .onnx, .onnxruntime, .pt2 or .native."),  # noqa: B008
    host: str = typer.Option("127.0.0.1", help="Address to listen on; 127.0.0.1 is this machine only."),
    port: int = typer.Option(8643, min=0, max=65535, help="Port; 0 takes any free one."),
    threads: int = typer.Option(1, min=1, help="Number of threads that compute."),
) -> None:
    """Classify pictures over HTTP; those of several callers are computed together. Ctrl-C stops it."""
    from ..exporting import load_export
    from ..serving import Server

    with Server(load_export(file, threads=threads), file.name, host=host, port=port) as server:
        typer.echo(f"{server.address} serves {file}: POST pictures to /classify; /health, /metrics; Ctrl-C stops it")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            typer.echo("stopped")
