"""All figures of one network, with their titles and captions: as files, and while it trains."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy
import torch
from PIL import Image
from torch import Tensor, nn

from ..files import Json, replacing
from ..layers import SplineLayer
from ..tracing import Positions
from ..training.build import Task
from . import figures, findings, history
from .counts import spread_out
from .filters import STEPS
from .history import Epoch
from .observe import Observation, observe
from .records import parse_epoch, read_epochs, read_records
from .style import LAYERS, check_matplotlib, to_png, to_svg
from .text import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = {"svg": to_svg, "png": to_png}
NAMES = ("positions", "utilization", "specialization", "flow", "filters", "health")
FILTERED = 4  # layers whose filters are drawn
ON_SCREEN = 110  # dots an inch


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """A figure; ``name`` is one of ``NAMES``, and a number follows it if there are several.

    see      one sentence of what to see, with what was found
    caption  what is drawn, and how
    """

    name: str
    title: str
    see: str
    caption: str
    figure: Figure


def over_epochs(epochs: Sequence[Epoch]) -> Iterator[Drawn]:
    """What the metrics alone can show."""
    if drawable := [epoch for epoch in epochs if epoch.histograms]:
        yield Drawn(
            name="positions",
            title="Positions over time",
            see=f"A flat ridge is a layer whose splines are used evenly: {findings.spread(drawable[-1])}",
            caption="Where test images were after each epoch, the newest in front, all splines of a layer together."
            + _some(len(drawable[-1].layers), LAYERS),
            figure=history.positions_over_time(drawable),
        )
        if len(drawable[-1].layers) > LAYERS:
            yield Drawn(
                name="positions-all",
                title="Positions in all layers",
                see="A layer whose ridge is one narrow peak treats all images alike; one with a wide ridge does not.",
                caption="Where test images were after the last epoch, the first layer on top, each on its own scale.",
                figure=history.positions_by_layer(drawable[-1]),
            )
    if layered := [epoch for epoch in epochs if epoch.layers]:
        yield Drawn(
            name="health",
            title="Health over epochs",
            see="Entropy should stay high while positions come to tell more about the class: "
            + findings.learned(layered),
            caption="Entropy is 100% for uniform positions; verdicts are those of splinenets.health.",
            figure=history.health_over_epochs(layered),
        )


def of_observation(seen: Observation) -> Iterator[Drawn]:
    """What test images show in a trained network; nothing in a static one."""
    if seen.positions:
        yield from at_the_end(seen.net, seen.positions, seen.labels, seen.task.data.classes)


def at_the_end(
    net: nn.Module, positions: Mapping[str, Tensor], labels: Tensor, classes: Sequence[str]
) -> Iterator[Drawn]:
    """What a network and the positions of test images show; those that it was told say nothing about classes."""
    own = positions.inferred() if isinstance(positions, Positions) else positions
    if own:
        yield from _by_class(own, labels, classes)
    layers = [(name, module) for name, module in net.named_modules() if isinstance(module, SplineLayer)]
    for number, (name, layer) in enumerate(spread_out(layers, FILTERED), 1):
        yield Drawn(
            name=f"filters-{number}",
            title=f"Filters along a spline: {printable(name, 60)}",
            see=f"One filter becomes another as the position moves: {findings.changing(layer)}",
            caption=f"Weights at {STEPS} positions, purple above 0 and orange below, and the influence of each knot.",
            figure=figures.filters_along(layer, name),
        )
    yield Drawn(
        name="utilization",
        title="How evenly splines are used",
        see=f"Where bars reach the dashed line, splines are used evenly: {findings.used(positions)}",
        caption="Density of positions, all splines of a layer together, in few and in many bins: few bins hide gaps "
        "that many bins show." + _some(len(positions), LAYERS),
        figure=figures.utilization(positions),
    )


def _by_class(positions: Mapping[str, Tensor], labels: Tensor, classes: Sequence[str]) -> Iterator[Drawn]:
    """Where the images of each class are."""
    yield Drawn(
        name="specialization",
        title="Which class is where",
        see="A bright cell is a stretch of a spline that belongs to one class: "
        + findings.telling_place(positions, labels, len(classes)),
        caption="For each bin of a spline, the classes of the test images in it. Each layer shows the spline that "
        "tells most about the class." + _some(len(positions), LAYERS),
        figure=figures.specialization(positions, labels, classes),
    )
    found = findings.ways(positions, labels, classes)
    yield Drawn(
        name="flow",
        title="Flow from layer to layer",
        see="Classes whose lines run together get the same weights; where lines part, the network tells classes apart"
        + (f": {found}" if found else "."),
        caption="Each line is one test image on its path through the layers; images of other classes are grey."
        + _some(len(positions), figures.STATIONS),
        figure=figures.flow(positions, labels, classes),
    )


def write_figures(run: Path, out: Path, only: Sequence[str] = (), kind: str | None = None) -> list[Path]:
    """Draw a run's figures, all or those of some names, into files of a folder: SVG and PNG, or one of them."""
    check_matplotlib()
    for name in only:
        if name not in NAMES:
            raise ValueError(f"unknown figure {name!r}, choose from {', '.join(NAMES)}")
    if kind is not None and kind not in FORMATS:
        raise ValueError(f"unknown format {kind!r}, choose from {', '.join(FORMATS)}")
    (record,) = read_records([run])
    drawn = list(over_epochs(record.epochs))
    if record.loaded is not None:
        drawn += of_observation(observe(*record.loaded))
    if not drawn:
        raise ValueError(f"{record.name} has no figures: {' '.join([*record.notes, *record.remarks])}")
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for each in drawn:
        if only and each.name.partition("-")[0] not in only:
            continue
        for ending in FORMATS if kind is None else (kind,):
            written.append(out / f"{each.name}.{ending}")
            with replacing(written[-1]) as file:
                file.write(FORMATS[ending](each.figure))
    return written


class Drawing:
    """Draws after every so many epochs and after the last; ``train(..., draw=Drawing(...))``."""

    def __init__(self, folder: Path, *, every: int, last: int) -> None:
        check_matplotlib()
        self.folder, self.every, self.last = folder, every, last

    def __call__(self, net: nn.Module, task: Task, positions: Mapping[str, Tensor], line: Json) -> dict[str, Tensor]:
        """{name: picture (H, W, 3), bytes}; nothing between the epochs that are drawn."""
        epoch = parse_epoch(line)
        if epoch.number % self.every and epoch.number != self.last:
            return {}
        # this epoch's line may or may not be in the file yet
        earlier = [e for e in read_epochs(self.folder)[0] if e.number < epoch.number]
        given = positions.given if isinstance(positions, Positions) else ()
        seen = Positions({name: position.float().cpu() for name, position in positions.items()}, given=given)
        labels, classes = task.data.test.labels[: len(next(iter(seen.values())))], task.data.classes
        drawn = [*over_epochs([*earlier, epoch]), *at_the_end(net, seen, labels, classes)]
        return {each.title: _pixels(to_png(each.figure, dpi=ON_SCREEN)) for each in drawn}


def _some(count: int, most: int) -> str:
    return f" {most} of {count} layers are shown." if count > most else ""


def _pixels(content: bytes) -> Tensor:
    with Image.open(io.BytesIO(content)) as image:
        return torch.from_numpy(numpy.array(image.convert("RGB")))
