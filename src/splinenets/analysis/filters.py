"""Weights as pictures: the part of a filter that changes most along its spline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from ..layers import SplineLayer

SIDE = 16  # rows and columns of a matrix that are shown
FILTERS = 12  # of a layer that a page shows
STEPS = 9  # places along a spline at which filters are shown


@dataclass(frozen=True)
class View:
    """Which weights of a layer a picture shows, and what to call them."""

    spline: int
    index: tuple[int | list[list[int]] | list[int], ...]
    title: str

    def of(self, weights: Tensor) -> Tensor:
        """Weights of samples, as ``weights_at`` gives them: (N, filters, ...) -> (N, rows, columns)."""
        return weights[(slice(None), *self.index)]


@torch.no_grad()
def view(layer: SplineLayer, spline: int, place: int = 0) -> View:
    """The weights on one of a layer's splines that differ most between its knots.

    Of a convolution a kernel: the filter and input channel that change most, or come ``place`` kernels behind them; the
    middle slice if there are three dimensions. Of a matrix the rows and columns that change most.
    """
    change = layer.control_points().float().std(0, correction=0)  # (filters, ...)
    share = len(change) // layer.splines
    first = spline * share
    own = change[first : first + share]
    if own.dim() >= 4:
        flat = int(own.flatten(2).sum(2).flatten().argsort(descending=True, stable=True)[place])
        number, channel = divmod(flat, own.shape[1])
        middle = [size // 2 for size in own.shape[2:-2]]
        return View(spline, (first + number, channel, *middle), f"filter {first + number + 1}, channel {channel + 1}")
    if own.dim() == 3:  # one dimension: channels stand below each other
        number = int(own.sum((1, 2)).argmax())
        rows = _strongest(own[number].sum(1))
        return View(spline, (first + number, rows), f"filter {first + number + 1}, {len(rows)} channels")
    rows = [first + row for row in _strongest(own.sum(1))]
    columns = _strongest(own.sum(0))
    index = ([[row] for row in rows], columns)
    return View(spline, index, f"{len(rows)} of {share} outputs x {len(columns)} of {own.shape[1]} inputs")


def kernels(layer: SplineLayer) -> int:
    """How many kernels each of a layer's splines has; a matrix counts as one."""
    weight = layer.control_points()[0]
    return weight.shape[0] * weight.shape[1] // layer.splines if weight.dim() >= 4 else 1


@torch.no_grad()
def liveliest(layer: SplineLayer, count: int) -> list[int]:
    """The splines of a layer whose weights change most from knot to knot."""
    change = layer.control_points().float().std(0, correction=0)
    per_spline = change.reshape(layer.splines, -1).mean(1)
    return per_spline.argsort(descending=True, stable=True)[:count].tolist()


@torch.no_grad()
def along(layer: SplineLayer, shown: View, positions: Tensor) -> Tensor:
    """Pictures of the weights at these positions on a spline: (N,) -> (N, rows, columns)."""
    like = next(layer.parameters())
    everywhere = positions.to(like).view(-1, *(1,) * len(layer.position_shape)).expand(-1, *layer.position_shape)
    return shown.of(layer.weights_at(everywhere)).float().cpu()


class Pictures:
    """Weights of layers for a page: {"rows": count, "values": whole numbers, 100 for the largest on their spline}."""

    def __init__(self, layers: Mapping[str, SplineLayer]) -> None:
        self.layers = layers
        self.lively = {name: liveliest(layer, FILTERS) for name, layer in layers.items()}
        self.views: dict[tuple[str, int, int], tuple[View, float]] = {}

    def of_image(self, name: str, coordinate: int, positions: Mapping[str, Tensor]) -> list[dict[str, object]]:
        """What an image received in a layer: its filters that change most, that of one spline before them."""
        layer = self.layers[name]
        weights = layer.weights_at(positions[name])
        splines = [*dict.fromkeys([coordinate // layer.dims, *self.lively[name]])][:FILTERS]
        places = range(min(FILTERS, kernels(layer))) if layer.splines == 1 else (0,)
        pictures = []
        for spline, place in product(splines, places):
            shown, largest = self._view(name, spline, place)
            pictures.append({"title": shown.title, **_picture(shown.of(weights)[0], largest)})
        return pictures

    def front(self, name: str, coordinate: int, positions: Mapping[str, Tensor]) -> dict[str, object]:
        """What an image received from one spline."""
        layer = self.layers[name]
        shown, largest = self._view(name, coordinate // layer.dims)
        return _picture(shown.of(layer.weights_at(positions[name]))[0], largest)

    def strip(self, name: str, coordinate: int) -> list[dict[str, object]]:
        """What there is at evenly spaced places along one spline."""
        layer = self.layers[name]
        shown, largest = self._view(name, coordinate // layer.dims)
        return [_picture(each, largest) for each in along(layer, shown, torch.linspace(0, 1, STEPS))]

    @torch.no_grad()
    def _view(self, name: str, spline: int, place: int = 0) -> tuple[View, float]:
        """What to show of a spline, and the largest weight that its knots have there; remembered."""
        key = name, spline, place
        if key not in self.views:
            layer = self.layers[name]
            shown = view(layer, spline, place)
            self.views[key] = shown, float(shown.of(layer.control_points()).abs().max()) or 1.0
        return self.views[key]


def _picture(weights: Tensor, largest: float) -> dict[str, object]:
    values = (weights.float().cpu() / largest * 100).round().int()
    return {"rows": len(values), "values": values.flatten().tolist()}


def _strongest(change: Tensor) -> list[int]:
    return sorted(change.argsort(descending=True, stable=True)[:SIDE].tolist())
