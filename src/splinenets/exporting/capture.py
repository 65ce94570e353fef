"""A network as a graph of torch's operations, in which every spline layer is one node.

Whoever writes the graph to a file finds the layer by the name in its node, and lays it out as the runtime likes it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
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


def capture(net: nn.Module, example: Tensor, *, any_batch: bool) -> Capture:
    """Follow an example through a deployed network, which is changed by it; spline layers become single nodes."""
    layers: dict[str, SplineLayer] = {}
    for name, layer in net.named_modules():
        if isinstance(layer, SplineConv2d | SplineLinear) and isinstance(layer.projection, FoldedProjection):
            layers[name] = layer
            layer.forward = partial(_forward, layer, name, type(layer).forward)  # type: ignore[method-assign]
    return Capture(trace_graph(net, example, any_batch=any_batch), layers)


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
