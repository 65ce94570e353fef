"""A network as a graph of torch's operations, in which every spline layer is one node.

Whoever writes the graph to a file finds the layer by the name in its node, and lays it out as the runtime likes it.
Where a network cannot be exported, one sentence says which of its layers is in the way.
"""

from __future__ import annotations

import io
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from typing import cast

import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram

from ..layers import SplineConv2d, SplineLayer, SplineLinear
from ..operators import Convolution
from ..path import nearest_positions
from ..projection import FoldedProjection

library = torch.library.Library("splinenets", "FRAGMENT")
library.define(
    "layer(Tensor x, Tensor? parent, str name, float diffusion, SymInt[] shape, int coordinates) -> (Tensor, Tensor)"
)


def _shapes(
    x: Tensor, parent: Tensor | None, name: str, diffusion: float, shape: list[int], coordinates: int
) -> tuple[Tensor, Tensor]:
    return x.new_empty((x.shape[0], *shape)), x.new_empty((x.shape[0], coordinates))


torch.library.register_fake("splinenets::layer", _shapes, lib=library)
LAYER = torch.ops.splinenets.layer.default


@dataclass(frozen=True)
class Capture:
    """The graph, and the spline layers that its nodes name."""

    program: ExportedProgram
    layers: dict[str, SplineLayer]


def capture(net: nn.Module, example: Tensor, *, any_batch: bool, obstacles: Obstacles | None = None) -> Capture:
    """Follow an example through a deployed network, which is changed by it; spline layers become single nodes."""
    layers: dict[str, SplineLayer] = {}
    for name, layer in net.named_modules():
        if isinstance(layer, SplineConv2d | SplineLinear) and isinstance(layer.projection, FoldedProjection):
            layers[name] = layer
            layer.forward = partial(_forward, layer, name, type(layer).forward)  # type: ignore[method-assign]
    captured = Capture(trace_graph(net, example, any_batch=any_batch), layers)
    if obstacles is not None:
        obstacles.graph = captured.program.graph
    return captured


def trace_graph(net: nn.Module, example: Tensor, *, any_batch: bool) -> ExportedProgram:
    """``torch.export``, for the example's batch or for any."""
    example, shapes = example.clone(), None  # a view would bring all images it was cut from into the file
    if any_batch:
        example = example if len(example) > 1 else example.repeat(2, *[1] * (example.dim() - 1))
        shapes = ({0: Dim("batch", min=1)},)
    with torch.no_grad():
        return torch.export.export(net, (example,), dynamic_shapes=shapes)


def _forward(layer: SplineLayer, name: str, plain: Callable[..., Tensor], input: Tensor) -> Tensor:
    """What ``layer`` computes, as one node; in its plain form where it is not one convolution or matrix product."""
    x = layer.check_input(input)
    parent, level = layer.path.parent(layer)
    if not layer.needs_parent:
        parent = None
    if x.dim() != input.dim() or not _is_simple(layer, x) or (parent is not None and parent.shape[0] != x.shape[0]):
        return plain(layer, input)
    shape = list(_output_shape(layer, x))
    y, position = LAYER(x, parent, name, layer.spec.diffusion_at(level), shape, layer.coordinates)
    layer.path.visit(layer, position, None)
    return y


def _is_simple(layer: SplineLayer, x: Tensor) -> bool:
    return x.dim() == 2 if isinstance(layer, SplineLinear) else getattr(layer, "padding_mode", "zeros") == "zeros"


def _output_shape(layer: SplineLayer, x: Tensor) -> tuple[int, ...]:
    operation = layer.operation
    size = operation.output_size(x.shape[2:]) if isinstance(operation, Convolution) else ()
    return (layer.filters, *size)


def matching(layer: SplineLayer, inherited: int) -> Tensor | None:
    """The matrix that makes positions of ``inherited`` coordinates ones of this layer, (C, P); None: they fit."""
    if inherited == layer.coordinates:
        return None
    if str(inherited) in layer.matching:
        return layer.matching[str(inherited)].detach().softmax(1)
    return nearest_positions(torch.eye(inherited), layer.coordinates).T


def folded_projection(layer: SplineLayer) -> FoldedProjection:
    """The projection of a deployed layer."""
    return cast(FoldedProjection, layer.projection)


class Obstacles:
    """What is known during an export: the layers entered and not yet left, and the graph once there is one."""

    def __init__(self) -> None:
        self.inside: list[str] = []
        self.graph: fx.Graph | None = None

    def layer(self, error: BaseException) -> str:
        """The layer that an error is about."""
        if self.inside:
            return self.inside[-1]
        nodes = {node.name: node for node in self.graph.nodes} if self.graph else {}
        each: BaseException | None = error
        while each is not None:
            for place, word in enumerate(re.findall(r"%(\w+)", str(each))):
                # the first is the operation itself; where it has another name by now, its argument tells
                if word in nodes:
                    return module_of(nodes[word] if place == 0 else next(iter(nodes[word].users)))
            each = each.__cause__
        return ""


def module_of(node: fx.Node) -> str:
    """The name of the layer that an operation belongs to."""
    stack: dict[str, tuple[str, object]] = node.meta.get("nn_module_stack") or {}
    names = [path.removeprefix("L['self'].").removeprefix("L['self']") for path, _ in stack.values()]
    return names[-1] if names else ""


@contextmanager
def naming_layers(net: nn.Module) -> Iterator[Obstacles]:
    """Turn whatever goes wrong inside into one sentence that names the layer."""
    obstacles = Obstacles()
    handles = []
    for name, module in net.named_modules():

        def enter(_: nn.Module, args: tuple[object, ...], name: str = name) -> None:
            obstacles.inside.append(name)

        def leave(_: nn.Module, args: tuple[object, ...], output: object) -> None:
            obstacles.inside.pop()

        handles += [module.register_forward_pre_hook(enter, prepend=True), module.register_forward_hook(leave)]
    try:
        with _quietly():
            yield obstacles
    except (ImportError, OSError, MemoryError):
        raise
    except Exception as error:
        name = obstacles.layer(error)
        kind = type(net.get_submodule(name)).__name__.removeprefix("Parametrized")
        where = f"layer {name!r} ({kind})" if name else kind
        raise ValueError(f"{where} cannot be exported: {_reason(error)}") from error
    finally:
        for handle in handles:
            handle.remove()


def _reason(error: BaseException) -> str:
    """The first line of what went wrong first."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return re.sub(r"^%\w+: ", "", lines[0]) if lines else type(error).__name__


@contextmanager
def _quietly() -> Iterator[None]:
    """Torch's exporters tell about packages they do not find, warn of their own future and print graphs that fail."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
