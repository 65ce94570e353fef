"""A graph of torch's operations as a program of the native runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, fx
from torch.fx.node import Argument

from ..capture import IMAGES, Capture
from . import operations, pointwise, shapes
from .graph import Found, Given, Lowering, Rule, image_of, shape_of
from .program import Kind, Program, Step, Told

RULES: dict[object, Rule] = {**operations.RULES, **pointwise.RULES, **shapes.RULES}


def native_program(captured: Capture) -> Program:
    """The engine's program for a captured network."""
    low = Lowering(captured)
    tensors, names = _tensors(captured), iter(captured.inputs)
    for node in _needed(captured.program.graph):
        if node.op == "placeholder":
            known = tensors.get(node.name)
            low.found[node] = begin(low, node, next(names)) if known is None else known
        elif node.op == "output":
            finish(low, node)
        else:
            low.found[node] = lower(low, node)
    return low.program()


def _needed(graph: fx.Graph) -> list[fx.Node]:
    """Inputs, and what the output depends on."""
    needed: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op in ("placeholder", "output") or any(user in needed for user in node.users):
            needed.add(node)
    return [node for node in graph.nodes if node in needed]


def begin(low: Lowering, node: fx.Node, name: str) -> Found:
    """What goes into the network: images, or a condition of this name."""
    if name == IMAGES:
        return low.emit(Step(Kind.INPUT, output=image_of(node)))
    first, count = len(low.told), shape_of(node)[1]
    low.told += [Told(name, 0.0, 1.0)] * count
    return Given(first, count)


def lower(low: Lowering, node: fx.Node) -> Found:
    """One operation; one that looks at parameters alone is done now."""
    inputs = [low.found[each] for each in node.all_input_nodes]
    try:
        if inputs and all(isinstance(each, Tensor) for each in inputs):
            return _computed(low, node)
        if node.target not in RULES:
            raise ValueError(f"the native runtime does not know {node.target}")
        return RULES[node.target](low, node)
    except ValueError as error:
        raise ValueError(f"%{node.name}: {error}") from None


def _computed(low: Lowering, node: fx.Node) -> Tensor:
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda each: cast(Argument, low.found[each]))
    with torch.no_grad():
        return cast(Tensor, node.target(*args, **kwargs))  # type: ignore[operator]


def finish(low: Lowering, node: fx.Node) -> None:
    """The network's answer."""
    (logits,) = cast(Sequence[Argument], node.args[0])
    image = low.image(logits)
    if image.shape[1:] != (1, 1):
        raise ValueError("the native runtime gives one row of numbers for an image")
    low.steps.append(Step(Kind.OUTPUT, image))


def _tensors(captured: Capture) -> dict[str, Tensor]:
    """Parameters and buffers by the name of their placeholder."""
    program = captured.program
    signature = program.graph_signature
    names = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    tensors = {**program.state_dict, **program.constants}
    return {node: tensors[name].detach() for node, name in names.items() if name in tensors}
