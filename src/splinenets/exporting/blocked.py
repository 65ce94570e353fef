"""ONNX graphs in the order of ONNX Runtime's own convolutions, for filters that a graph computes.

Channels lie in blocks as wide as a vector register, (C / B, H, W, B). ONNX Runtime brings filters that are constant
into that order when it loads a file; all others it convolves in a slower way. Mixing is linear, so knots can be stored
in that order, and their mixture is in it too. Its operators for it (``com.microsoft.nchwc``) are its own: no other
runtime reads such a graph, and one for blocks of 16 (AVX-512) is wrong for blocks of 8 (AVX2). The graph looks, and
fails there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from ..kernels import Unavailable

DOMAIN = "com.microsoft.nchwc"
UNARY = ("Relu", "Clip", "LeakyRelu", "Sigmoid", "Tanh", "HardSigmoid", "HardSwish")
PROBE = np.arange(128, dtype=np.float32).reshape(1, 64, 1, 2)  # the second number of its first channel goes to place B


@lru_cache(maxsize=1)
def block_size() -> int:
    """How many channels ONNX Runtime keeps together on this machine."""
    value = onnx.TensorProto.FLOAT
    x, y = (helper.make_tensor_value_info(name, value, PROBE.shape) for name in ("x", "y"))
    graph = helper.make_graph([helper.make_node("ReorderInput", ["x"], ["y"], domain=DOMAIN)], "probe", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid(DOMAIN, 1)], ir_version=9)
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        (blocked,) = session.run(None, {"x": PROBE})
    except Exception:
        raise Unavailable(
            "ONNX Runtime has no blocked convolutions on this processor, or not in this version: export to onnx instead"
        ) from None
    return int(np.flatnonzero(np.asarray(blocked).ravel() == 1)[0])


def block(model: onnx.ModelProto, size: int) -> None:
    """Bring a graph for one image into blocks of ``size`` channels, as far as it goes."""
    _Blocking(model.graph, size)
    model.opset_import.append(helper.make_opsetid(DOMAIN, 1))


class _Blocking:
    """Nodes one by one: a convolution whose channels are whole blocks, and what follows it, moves into blocked order.

    inside   the name that a value has in blocked order
    outside  values that exist in plain order, of those that are inside
    open     convolutions by the value they give, while a sum or an activation may still become part of them
    """

    def __init__(self, graph: onnx.GraphProto, size: int) -> None:
        self.size, self.nodes = size, list[onnx.NodeProto]()
        self.constants = {each.name: each for each in graph.initializer}
        self.shapes = {
            each.name: tuple(dim.dim_value for dim in each.type.tensor_type.shape.dim)
            for each in (*graph.input, *graph.output, *graph.value_info)
        }
        self.shapes |= {name: tuple(each.dims) for name, each in self.constants.items()}
        self.uses = Counter(name for node in graph.node for name in node.input)
        self.uses.update(each.name for each in graph.output)
        self.inside: dict[str, str] = {}
        self.outside: set[str] = set()
        self.open: dict[str, onnx.NodeProto] = {}
        self.makers: dict[str, onnx.NodeProto] = {}
        self.rewrite(graph)

    def rewrite(self, graph: onnx.GraphProto) -> None:
        """All nodes, then what the graph gives in plain order."""
        ways = {"Conv": self.convolve, "Add": self.add, "MaxPool": self.pool, "ReduceMean": self.mean}
        ways |= dict.fromkeys(("Reshape", "Transpose"), self.fold) | dict.fromkeys(UNARY, self.activate)
        for node in graph.node:
            if node.op_type not in ways or not ways[node.op_type](node):
                self.keep(node)
        self.guard(graph.output[0].name)
        used = {name for node in self.nodes for name in node.input}
        del graph.node[:], graph.initializer[:], graph.value_info[:]
        graph.node.extend(self.nodes)
        graph.initializer.extend(each for name, each in self.constants.items() if name in used)

    def emit(
        self, kind: str, inputs: Sequence[str], output: str, domain: str = DOMAIN, **attributes: Any
    ) -> onnx.NodeProto:
        """Add a node with one output."""
        node = helper.make_node(kind, inputs, [output], domain=domain, name=output, **attributes)
        self.nodes.append(node)
        return node

    def constant(self, name: str, values: NDArray[Any]) -> str:
        """Add numbers; their name."""
        self.constants[name] = numpy_helper.from_array(np.ascontiguousarray(values), name)
        self.shapes[name] = values.shape
        return name

    def numbers(self, name: str) -> NDArray[Any]:
        """Those of a constant."""
        return np.asarray(numpy_helper.to_array(self.constants[name]))

    def keep(self, node: onnx.NodeProto) -> None:
        """A node that stays as it is."""
        for name in node.input:
            self.plain(name)
        self.nodes.append(node)
        self.makers |= dict.fromkeys(node.output, node)

    def plain(self, name: str) -> str:
        """A value in plain order."""
        if name in self.inside and name not in self.outside:
            self.outside.add(name)
            self.emit("ReorderOutput", [self.inside[name]], name, channels=self.shapes[name][1])
        return name

    def blocked(self, name: str) -> str:
        """A value in blocked order."""
        if name not in self.inside:
            self.inside[name] = f"{name}_blocked"
            self.outside.add(name)
            self.emit("ReorderInput", [name], self.inside[name])
        return self.inside[name]

    def fold(self, node: onnx.NodeProto) -> bool:
        """Another shape or order of constants is another constant."""
        if not all(name in self.constants for name in node.input):
            return False
        values = self.numbers(node.input[0])
        if node.op_type == "Transpose":
            values = values.transpose(_attributes(node)["perm"])
        else:
            values = values.reshape(self.numbers(node.input[1]))
        self.constant(node.output[0], values)
        return True

    def convolve(self, node: onnx.NodeProto) -> bool:
        """A convolution of whole blocks, of fewer channels than a block, or of every channel by itself."""
        x, w, *bias = node.input
        (y,), attributes, (filters, channels, *kernel) = node.output, _attributes(node), self.shapes.get(w, (0, 0))
        groups = attributes.get("group", 1)
        whole, depthwise = groups == 1 and channels % self.size == 0, groups == filters > 1 and channels == 1
        few = groups == 1 and channels < self.size
        if len(kernel) != 2 or filters % self.size or not (whole or depthwise or few):
            return False
        weight = self.filters(w, whole)
        if not weight:
            return False
        source = self.plain(x) if few else self.blocked(x)
        self.open[y] = self.emit("Conv", [source, weight, *bias], f"{y}_blocked", **attributes)
        self.inside[y] = f"{y}_blocked"
        return True

    def filters(self, name: str, whole: bool) -> str:
        """Filters in blocked order, which are constant or a mixture of constants; "" if they are something else."""
        shape = self.shapes[name]
        if name in self.constants:
            return self.constant(f"{name}_blocked", self.in_order(self.numbers(name), whole).reshape(shape))
        reshape = self.makers.get(name)
        if reshape is None or reshape.op_type != "Reshape" or self.uses[name] != 1 or self.uses[reshape.input[0]] != 1:
            return ""
        product = self.makers.get(reshape.input[0])
        if product is None or product.op_type != "MatMul" or product.input[1] not in self.constants:
            return ""
        parts = self.numbers(product.input[1])
        if parts.ndim == 2:  # (K, all of a knot): one spline
            ordered = self.in_order(parts.reshape(-1, *shape), whole)
            product.input[1] = self.constant(f"{name}_parts", ordered.reshape(parts.shape))
            return name
        # (filters, K, fan in): filters are mixed one by one and meet in blocks afterwards
        splines, count, _ = parts.shape
        together = self.size if whole else 1
        fan = parts.reshape(splines, count, -1, shape[1] // together, together, *shape[2:])
        product.input[1] = self.constant(f"{name}_parts", np.moveaxis(fan, 4, -1).reshape(parts.shape))
        reshape.input[1] = self.constant(f"{name}_rows", np.array([1, shape[0], 1, prod(shape[1:])]))
        self.emit("ReorderInput", [name], f"{name}_ordered")
        target = self.constant(f"{name}_shape", np.array(shape))
        self.emit("Reshape", [f"{name}_ordered", target], f"{name}_blocked", domain="")
        return f"{name}_blocked"

    def in_order(self, filters: NDArray[Any], whole: bool) -> NDArray[Any]:
        """(..., O, I, H, W) -> (..., O / B, I / B, H, W, B of I, B of O); unless ``whole``, I is not cut."""
        *others, count, channels, height, width = filters.shape
        inner = self.size if whole else 1
        shape = *others, count // self.size, self.size, channels // inner, inner, height, width
        n = len(others)
        return filters.reshape(shape).transpose(*range(n), n, n + 2, n + 4, n + 5, n + 3, n + 1)

    def closing(self, name: str, most: int = 4) -> onnx.NodeProto | None:
        """The convolution that this value comes from, if nobody else wants it and something can be added to it."""
        found = self.open.get(name)
        return found if found is not None and self.uses[name] == 1 and len(found.input) <= most else None

    def activate(self, node: onnx.NodeProto) -> bool:
        """A function of single numbers."""
        x, (y,) = node.input[0], node.output
        if x not in self.inside:
            return False
        found = self.closing(x)
        if node.op_type == "Relu" and found is not None:
            found.attribute.append(helper.make_attribute("activation", "Relu"))
            self.inside[y] = found.output[0]
        else:
            self.inside[y] = f"{y}_blocked"
            self.emit(node.op_type, [self.inside[x], *node.input[1:]], self.inside[y], domain="", **_attributes(node))
        return True

    def add(self, node: onnx.NodeProto) -> bool:
        """The sum of two images, which a convolution makes on its way."""
        first, second = node.input
        (y,), shape = node.output, self.shapes.get(first, ())
        if shape != self.shapes.get(second) or not {first, second} & self.inside.keys() or shape[1] % self.size:
            return False
        for one, other in ((first, second), (second, first)):
            found = self.closing(one, most=3)
            if found is None or len(found.input) < 3 or one == other:
                continue
            self.blocked(other)
            self.nodes.remove(found)  # which stands where it is known what to add
            self.nodes.append(found)
            found.input.append(self.inside[other])
            self.inside[y], self.open[y] = found.output[0], found
            return True
        self.inside[y] = f"{y}_blocked"
        self.emit("Add", [self.blocked(first), self.blocked(second)], self.inside[y], domain="")
        return True

    def pool(self, node: onnx.NodeProto) -> bool:
        """The largest of some pixels."""
        (x,), y, attributes = node.input, node.output[0], _attributes(node)
        if x not in self.inside or len(node.output) > 1 or attributes.pop("storage_order", 0):
            return False
        self.inside[y] = f"{y}_blocked"
        self.emit("MaxPool", [self.inside[x]], self.inside[y], **attributes)
        return True

    def mean(self, node: onnx.NodeProto) -> bool:
        """The mean of every channel: that of all blocks is in plain order."""
        x, axes = node.input
        (y,) = node.output
        if x not in self.inside or axes not in self.constants or list(self.numbers(axes)) not in ([2, 3], [-2, -1]):
            return False
        keeps = _attributes(node).get("keepdims", 1)
        self.emit("GlobalAveragePool", [self.inside[x]], y if keeps else f"{y}_pooled")
        if not keeps:
            self.emit("Flatten", [f"{y}_pooled"], y, domain="")
        return True

    def guard(self, result: str) -> None:
        """Make a graph fail where blocks have another size: the result then has another shape."""
        self.plain(result)
        for node in self.nodes:
            for i, name in enumerate(node.output):
                node.output[i] = f"{name}_unguarded" if name == result else name
        place, flat = (self.constant(f"probe_{at}", np.array([at])) for at in (self.size, -1))
        self.emit("ReorderInput", [self.constant("probe", PROBE)], "probe_blocked")
        self.emit("Reshape", ["probe_blocked", flat], "probe_row", domain="")
        self.emit("Gather", ["probe_row", place], "probe_found", domain="")
        self.emit("Cast", ["probe_found"], "probe_unit", domain="", to=onnx.TensorProto.INT64)
        shape = self.constant("probe_shape", np.array(self.shapes[result]))
        self.emit("Mul", ["probe_unit", shape], "probe_result", domain="")
        check = self.emit("Reshape", [f"{result}_unguarded", "probe_result"], result, domain="")
        check.name = f"this file is for processors whose ONNX Runtime has blocks of {self.size}"


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    return {each.name: helper.get_attribute_value(each) for each in node.attribute}


def scan(model: onnx.ModelProto) -> None:
    """Make a graph for one image one for a batch of any size, image after image."""
    graph = model.graph
    body, ends = onnx.GraphProto(), [*graph.input, *graph.output]
    body.CopyFrom(graph)
    inner = {each.name: f"{each.name}_of_one" for each in ends}
    for node in body.node:
        node.input[:] = [inner.get(name, name) for name in node.input]
        node.output[:] = [inner.get(name, name) for name in node.output]
    axis = numpy_helper.from_array(np.array([0]), "first_axis")
    body.initializer.append(axis)
    into = [helper.make_node("Unsqueeze", [f"{e.name}_alone", "first_axis"], [inner[e.name]]) for e in graph.input]
    out = [helper.make_node("Squeeze", [inner[e.name], "first_axis"], [f"{e.name}_alone"]) for e in graph.output]
    nodes = [*into, *body.node, *out]
    del body.node[:], body.input[:], body.output[:]
    body.node.extend(nodes)
    body.input.extend(_resized(each, f"{each.name}_alone", slice(1, None)) for each in graph.input)
    body.output.extend(_resized(each, f"{each.name}_alone", slice(1, None)) for each in graph.output)
    inputs, outputs = ([each.name for each in part] for part in (graph.input, graph.output))
    loop = helper.make_node("Scan", inputs, outputs, body=body, num_scan_inputs=len(inputs))
    before, after = ([_resized(each, each.name) for each in part] for part in (graph.input, graph.output))
    model.graph.CopyFrom(helper.make_graph([loop], graph.name, before, after))


def _resized(value: onnx.ValueInfoProto, name: str, dims: slice | None = None) -> onnx.ValueInfoProto:
    """The same value for a batch of any size, or some of its dimensions."""
    sizes: list[Any] = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
    shape = ["batch", *sizes[1:]] if dims is None else sizes[dims]
    return helper.make_tensor_value_info(name, value.type.tensor_type.elem_type, shape)
