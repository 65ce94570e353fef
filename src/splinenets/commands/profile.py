"""``splinenets profile``: what a network costs, beside its static twin and the paper's larger baseline."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from ..costs import Cost

LARGER = {"air": "air64-256-256", "lenet": "lenet128", "resnet": "resnet110"}
EXAMPLES = (
    'splinenets profile resnet32 --model "H(5)-D-R3"',
    'splinenets profile lenet32 --model "D(2)-D-R3" --image 1x28x28 --layers',
)


def profile(
    network: Annotated[str, typer.Argument(help="lenet<s>, resnet<depth> or air<widths>, such as resnet32.")],
    model: Annotated[str, typer.Option(help="The spec of the SplineNet, for example H(5)-D-R3.")] = "D(5)-C-R3",
    image: Annotated[str, typer.Option(help="Channels x height x width of an image.")] = "3x32x32",
    layers: Annotated[bool, typer.Option(help="Show every layer of the SplineNet too.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON instead.")] = False,
) -> None:
    """Count parameters and multiply-accumulates of a SplineNet beside its static twin and a larger baseline."""
    import torch
    from rich.console import Console

    from .. import models
    from ..conversion import convert
    from ..costs import cost

    size = re.fullmatch(r"(\d{1,4})x(\d{1,4})x(\d{1,4})", image)
    if size is None or size[2] != size[3] or "0" in size.groups():
        raise ValueError(f"--image is channels x height x width of a square image such as 3x32x32, got {image!r}")
    channels, height = int(size[1]), int(size[2])
    example = torch.zeros(1, channels, height, height)
    twin = models.build(network, in_channels=channels, image_size=height)
    spline = cost(convert(twin, model, example=example), example)
    larger = LARGER[re.sub(r"[^a-z]", "", network.lower())]
    rows = {
        f"{network} {model}": spline,
        f"{network} static": cost(twin, example),
        f"{larger} static": cost(models.build(larger, in_channels=channels, image_size=height), example),
    }
    if as_json:
        typer.echo(json.dumps({name: json.loads(c.to_json()) for name, c in rows.items()}, indent=1))
        return
    if layers:
        typer.echo(f"{spline}\n")
    Console().print(_side_by_side(rows))


def _side_by_side(rows: dict[str, Cost]) -> Table:
    from rich.table import Table

    table = Table("one sample", *rows)
    reference = next(iter(rows.values()))
    for label, name in (
        ("parameters", "parameters"),
        ("  read a sample", "active"),
        ("  in training", "trained"),
        ("MACs", "macs"),
        ("  projection", "projection"),
        ("  decision", "decision"),
        ("  weights", "weights"),
        ("  operator", "operator"),
        ("other operations", "other"),
        ("bytes read", "bytes_read"),
        ("training, grouped", "grouped"),
        ("training, bank", "bank"),
    ):
        table.add_row(label, *(f"{getattr(c, name):,}" for c in rows.values()))
    table.add_row("MACs ratio", *(f"{c.macs / reference.macs:.2f}" for c in rows.values()))
    table.add_row("parameters ratio", *(f"{c.parameters / reference.parameters:.2f}" for c in rows.values()))
    for column in table.columns[1:]:
        column.justify = "right"
    return table
