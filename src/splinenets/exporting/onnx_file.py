"""ONNX: spline layers laid out by hand, everything else by torch's exporter."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from math import comb, factorial, prod, tau
from typing import Protocol, cast

import numpy as np
import onnx
import onnxruntime
import torch
from numpy.typing import ArrayLike, NDArray
from onnxscript import ir, opset18
from torch import Tensor, nn

from ..layers import SplineLayer
from ..operators import Convolution
from ..projection import FoldedProjection
from ..storage import stored
from .capture import LAYER, LOGITS, PLACE, Capture, Inputs, Obstacles, capture, folded_projection, matching
from .formats import KEY, Exported, check_seal, seal
from .ramps import ramps

OPSET = 18
FLOAT = 1  # onnx.TensorProto.FLOAT


class Ops(Protocol):
    """ONNX's operators by name, as functions that add a node to the graph."""

    def __getattr__(self, name: str) -> Callable[..., ir.Value]: ...


def dump(net: nn.Module, example: Inputs, any_batch: bool, metadata: str, obstacles: Obstacles) -> bytes:
    """An ONNX model; our metadata is one of its properties."""
    captured = capture(net, example[:1], any_batch=any_batch, obstacles=obstacles)
    model = onnx_model(captured, any_batch=any_batch)
    model.metadata_props.add(key=KEY, value=metadata)
    return seal(model.SerializeToString(), tail)


def tail(digest: str) -> bytes:
    """One more property: messages of protobuf that stand one behind the other are read as one."""
    last = onnx.ModelProto()
    last.metadata_props.add(key=f"{KEY}.sha256", value=digest)
    return last.SerializeToString()


def load(content: bytes, threads: int) -> Exported:
    """An ONNX model in ONNX Runtime."""
    check_seal(content, tail, old=b'"splinenets": 1' in content)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    metadata = json.loads(session.get_modelmeta().custom_metadata_map[KEY])

    names = [each.name for each in session.get_inputs()]

    def forward(*inputs: Tensor) -> Tensor:
        named = {name: values.numpy() for name, values in zip(names, inputs, strict=True)}
        return torch.from_numpy(session.run([LOGITS], named)[0])

    return Exported(metadata, forward)


def onnx_model(captured: Capture, *, any_batch: bool) -> onnx.ModelProto:
    """A model with the inputs "images" and the conditions by name, and the output "logits"."""
    op = cast(Ops, opset18)

    def layer(
        x: ir.Value,
        parent: ir.Value | None,
        given: Sequence[ir.Value],
        name: str,
        diffusion: float,
        shape: list[int],
        coordinates: int,
    ) -> tuple[ir.Value, ir.Value]:
        return _Lowering(op, captured.layers[name], any_batch).layer(x, parent, given, diffusion, shape)

    def place(values: ir.Value, low: Sequence[float], high: Sequence[float]) -> ir.Value:
        return _place(op, values, np.asarray(low, np.float32), np.asarray(high, np.float32))

    program = torch.onnx.export(
        captured.program,
        dynamo=True,
        opset_version=OPSET,
        input_names=list(captured.inputs),
        output_names=[LOGITS],
        custom_translation_table={LAYER: cast(Callable[..., object], layer), PLACE: cast(Callable[..., object], place)},
        external_data=False,
        verbose=False,
    )
    assert program is not None
    return program.model_proto


def _place(op: Ops, values: ir.Value, low: ArrayLike, high: ArrayLike) -> ir.Value:
    """Values of a condition as positions, those outside its range at its ends: (N, dims) -> (N, dims)."""
    start, length = (op.Constant(value=ir.tensor(np.asarray(x))) for x in (low, np.subtract(high, low)))
    position = op.Div(op.Sub(values, start), length)
    return op.Clip(position, *(op.Constant(value=ir.tensor(np.float32(end))) for end in (0, 1)))


class _Lowering:
    """One spline layer as ONNX nodes, as few as possible: at batch 1 a small node costs more than what it computes."""

    def __init__(self, op: Ops, layer: SplineLayer, any_batch: bool) -> None:
        self.op, self.spline, self.any_batch = op, layer, any_batch

    def constant(self, values: Tensor | ArrayLike) -> ir.Value:
        """Numbers that stand in the graph."""
        if isinstance(values, Tensor) and values.dtype == torch.bfloat16:
            bits = values.view(torch.int16).numpy()
            return self.op.Constant(value=ir.tensor(bits.view(np.uint16), dtype=ir.DataType.BFLOAT16))
        numbers = values.detach().numpy() if isinstance(values, Tensor) else np.asarray(values)
        return self.op.Constant(value=ir.tensor(numbers))

    def parameter(self, module: nn.Module, name: str) -> ir.Value:
        """A tensor as it is stored, and nodes that make numbers of it, which runtimes compute once, when they load."""
        numbers, scale = stored(module, name)
        if numbers.dtype == torch.float32:
            return self.constant(numbers)
        values = self.op.Cast(self.constant(numbers), to=FLOAT)
        return values if scale is None else self.op.Mul(values, self.constant(scale))

    def layer(
        self, x: ir.Value, parent: ir.Value | None, given: Sequence[ir.Value], diffusion: float, shape: list[int]
    ) -> tuple[ir.Value, ir.Value]:
        """(N, ...), (N, P), positions from outside -> the output and the positions (N, C)."""
        op = self.op
        if given:
            column = self.column(given[0] if len(given) == 1 else op.Concat(*given, axis=1))
        else:
            column = self.locate(x, parent, diffusion)
        shares, parts = self.mixture(column)
        y = self.bank(x, shares, parts, shape) if self.any_batch else self.single(x, shares, parts)
        return y, self.table(column)

    def column(self, table: ir.Value) -> ir.Value:
        """(N, C) -> (N * C, 1)."""
        return table if self.spline.coordinates == 1 else self.op.Reshape(table, self.constant([-1, 1]))

    def table(self, column: ir.Value) -> ir.Value:
        """(N * C, 1) -> (N, C)."""
        coordinates = self.spline.coordinates
        return column if coordinates == 1 else self.op.Reshape(column, self.constant([-1, coordinates]))

    def locate(self, x: ir.Value, parent: ir.Value | None, diffusion: float) -> ir.Value:
        """The positions that a layer chooses itself: (N, ...), (N, P) -> (N * C, 1)."""
        op, closed = self.op, self.spline.spec.closed
        if parent is not None and parent.shape is not None:
            matrix = matching(self.spline, cast(int, parent.shape[1]))
            parent = parent if matrix is None else op.MatMul(parent, self.constant(matrix.T))
        column = self.propose(x, parent)
        if parent is None or diffusion == 1:
            return column
        parent = self.column(parent)
        if closed:  # the shorter way round
            column = op.Sub(column, op.Round(op.Sub(column, parent)))
        inherited = op.Mul(parent, self.constant(np.float32(1 - diffusion)))
        blended = op.Add(inherited, op.Mul(column, self.constant(np.float32(diffusion))))
        return self.around(blended) if closed else blended

    def around(self, turns: ir.Value) -> ir.Value:
        """Whole turns make no difference: (N, C) -> (N, C) in [0, 1]."""
        return self.op.Sub(turns, self.op.Floor(turns))

    def direction(self, responses: ir.Value) -> ir.Value:
        """The direction of points in a plane, as ``projection.direction`` has it: (N, 2 C) -> (N, C)."""
        op, nothing = self.op, self.constant(np.float32(0))
        x, y = cast(tuple[ir.Value, ir.Value], op.Split(responses, axis=1, num_outputs=2))
        nowhere = op.Equal(op.Add(op.Mul(x, x), op.Mul(y, y)), nothing)
        x, y = op.Where(nowhere, self.constant(np.float32(1)), x), op.Where(nowhere, nothing, y)
        # ONNX has no arc tangent of two numbers. This one is right for both zeros: above and below the middle y is
        # divided by 0, and the arc tangent of infinity is a quarter turn
        right = op.Mul(op.Atan(op.Div(y, op.Abs(x))), self.constant(np.float32(1 / tau)))
        left = op.Sub(self.constant(np.float32(0.5)), right)
        return self.around(op.Where(op.Less(x, nothing), left, right))

    def propose(self, x: ir.Value, parent: ir.Value | None) -> ir.Value:
        """The folded projection: (N, ...), (N, C) -> (N * C, 1)."""
        op, layer = self.op, self.spline
        projection = folded_projection(layer)
        pools = layer.spec.projection == "conv" and layer.channel_dim == 1
        features = op.ReduceMean(x, self.constant([2, 3]), keepdims=0) if pools else self.flattened(x)
        if pools and projection.bounded and not projection.hierarchical and not projection.closed:
            return self.propose_shortly(features)
        z = self.mixed_responses(features, parent) if projection.hierarchical else self.responses(features)
        if projection.closed:
            return self.column(self.direction(z))
        if projection.bounded:  # z / sqrt(1 + z^2)
            z = op.Div(z, op.Sqrt(op.Add(op.Mul(z, z), self.constant(np.float32(1)))))
        return self.column(op.Sigmoid(op.Mul(z, self.constant(np.float32(projection.slope)))))

    def flattened(self, x: ir.Value) -> ir.Value:
        """(N, ...) -> (N, M). Not by Flatten, of which torch's exporter loses one where two have the same input."""
        if not isinstance(self.spline.operation, Convolution):
            return x
        return self.op.Reshape(x, self.constant([-1, self.spline.projection.features]))

    def responses(self, features: ir.Value) -> ir.Value:
        """What plain decision parameters say: (N, M) -> (N, C)."""
        projection = folded_projection(self.spline)
        weight, shift = self.parameter(projection, "weight"), self.constant(projection.shift)
        return self.op.Gemm(features, weight, shift, transB=1)

    def mixed_responses(self, features: ir.Value, parent: ir.Value | None) -> ir.Value:
        """The same where decision parameters lie on a spline: (N, M), (N, C) -> (N, C), on closed curves (N, 2 C)."""
        op, projection = self.op, folded_projection(self.spline)
        count, responses, length = projection.weight.shape
        if parent is None:
            parent = self.constant(np.full((1, responses), 0.5, np.float32))
        elif projection.closed:  # which has two responses a position
            parent = op.Concat(parent, parent, axis=1)
        by_response = op.Transpose(self.parameter(projection, "weight"), perm=[1, 0, 2])
        rows = op.Reshape(by_response, self.constant([-1, length]))
        scores = op.Reshape(op.Gemm(features, rows, transB=1), self.constant([-1, responses, count]))
        places = op.Unsqueeze(parent, self.constant([2]))
        basis = self.basis(places, count, projection.degree, closed=projection.closed)
        mixed = op.ReduceSum(op.Mul(scores, basis), self.constant([2]), keepdims=0)
        return op.Add(mixed, self.constant(projection.shift))

    def propose_shortly(self, features: ir.Value) -> ir.Value:
        """The same in fewer nodes, where twice the responses cost nothing: z / sqrt(1 + z^2) is (z, 1) at length 1."""
        op, projection = self.op, folded_projection(self.spline)
        weight, shift = (torch.stack([t, torch.full_like(t, one)], 1) for t, one in self.with_ones(projection))
        pairs = op.Gemm(features, self.constant(weight.flatten(0, 1)), self.constant(shift.flatten()), transB=1)
        if self.spline.coordinates > 1:
            pairs = op.Reshape(pairs, self.constant([-1, 2]))
        short = op.LpNormalization(pairs, axis=1, p=2)
        return op.Sigmoid(op.MatMul(short, self.constant(np.array([[projection.slope], [0]], np.float32))))

    @staticmethod
    def with_ones(projection: FoldedProjection) -> tuple[tuple[Tensor, float], tuple[Tensor, float]]:
        """Weight and shift, each with what stands beside it in a response that is always 1."""
        return (projection.weight.detach(), 0.0), (projection.shift.detach(), 1.0)

    def mixture(self, column: ir.Value) -> tuple[ir.Value, ir.Value]:
        """What weights are made of, and its shares in them: (N * C, 1) -> (N * C, K), (dims * K, filters, fan_in).

        Those are knots and their basis, or what ``ramps`` makes of them, which takes fewer nodes. On a surface the
        shares of its dims stand side by side, and their mean is taken.
        """
        op, layer = self.op, self.spline
        knots, degree = layer.curves.knots_per_dim, layer.spec.spline_degree
        short = ramps(knots, degree)
        if short is None:
            return self.basis(column, knots, degree, factor=1 / layer.dims), self.parameter(layer, "knots")
        slope, offset = short.slope.astype(np.float32)[None], short.offset.astype(np.float32)
        shares = self.power(op.Relu(op.Gemm(column, self.constant(slope), self.constant(offset))), degree)
        return shares, self.changed(np.asarray(np.kron(np.eye(layer.dims), short.matrix / layer.dims), np.float64))

    def power(self, values: ir.Value, degree: int) -> ir.Value:
        """(...,) -> (...,)."""
        power = values
        for _ in range(degree - 1):
            power = self.op.Mul(power, values)
        return power

    def changed(self, matrix: NDArray[np.float64]) -> ir.Value:
        """Sums of knots, one for each row of a matrix: (J, dims * K) -> (J, filters, fan_in)."""
        op, layer = self.op, self.spline
        numbers, scale = stored(layer, "knots")
        if numbers.dtype == torch.float32 and scale is None:
            sums = torch.tensordot(torch.from_numpy(matrix), numbers.detach().double(), 1)
            return self.constant(sums.float())
        flat = op.Reshape(self.parameter(layer, "knots"), self.constant([matrix.shape[1], -1]))
        sums = op.MatMul(self.constant(matrix.astype(np.float32)), flat)
        return op.Reshape(sums, self.constant([-1, *layer.knots.shape[1:]]))

    def basis(
        self, position: ir.Value, knots: int, degree: int, *, factor: float = 1.0, closed: bool = False
    ) -> ir.Value:
        """Every knot's weight, times ``factor``: (..., 1) -> (..., K).

        A B-spline at distance a of its centre is sum_i (-1)^i C(d + 1, i) max((d + 1) / 2 - i - a, 0)^d / d!. A closed
        one is open with its first knots once more at the end, which all have the weights of both.
        """
        op, count = self.op, knots + degree if closed else knots
        spans = count - degree
        if degree == 0:
            span = op.Min(
                op.Floor(op.Mul(position, self.constant(np.float32(spans)))), self.constant(np.float32(spans - 1))
            )
            hit = op.Equal(span, self.constant(np.arange(knots, dtype=np.float32)))
            return op.Mul(op.Cast(hit, to=FLOAT), self.constant(np.float32(factor)))
        edges = [(degree + 1) / 2 - i for i in range(degree // 2 + 1) if (degree + 1) / 2 > i]
        centres = np.arange(count) + (1 - degree) / 2
        distance = op.Abs(op.Sub(position, self.constant((np.tile(centres, len(edges)) / spans).astype(np.float32))))
        reach = op.Relu(op.Sub(self.constant((np.repeat(edges, count) / spans).astype(np.float32)), distance))
        signs = [
            (-1) ** i * comb(degree + 1, i) / factorial(degree) * spans**degree * factor for i in range(len(edges))
        ]
        folded = np.eye(knots)[np.arange(count) % knots]
        return op.MatMul(
            self.power(reach, degree), self.constant(np.kron(np.asarray(signs)[:, None], folded).astype(np.float32))
        )

    def single(self, x: ir.Value, shares: ir.Value, parts: ir.Value) -> ir.Value:
        """One sample: mix weights, then a plain operation."""
        op, layer = self.op, self.spline
        count, splines = layer.knots.shape[0], layer.splines
        if splines == 1:
            shares = shares if layer.dims == 1 else op.Reshape(shares, self.constant([1, count]))
            mixed = op.MatMul(shares, op.Reshape(parts, self.constant([count, -1])))
        else:
            by_spline = op.Transpose(op.Reshape(parts, self.constant([count, splines, -1])), perm=[1, 0, 2])
            mixed = op.MatMul(op.Reshape(shares, self.constant([splines, 1, count])), by_spline)
        weight = op.Reshape(mixed, self.constant([layer.filters, *layer.weight_shape]))
        bias = [] if layer.bias is None else [self.constant(layer.bias)]
        operation = layer.operation
        if isinstance(operation, Convolution):
            return op.Conv(x, weight, *bias, **_attributes(operation))
        return op.Gemm(x, weight, *bias, transB=1)

    def bank(self, x: ir.Value, shares: ir.Value, parts: ir.Value, shape: list[int]) -> ir.Value:
        """Any batch: respond to all knots, then mix the responses; only these weights do not depend on the batch."""
        op, layer = self.op, self.spline
        count, filters, splines = *layer.knots.shape[:2], layer.splines
        operation = layer.operation
        together = splines == 1 and getattr(operation, "groups", 1) == 1  # one product mixes a sample's responses
        # a grouped convolution wants a filter's knots together
        knots = parts if together else op.Transpose(parts, perm=[1, 0, 2])
        weight = op.Reshape(knots, self.constant([-1, *layer.weight_shape]))
        if isinstance(operation, Convolution):
            responses = op.Conv(x, weight, **_attributes(operation))
        else:
            responses = op.Gemm(x, weight, transB=1)
        if together:
            rows, order = [-1, 1, count], [0, count, prod(shape)]
        else:
            rows, order = [-1, splines, 1, 1, count], [0, splines, filters // splines, count, prod(shape) // filters]
        mixed = op.MatMul(op.Reshape(shares, self.constant(rows)), op.Reshape(responses, self.constant(order)))
        y = op.Reshape(mixed, self.constant([-1, *shape]))
        bias = layer.bias
        return y if bias is None else op.Add(y, self.constant(bias.view(-1, *[1] * (len(shape) - 1))))


def _attributes(operation: Convolution) -> dict[str, int | Sequence[int]]:
    before, after = zip(*operation.margins(), strict=True)
    return {
        "kernel_shape": operation.kernel,
        "strides": operation.stride,
        "pads": (*before, *after),
        "dilations": operation.dilation,
        "group": operation.groups,
    }
