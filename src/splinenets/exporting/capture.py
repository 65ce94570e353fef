"""A network as a graph of torch's operations, in which every spline layer is one node.

Whoever writes the graph to a file finds the layer by the name in its node, and lays it out as the runtime likes it.
Where a network cannot be exported, one sentence says which of its layers is in the way.
"""

from __future__ import annotations

import io
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, fx, nn
from torch.export import Dim, ExportedProgram

from ..conditions import Bound, Conditioned, Conditions
from ..layers import SplineConv2d, SplineLayer, SplineLinear
from ..operators import Convolution, strategy
from ..path import nearest_positions
from ..projection import External, FoldedProjection
from ..tracing import hooked

IMAGES, LOGITS = "images", "logits"  # the names of the first input and of the output; other inputs are conditions
library = torch.library.Library("splinenets", "FRAGMENT")
library.define(
    "layer(Tensor x, Tensor? parent, Tensor[] given, str name, float diffusion, SymInt[] shape, int coordinates)"
    " -> (Tensor, Tensor)"
)
library.define("place(Tensor values, float[] low, float[] high) -> Tensor")


def _layer_shapes(
    x: Tensor,
    parent: Tensor | None,
    given: list[Tensor],
    name: str,
    diffusion: float,
    shape: list[int],
    coordinates: int,
) -> tuple[Tensor, Tensor]:
    return x.new_empty((x.shape[0], *shape)), x.new_empty((x.shape[0], coordinates))


def _place_shape(values: Tensor, low: list[float], high: list[float]) -> Tensor:
    return torch.empty_like(values)


torch.library.register_fake("splinenets::layer", _layer_shapes, lib=library)
torch.library.register_fake("splinenets::place", _place_shape, lib=library)
LAYER = torch.ops.splinenets.layer.default  # its position is ``given``, side by side, or its own choice if that is []
PLACE = torch.ops.splinenets.place.default  # values of a condition as positions, those outside the range at its ends
LIKE = torch.empty(0)  # what conditions are read like: float32, on the CPU


@dataclass(frozen=True)
class Inputs:
    """What a network is called with: images (N, C, H, W), and the values of every condition, (N, size) each.

    A sequence of samples: ``inputs[:1]`` is the first with its conditions.
    """

    images: Tensor
    conditions: dict[str, Tensor]

    @classmethod
    def of(cls, conditions: Conditions, *inputs: object, **named: object) -> Inputs:
        """What stands in a call of a network that is told these conditions; whatever does not fit is an error."""
        (images, *more), given = conditions.sort(inputs, named)
        if named or more:
            names = [*named, *(name for each in more if isinstance(each, Mapping) for name in each), "without a name"]
            known = f"choose from {', '.join(conditions)}" if conditions else "this network takes images alone"
            raise ValueError(f"unknown condition {names[0]!r}, {known}")
        return cls(images, {n: conditions.read(n, value, len(images), LIKE) for n, value in given.items()})

    def tensors(self) -> tuple[Tensor, ...]:
        """All of them, in the order of a file's inputs."""
        return self.images, *self.conditions.values()

    def each(self, change: Callable[[Tensor], Tensor]) -> Inputs:
        """The same change for all of them."""
        return Inputs(change(self.images), {name: change(values) for name, values in self.conditions.items()})

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, samples: slice | Tensor) -> Inputs:
        return self.each(lambda values: values[samples])

    def join(self, more: Inputs) -> Inputs:
        """These samples, then more."""
        conditions = {name: torch.cat([values, more.conditions[name]]) for name, values in self.conditions.items()}
        return Inputs(torch.cat([self.images, more.images]), conditions)

    def split(self, size: int) -> list[Inputs]:
        """Batches of this size; an empty batch is one."""
        return [self[start : start + size] for start in range(0, max(len(self), 1), size)]

    def arguments(self) -> tuple[Any, ...]:
        """The arguments of the network: images, and conditions by name if there are any."""
        return (self.images, self.conditions) if self.conditions else (self.images,)

    def call(self, net: Callable[..., Tensor]) -> Tensor:
        """What a network says to them."""
        return net(*self.arguments())


def conditions_of(net: nn.Module) -> Conditions:
    """What a network is told."""
    return net.conditions if isinstance(net, Conditioned) else Conditions({}, {})


@dataclass(frozen=True)
class Capture:
    """The graph, the spline layers that its nodes name, and the names of its inputs, images first."""

    program: ExportedProgram
    layers: dict[str, SplineLayer]
    inputs: tuple[str, ...]


def capture(
    net: nn.Module,
    example: Inputs | Tensor,
    *,
    any_batch: bool,
    many_rows: bool = False,
    obstacles: Obstacles | None = None,
) -> Capture:
    """Follow an example through a deployed network, which is changed by it; spline layers become single nodes.

    many_rows  whether linear layers that get several rows of a sample are single nodes, too
    """
    example = Inputs(example, {}) if isinstance(example, Tensor) else example
    layers: dict[str, SplineLayer] = {}
    for name, layer in net.named_modules():
        if isinstance(layer, SplineConv2d | SplineLinear) and isinstance(layer.projection, FoldedProjection | External):
            layers[name] = layer
            layer.forward = partial(_forward, layer, name, type(layer).forward, many_rows)  # type: ignore[method-assign]
    if isinstance(net, Conditioned):
        net.place = partial(_place, net.conditions)  # type: ignore[method-assign]
    captured = Capture(trace_graph(net, example, any_batch=any_batch), layers, (IMAGES, *example.conditions))
    if obstacles is not None:
        obstacles.graph = captured.program.graph
    return captured


def trace_graph(net: nn.Module, example: Inputs, *, any_batch: bool) -> ExportedProgram:
    """``torch.export`` in operations of torch's own, for the example's batch or for any."""
    shapes: Any = None
    example = example.each(Tensor.clone)  # a view would bring all images it was cut from into the file
    if any_batch:
        example = example if len(example) > 1 else example.each(lambda x: x.repeat(2, *[1] * (x.dim() - 1)))
        batch = {0: Dim("batch", min=1)}
        # a network that is told something has the arguments *inputs
        shapes = ((batch, dict.fromkeys(example.conditions, batch)),) if example.conditions else (batch,)
    with torch.no_grad(), strategy("bank" if any_batch else "single"):
        return torch.export.export(net, example.arguments(), dynamic_shapes=shapes)


def _forward(layer: SplineLayer, name: str, plain: Callable[..., Tensor], many_rows: bool, input: Tensor) -> Tensor:
    """What ``layer`` computes, as one node; in its plain form where it is not one convolution or matrix product."""
    x = layer.check_input(input)
    parent, level = layer.path.parent(layer, layer.path.state)
    if not layer.needs_parent:
        parent = None
    given = _given(layer)
    others = [*given, *([] if parent is None else [parent])]
    simple = _is_simple(layer, x, many_rows) and x.dim() == input.dim()
    if not simple or any(other.shape[0] != x.shape[0] for other in others):
        return plain(layer, input)
    shape = list(_output_shape(layer, x))
    y, position = LAYER(x, parent, given, name, layer.spec.diffusion_at(level), shape, layer.coordinates)
    layer.path.visit(layer, position, None, layer.path.state)
    return y


def _given(layer: SplineLayer) -> list[Tensor]:
    """The positions that a layer is given from outside, one for each of its conditions; [] where it has its own."""
    if not isinstance(layer.projection, External):
        return []
    given = layer.path.state.given or {}
    return [given[name] for name in layer.projection.conditions if name in given]


def _place(conditions: Conditions, name: str, values: Tensor) -> Tensor:
    """``Conditions.place`` as one node."""
    low, high = (_numbers(bound, values.shape[1]) for bound in (conditions[name].low, conditions[name].high))
    return PLACE(values, low, high)


def _numbers(bound: Bound, size: int) -> list[float]:
    """A bound for each number of a condition."""
    return [float(number) for number in (bound if isinstance(bound, tuple) else (bound,) * size)]


def _is_simple(layer: SplineLayer, x: Tensor, many_rows: bool) -> bool:
    if isinstance(layer.projection, External) and not _given(layer):
        return False  # and its plain form says so
    if isinstance(layer, SplineLinear):
        return x.dim() == 2 or many_rows
    return getattr(layer, "padding_mode", "zeros") == "zeros"


def _output_shape(layer: SplineLayer, x: Tensor) -> tuple[int, ...]:
    operation = layer.operation
    if isinstance(operation, Convolution):
        return layer.filters, *operation.output_size(x.shape[2:])
    return *x.shape[1:-1], layer.filters


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
        with hooked(handles), _quietly():
            yield obstacles
    except (ImportError, OSError, MemoryError):
        raise
    except Exception as error:
        name = obstacles.layer(error)
        kind = type(net.get_submodule(name)).__name__.removeprefix("Parametrized")
        where = f"layer {name!r} ({kind})" if name else kind
        raise ValueError(f"{where} cannot be exported: {_reason(error)}") from error


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
