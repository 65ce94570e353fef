"""A graph of torch's operations as a program of the native runtime: its steps, and parameters in their order."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import NamedTuple, TypeAlias, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, fx, nn
from torch.fx.node import Argument

from ...layers import SplineLayer, SplineLinear
from ...operators import Convolution
from ...storage import stored
from ..capture import LAYER, Capture, folded_projection, matching
from .program import LANES, NOWHERE, Image, Kind, Matrix, Program, Step, assemble, padded

aten = torch.ops.aten
TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}


class Numbers(NamedTuple):
    """Numbers (rows..., length) as they are stored, and the scale of each row, (rows...)."""

    values: Tensor
    scale: Tensor | None = None

    @classmethod
    def of(cls, module: nn.Module, name: str) -> Numbers:
        """A parameter of a deployed module."""
        values, scale = stored(module, name)
        return cls(values, None if scale is None else scale.squeeze(-1))


class Parameters:
    """All parameters of a program in one piece of memory, each at a multiple of 64 bytes."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.length = 0

    def put(self, values: Tensor) -> int:
        """Add numbers; where they begin."""
        start, content = self.length, values.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        self.parts.append(content + bytes(-len(content) % 64))
        self.length += len(self.parts[-1])
        return start

    def matrix(self, numbers: Numbers) -> Matrix:
        """Add numbers and their scale; type and places."""
        values, scale = numbers
        return Matrix(TYPES[values.dtype], self.put(values), -1 if scale is None else self.put(scale))

    def bytes(self) -> NDArray[np.uint8]:
        """Everything."""
        return np.frombuffer(b"".join(self.parts) or bytes(64), np.uint8)


def image_rows(weight: Numbers, shape: tuple[int, int, int]) -> Numbers:
    """Rows over an image's features, in the order of blocks of channels: (..., C * H * W) -> (..., B * H * W * 16)."""
    values, scale = weight
    channels, height, width = shape
    images = _pad(values.reshape(-1, channels, height * width), 1)
    blocks = images.unflatten(1, (-1, LANES)).transpose(2, 3)
    return Numbers(blocks.reshape(*values.shape[:-1], -1), scale)


def filter_blocks(weight: Numbers, kernel: tuple[int, ...], *, apart: bool = False) -> Numbers:
    """Filters (F, fan_in) or knots (K, F, fan_in) as a convolution reads them.

    Together: ([K,] blocks of filters, kernel x channels, 16). Apart, for splines that mix filter by filter:
    (F, K, kernel x channels). Lengths are padded to multiples of 16, and scales follow their rows.
    """
    values, scale = weight
    taps = values.unflatten(-1, (-1, *kernel))
    fan = _pad(taps.movedim(-len(kernel) - 1, -1).flatten(-len(kernel) - 1), -1)
    if apart:
        return Numbers(fan.transpose(0, 1), None if scale is None else scale.T)
    blocks = _pad(fan, -2).unflatten(-2, (-1, LANES)).transpose(-2, -1)
    return Numbers(blocks, None if scale is None else _pad(scale, -1))


def _pad(values: Tensor, dim: int) -> Tensor:
    """Zeros at the end of a dimension, up to a multiple of 16."""
    shape = list(values.shape)
    shape[dim] = -shape[dim] % LANES
    return torch.cat([values, values.new_zeros(shape)], dim)


@dataclass(frozen=True)
class Sparse:
    """Every stride-th pixel of an image, with further channels of zeros: a shortcut that is not written down yet."""

    image: Image
    stride: dict[int, int]
    more_channels: int = 0


Found: TypeAlias = Tensor | Image | Sparse | tuple[Image, Image]  # what a node of the graph can stand for


class Lowering:
    """Walks a graph and writes steps."""

    def __init__(self, captured: Capture) -> None:
        self.captured = captured
        self.steps: list[Step] = []
        self.maker: dict[Image, Step] = {}
        self.found: dict[fx.Node, Found] = {}
        self.pooled: dict[Image, Image] = {}
        self.parameters = Parameters()
        self.mixed, self.basis = Image(own=True), Image(own=True)  # scratch memory that grows to what the largest needs

    def program(self) -> Program:
        """The whole graph."""
        tensors = _tensors(self.captured)
        for node in self.captured.program.graph.nodes:
            if node.op == "placeholder":
                known = tensors.get(node.name)
                self.found[node] = self.emit(Step(Kind.INPUT, output=_image(node))) if known is None else known
            elif node.op == "output":
                self.finish(node)
            else:
                self.found[node] = self.lower(node)
        self.fuse_sums()
        return assemble(self.steps, (self.mixed, self.basis), self.parameters.bytes())

    def finish(self, node: fx.Node) -> None:
        """The network's answer."""
        (logits,) = cast(Sequence[Argument], node.args[0])
        image = self.image(logits)
        if image.shape[1:] != (1, 1):
            raise ValueError("the native runtime gives one row of numbers for an image")
        self.steps.append(Step(Kind.OUTPUT, image))

    def lower(self, node: fx.Node) -> Found:
        """One operation."""
        if node.target not in RULES:
            raise ValueError(f"%{node.name}: the native runtime does not know {node.target}")
        try:
            return RULES[node.target](self, node)
        except ValueError as error:
            raise ValueError(f"%{node.name}: {error}") from None

    def emit(self, step: Step) -> Image:
        """Add a step that makes an image."""
        self.steps.append(step)
        self.maker[step.output] = step
        return step.output

    def tensor(self, argument: Argument) -> Tensor:
        """A parameter."""
        found = self.found[_node(argument)]
        if not isinstance(found, Tensor):
            raise ValueError("the native runtime has weights that do not depend on the image")
        return found

    def image(self, argument: Argument, before: Step | None = None) -> Image:
        """An image; a shortcut is written down now, at the latest before the step that wants it."""
        found = self.found[_node(argument)]
        if isinstance(found, Sparse):
            found = self.found[_node(argument)] = self.subsample(_node(argument), found)
            if before is not None:
                self.steps.insert(self.steps.index(before), self.steps.pop())
        if not isinstance(found, Image):
            raise ValueError("the native runtime computes with images alone")
        return found

    def subsample(self, node: fx.Node, sparse: Sparse) -> Image:
        """A shortcut, written down."""
        strides = set(sparse.stride.values()) if len(sparse.stride) == 2 else {0}
        if len(strides) != 1 or 0 in strides:
            raise ValueError("the native runtime takes every n-th pixel in both directions alike")
        if sparse.more_channels and sparse.image.channels % LANES:
            raise ValueError(f"the native runtime adds channels to multiples of {LANES}")
        return self.emit(Step(Kind.SUBSAMPLE, sparse.image, _image(node), stride=strides.pop()))

    def fuse_sums(self) -> None:
        """A convolution adds up its channels itself, while it has them at hand."""
        for step in [s for s in self.steps if s.kind == Kind.SUM]:
            maker = self.maker[step.input]
            if maker.kind == Kind.CONV:
                maker.sums = step.sums
                self.steps.remove(step)

    def convolve(self, node: fx.Node, x: Image, operation: Convolution, step: Step) -> Image:
        """A convolution, its filters constant or mixed, as ``step`` says."""
        if operation.groups != 1:
            raise ValueError("the native runtime has no grouped convolutions")
        if len(set(operation.stride)) > 1 or operation.stride[0] > 2 or len(set(operation.dilation)) > 1:
            raise ValueError(
                f"the native runtime has strides 1 and 2, the same in both directions, got {operation.stride}"
            )
        (top, bottom), (left, right) = operation.margins()
        x.margin = max(x.margin, top, bottom, left, right)
        step.input, step.output = x, _image(node)
        step.kernel_h, step.kernel_w = operation.kernel
        step.stride, step.dilation = operation.stride[0], operation.dilation[0]
        step.pad_h, step.pad_w = top, left
        step.length = padded(x.channels * prod(operation.kernel))
        return self.emit(step)

    def plain_convolution(self, node: fx.Node) -> Image:
        """``F.conv2d``."""
        given, weight = _arguments(node), self.tensor(_arguments(node)["weight"])
        kernel, padding = tuple(weight.shape[2:]), given.get("padding")
        margins = padding if isinstance(padding, str) else _pair(padding, 0)
        sizes = _pair(given.get("stride"), 1), margins, _pair(given.get("dilation"), 1)
        operation = Convolution(kernel, *sizes, cast(int, given.get("groups", 1)))
        numbers = self.parameters.matrix(filter_blocks(Numbers(weight.flatten(1)), kernel))
        step = Step(Kind.CONV, weight=numbers, bias=self.bias(given.get("bias")))
        return self.convolve(node, self.image(given["input"]), operation, step)

    def plain_linear(self, node: fx.Node) -> Image:
        """``F.linear`` of one row."""
        given = _arguments(node)
        source = self.image(given["input"])
        rows = image_rows(Numbers(self.tensor(given["weight"])), source.shape)
        step = Step(Kind.LINEAR, source, Image(rows.values.shape[0]), weight=self.parameters.matrix(rows))
        step.rows, step.length = rows.values.shape
        step.bias = self.bias(given.get("bias"))
        return self.emit(step)

    def bias(self, argument: Argument | Tensor) -> int:
        """Where a bias lies, padded to whole blocks."""
        if argument is None:
            return -1
        values = argument if isinstance(argument, Tensor) else self.tensor(argument)
        return self.parameters.put(_pad(values.detach(), 0))

    def relu(self, node: fx.Node) -> Image:
        """Part of the step before it, where nobody else looks at that."""
        source = self.image(node.args[0])
        maker = self.maker[source]
        if _used_once(node.args[0]) and maker.kind in (Kind.CONV, Kind.LINEAR, Kind.ADD, Kind.MAXPOOL):
            maker.relu = True
            return source
        return self.emit(Step(Kind.ADD, source, Image(*source.shape), relu=True))

    def add(self, node: fx.Node) -> Image:
        """Part of the convolution before it, where nobody else looks at that."""
        if node.kwargs.get("alpha", 1) != 1 or not all(isinstance(a, fx.Node) for a in node.args):
            raise ValueError("the native runtime adds images to images")
        later, earlier = sorted((_node(a) for a in node.args), key=self._made, reverse=True)
        source = self.image(later)
        maker = self.maker[source]
        fits = maker.kind == Kind.CONV and not maker.relu and maker.other is NOWHERE
        more = self.image(earlier, before=maker if fits else None)
        if source.shape != more.shape:
            raise ValueError("the native runtime adds images of the same shape")
        if fits and _used_once(later) and source is not more:
            maker.other = more
            return source
        return self.emit(Step(Kind.ADD, source, Image(*source.shape), more))

    def _made(self, node: fx.Node) -> int:
        found = self.found[node]
        return self.steps.index(self.maker[found]) if isinstance(found, Image) else -1

    def max_pool(self, node: fx.Node) -> Image:
        """``F.max_pool2d``."""
        given = _arguments(node)
        kernel, dilation = _pair(given["kernel_size"], 1), _pair(given.get("dilation"), 1)
        stride, padding = _pair(given.get("stride") or kernel, 1), _pair(given.get("padding"), 0)
        if dilation != (1, 1) or given.get("ceil_mode") or len(set(stride)) > 1:
            raise ValueError("the native runtime pools without dilation, with the same stride in both directions")
        step = Step(Kind.MAXPOOL, self.image(given["self"]), _image(node), stride=stride[0])
        step.kernel_h, step.kernel_w = kernel
        step.pad_h, step.pad_w = padding
        return self.emit(step)

    def mean(self, node: fx.Node) -> Image:
        """Global averaging, as pooling or as a mean over height and width."""
        given = _arguments(node)
        if node.target is aten.adaptive_avg_pool2d.default:
            whole = given["output_size"] in ([1, 1], (1, 1))
        else:
            shape, dims = _node(given["self"]).meta["val"].shape, cast("list[int]", given["dim"] or ())
            whole = len(shape) == 4 and sorted(d % 4 for d in dims) == [2, 3]
        if not whole:
            raise ValueError("the native runtime averages over the whole image")
        return self.pool(self.image(given["self"]))

    def pool(self, x: Image) -> Image:
        """The mean of every channel; layers that read the same image share it."""
        if x not in self.pooled:
            sums = Image(x.channels, own=True)
            self.steps.append(Step(Kind.SUM, x, sums=sums))
            self.pooled[x] = self.emit(Step(Kind.MEAN, x, Image(x.channels, own=True), sums=sums))
        return self.pooled[x]

    def sparse(self, argument: Argument) -> Sparse | None:
        """An image or a shortcut, to make another shortcut of."""
        found = self.found[_node(argument)]
        return Sparse(found, {}) if isinstance(found, Image) else found if isinstance(found, Sparse) else None

    def slice(self, node: fx.Node) -> Sparse:
        """Every n-th row or column."""
        given = _arguments(node)
        before, dim, end = self.sparse(given["self"]), given.get("dim", 0), cast("int | None", given.get("end"))
        cut = end is not None and end < node.meta["val"].shape[dim]
        if before is None or dim not in (2, 3) or given.get("start") not in (0, None) or cut:
            raise ValueError("the native runtime takes every n-th pixel, from the first")
        return replace(before, stride={**before.stride, cast(int, dim): cast(int, given.get("step", 1))})

    def pad(self, node: fx.Node) -> Sparse:
        """Further channels of zeros."""
        given = _arguments(node)
        before, widths = self.sparse(given["self"]), cast("list[int]", given["pad"])
        constant = given.get("mode") in (None, "constant") and not given.get("value")
        if before is None or len(widths) != 6 or any(widths[:5]) or not constant:
            raise ValueError("the native runtime adds channels of zeros behind the others, and nothing else")
        return Sparse(before.image, before.stride or {2: 1, 3: 1}, widths[5])

    def same(self, node: fx.Node) -> Found:
        """Nothing changes: the order of numbers is the business of whoever reads them."""
        return self.found[_node(node.args[0])]

    def item(self, node: fx.Node) -> Image:
        """One of a layer's two results."""
        return cast("tuple[Image, Image]", self.found[_node(node.args[0])])[cast(int, node.args[1])]

    def spline(self, node: fx.Node) -> tuple[Image, Image]:
        """A spline layer: locate, mix, operate."""
        given = _arguments(node)
        layer, source = self.captured.layers[cast(str, given["name"])], self.image(given["x"])
        degree, dims = layer.spec.spline_degree, layer.dims
        if degree > 8 or dims * (degree + 1) > 64:
            raise ValueError("the native runtime has splines of degree 8 and less, which touch 64 knots at most")
        parent = None if given["parent"] is None else self.image(given["parent"])
        position = self.locate(layer, source, parent, cast(float, given["diffusion"]))
        if isinstance(layer, SplineLinear):
            return self.spline_linear(layer, source), position
        return self.spline_convolution(node, layer, source), position

    def spline_linear(self, layer: SplineLinear, source: Image) -> Image:
        """Every row answers with all active knots."""
        rows = image_rows(Numbers.of(layer, "knots"), source.shape)
        step = self.curves(Step(Kind.LINEAR, source, Image(layer.filters)), layer)
        step.weight, step.bias = self.parameters.matrix(rows), self.bias(layer.bias)
        step.rows, step.length = layer.filters, rows.values.shape[-1]
        return self.emit(step)

    def spline_convolution(self, node: fx.Node, layer: SplineLayer, source: Image) -> Image:
        """Filters are mixed, then they convolve."""
        operation = cast(Convolution, layer.operation)
        length, filters = padded(layer.fan_in), padded(layer.filters)
        blocks = filter_blocks(Numbers.of(layer, "knots"), operation.kernel, apart=layer.splines > 1)
        mix = self.curves(Step(Kind.MIX, weight=self.parameters.matrix(blocks), mixed=self.mixed), layer)
        mix.rows, mix.length = layer.filters if layer.splines > 1 else filters, length
        self.mixed.channels = max(self.mixed.channels, length * filters)
        self.steps.append(mix)
        step = Step(Kind.CONV, bias=self.bias(layer.bias), mixed=self.mixed)
        mix.output = self.convolve(node, source, operation, step)  # threads mix what they will convolve with
        return mix.output

    def curves(self, step: Step, layer: SplineLayer) -> Step:
        """A step that knows a layer's splines."""
        step.splines, step.dims = layer.splines, layer.dims
        step.knots, step.degree, step.basis = layer.spec.knots, layer.spec.spline_degree, self.basis
        return step

    def locate(self, layer: SplineLayer, source: Image, parent: Image | None, diffusion: float) -> Image:
        """The positions of a layer."""
        projection = folded_projection(layer)
        pools = layer.spec.projection == "conv" and not isinstance(layer, SplineLinear)
        features = self.pool(source) if pools else source
        rows = image_rows(Numbers.of(projection, "weight"), features.shape)
        step = Step(Kind.LOCATE, features, Image(layer.coordinates, own=True), length=rows.values.shape[-1])
        if parent is not None:
            matrix = matching(layer, parent.channels)
            step.other, step.matching = parent, -1 if matrix is None else self.parameters.put(matrix)
        step.weight = self.parameters.matrix(rows)
        step.decision_knots = projection.weight.shape[0] if projection.hierarchical else 0
        step.decision_degree = projection.degree
        if not features.own:  # a large image: every thread answers for a part of it first
            step.sums = Image(layer.coordinates, own=True)
            self.steps.append(replace(step, kind=Kind.PROJECT))
        step.bias, step.bounded, step.slope = self.bias(projection.shift), projection.bounded, projection.slope
        step.diffusion = diffusion if parent is not None else 1.0
        self.basis.channels = max(self.basis.channels, layer.coordinates * LANES)
        return self.emit(self.curves(step, layer))


RULES: dict[object, Callable[[Lowering, fx.Node], Found]] = {
    LAYER: Lowering.spline,
    operator.getitem: Lowering.item,
    aten.conv2d.default: Lowering.plain_convolution,
    aten.conv2d.padding: Lowering.plain_convolution,
    aten.linear.default: Lowering.plain_linear,
    aten.relu.default: Lowering.relu,
    aten.relu_.default: Lowering.relu,
    aten.add.Tensor: Lowering.add,
    aten.add_.Tensor: Lowering.add,
    aten.max_pool2d.default: Lowering.max_pool,
    aten.adaptive_avg_pool2d.default: Lowering.mean,
    aten.mean.dim: Lowering.mean,
    aten.slice.Tensor: Lowering.slice,
    aten.pad.default: Lowering.pad,
    aten.flatten.using_ints: Lowering.same,
    aten.dropout.default: Lowering.same,
}


def native_program(captured: Capture) -> Program:
    """The engine's program for a captured network."""
    return Lowering(captured).program()


def _tensors(captured: Capture) -> dict[str, Tensor]:
    """Parameters and buffers by the name of their placeholder."""
    program = captured.program
    signature = program.graph_signature
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    tensors = {**program.state_dict, **program.constants}
    return {node: tensors[name].detach() for node, name in names.items() if name in tensors}


def _image(node: fx.Node) -> Image:
    """An image of the shape that a node gives; of a spline layer's two results the first."""
    found = node.meta["val"]
    shape = tuple((found[0] if isinstance(found, tuple | list) else found).shape)
    if len(shape) not in (2, 4) or shape[0] != 1:
        raise ValueError(f"the native runtime computes with images (1, C, H, W) and rows (1, C), not {shape}")
    return Image(*shape[1:])


def _node(argument: Argument) -> fx.Node:
    if not isinstance(argument, fx.Node):
        raise ValueError(f"the native runtime computes with images, not with {argument!r}")
    return argument


def _used_once(argument: Argument) -> bool:
    return len(_node(argument).users) == 1


def _arguments(node: fx.Node) -> dict[str, Argument]:
    """A node's arguments by name, those that it has."""
    schema = cast(torch._ops.OpOverload, node.target)._schema
    names = [argument.name for argument in schema.arguments]
    return {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def _pair(argument: Argument, default: int) -> tuple[int, int]:
    """A size in both directions."""
    values = argument if isinstance(argument, list | tuple) else (argument,)
    first, last = values[0] if values else None, values[-1] if values else None
    return cast(int, default if first is None else first), cast(int, default if last is None else last)
