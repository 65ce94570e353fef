"""What came out of an experiment, as a figure like the paper's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

import torch

from ..analysis.figures import Point, tradeoff
from ..analysis.panels import WIDTH, class_map, class_scale
from ..analysis.style import check_matplotlib, styled, to_svg
from ..analysis.text import printable
from ..data.files import replacing
from .record import Result

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(results: Mapping[str, Mapping[int, Result]], path: Path) -> None:
    """Write an SVG: maps of positions by class where results have them, else accuracy against cost."""
    check_matplotlib()
    seen = {name: next((r for r in found.values() if r.maps), None) for name, found in results.items()}
    mapped = {name: result for name, result in seen.items() if result}
    figure = specialization_maps(mapped) if mapped else tradeoff(_points(results))
    with replacing(path) as file:
        file.write(to_svg(figure))


def _points(results: Mapping[str, Mapping[int, Result]]) -> Sequence[Point]:
    """One for each row that has results, its accuracy being the mean over seeds."""
    points = []
    for name, found in results.items():
        if found:
            some = next(iter(found.values()))
            points.append(
                Point(
                    name=name,
                    accuracy=mean(result.accuracy for result in found.values()),
                    samples=some.test_images,
                    macs=some.macs,
                    parameters=some.parameters,
                )
            )
    return points


@styled
def specialization_maps(results: Mapping[str, Result]) -> Figure:
    """The paper's figure 7: classes by bins, each bin's classes adding up to 1; a column a network, a line a layer."""
    from matplotlib.figure import Figure

    layers = list(next(iter(results.values())).maps)
    classes = list(next(iter(results.values())).maps[layers[0]])
    height = 0.5 + (0.5 + 0.19 * len(classes)) * len(layers)
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    grid = figure.subplots(len(layers), len(results), squeeze=False, sharex=True)
    image: Any = None
    for column, (name, result) in enumerate(results.items()):
        for axis, layer in zip(grid[:, column], layers, strict=True):
            image = class_map(axis, torch.tensor(list(result.maps[layer].values())), () if column else classes)
        grid[0, column].set_title(printable(name, 24))
        grid[-1, column].set_xlabel("position")
    for axis, layer in zip(grid[:, 0], layers, strict=True):
        axis.set_ylabel(printable(layer, 24))
    class_scale(figure, image, grid)
    return figure
