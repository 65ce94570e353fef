"""Rules for what happens to every pixel by itself: activations, arithmetic and norms."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, fx
from torch.fx.node import Argument

from .graph import Found, Last, Lowering, Rule, arguments, node_of, shape_of, sizes
from .operations import POINTWISE, convolve
from .parameters import Numbers, filter_blocks
from .program import NOWHERE, Activation, Image, Kind, Matrix, Step

aten = torch.ops.aten
# what can activate its numbers before anybody sees them
FINISHING = (
    *(Kind.CONV, Kind.DEPTHWISE, Kind.LINEAR, Kind.ADD, Kind.SUBTRACT, Kind.MULTIPLY),
    *(Kind.AFFINE, Kind.NORM, Kind.MAXPOOL, Kind.AVGPOOL),
)


def activate(low: Lowering, node: fx.Node, activation: Activation, slope: float = 0.0) -> Found:
    """Part of the step before it, where nobody else looks at that."""
    source, again = low.view(node.args[0])
    maker = low.maker[source]
    if not low.used_once(node.args[0]) or maker.kind not in FINISHING or maker.activation:
        maker = Step(Kind.ADD, source, Image(*source.shape))
        low.emit(maker)
    maker.activation, maker.slope = activation, slope
    return again(maker.output)


def activation(which: Activation) -> Rule:
    """The rule of an activation without arguments."""
    return lambda low, node: activate(low, node, which)


def gelu(low: Lowering, node: fx.Node) -> Found:
    """``F.gelu``, exact or by tanh."""
    by_tanh = arguments(node).get("approximate", "none") == "tanh"
    return activate(low, node, Activation.GELU_TANH if by_tanh else Activation.GELU)


def leaky_relu(low: Lowering, node: fx.Node) -> Found:
    """``F.leaky_relu``."""
    return activate(low, node, Activation.LEAKY_RELU, cast(float, arguments(node).get("negative_slope", 0.01)))


def clamp(low: Lowering, node: fx.Node) -> Found:
    """``F.relu6`` and what is written otherwise and is the same."""
    given = arguments(node)
    least, most = given.get("min_val", given.get("min")), given.get("max_val", given.get("max"))
    if (least, most) == (0, 6):
        return activate(low, node, Activation.RELU6)
    if (least, most) == (0, None):
        return activate(low, node, Activation.RELU)
    raise ValueError(f"the native runtime clamps between 0 and 6, not {least} and {most}")


Scaled = Callable[[Tensor], tuple["Tensor | None", "Tensor | None"]]  # a constant -> factor and summand
# x op constant, and constant op x
CONSTANT: dict[str, tuple[Scaled, Scaled]] = {
    "add": (lambda c: (None, c), lambda c: (None, c)),
    "sub": (lambda c: (None, -c), lambda c: (-torch.ones_like(c), c)),
    "mul": (lambda c: (c, None), lambda c: (c, None)),
    "div": (lambda c: (1 / c, None), lambda c: _no_division()),
}
KINDS = {"add": Kind.ADD, "sub": Kind.SUBTRACT, "mul": Kind.MULTIPLY}


def _no_division() -> tuple[None, None]:
    raise ValueError("the native runtime divides by constants alone")


def arithmetic(low: Lowering, node: fx.Node) -> Found:
    """Sums, differences, products and quotients, of images or with constants."""
    name = str(node.target).split(".")[1].rstrip("_")
    left, right = node.args[:2]
    if node.kwargs.get("alpha", 1) != 1:
        raise ValueError("the native runtime adds images without a factor")
    constants = [_constant(low, argument) for argument in (left, right)]
    if constants[1] is not None:
        return with_constant(low, left, constants[1], CONSTANT[name][0])
    if constants[0] is not None:
        return with_constant(low, right, constants[0], CONSTANT[name][1])
    if name not in KINDS:
        return cast(Found, _no_division())
    return combine(low, node, KINDS[name])


def _constant(low: Lowering, argument: Argument) -> Tensor | None:
    found = low.found[argument] if isinstance(argument, fx.Node) else torch.tensor(cast(float, argument))
    return found if isinstance(found, Tensor) else None


def with_constant(low: Lowering, argument: Argument, constant: Tensor, scaled: Scaled) -> Found:
    """An image and a number for all of it or for each channel."""
    source, again = low.view(argument)
    dims = len(shape_of(node_of(argument)))
    channel = dims - 1 if again is Last else 1
    shape = [1] * (dims - constant.dim()) + list(constant.shape)
    if any(size != 1 for dim, size in enumerate(shape) if dim != channel):
        raise ValueError(f"the native runtime has constants for each channel, not of shape {tuple(constant.shape)}")
    factor, summand = scaled(constant.detach().float().reshape(-1).expand(source.channels))
    return again(affine(low, source, factor, summand))


def affine(low: Lowering, source: Image, factor: Tensor | None, summand: Tensor | None) -> Image:
    """A factor and a summand for each channel."""
    step = Step(Kind.AFFINE, source, Image(*source.shape), bias=low.parameters.channels(summand))
    step.weight = Matrix(offset=low.parameters.channels(factor))
    return low.emit(step)


def combine(low: Lowering, node: fx.Node, kind: Kind) -> Found:
    """Two images; a sum is part of the convolution before it, where nobody else looks at that."""
    first, second = (node_of(a) for a in node.args[:2])
    if kind == Kind.ADD:
        first, second = sorted((first, second), key=low.made, reverse=True)
    source, again = low.view(first)
    maker = low.maker[source]
    fits = kind == Kind.ADD and maker.kind in (Kind.CONV, Kind.DEPTHWISE) and maker.other is NOWHERE
    fits = fits and not maker.activation and low.used_once(first)
    if isinstance(low.found[second], Last) != (again is Last) and 1 not in (source.height * source.width,):
        raise ValueError("the native runtime adds images whose channels come in the same order")
    more = low.view(second)[0] if again is Last else low.image(second, before=maker if fits else None)
    if fits and source is not more and source.shape == more.shape:
        maker.other = more
        return again(source)
    return again(low.emit(Step(kind, *_meet(low, source, more, kind))))


def _meet(low: Lowering, source: Image, more: Image, kind: Kind) -> tuple[Image, Image, Image]:
    """Input, output and other of a step that combines two images, of which one may stand for a larger one."""
    if source.channels == 1 < more.channels:
        source = spread_channels(low, source, more.channels)
    elif more.channels == 1 < source.channels:
        more = spread_channels(low, more, source.channels)
    if source.shape[1:] == (1, 1) != more.shape[1:] and kind != Kind.SUBTRACT:
        source, more = more, source
    if source.channels != more.channels or more.shape[1:] not in ((1, 1), source.shape[1:]):
        raise ValueError(f"the native runtime does not combine images of shapes {source.shape} and {more.shape}")
    return source, Image(*source.shape), more


def spread_channels(low: Lowering, x: Image, channels: int) -> Image:
    """The same in every channel: a convolution with ones."""
    weight = low.parameters.matrix(filter_blocks(Numbers(torch.ones(channels, 1)), POINTWISE.kernel))
    return convolve(low, x, Image(channels, x.height, x.width), POINTWISE, Step(Kind.CONV, weight=weight))


def batch_norm(low: Lowering, node: fx.Node) -> Found:
    """A batch norm that could not become part of the layer before it."""
    given = arguments(node)
    if given.get("training"):
        raise ValueError("the native runtime has batch norms with running statistics")
    mean, variance = (low.tensor(given[name]) for name in ("running_mean", "running_var"))
    weight, bias = (low.maybe_tensor(given.get(name)) for name in ("weight", "bias"))
    factor = torch.rsqrt(variance + cast(float, given["eps"]))
    factor = factor if weight is None else factor * weight
    summand = -mean * factor if bias is None else bias - mean * factor
    return affine(low, low.image(given["input"]), factor, summand)


def norm(low: Lowering, node: fx.Node) -> Found:
    """Layer norm over the channels of every pixel, group norm over groups of channels."""
    given = arguments(node)
    source, again = low.view(given["input"])
    groups = cast(int, given.get("num_groups", 0))
    channels_alone = again is Last or source.shape[1:] == (1, 1)
    if not groups and (sizes(given["normalized_shape"]) != [source.channels] or not channels_alone):
        raise ValueError("the native runtime has layer norms over channels")
    step = Step(Kind.NORM, source, Image(*source.shape), groups=groups, epsilon=cast(float, given["eps"]))
    step.weight = Matrix(offset=low.parameters.channels(low.maybe_tensor(given.get("weight"))))
    step.bias = low.parameters.channels(low.maybe_tensor(given.get("bias")))
    return again(low.emit(step))


SIMPLE = {
    "relu": Activation.RELU,
    "relu6": Activation.RELU6,
    "sigmoid": Activation.SIGMOID,
    "silu": Activation.SILU,
    "hardsigmoid": Activation.HARD_SIGMOID,
    "hardswish": Activation.HARD_SWISH,
    "tanh": Activation.TANH,
}


def _overloads(name: str) -> list[object]:
    """An operation and the one that works in place."""
    packets = (getattr(aten, each, None) for each in (name, f"{name}_"))
    return [getattr(packet, overload) for packet in packets if packet is not None for overload in packet.overloads()]


def _rules(names: dict[str, Rule]) -> dict[object, Rule]:
    return {overload: rule for name, rule in names.items() for overload in _overloads(name)}


RULES: dict[object, Rule] = _rules(
    {
        **{name: activation(which) for name, which in SIMPLE.items()},
        **dict.fromkeys(("add", "sub", "mul", "div"), arithmetic),
        **{"gelu": gelu, "leaky_relu": leaky_relu, "hardtanh": clamp, "clamp": clamp, "clamp_min": clamp},
        **{"batch_norm": batch_norm, "layer_norm": norm, "group_norm": norm},
    }
)
