"""Accuracy against what networks cost, as in the paper's figures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import mean

from ..analysis.figures import Point, tradeoff
from ..analysis.style import check_matplotlib, to_svg
from ..data.files import replacing
from .record import Result


def draw(results: Mapping[str, Mapping[int, Result]], path: Path) -> None:
    """Write an SVG with a point for each row that has results, its accuracy being the mean over seeds."""
    check_matplotlib()
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
    with replacing(path) as file:
        file.write(to_svg(tradeoff(points)))
