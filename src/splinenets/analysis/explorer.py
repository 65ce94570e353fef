"""One image in a trained network: its answer, its way along the splines, and what would be elsewhere on them."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import torch
from PIL import Image
from torch import Tensor, nn

from ..data import Split
from ..data.decoding import to_pixels
from ..layers import SplineLayer
from ..tracing import Positions, steer, trace
from ..training.build import Task
from ..training.run import load_run
from .counts import by_class, most_telling, spline_title
from .filters import View, liveliest, view
from .observe import travel
from .text import printable

Chosen: TypeAlias = Mapping[str, Sequence[float | None]]

FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "MPO")  # MPO is what some phones call JPEG
MOST_PIXELS = 40_000_000
NEIGHBOURS = 8
FILTERS = 12


class Explorer:
    """A run's network, and where its training images are."""

    def __init__(self, net: nn.Module, task: Task, *, name: str, model: str) -> None:
        self.net, self.task, self.name, self.model = net, task, printable(name, 60), printable(model, 60)
        self.layers = {name: m for name, m in net.named_modules() if isinstance(m, SplineLayer)}
        if not self.layers:
            raise ValueError(
                f"{self.name} is a static network without positions, so there is nothing to explore; "
                "'splinenets report' compares it with others"
            )
        data = self.task.data
        _, seen = travel(self.net, self.task, data.train)
        self.seen = {name: seen[name].flatten(1) for name in self.layers if name in seen}
        self.layers = {name: self.layers[name] for name in self.seen}
        self.train = Split(*(part[: len(next(iter(seen.values())))] for part in (data.train.images, data.train.labels)))
        self.lively = {name: liveliest(layer, FILTERS) for name, layer in self.layers.items()}
        self.views: dict[tuple[str, int], tuple[View, float]] = {}

    @classmethod
    def of_run(cls, folder: Path) -> Explorer:
        """The explorer of a run's last checkpoint."""
        net, task, recipe, _ = load_run(folder)
        return cls(net, task, name=folder.resolve().name, model=recipe.model)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of an image."""
        channels, height, width = self.task.data.test.images.shape[1:]
        return channels, height, width

    def describe(self) -> dict[str, object]:
        """What a page needs to know once."""
        first = most_telling(self.seen, self.train.labels)
        nobody = torch.zeros_like(self.train.labels)
        layers = [
            {
                "name": name,
                "splines": [spline_title(layer, i) for i in range(layer.coordinates)],
                "first": first[name],
                "counts": by_class(self.seen[name], nobody, 1)[0].int().tolist(),
            }
            for name, layer in self.layers.items()
        ]
        return {
            "name": self.name,
            "model": self.model,
            "data": printable(self.task.data.name, 60),
            "classes": [printable(name, 40) for name in self.task.data.classes],
            "shape": self.shape,
            "tests": len(self.task.data.test.labels),
            "seen": len(self.train.labels),
            "layers": layers,
        }

    def split(self, name: str) -> Split:
        """Training or test images."""
        return self.train if name == "train" else self.task.data.test

    def read(self, content: bytes) -> Tensor:
        """An uploaded file as the network's images are: (C, H, W), bytes."""
        channels, height, width = self.shape
        try:
            with Image.open(io.BytesIO(content), formats=FORMATS) as file:
                if file.width * file.height > MOST_PIXELS:
                    raise ValueError("too many pixels")
                pixels = to_pixels(file, height, width)
        except Exception:  # decoders fail in many ways
            raise ValueError(
                f"This file cannot be used: send an image ({', '.join(FORMATS[:5])}) of at most "
                f"{MOST_PIXELS // 1_000_000} million pixels."
            ) from None
        if len(pixels) > channels:
            return pixels.float().mean(0, keepdim=True).round().byte()
        return pixels.expand(channels, -1, -1).contiguous()

    @torch.no_grad()
    def answer(self, pixels: Tensor, chosen: Chosen, look: str, spline: int) -> dict[str, object]:
        """What becomes of an image (C, H, W), bytes, with some positions chosen by hand.

        look, spline  the layer whose filters are wanted, and which of its splines comes first
        """
        began = time.perf_counter()
        device = next(self.net.parameters()).device
        image = self.task.augment.evaluate(pixels.unsqueeze(0).to(device)).to(self.task.dtype)
        logits, own = trace(self.net, image)
        steered, positions = logits, own
        if chosen:
            with steer(self.net, {name: self._position(name, values) for name, values in chosen.items()}):
                steered, positions = trace(self.net, image)
        return {
            "chances": _numbers(steered[0].softmax(0)),
            "own_chances": _numbers(logits[0].softmax(0)),
            "positions": {name: _numbers(positions[name]) for name in self.layers},
            "own": {name: _numbers(own[name]) for name in self.layers},
            "neighbours": self.neighbours(positions),
            "filters": self.filters(look, spline, positions),
            "milliseconds": 1e3 * (time.perf_counter() - began),
        }

    def neighbours(self, positions: Positions) -> list[dict[str, object]]:
        """The training images whose ways are nearest: the mean distance on a layer, averaged over layers."""
        apart = [(self.seen[n] - positions[n].float().cpu().flatten(1)).abs().mean(1) for n in self.layers]
        distance = torch.stack(apart).mean(0)
        nearest = distance.topk(min(NEIGHBOURS, len(distance)), largest=False)
        return [
            {"index": index, "label": int(self.train.labels[index]), "distance": round(apart, 4)}
            for apart, index in zip(nearest.values.tolist(), nearest.indices.tolist(), strict=True)
        ]

    def filters(self, name: str, first: int, positions: Positions) -> list[dict[str, object]]:
        """The weights that the image received in a layer, as pictures scaled by what their spline holds."""
        layer = self._layer(name)
        if not 0 <= first < layer.coordinates:
            raise ValueError(f"layer {name!r} has {layer.coordinates} splines, got number {first}")
        weights = layer.weights_at(positions[name])
        pictures = []
        for spline in [*dict.fromkeys([first // layer.dims, *self.lively[name]])][:FILTERS]:
            shown, largest = self._view(name, spline)
            values = (shown.of(weights)[0].float() / largest * 100).round().int()
            pictures.append({"title": shown.title, "rows": len(values), "values": values.flatten().tolist()})
        return pictures

    def _view(self, name: str, spline: int) -> tuple[View, float]:
        """What to show of a spline, and the largest weight that its knots have there; remembered."""
        if (name, spline) not in self.views:
            layer = self.layers[name]
            shown = view(layer, spline)
            self.views[name, spline] = shown, float(shown.of(layer.control_points()).abs().max()) or 1.0
        return self.views[name, spline]

    def _position(self, name: str, values: Sequence[float | None]) -> Tensor:
        layer = self._layer(name)
        if len(values) != layer.coordinates:
            raise ValueError(f"layer {name!r} has {layer.coordinates} positions, got {len(values)}")
        return torch.tensor([math.nan if v is None else v for v in values]).view(layer.position_shape)

    def _layer(self, name: str) -> SplineLayer:
        if name not in self.layers:
            raise ValueError(f"there is no layer {name!r}")
        return self.layers[name]


def _numbers(values: Tensor) -> list[float]:
    return [round(v, 5) for v in values.float().flatten().tolist()]
