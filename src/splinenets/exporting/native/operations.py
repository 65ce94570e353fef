"""Rules for operations with weights: convolutions, linear maps and spline layers."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, fx
from torch.fx.node import Argument

from ...layers import SplineLayer, SplineLinear
from ...operators import Convolution
from ..capture import LAYER, PLACE, folded_projection, matching
from .graph import Found, Given, Last, Lowering, Padded, Rule, arguments, image_of, node_of, pair
from .parameters import Numbers, filter_blocks, filter_length, image_rows
from .program import LANES, Image, Kind, Step, Told, padded

aten = torch.ops.aten


def convolve(low: Lowering, x: Image, output: Image, operation: Convolution, step: Step) -> Image:
    """A convolution, its filters constant or mixed, as ``step`` says."""
    margins = operation.margins()
    (top, _), (left, _) = margins
    x.margin = max(x.margin, *_reach(x, output, operation, top, left))
    step.input, step.output, step.groups = x, output, operation.groups
    if operation.groups == x.channels == output.channels > 1:
        step.kind = Kind.DEPTHWISE
    kernel, stride, dilation = (
        cast("tuple[int, int]", size) for size in (operation.kernel, operation.stride, operation.dilation)
    )
    step.window(kernel, stride, (top, left), dilation)
    step.length = filter_length(operation.kernel, x.channels, output.channels, operation.groups)
    return low.emit(step)


def _reach(x: Image, y: Image, operation: Convolution, top: int, left: int) -> tuple[int, ...]:
    """How far windows reach beyond an image: above, on the left, below, on the right."""
    per_axis = zip((x.height, x.width), (y.height, y.width), (top, left), range(2), strict=True)
    beyond = []
    for size, count, before, axis in per_axis:
        kernel, stride, dilation = operation.kernel[axis], operation.stride[axis], operation.dilation[axis]
        beyond.append((count - 1) * stride - before + (kernel - 1) * dilation - size + 1)
    return top, left, *beyond


def convolution(low: Lowering, node: fx.Node) -> Found:
    """``F.conv2d`` and ``F.conv1d``."""
    given = arguments(node)
    weight = low.tensor(given["weight"])
    signal = weight.dim() == 3
    one, none = (1, 0) if signal else (None, None)
    kernel = (1, weight.shape[2]) if signal else tuple(weight.shape[2:])
    padding = given.get("padding")
    margins = padding if isinstance(padding, str) else pair(padding, 0, none)
    stride, dilation = pair(given.get("stride"), 1, one), pair(given.get("dilation"), 1, one)
    operation = Convolution(kernel, stride, margins, dilation, cast(int, given.get("groups", 1)))
    found = low.found[node_of(given["input"])]
    if isinstance(found, Padded):  # part of the convolution
        source, operation = found.image, _wider(operation, found.sides)
    else:
        source = low.image(given["input"])
    bias = low.maybe_tensor(given.get("bias"))
    if source.shape[1:] == (1, 1) and kernel == (1, 1) and operation.groups == 1 and operation.sides() == (0, 0, 0, 0):
        return product(low, source, weight.flatten(1), bias)
    numbers = filter_blocks(Numbers(weight.flatten(1)), kernel, groups=operation.groups)
    step = Step(Kind.CONV, weight=low.parameters.matrix(numbers), bias=low.parameters.channels(bias))
    return convolve(low, source, image_of(node), operation, step)


def _wider(operation: Convolution, sides: tuple[int, int, int, int]) -> Convolution:
    """The same with more padding; where that ends on the other side follows from the size of what comes out."""
    before = tuple(first for first, _ in operation.margins())
    return operation._replace(padding=(before[0] + sides[0], before[1] + sides[2]))


def product(low: Lowering, x: Image, weight: Tensor, bias: Tensor | None) -> Image:
    """A matrix product with all features of an image."""
    rows = image_rows(Numbers(weight), x.shape)
    step = Step(Kind.LINEAR, x, Image(weight.shape[0]), weight=low.parameters.matrix(rows))
    step.rows, step.length = rows.values.shape
    step.bias = low.parameters.channels(bias)
    return low.emit(step)


POINTWISE = Convolution((1, 1), (1, 1), (0, 0), (1, 1), 1)


def linear(low: Lowering, node: fx.Node) -> Found:
    """``F.linear`` of one row, or of the channels of every pixel."""
    given = arguments(node)
    weight, bias = low.tensor(given["weight"]), low.maybe_tensor(given.get("bias"))
    source, again = low.view(given["input"])
    if again is not Last:
        return product(low, source, weight, bias)
    numbers = filter_blocks(Numbers(weight), POINTWISE.kernel)
    step = Step(Kind.CONV, weight=low.parameters.matrix(numbers), bias=low.parameters.channels(bias))
    return again(convolve(low, source, Image(weight.shape[0], source.height, source.width), POINTWISE, step))


def item(low: Lowering, node: fx.Node) -> Found:
    """One of several results."""
    return cast("tuple[Image | Last, ...]", low.found[node_of(node.args[0])])[cast(int, node.args[1])]


def spline(low: Lowering, node: fx.Node) -> Found:
    """A spline layer: locate, mix, operate."""
    given = arguments(node)
    layer = low.captured.layers[cast(str, given["name"])]
    source, again = low.view(given["x"])
    if layer.spec.spline_degree > 8 or layer.dims * (layer.spec.spline_degree + 1) > 64:
        raise ValueError("the native runtime has splines of degree 8 and less, which touch 64 knots at most")
    if layer.external:
        position = place(low, layer, cast("list[fx.Node]", given["given"]))
    else:
        position = locate(low, layer, again(source), given["parent"], cast(float, given["diffusion"]))
    if isinstance(layer, SplineLinear) and again is not Last and not layer.external:
        return spline_linear(low, layer, source), position
    if isinstance(layer, SplineLinear) and again is not Last:  # a convolution whose filters are as large as the image
        whole = Convolution((source.height, source.width), (1, 1), (0, 0), (1, 1), 1)
        return spline_convolution(low, layer, source, Image(layer.filters), whole), position
    if isinstance(layer, SplineLinear):
        output = Image(layer.filters, *source.shape[1:])
        return Last(spline_convolution(low, layer, source, output, POINTWISE)), position
    return spline_convolution(low, layer, source, image_of(node), cast(Convolution, layer.operation)), position


def spline_linear(low: Lowering, layer: SplineLinear, source: Image) -> Image:
    """Every row answers with all active knots."""
    rows = image_rows(Numbers.of(layer, "knots"), source.shape)
    step = curves(low, Step(Kind.LINEAR, source, Image(layer.filters)), layer)
    step.weight, step.bias = low.parameters.matrix(rows), low.parameters.channels(layer.bias)
    step.rows, step.length = layer.filters, rows.values.shape[-1]
    return low.emit(step)


def spline_convolution(
    low: Lowering, layer: SplineLayer, source: Image, output: Image, operation: Convolution
) -> Image:
    """Filters are mixed, then they convolve. Those that depend on conditions alone stay until another is told."""
    mixed = Image(own=True) if layer.external else low.mixed
    knots = Numbers.of(layer, "knots")
    blocked = layer.splines > 1 and side_by_side(layer)
    based = blocked and layer.dims > 1 and knots.scale is None and knots.values.dtype == torch.float32
    if based:
        knots = Numbers(with_base(knots.values, layer.dims))
    apart = layer.splines > 1 and not blocked
    blocks = filter_blocks(knots, operation.kernel, groups=operation.groups, apart=apart)
    weight = low.parameters.matrix(blocks)
    mix = curves(
        low, Step(Kind.MIX, weight=weight, mixed=mixed, kept=layer.external, blocked=blocked, based=based), layer
    )
    filters = padded(layer.filters)
    mix.rows, mix.groups = layer.filters if apart else filters, operation.groups
    mix.length = filter_length(operation.kernel, source.channels, layer.filters, operation.groups)
    mixed.channels = max(mixed.channels, mix.length * filters)
    if layer.external:
        low.scratch.append(mixed)
    low.steps.append(mix)
    step = Step(Kind.CONV, bias=low.parameters.channels(layer.bias), mixed=mixed)
    mix.output = convolve(low, source, output, operation, step)  # threads mix what they will convolve with
    return mix.output


def side_by_side(layer: SplineLayer) -> bool:
    """Whether knots of several splines lie as filters do: all are read then, but none needs to be turned around."""
    return len(layer.knots) == layer.dims * (layer.spec.spline_degree + 1)


def with_base(knots: Tensor, dims: int) -> Tensor:
    """Knots (dims * K, ...) as the mean of all first ones, and what the others add: (1 + dims * (K - 1), ...).

    Shares of a curve's knots add up to 1, so the first ones need not be read one by one.
    """
    curves = knots.unflatten(0, (dims, -1))
    return torch.cat([curves[:, 0].mean(0, keepdim=True), (curves[:, 1:] - curves[:, :1]).flatten(0, 1)])


def curves(low: Lowering, step: Step, layer: SplineLayer) -> Step:
    """A step that knows a layer's splines."""
    step.splines, step.dims = layer.splines, layer.dims
    step.knots, step.degree = len(layer.knots) // layer.dims, layer.spec.spline_degree
    step.basis = low.basis
    low.basis.channels = max(low.basis.channels, layer.coordinates * LANES)
    return step


def place(low: Lowering, layer: SplineLayer, given: list[fx.Node]) -> Image:
    """Positions that the network is told."""
    position = Image(layer.coordinates, own=True)
    start = 0
    for node in given:
        told = low.found[node]
        assert isinstance(told, Given)
        low.emit(Step(Kind.TELL, output=position, source=told.first, target=start, count=told.count))
        start += told.count
    low.steps.append(curves(low, Step(Kind.PLACE, position, kept=True), layer))
    return position


def condition(low: Lowering, node: fx.Node) -> Found:
    """The range of a condition, from where values become positions."""
    given = arguments(node)
    told = low.found[node_of(given["values"])]
    assert isinstance(told, Given)
    for i, ends in enumerate(zip(cast("list[float]", given["low"]), cast("list[float]", given["high"]), strict=True)):
        low.told[told.first + i] = Told(low.told[told.first + i].name, *ends)
    return told


def locate(low: Lowering, layer: SplineLayer, found: Found, parent: Argument, diffusion: float) -> Image:
    """The positions of a layer."""
    projection = folded_projection(layer)
    last = isinstance(found, Last)
    source = found.image if isinstance(found, Last) else cast(Image, found)
    pools = layer.spec.projection == "conv" and (last or not isinstance(layer, SplineLinear))
    features = low.pool(source) if pools else source
    step = Step(Kind.LOCATE, features, Image(layer.coordinates, own=True), closed=projection.closed)
    numbers = Numbers.of(projection, "weight")
    if projection.hierarchical:
        step.decision_degree = projection.degree
        numbers = numbers.again(projection.degree) if projection.closed else numbers
        step.decision_knots = len(numbers.values)
    if features.own and not (projection.hierarchical or projection.closed) and len(numbers.values) >= LANES // 2:
        rows = filter_blocks(numbers, POINTWISE.kernel)
        step.blocked, step.length = True, rows.values.shape[-2]
    else:
        rows = image_rows(numbers.channels_first(features.channels) if last else numbers, features.shape)
        step.length = rows.values.shape[-1]
    step.weight = low.parameters.matrix(rows)
    if parent is not None:
        inherited = low.image(parent)
        matrix = matching(layer, inherited.channels)
        step.other, step.matching = inherited, -1 if matrix is None else low.parameters.put(matrix)
    if not features.own:  # a large image: every thread answers for a part of it first
        step.sums = Image(len(projection.shift), own=True)
        low.steps.append(replace(step, kind=Kind.PROJECT, narrow=low.narrow))
        low.narrow.channels = max(low.narrow.channels, step.length // 2)
    step.bias, step.bounded, step.slope = (
        low.parameters.channels(projection.shift),
        projection.bounded,
        projection.slope,
    )
    step.diffusion = diffusion if parent is not None else 1.0
    return low.emit(curves(low, step, layer))


RULES: dict[object, Rule] = {
    LAYER: spline,
    PLACE: condition,
    aten.conv1d.default: convolution,
    aten.conv1d.padding: convolution,
    aten.conv2d.default: convolution,
    aten.conv2d.padding: convolution,
    aten.linear.default: linear,
}
