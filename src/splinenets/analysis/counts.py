"""What figures and pages show of layers, as numbers: positions by class, the splines that tell most, their filters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from ..health_check import information
from ..histograms import count_by_class
from ..layers import SplineLayer
from .filters import STEPS, along, view
from .text import printable

T = TypeVar("T")

CLASSES = 12  # shown by name; more cannot be told apart
BINS = 50
SPLINES = 8  # of a layer, those that tell most about the class


def spread_out(items: Sequence[T], most: int) -> list[T]:
    """At most so many, evenly spaced, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def enough_bins(samples: float, most: int = BINS, each: int = 8) -> int:
    """The largest number of bins, a divisor of ``most``, that so many samples fill with ``each`` on average."""
    choices = [bins for bins in range(min(5, most), most + 1) if most % bins == 0]
    return max((bins for bins in choices if samples >= each * bins), default=choices[0])


def join_rare(labels: Tensor, classes: Sequence[str], most: int = CLASSES) -> tuple[Tensor, list[str]]:
    """Keep the most frequent classes and join the others, as the last: (N,) -> (N,), and the names."""
    if len(classes) <= most:
        return labels, list(classes)
    counts = torch.bincount(labels, minlength=len(classes))
    kept = counts.argsort(descending=True, stable=True)[: most - 1].sort().values
    to = torch.full((len(classes),), most - 1)
    to[kept] = torch.arange(most - 1)
    return to[labels], [*(classes[i] for i in kept.tolist()), f"{len(classes) - most + 1} others"]


def by_class(position: Tensor, labels: Tensor, classes: int, bins: int = BINS) -> Tensor:
    """Samples of each class in each bin of each spline: (N, C), (N,) -> (classes, C, bins)."""
    return count_by_class(position.flatten(1), labels, classes, bins)


def shares(counts: Tensor) -> Tensor:
    """Each bin's classes as shares, as in the paper's figure 7; 0 in an empty bin: (classes, ...) -> (classes, ...)."""
    return counts / counts.sum(0, keepdim=True).clamp(min=1)


def standard_error(accuracy: float, samples: int) -> float:
    """What so many samples leave open of an accuracy; both are shares."""
    return math.sqrt(max(accuracy * (1 - accuracy), 0) / max(samples, 1))


def telling(position: Tensor, labels: Tensor) -> Tensor:
    """The splines of a layer, the one whose positions tell most about the labels first: (N, C), (N,) -> (C,)."""
    return information(position.flatten(1), labels).argsort(descending=True, stable=True)


def most_telling(positions: Mapping[str, Tensor], labels: Tensor) -> dict[str, int]:
    """{layer: the spline whose positions tell most about the labels}."""
    return {name: int(telling(position, labels)[0]) for name, position in positions.items()}


def layer_data(layer: SplineLayer, name: str, position: Tensor, labels: Tensor, classes: int) -> dict[str, object]:
    """What the report's own script draws of one layer: (N, C), (N,) -> counts and filters of some splines."""
    counts = by_class(position, labels, classes).int()
    splines: list[dict[str, object]] = [
        {
            "title": spline_title(layer, spline),
            "counts": counts[:, spline].tolist(),
            "filters": _filters(layer, spline // layer.dims),
        }
        for spline in telling(position, labels)[:SPLINES].tolist()
    ]
    if position.shape[1] > 1:
        title = f"all {position.shape[1]} together"
        splines.append({"title": title, "counts": counts.sum(1).tolist(), "filters": None})
    return {"name": printable(name, 120), "splines": splines}


def spline_title(layer: SplineLayer, coordinate: int) -> str:
    """The name of a coordinate: its spline, and on surfaces its dimension."""
    spline, dimension = divmod(coordinate, layer.dims)
    return f"spline {spline + 1}" + (f", dimension {dimension + 1}" if layer.dims > 1 else "")


def _filters(layer: SplineLayer, spline: int) -> dict[str, object]:
    """Pictures along a spline in whole numbers from -100 to 100, scaled by the largest of them all."""
    shown = view(layer, spline)
    pictures = along(layer, shown, torch.linspace(0, 1, STEPS))
    scaled = (pictures / pictures.abs().max().clamp(min=1e-12) * 100).nan_to_num().round().int()
    return {"title": shown.title, "rows": pictures.shape[1], "values": scaled.flatten(1).tolist()}
