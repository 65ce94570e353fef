"""One image in a trained network: its answer, its way along the splines, and what would be elsewhere on them."""

from __future__ import annotations

import base64
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor, nn

from ..conditions import Conditioned
from ..data import Split, seeded
from ..data.changes import changed
from ..data.decoding import read_picture
from ..layers import SplineLayer
from ..tracing import Positions, steer, trace
from ..training.build import Inputs, Task
from ..training.run import load_run
from .counts import by_class, most_telling, spline_title, spread_out
from .filters import Pictures
from .observe import LOOKED_AT, travel
from .records import data_name, network_name
from .style import class_colours
from .text import printable

Chosen: TypeAlias = Mapping[str, Sequence[float | None]]

NEIGHBOURS = 8
WAYS = 60  # training images whose ways are drawn behind that of an image
FEW = 8  # layers that leave room for pictures of weights along their curves
PLACES = 11  # along a curve, at which the tour looks for another answer
COMPARED = 200  # test images that say how near to the nearest training image's a way usually is
UNLIKE = 40  # grey levels by which an upload's edge is nearer to the training images' once it is inverted


class Explorer:
    """A run's network, and where its training images are."""

    def __init__(self, net: nn.Module, task: Task, *, name: str, model: str, network: str = "network") -> None:
        self.net, self.task, self.network = net, task, printable(network, 40)
        self.name, self.model = printable(name, 60), printable(model, 60)
        self.layers = {name: m for name, m in net.named_modules() if isinstance(m, SplineLayer)}
        if not self.layers:
            raise ValueError(
                f"{self.name} is a static network without positions, so there is nothing to explore; "
                "'splinenets report' compares it with others"
            )
        self.train = task.data.train.part(slice(LOOKED_AT))
        if task.original is not None and task.change is not None:
            self.train = changed(self.train, task.change, "train")
        _, seen = travel(self.net, self.task, self.train)
        self.seen = {name: seen[name].flatten(1) for name in self.layers if name in seen}
        self.layers = {name: self.layers[name] for name in self.seen}
        self.inferred = [name for name in self.layers if name not in seen.given]
        self.first = most_telling(self.seen, self.train.labels)
        self.some = spread_out(range(len(self.train.labels)), WAYS) if self.inferred else []
        self.usual = self._usual() if self.inferred else math.inf
        self.pictures = Pictures(self.layers)
        self.pictured = [*self.layers] if len(self.layers) <= FEW else []

    @classmethod
    def of_run(cls, folder: Path) -> Explorer:
        """The explorer of a run's last checkpoint."""
        net, task, recipe, _ = load_run(folder)
        network = network_name(recipe.as_dict())
        return cls(net, task, name=folder.resolve().name, model=recipe.model, network=network)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of an image."""
        channels, height, width = self.task.data.test.images.shape[1:]
        return channels, height, width

    def describe(self) -> dict[str, object]:
        """What a page needs to know once."""
        nobody = torch.zeros_like(self.train.labels)
        layers = [
            {
                "name": name,
                "title": printable(self.title(name), 60),
                "splines": [spline_title(layer, i) for i in range(layer.coordinates)],
                "first": self.first[name],
                "given": name not in self.inferred,
                "counts": by_class(self.seen[name], nobody, 1)[0].int().tolist(),
                "ways": [[round(v, 2) for v in way] for way in self.seen[name][self.some].tolist()],
                "strip": self.strip(name, self.first[name]) if name in self.pictured else [],
            }
            for name, layer in self.layers.items()
        ]
        classes = self.task.data.classes
        return {
            "name": self.name,
            "model": self.model,
            "network": self.network,
            "data": data_name(self.task.data.name),
            "classes": [printable(name, 40) for name in classes],
            "colours": class_colours(len(classes)),
            "shape": self.shape,
            "labels": self.tests.labels.tolist(),
            "seen": len(self.train.labels),
            "of_ways": self.train.labels[self.some].tolist(),
            "light": self.edge(self.train.images) > 127,
            "condition": self.condition(),
            "layers": layers,
        }

    @property
    def tests(self) -> Split:
        """The test images, before anything was done to them."""
        return self.task.data.test if self.task.original is None else self.task.original

    def title(self, layer: str) -> str:
        """A layer's name in the network that is told something."""
        return layer.removeprefix("net.") if isinstance(self.net, Conditioned) else layer

    def condition(self) -> dict[str, object] | None:
        """What images are changed by, or what the data have for each: its name and range, and who is told it."""
        change, values = self.task.change, self.tests.values
        if change is None:
            return None
        told = [layer.spec.closed for layer in self.layers.values() if layer.spec.external]
        return {
            "name": printable(change.name, 40),
            "low": change.low,
            "high": change.high,
            "still": min(max(change.still, change.low), change.high),
            "closed": all(told) if told else change.closed,
            "told": self.task.told,
            "changes": self.task.original is not None,
            "values": None if values is None else values.tolist(),
        }

    def split(self, name: str) -> Split:
        """Training or test images."""
        return self.train if name == "train" else self.tests

    def read(self, content: bytes) -> Tensor:
        """An uploaded file as the network's images are: (C, H, W), bytes."""
        return read_picture(content, self.shape)

    def edge(self, images: Tensor) -> float:
        """The mean grey level at the edge of images (..., H, W), where the background mostly is."""
        whole = images.float()
        sides = whole[..., 0, :], whole[..., -1, :], whole[..., :, 0], whole[..., :, -1]
        return float(torch.cat([side.flatten() for side in sides]).mean())

    def unlike(self, pixels: Tensor) -> bool:
        """Whether an image (C, H, W) would look more like the training images if light and dark were exchanged."""
        usual, found = self.edge(self.train.images), self.edge(pixels)
        return abs(found - usual) > abs(255 - found - usual) + UNLIKE

    @torch.no_grad()
    def answer(
        self,
        pixels: Tensor,
        chosen: Chosen,
        look: str,
        picked: Mapping[str, int] | None = None,
        done: float | None = None,
        told: float | None = None,
    ) -> dict[str, object]:
        """What becomes of an image (C, H, W), bytes, with some positions chosen by hand.

        look    the layer whose filters are wanted
        picked  which of a layer's splines comes first; where nothing is said, the one that tells most about the class
        done    by how much the image is changed, where a condition changes it
        told    what the network is told of that; None: the truth
        """
        began = time.perf_counter()
        image = self.change(pixels, done)
        logits, own = trace(self.net, *self.inputs(image, done))
        steered, positions = logits, own
        if chosen or (told is not None and told != done):
            with steer(self.net, {name: self._position(name, values) for name, values in chosen.items()}):
                steered, positions = trace(self.net, *self.inputs(image, done if told is None else told))
        front = self.first | {name: self._spline(name, spline) for name, spline in (picked or {}).items()}
        neighbours = self.neighbours(positions)
        return {
            "chances": _numbers(steered[0].softmax(0)),
            "own_chances": _numbers(logits[0].softmax(0)),
            "positions": {name: _numbers(positions[name]) for name in self.layers},
            "own": {name: _numbers(own[name]) for name in self.layers},
            "neighbours": neighbours,
            "unusual": bool(neighbours) and neighbours[0]["distance"] > self.usual,
            "filters": self.pictures.of_image(look, front[self._known(look)], positions),
            "fronts": {name: self.pictures.front(name, front[name], positions) for name in self.pictured},
            "pixels": packed(image),
            "milliseconds": 1e3 * (time.perf_counter() - began),
        }

    def change(self, pixels: Tensor, done: float | None) -> Tensor:
        """An image as the condition's value changes it, always with the same noise: (C, H, W), bytes -> the same."""
        change = self.task.change
        if change is None or done is None:
            return pixels
        if not change.low <= done <= change.high:
            raise ValueError(f"{change.name} lies between {change.low:g} and {change.high:g}, got {done:g}")
        return change(pixels.unsqueeze(0), torch.tensor([done]), seeded("explorer"))[0]

    def inputs(self, pixels: Tensor, told: float | None, copies: int = 1) -> Inputs:
        """What the network is called with: (C, H, W), bytes -> images (copies, C, H, W), and values (copies,)."""
        device = next(self.net.parameters()).device
        image = self.task.augment.evaluate(pixels.unsqueeze(0).to(device)).to(self.task.dtype)
        images = image.expand(copies, -1, -1, -1)
        if not self.task.told:
            return (images,)
        if told is None:
            raise ValueError("this network must be told something with each image")
        return images, torch.full((copies,), told, dtype=self.task.dtype, device=device)

    @torch.no_grad()
    def turning(self, pixels: Tensor, done: float | None = None) -> dict[str, list[float]]:
        """The positions, {layer: (S,)}, that lead to the surest other answer: a whole layer in one place, or else all
        layers along the way of a training image that the page draws. Empty if none of them changes the answer.
        """
        image = self.change(pixels, done)
        best = int(self.net(*self.inputs(image, done))[0].argmax())
        places = torch.linspace(0, 1, PLACES)
        drags = [{name: self._everywhere(name, places)} for name in self.layers]
        ways = {name: seen[self.some].view(-1, *self.layers[name].position_shape) for name, seen in self.seen.items()}
        for moves in (drags, [ways] if self.some else []):
            found = [other for move in moves for other in self._others(image, done, move, best)]
            if found:
                return max(found, key=lambda other: other[0])[1]
        return {}

    def _others(
        self, image: Tensor, done: float | None, move: Mapping[str, Tensor], best: int
    ) -> list[tuple[float, dict[str, list[float]]]]:
        """Of positions {layer: (N, S)} those with another answer than the best, and how sure it is."""
        count = len(next(iter(move.values())))
        with steer(self.net, dict(move)):
            sure, said = self.net(*self.inputs(image, done, count)).float().softmax(1).cpu().max(1)
        turned = [i for i in range(count) if int(said[i]) != best]
        return [(float(sure[i]), {name: _numbers(values[i]) for name, values in move.items()}) for i in turned]

    @torch.no_grad()
    def parting(
        self, pixels: Tensor, other: Tensor, done: float | None = None, other_done: float | None = None
    ) -> list[dict[str, object]]:
        """How far two images (C, H, W) are apart in each layer, and what the first would be with the other's weights
        there alone.
        """
        _, mine = trace(self.net, *self.inputs(self.change(pixels, done), done))
        _, theirs = trace(self.net, *self.inputs(self.change(other, other_done), other_done))
        swapped = {}
        for row, name in enumerate(self.layers):
            shape = self.layers[name].position_shape
            swapped[name] = torch.full((len(self.layers), *shape), math.nan)
            swapped[name][row] = theirs[name][0].float().cpu().view(shape)
        with steer(self.net, swapped):
            answers = self.net(*self.inputs(self.change(pixels, done), done, len(self.layers))).float().softmax(1)
        return [
            {"name": name, "apart": round(float((mine[name] - theirs[name]).abs().mean()), 4), "chances": _numbers(row)}
            for name, row in zip(self.layers, answers, strict=True)
        ]

    def neighbours(self, positions: Positions) -> list[dict[str, float]]:
        """The training images whose ways are nearest: the mean distance on a layer, averaged over layers.

        Layers that are told their positions say nothing about an image.
        """
        if not self.inferred:
            return []
        distance = self.distances(positions)[0]
        nearest = distance.topk(min(NEIGHBOURS, len(distance)), largest=False)
        return [
            {"index": index, "label": int(self.train.labels[index]), "distance": round(apart, 4)}
            for apart, index in zip(nearest.values.tolist(), nearest.indices.tolist(), strict=True)
        ]

    def distances(self, positions: Mapping[str, Tensor]) -> Tensor:
        """How far images are from each training image: {layer: (N, S)} -> (N, training images)."""
        ways = {name: positions[name].float().cpu().flatten(1) for name in self.inferred}
        apart = [torch.cdist(way, self.seen[name], p=1) / way.shape[1] for name, way in ways.items()]
        return torch.stack(apart).mean(0)

    def _usual(self) -> float:
        """How far from the nearest training image's a way may be: further than that is one test image of a hundred."""
        _, ways = travel(self.net, self.task, self.task.data.test, COMPARED)
        return float(self.distances(ways).amin(1).quantile(0.99))

    def strip(self, name: str, spline: int) -> list[dict[str, object]]:
        """Weights at evenly spaced places along a spline, as pictures."""
        return self.pictures.strip(name, self._spline(name, spline))

    def _position(self, name: str, values: Sequence[float | None]) -> Tensor:
        layer = self.layers[self._known(name)]
        if len(values) != layer.coordinates:
            raise ValueError(f"layer {name!r} has {layer.coordinates} positions, got {len(values)}")
        return torch.tensor([math.nan if v is None else v for v in values]).view(layer.position_shape)

    def _everywhere(self, name: str, places: Tensor) -> Tensor:
        """A whole layer at each of these places: (N,) -> (N, S)."""
        shape = self.layers[name].position_shape
        return places.view(-1, *(1 for _ in shape)).expand(-1, *shape)

    def _known(self, name: str) -> str:
        if name not in self.layers:
            raise ValueError(f"there is no layer {name!r}")
        return name

    def _spline(self, name: str, number: int) -> int:
        layer = self.layers[self._known(name)]
        if not 0 <= number < layer.coordinates:
            raise ValueError(f"layer {name!r} has {layer.coordinates} splines, got number {number}")
        return number


def packed(pixels: Tensor) -> str:
    """An image of bytes in base64."""
    return base64.b64encode(pixels.cpu().numpy().tobytes()).decode()


def _numbers(values: Tensor) -> list[float]:
    return [round(v, 5) for v in values.float().flatten().tolist()]
