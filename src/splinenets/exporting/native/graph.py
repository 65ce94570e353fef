"""A graph of torch's operations on its way to steps: what every rule has at hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

import torch
from torch import Tensor, fx
from torch.fx.node import Argument

from ..capture import Capture
from .parameters import Parameters
from .program import ADDING, LANES, NOWHERE, Image, Kind, Pair, Program, Step, Told, assemble


@dataclass(frozen=True)
class Sparse:
    """Every stride-th pixel of an image, with further channels of zeros: a shortcut that is not written down yet."""

    image: Image
    stride: dict[int, int]
    more_channels: int = 0


@dataclass(frozen=True)
class Padded:
    """An image with pixels of zeros around it, (top, bottom, left, right), which are not written down yet."""

    image: Image
    sides: tuple[int, int, int, int]


@dataclass(frozen=True)
class Last:
    """An image whose channels torch has last, (1, H, W, C) or (1, H * W, C)."""

    image: Image


@dataclass(frozen=True)
class Given:
    """Numbers that the network is told: the first of them, and how many."""

    first: int
    count: int


# what a node of the graph can stand for
Found: TypeAlias = Tensor | Image | Last | Sparse | Padded | Given | tuple["Image | Last", ...]
Rule: TypeAlias = Callable[["Lowering", fx.Node], Found]


class Lowering:
    """The steps that were written so far, and what the nodes of the graph became."""

    def __init__(self, captured: Capture) -> None:
        self.captured = captured
        self.steps: list[Step] = []
        self.maker: dict[Image, Step] = {}
        self.found: dict[fx.Node, Found] = {}
        self.aliases: set[fx.Node] = set()  # nodes that only look at another's image
        self.pooled: dict[Image, Image] = {}
        self.parameters = Parameters()
        self.told: list[Told] = []
        # scratch memory that grows to what the largest needs
        self.mixed, self.basis, self.narrow = self.scratch = [Image(own=True) for _ in range(3)]

    def program(self) -> Program:
        """All steps, with a place for everything."""
        self.fuse_sums()
        return assemble(self.steps, self.scratch, self.parameters.bytes(), self.told)

    def emit(self, step: Step) -> Image:
        """Add a step that makes an image."""
        self.steps.append(step)
        self.maker[step.output] = step
        return step.output

    def tensor(self, argument: Argument) -> Tensor:
        """A parameter."""
        found = self.found[node_of(argument)]
        if not isinstance(found, Tensor):
            raise ValueError("the native runtime has weights that do not depend on the image")
        return found

    def maybe_tensor(self, argument: Argument) -> Tensor | None:
        """A parameter, or none."""
        return None if argument is None else self.tensor(argument)

    def image(self, argument: Argument, before: Step | None = None) -> Image:
        """An image, its channels first; a shortcut is written down now, at the latest before the step that wants it."""
        node = node_of(argument)
        found = self.found[node]
        if isinstance(found, Sparse | Padded):
            found = self.found[node] = self.written(node, found)
            if before is not None:  # a convolution and what mixes its filters stay together
                self.steps.insert(self.steps.index(before) - (before.mixed is not NOWHERE), self.steps.pop())
        if isinstance(found, Last) and found.image.shape[1:] == (1, 1):
            return found.image
        if not isinstance(found, Image):
            raise ValueError("the native runtime computes with images whose channels come first here")
        return found

    def view(self, argument: Argument) -> tuple[Image, Callable[[Image], Found]]:
        """An image with its channels first or last, and what makes of another image the same."""
        found = self.found[node_of(argument)]
        return (found.image, Last) if isinstance(found, Last) else (self.image(argument), lambda image: image)

    def written(self, node: fx.Node, found: Sparse | Padded) -> Image:
        """A shortcut or a padded image, written down."""
        if isinstance(found, Padded):
            top, _, left, _ = found.sides
            step = Step(Kind.COPY, found.image, image_of(node), pad_h=top, pad_w=left, count=found.image.channels)
            return self.emit(step)
        if len(found.stride) != 2:
            raise ValueError("the native runtime takes every n-th pixel in both directions")
        if found.more_channels and found.image.channels % LANES:
            raise ValueError(f"the native runtime adds channels to multiples of {LANES}")
        step = Step(Kind.SUBSAMPLE, found.image, image_of(node))
        step.stride_h, step.stride_w = found.stride[2], found.stride[3]
        return self.emit(step)

    def made(self, node: fx.Node) -> int:
        """When a node's image is made: the number of a step, -1 for what is not made yet."""
        found = self.found[node]
        image = found.image if isinstance(found, Last) else found
        return self.steps.index(self.maker[image]) if isinstance(image, Image) else -1

    def used_once(self, argument: Argument) -> bool:
        """Whether one operation alone looks at an image, under whatever name."""
        node = node_of(argument)
        while node in self.aliases and len(node.users) == 1:
            node = node_of(node.args[0])
        return len(node.users) == 1

    def alias(self, node: fx.Node, found: Found) -> Found:
        """A node that is another view of its first argument."""
        self.aliases.add(node)
        return found

    def pool(self, x: Image) -> Image:
        """The mean of every channel; layers that read the same image share it."""
        if x not in self.pooled:
            sums = Image(x.channels, own=True)
            self.steps.append(Step(Kind.SUM, x, sums=sums))
            self.pooled[x] = self.emit(Step(Kind.MEAN, x, Image(x.channels, own=True), sums=sums))
        return self.pooled[x]

    def fuse_sums(self) -> None:
        """What makes an image adds up its channels itself, while it has them at hand."""
        for step in [s for s in self.steps if s.kind == Kind.SUM]:
            maker = self.maker[step.input]
            if maker.kind in ADDING:
                maker.sums = step.sums
                self.steps.remove(step)


def shape_of(node: fx.Node) -> tuple[int, ...]:
    """The shape that a node has in torch; of a spline layer's two results the first."""
    found = node.meta["val"]
    return tuple((found[0] if isinstance(found, tuple | list) else found).shape)


def image_of(node: fx.Node) -> Image:
    """An image of the shape that a node gives; signals (1, C, L) are images of one row."""
    shape = shape_of(node)
    if len(shape) not in (2, 3, 4) or shape[0] != 1:
        raise ValueError(
            f"the native runtime computes with images (1, C, H, W), signals (1, C, L) and rows (1, C), not {shape}"
        )
    height, width = ((1, 1), (1, shape[-1]), shape[2:])[len(shape) - 2]
    return Image(shape[1], height, width)


def node_of(argument: Argument) -> fx.Node:
    """An argument that is a node."""
    if not isinstance(argument, fx.Node):
        raise ValueError(f"the native runtime computes with images, not with {argument!r}")
    return argument


def arguments(node: fx.Node) -> dict[str, Argument]:
    """A node's arguments by name, those that it has."""
    schema = cast(torch._ops.OpOverload, node.target)._schema
    names = [argument.name for argument in schema.arguments]
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def sizes(argument: Argument) -> list[int]:
    """A list of whole numbers; one number is a list, too."""
    return [cast(int, a) for a in argument] if isinstance(argument, Sequence) else [cast(int, argument)]


def pair(argument: Argument, default: int, height: int | None = None) -> Pair:
    """A size in both directions; a signal has one, and ``height`` in the other."""
    values = sizes(argument) if argument not in (None, []) else [default]
    return values[0] if height is None else height, values[-1]
