"""Positions from outside: a network that is told something about its input, and moves along its curves by it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from .files import Json
from .layers import SplineLayer
from .path import Path
from .projection import UNNAMED, External
from .tracing import join, levels_of, saying

Given: TypeAlias = Tensor | float
Bound: TypeAlias = float | tuple[float, ...]


@dataclass(frozen=True)
class Condition:
    """One thing that a network is told: its range, and the layers that listen to it.

    low, high  the values at positions 0 and 1; a tuple has a value for each dimension of a surface
    layers     a pattern of layer names
    """

    low: Bound = 0.0
    high: Bound = 1.0
    layers: str = "*"


class Conditions(dict[str, Condition]):
    """What a network is told, by name; ``sizes`` says how many numbers each of them is.

    Whoever calls a network or its export is answered from here: one list of checks for both.
    """

    def __init__(self, conditions: Mapping[str, Condition], sizes: Mapping[str, int]) -> None:
        super().__init__(conditions)
        self.sizes = dict(sizes)
        for name, size in self.sizes.items():
            _check_size(name, self[name], size)

    def sort(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Given]]:
        """Tell inputs from conditions, which leave ``named``; all of them must be there, in the order of the names."""
        given = {name: named.pop(name) for name in self if name in named}
        if self and not given and len(inputs) > 1:
            *rest, last = inputs
            inputs, given = tuple(rest), dict(last) if isinstance(last, Mapping) else {next(iter(self)): last}
        if wrong := [name for name in given if name not in self]:
            raise ValueError(f"unknown condition {wrong[0]!r}, choose from {', '.join(self)}")
        if missing := [name for name in self if name not in given]:
            raise ValueError(f"the condition {missing[0]!r} is missing: call the network as {self.usage()}")
        return inputs, {name: given[name] for name in self}

    def usage(self) -> str:
        """How to call the network."""
        names = list(self)
        return f"net(images, {names[0]})" if len(names) == 1 else f"net(images, {', '.join(f'{n}=...' for n in names)})"

    def read(self, name: str, value: Given, samples: int, like: Tensor) -> Tensor:
        """Values of a condition, all inside its range: (N,), (N, dims) or one for all -> (N, dims)."""
        size, numbers = self.sizes[name], torch.promote_types(like.dtype, torch.float32)
        try:
            values = torch.as_tensor(value)
            if (values.dtype, values.device) != (numbers, like.device):
                values = values.to(like.device, numbers)
        except (TypeError, ValueError, RuntimeError):
            raise ValueError(f"the condition {name!r} is a tensor or a number, got {type(value).__name__}") from None
        if values.shape not in ((), (samples, size), *([(samples,)] if size == 1 else [])):
            wanted = f"({samples},)" if size == 1 else f"({samples}, {size})"
            raise ValueError(f"the condition {name!r} has shape {wanted} for this batch, got {tuple(values.shape)}")
        values = values.expand(samples, size) if values.dim() == 0 else values
        values = values.unsqueeze(1) if values.dim() == 1 else values
        if not torch.compiler.is_compiling():
            self.check(name, values)
        return values

    def check(self, name: str, values: Tensor) -> None:
        """Raise for values outside the range; what is not a number may be anywhere, and spoils its own sample alone."""
        if values.numel() == 1:  # one image, where a dozen operations of torch take as long as a small network
            (least, most), value = _ends(self[name], values.dtype), values.item()
            if not (value < least or value > most):
                return
        low, high = self.ends(name, values)
        inside = (values >= torch.minimum(low, high)) & (values <= torch.maximum(low, high)) | values.isnan()
        if not bool(inside.all()):
            bounds = self[name]
            raise ValueError(
                f"the condition {name!r} lies between {_shown(bounds.low)} and {_shown(bounds.high)}, "
                f"got {values[~inside][0].item():g}"
            )

    def place(self, name: str, values: Tensor) -> Tensor:
        """Values of a condition as positions: (N, dims) -> (N, dims) in [0, 1]."""
        low, high = self.ends(name, values)
        return (values - low) / (high - low)

    def at(self, name: str, positions: Tensor) -> Tensor:
        """The inverse of ``place``: (N, dims) in [0, 1] -> (N, dims)."""
        low, high = self.ends(name, positions)
        return torch.lerp(low.expand_as(positions), high.expand_as(positions), positions)

    def ends(self, name: str, values: Tensor) -> tuple[Tensor, Tensor]:
        """The values at positions 0 and 1, as tensors like the values: () or (dims,) each."""
        return values.new_tensor(self[name].low), values.new_tensor(self[name].high)

    def described(self) -> dict[str, Json]:
        """As JSON, for files."""
        return {name: {"low": c.low, "high": c.high, "size": self.sizes[name]} for name, c in self.items()}

    @classmethod
    def from_description(cls, described: Mapping[str, Mapping[str, Any]]) -> Conditions:
        """The inverse of ``described``."""
        conditions = {name: Condition(_bound(d["low"]), _bound(d["high"])) for name, d in described.items()}
        for each in conditions.items():
            _check_bounds(*each)
        return cls(conditions, {name: int(d["size"]) for name, d in described.items()})

    def __str__(self) -> str:
        return ", ".join(f"{name} from {_shown(c.low)} to {_shown(c.high)}" for name, c in self.items())


class Conditioned(nn.Module):
    """A network called as ``net(images, condition)``; see ``condition``."""

    def __init__(self, net: nn.Module, conditions: Conditions) -> None:
        super().__init__()
        self.net, self.conditions = net, conditions

    def forward(self, *inputs: object, **named: object) -> Any:
        """The inputs of the network, then the condition: values (N,) or (N, dims), a number for all samples, or a dict.

        Conditions may also be given by their names: ``net(images, angle=angles)``.
        """
        inputs, given = self.conditions.sort(inputs, named)
        samples, like = samples_of((*inputs, *named.values())), next(self.levels()).like()
        values = {name: self.conditions.read(name, value, samples, like) for name, value in given.items()}
        path, positions = self.path(), {name: self.place(name, each) for name, each in values.items()}
        states = [path.traced] if torch.compiler.is_compiling() else [path.of_thread.state, path.traced]
        with saying(states, "given", positions):
            return self.net(*inputs, **named)

    def place(self, name: str, values: Tensor) -> Tensor:
        """Values of a condition as positions: (N, dims) -> (N, dims) in [0, 1]."""
        return self.conditions.place(name, values)

    def levels(self) -> Iterator[SplineLayer]:
        """The layers that listen."""
        return (m for m in self.net.modules() if isinstance(m, SplineLayer) and m.spec.external)

    def path(self) -> Path:
        """What hands conditions to the layers."""
        return next(self.levels()).path

    def extra_repr(self) -> str:
        """Shown in the repr of a network."""
        return f"told: {self.conditions}"


def samples_of(inputs: Iterable[object]) -> int:
    """N, how many samples there are in a network's inputs."""
    return next((x.shape[0] for x in inputs if isinstance(x, Tensor) and x.dim()), 1)


def condition(
    net: nn.Module, low: Bound = 0.0, high: Bound = 1.0, *, name: str = UNNAMED, **conditions: Condition
) -> Conditioned:
    """A network that is called as ``net(images, condition)``: the condition is the position of its X layers.

    low, high   the values at positions 0 and 1, for example 0 and 360 for an angle
    name        what the condition is called in messages and exported files
    conditions  or several of them, by name, each for a pattern of layers:
                ``sn.condition(net, angle=sn.Condition(0, 360, layers="conv*"), noise=sn.Condition(layers="fc*"))``;
                where two fit a layer whose spec has dims=2, they are the two directions of its surface

    The network itself is part of the new one, and shares its parameters with it.

    Examples:
        >>> net = sn.condition(sn.convert(sn.models.lenet(4), "D(12)-X-R4 closed"), 0, 360, name="angle")
        >>> images = torch.randn(3, 1, 28, 28)
        >>> net(images, torch.tensor([0.0, 45.0, 90.0])).shape
        torch.Size([3, 10])
        >>> net(images, 400)
        Traceback (most recent call last):
        ValueError: ...
    """
    wanted = conditions or {name: Condition(low, high)}
    for each in wanted.items():
        _check_bounds(*each)
    layers = {n: m for n, m in levels_of(net).items() if isinstance(m, SplineLayer) and m.spec.external}
    if not layers:
        raise ValueError(
            f"{type(net).__name__} has no layer with X in its spec, such as D(7)-X-R4, to be told anything"
        )
    sizes: dict[str, int] = {}
    for layer_name, layer in layers.items():
        _listen(layer_name, layer, wanted, sizes)
    if unheard := [name for name in wanted if name not in sizes]:
        raise ValueError(f"no X layer listens to {unheard[0]!r}: its pattern fits none of {', '.join(layers)}")
    conditioned = Conditioned(net, Conditions(wanted, sizes))
    levels = list(levels_of(net).values())
    if len({id(level.path) for level in levels}) > 1:
        join(net, levels)
    return conditioned


def _listen(layer_name: str, layer: SplineLayer, conditions: Mapping[str, Condition], sizes: dict[str, int]) -> None:
    """Tell a layer the names of its conditions, and note how many numbers each of them is."""
    names = tuple(name for name, c in conditions.items() if fnmatchcase(layer_name, c.layers))
    if not names:
        raise ValueError(f"no condition fits the layer {layer_name!r}, which takes its position from outside")
    if len(names) not in (1, layer.dims):
        positions = "one position" if layer.dims == 1 else f"{layer.dims} positions (dims={layer.dims})"
        raise ValueError(f"the layer {layer_name!r} has {positions}, and {' and '.join(names)} fit it: use patterns")
    size = layer.dims // len(names)
    for name in names:
        if sizes.setdefault(name, size) != size:
            raise ValueError(f"the condition {name!r} has {sizes[name]} numbers for one layer and {size} for another")
    assert isinstance(layer.projection, External)
    layer.projection.conditions = names


def _check_bounds(name: str, bounds: Condition) -> None:
    if not name.isidentifier():
        raise ValueError(f"a condition's name is a word, as variables have it, got {name!r}")
    if not isinstance(bounds, Condition):
        raise ValueError(f"the condition {name!r} is an sn.Condition(low, high), got {type(bounds).__name__}")
    low, high = torch.tensor(bounds.low, dtype=torch.float64), torch.tensor(bounds.high, dtype=torch.float64)
    if low.dim() > 1 or low.shape != high.shape or not bool(((high - low).isfinite() & (high != low)).all()):
        raise ValueError(
            f"the condition {name!r} needs two finite ends that differ, got {bounds.low} and {bounds.high}"
        )


@lru_cache
def _ends(condition: Condition, numbers: torch.dtype) -> tuple[float, float]:
    """The range of a condition that is one number, as these numbers can say it."""
    ends = torch.tensor([condition.low, condition.high], dtype=numbers).flatten().tolist()
    return min(ends), max(ends)


def _check_size(name: str, bounds: Condition, size: int) -> None:
    if isinstance(bounds.low, tuple) and len(bounds.low) != size:
        raise ValueError(f"the condition {name!r} is {size} numbers to its layers, got a range for {len(bounds.low)}")


def _bound(numbers: Any) -> Bound:
    """A bound out of JSON."""
    return tuple(map(float, numbers)) if isinstance(numbers, list | tuple) else float(numbers)


def _shown(bound: Bound) -> str:
    return f"{bound:g}" if not isinstance(bound, tuple) else "(" + ", ".join(f"{b:g}" for b in bound) + ")"
