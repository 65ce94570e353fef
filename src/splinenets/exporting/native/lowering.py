"""The native runtime's program: a graph of torch's operations as steps of the engine."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, fx

from ...layers import SplineLayer, SplineLinear
from ...operators import Convolution
from ...projection import FoldedProjection
from ..capture import LAYER, Capture, matching
from .arrange import Parameters, filter_blocks, image_rows
from .program import LANES, Kind, Program
from .steps import Step, Value, place

aten = torch.ops.aten


@dataclass(frozen=True)
class Sparse:
    """Every stride-th pixel of a value, with further channels of zeros: a shortcut that nobody has written down yet."""

    value: Value
    stride: dict[int, int]
    more_channels: int = 0


class Lowering:
    """Walks a graph and writes steps."""

    def __init__(self, captured: Capture) -> None:
        self.captured = captured
        self.steps: list[Step] = []
        self.maker: dict[Value, Step] = {}
        self.values: dict[fx.Node, Any] = {}
        self.pooled: dict[Value, Value] = {}
        self.parameters = Parameters()

    def program(self) -> Program:
        """The whole graph."""
        graph = self.captured.program.graph
        self.tensors = _tensors(self.captured)
        for node in graph.nodes:
            if node.op == "placeholder" and node.name in self.tensors:
                self.values[node] = self.tensors[node.name]
            elif node.op == "placeholder":
                self.values[node] = self.emit(Kind.INPUT, {}, _value(node))
            elif node.op == "output":
                (logits,) = node.args[0]
                found = self.value(logits)
                if found.shape[1:] != (1, 1):
                    raise ValueError("the native runtime gives one row of numbers for an image")
                self.steps.append(Step(Kind.OUTPUT, {"in": found}, None))
            else:
                self.values[node] = self.lower(node)
        self.fuse_sums()
        return place(self.steps, self.parameters.bytes())

    def lower(self, node: fx.Node) -> Any:
        """One operation."""
        if node.target not in RULES:
            raise ValueError(f"%{node.name}: the native runtime does not know {node.target}")
        try:
            return RULES[node.target](self, node)
        except ValueError as error:
            raise ValueError(f"%{node.name}: {error}") from None

    def emit(self, kind: Kind, inputs: dict[str, Value], out: Value, sums: Value | None = None, **fields: Any) -> Value:
        """Add a step."""
        step = Step(kind, inputs, out, fields, sums)
        self.steps.append(step)
        self.maker[out] = step
        return out

    def value(self, node: Any, before: Step | None = None) -> Value:
        """What a node stands for; a shortcut is written down now, at the latest before the step that wants it."""
        found = self.values[node]
        if isinstance(found, Sparse):
            strides = set(found.stride.values()) if len(found.stride) == 2 else {0}
            if len(strides) != 1 or 0 in strides:
                raise ValueError("the native runtime takes every n-th pixel in both directions alike")
            (stride,) = strides
            channels = found.value.channels
            if found.more_channels and channels % LANES:
                raise ValueError(f"the native runtime adds channels to multiples of {LANES}")
            out = _value(node)
            self.values[node] = self.emit(Kind.SUBSAMPLE, {"in": found.value}, out, stride=stride)
            if before is not None:
                self.steps.insert(self.steps.index(before), self.steps.pop())
            return out
        if not isinstance(found, Value):
            raise ValueError("the native runtime computes with images alone")
        return found

    def fuse_sums(self) -> None:
        """A convolution adds up its channels itself, while it has them at hand."""
        for step in [s for s in self.steps if s.kind == Kind.SUM]:
            maker = self.maker[step.inputs["in"]]
            if maker.kind == Kind.CONV:
                maker.sums = step.sums
                self.steps.remove(step)

    def convolve(self, node: fx.Node, x: Value, operation: Convolution, **fields: Any) -> Value:
        """A convolution, its filters constant or mixed."""
        if operation.groups != 1:
            raise ValueError("the native runtime has no grouped convolutions")
        if len(set(operation.stride)) > 1 or operation.stride[0] > 2 or len(set(operation.dilation)) > 1:
            raise ValueError(
                f"the native runtime has strides 1 and 2, the same in both directions, got {operation.stride}"
            )
        (top, bottom), (left, right) = operation.margins()
        return self.emit(
            Kind.CONV,
            {"in": x},
            _value(node),
            kernel_h=operation.kernel[0],
            kernel_w=operation.kernel[1],
            stride=operation.stride[0],
            dilation=operation.dilation[0],
            pad_h=top,
            pad_w=left,
            margin=max(top, bottom, left, right),
            length=_padded(x.channels * prod(operation.kernel)),
            **fields,
        )

    def plain_convolution(self, node: fx.Node) -> Value:
        """``F.conv2d``."""
        x, weight, bias, stride, padding, dilation, groups = _arguments(node, 7)
        kernel = tuple(self.values[weight].shape[2:])
        sizes = [_pair(v) for v in (stride or 1, padding if isinstance(padding, str) else padding or 0, dilation or 1)]
        operation = Convolution(kernel, sizes[0], sizes[1], sizes[2], groups or 1)
        stored = self.parameters.matrix(filter_blocks(self.values[weight].flatten(1), kernel))
        return self.convolve(node, self.value(x), operation, weight=stored, bias=self.bias(bias))

    def plain_linear(self, node: fx.Node) -> Value:
        """``F.linear`` of one row."""
        x, weight, bias = _arguments(node, 3)
        source = self.value(x)
        rows = image_rows(self.values[weight], source.shape)
        fields: dict[str, Any] = {
            "weight": self.parameters.matrix(rows),
            "rows": rows.shape[0],
            "length": rows.shape[1],
        }
        return self.emit(Kind.LINEAR, {"in": source}, Value(rows.shape[0]), bias=self.bias(bias), **fields)

    def bias(self, found: fx.Node | Tensor | None) -> int:
        """Where a bias lies, padded to whole blocks."""
        if found is None:
            return -1
        values = (self.values[found] if isinstance(found, fx.Node) else found).detach().numpy()
        return self.parameters.put(np.pad(values, (0, -len(values) % LANES)))

    def relu(self, node: fx.Node) -> Value:
        """Part of the step before it, where nobody else looks at that."""
        source = self.value(node.args[0])
        maker = self.maker[source]
        if _used_once(node.args[0]) and maker.kind in (Kind.CONV, Kind.LINEAR, Kind.ADD, Kind.MAXPOOL):
            maker.fields["relu"] = 1
            return source
        return self.emit(Kind.ADD, {"in": source}, Value(*source.shape), relu=1)

    def add(self, node: fx.Node) -> Value:
        """Part of the convolution before it, where nobody else looks at that."""
        if node.kwargs.get("alpha", 1) != 1 or not all(isinstance(a, fx.Node) for a in node.args):
            raise ValueError("the native runtime adds images to images")
        order = sorted(node.args, key=lambda a: self._made(cast(fx.Node, a)), reverse=True)
        later, earlier = (cast(fx.Node, a) for a in order)
        source = self.value(later)
        maker = self.maker[source]
        fits = maker.kind == Kind.CONV and not maker.fields.get("relu") and "other" not in maker.inputs
        more = self.value(earlier, before=maker if fits else None)
        if source.shape != more.shape:
            raise ValueError("the native runtime adds images of the same shape")
        if fits and _used_once(later) and source is not more:
            maker.inputs["other"] = more
            return source
        return self.emit(Kind.ADD, {"in": source, "other": more}, Value(*source.shape))

    def _made(self, node: fx.Node) -> int:
        found = self.values[node]
        return -1 if isinstance(found, Sparse) else self.steps.index(self.maker[found])

    def max_pool(self, node: fx.Node) -> Value:
        """``F.max_pool2d``."""
        x, kernel, stride, padding, dilation, ceil = _arguments(node, 6)
        sizes = [_pair(v) for v in (kernel, stride or kernel, padding or 0, dilation or 1)]
        if sizes[3] != (1, 1) or ceil or len(set(sizes[1])) > 1:
            raise ValueError("the native runtime pools without dilation, with the same stride in both directions")
        fields = {"kernel_h": sizes[0][0], "kernel_w": sizes[0][1], "stride": sizes[1][0]}
        return self.emit(
            Kind.MAXPOOL, {"in": self.value(x)}, _value(node), pad_h=sizes[2][0], pad_w=sizes[2][1], **fields
        )

    def mean(self, node: fx.Node) -> Value:
        """Global averaging, as pooling or as a mean over height and width."""
        x, over = _arguments(node, 2)
        allowed = {(1, 1), (2, 3), (-2, -1), (-1, -2), (3, 2)}
        if tuple(over) not in allowed or (node.target is aten.adaptive_avg_pool2d.default) != (tuple(over) == (1, 1)):
            raise ValueError("the native runtime averages over the whole image")
        return self.pool(self.value(x))

    def pool(self, x: Value) -> Value:
        """The mean of every channel; layers that read the same image share it."""
        if x not in self.pooled:
            sums = Value(x.channels, own=True)
            self.steps.append(Step(Kind.SUM, {"in": x}, None, sums=sums))
            self.pooled[x] = self.emit(Kind.MEAN, {"in": x}, Value(x.channels, own=True), sums)
        return self.pooled[x]

    def slice(self, node: fx.Node) -> Sparse:
        """Every n-th row or column."""
        x, dim, start, end, step = _arguments(node, 5)
        if dim not in (2, 3) or start not in (0, None) or (end is not None and end < node.meta["val"].shape[dim]):
            raise ValueError("the native runtime takes every n-th pixel, from the first")
        found = self.values[x]
        before = found if isinstance(found, Sparse) else Sparse(found, {})
        return Sparse(before.value, {**before.stride, dim: step or 1})

    def pad(self, node: fx.Node) -> Sparse:
        """Further channels of zeros."""
        x, widths, mode, value = _arguments(node, 4)
        if len(widths) != 6 or any(widths[:5]) or mode not in (None, "constant") or value:
            raise ValueError("the native runtime adds channels of zeros behind the others, and nothing else")
        found = self.values[x]
        before = found if isinstance(found, Sparse) else Sparse(found, {2: 1, 3: 1})
        return Sparse(before.value, before.stride, widths[5])

    def same(self, node: fx.Node) -> Any:
        """Nothing changes: the order of numbers is the business of whoever reads them."""
        return self.values[cast(fx.Node, node.args[0])]

    def item(self, node: fx.Node) -> Any:
        """One of a layer's two results."""
        return self.values[cast(fx.Node, node.args[0])][cast(int, node.args[1])]

    def spline(self, node: fx.Node) -> tuple[Value, Value]:
        """A spline layer: locate, mix, operate."""
        x, parent, name, diffusion = _arguments(node, 4)
        layer, source = self.captured.layers[name], self.value(x)
        spec, splines, dims = layer.spec, layer.splines, layer.dims
        if spec.spline_degree > 8 or dims * (spec.spline_degree + 1) > 64:
            raise ValueError("the native runtime has splines of degree 8 and less, which touch 64 knots at most")
        curves: dict[str, Any] = {"splines": splines, "dims": dims, "knots": spec.knots, "degree": spec.spline_degree}
        position = self.locate(layer, source, parent, diffusion, curves)
        if isinstance(layer, SplineLinear):
            rows = image_rows(self.parameters.stored(layer, "knots"), source.shape)
            out = self.emit(
                Kind.LINEAR,
                {"in": source},
                Value(layer.filters),
                weight=self.parameters.matrix(rows),
                bias=self.bias(layer.bias),
                basis=0,
                rows=layer.filters,
                length=rows.shape[-1],
                **curves,
            )
            return out, position
        operation = cast(Convolution, layer.operation)
        length, filters = _padded(layer.fan_in), _padded(layer.filters)
        blocks = filter_blocks(self.parameters.stored(layer, "knots"), operation.kernel, apart=splines > 1)
        fields = {
            "weight": self.parameters.matrix(blocks),
            "mixed": 0,
            "mixed_size": length * filters,
            "basis": 0,
            "rows": layer.filters if splines > 1 else filters,
            "length": length,
            **curves,
        }
        mix = Step(Kind.MIX, {}, None, fields)
        self.steps.append(mix)
        out = self.convolve(node, source, operation, bias=self.bias(layer.bias), mixed=0)
        mix.out = out  # threads mix what they will convolve with
        return out, position

    def locate(
        self, layer: SplineLayer, source: Value, parent: fx.Node | None, diffusion: float, curves: dict[str, Any]
    ) -> Value:
        """The positions of a layer."""
        projection = cast(FoldedProjection, layer.projection)
        features = source
        if layer.spec.projection == "conv" and not isinstance(layer, SplineLinear):
            features = self.pool(source)
        rows = image_rows(self.parameters.stored(projection, "weight"), features.shape)
        inputs = {"in": features}
        match = -1
        if parent is not None:
            inputs["other"] = self.value(parent)
            matrix = matching(layer, inputs["other"].channels)
            match = -1 if matrix is None else self.parameters.put(matrix.numpy())
        out = Value(layer.coordinates, own=True)
        fields = {
            "weight": self.parameters.matrix(rows),
            "length": rows.shape[-1],
            "matching": match,
            "decision_knots": projection.weight.shape[0] if projection.hierarchical else 0,
            "decision_degree": projection.degree,
        }
        sums = None
        if not features.own:
            sums = Value(layer.coordinates, own=True)
            self.steps.append(Step(Kind.PROJECT, inputs, out, dict(fields), sums))
        return self.emit(
            Kind.LOCATE,
            inputs,
            out,
            sums,
            bias=self.bias(projection.shift),
            basis=0,
            basis_size=layer.coordinates * LANES,
            bounded=int(projection.bounded),
            diffusion=diffusion if parent is not None else 1.0,
            slope=projection.slope,
            **fields,
            **curves,
        )


RULES: dict[Any, Callable[[Lowering, fx.Node], Any]] = {
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
    return {node: program.state_dict[name].detach() for node, name in names.items() if name in program.state_dict}


def _value(node: fx.Node) -> Value:
    """An image of the shape that a node gives; of a spline layer's two results the first."""
    found = node.meta["val"]
    shape = tuple((found[0] if isinstance(found, tuple | list) else found).shape)
    if len(shape) not in (2, 4) or shape[0] != 1:
        raise ValueError(f"the native runtime computes with images (1, C, H, W) and rows (1, C), not {shape}")
    return Value(*shape[1:])


def _used_once(node: Any) -> bool:
    return len(node.users) == 1


def _arguments(node: fx.Node, count: int) -> list[Any]:
    """A node's arguments in the order of its operation, None where it names none."""
    names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    return [given.get(name) for name in names[:count]]


def _pair(value: Any) -> Any:
    if isinstance(value, str):
        return value
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    return values * 2 if len(values) == 1 else values


def _padded(count: int) -> int:
    return -(-count // LANES) * LANES
