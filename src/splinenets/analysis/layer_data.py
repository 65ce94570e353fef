"""What pages draw of each layer: counts by class on its splines, and filters along them, as plain numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..layers import SplineLayer
from .counts import by_class, join_rare, telling
from .filters import along, view
from .observe import Observation
from .text import printable

BINS = 50
SPLINES = 8  # of a layer, those that tell most about the class
STEPS = 9


def layer_data(seen: Observation) -> dict[str, Any]:
    """Everything about a run's layers that the report's own script draws."""
    labels, names = join_rare(seen.labels, seen.task.data.classes)
    modules = dict(seen.net.named_modules())
    layers = [
        _layer(name, modules[name.partition("#")[0]], position.flatten(1), labels, len(names))
        for name, position in seen.positions.items()
    ]
    return {"classes": [printable(name, 40) for name in names], "layers": layers}


def _layer(name: str, layer: Any, position: Tensor, labels: Tensor, classes: int) -> dict[str, Any]:
    counts = by_class(position, labels, classes, BINS).int()
    splines: list[dict[str, Any]] = [
        {
            "title": spline_title(layer, spline),
            "counts": counts[:, spline].tolist(),
            "filters": _filters(layer, spline // layer.dims),
        }
        for spline in telling(position, labels)[:SPLINES].tolist()
    ]
    if position.shape[1] > 1:
        together = {"title": f"all {position.shape[1]} together", "counts": counts.sum(1).tolist(), "filters": None}
        splines.append(together)
    return {"name": printable(name, 120), "splines": splines}


def spline_title(layer: SplineLayer, coordinate: int) -> str:
    """The name of a coordinate: its spline, and on surfaces its dimension."""
    spline, dimension = divmod(coordinate, layer.dims)
    return f"spline {spline + 1}" + (f", dimension {dimension + 1}" if layer.dims > 1 else "")


def _filters(layer: SplineLayer, spline: int) -> dict[str, Any]:
    shown = view(layer, spline)
    return picture_data(along(layer, shown, torch.linspace(0, 1, STEPS)), shown.title)


def picture_data(pictures: Tensor, title: str) -> dict[str, Any]:
    """Signed pictures (N, rows, columns) in whole numbers from -100 to 100, scaled by the largest of them all."""
    scaled = (pictures / pictures.abs().max().clamp(min=1e-12) * 100).nan_to_num().round().int()
    return {"title": title, "rows": pictures.shape[1], "values": scaled.flatten(1).tolist()}
