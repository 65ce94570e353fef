"""Smaller networks with the same answers: batch norm folded into knots, everything for inference, splines as points."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeVar, overload

import torch
from torch import Tensor, fx, nn
from torch.nn.utils import parametrize

from .conditions import Conditioned, Given
from .conversion import SPLINES, copy_network
from .layers import SplineLayer
from .path import Level
from .projection import External, FoldedProjection, Projection
from .tracing import remove_path, run_example

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
# what a spline layer has and torch's own layer has not
SPLINES_OWN = (
    *("knots", "projection", "matching", "path", "begins"),
    *("spec", "filters", "fan_in", "splines", "dims", "input_size"),
)
Net = TypeVar("Net", bound=nn.Module)
Pair = tuple[str, str]


def fold_batchnorm(net: Net, example: Any = None) -> Net:
    """A copy in which batch norms that follow a convolution or linear layer, plain or spline, are part of its weights.

    Exact in eval mode: scaling every knot scales every mixture. What follows what is read from the network's code, or
    seen when an example passes; networks that decide while they run need the ``example``.
    """
    net = copy_network(net)
    pairs = _pairs_of_graph(net) if example is None else _pairs_of_example(net, example)
    for layer, norm in pairs:
        _fold(net, layer, norm)
    return net


def _foldable(net: nn.Module, layer: str, norm: str) -> bool:
    module, batch_norm = net.get_submodule(layer), net.get_submodule(norm)
    kinds = isinstance(module, tuple(SPLINES)) and isinstance(batch_norm, BATCH_NORMS)
    return kinds and getattr(batch_norm, "running_var", None) is not None and not parametrize.is_parametrized(module)


class _Tracer(fx.Tracer):
    def is_leaf_module(self, module: nn.Module, name: str) -> bool:
        return isinstance(module, Level) or super().is_leaf_module(module, name)


def _pairs_of_graph(net: nn.Module) -> list[Pair]:
    if isinstance(net, Conditioned):
        return [(f"net.{layer}", f"net.{norm}") for layer, norm in _pairs_of_graph(net.net)]
    try:
        graph = _Tracer().trace(net)
    except Exception as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(
            f"cannot read from its code what {type(net).__name__} does ({reason}): pass an example input"
        ) from error
    calls = [node for node in graph.nodes if node.op == "call_module"]
    times = Counter(str(node.target) for node in calls)
    pairs = []
    for node in calls:
        before = node.args[0] if node.args else None
        if not isinstance(before, fx.Node) or before.op != "call_module" or len(before.users) != 1:
            continue
        pair = (str(before.target), str(node.target))
        if times[pair[0]] == times[pair[1]] == 1 and _foldable(net, *pair):
            pairs.append(pair)
    return pairs


def _pairs_of_example(net: nn.Module, example: Any) -> list[Pair]:
    """Pairs that an example shows, each kept only if the network's answers stay the same without it."""
    outputs: dict[int, str] = {}
    alive: list[Tensor] = []  # so that no address is used twice
    times: Counter[str] = Counter()
    pairs: list[Pair] = []

    def watch(name: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            times[name] += 1
            if isinstance(module, BATCH_NORMS) and args and (layer := outputs.get(id(args[0]))) is not None:
                pairs.append((layer, name))
            elif isinstance(output, Tensor):
                outputs[id(output)] = name
                alive.append(output)

        return hook

    watched = [n for n, m in net.named_modules() if isinstance(m, (*SPLINES, *BATCH_NORMS))]
    handles = [net.get_submodule(name).register_forward_hook(watch(name)) for name in watched]
    try:
        expected = run_example(net, example)
    finally:
        for handle in handles:
            handle.remove()
    pairs = [p for p in pairs if times[p[0]] == times[p[1]] == 1 and _foldable(net, *p)]
    if _same(_folded(net, pairs), expected, example):
        return pairs
    # some output is used by more than its batch norm
    return [pair for pair in pairs if _same(_folded(net, [pair]), expected, example)]


def _folded(net: nn.Module, pairs: list[Pair]) -> nn.Module:
    twin = copy_network(net)
    for pair in pairs:
        _fold(twin, *pair)
    return twin


def _same(net: nn.Module, expected: Any, example: Any) -> bool:
    found = run_example(net, example)
    for a, b in zip(_tensors(found), _tensors(expected), strict=True):
        tolerance = 1e-3 * b.abs().max().item() + 1e-6
        if not torch.allclose(a, b, rtol=0, atol=tolerance):
            return False
    return True


def _tensors(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output] if output.is_floating_point() else []
    if isinstance(output, Mapping):
        output = list(output.values())
    return [t for part in output for t in _tensors(part)] if isinstance(output, list | tuple) else []


@torch.no_grad()
def _fold(net: nn.Module, layer_name: str, norm_name: str) -> None:
    layer: Any = net.get_submodule(layer_name)
    norm: Any = net.get_submodule(norm_name)
    scale = torch.rsqrt(norm.running_var + norm.eps)
    scale = scale if norm.weight is None else scale * norm.weight
    bias = 0 if layer.bias is None else layer.bias
    shift = (bias - norm.running_mean) * scale + (0 if norm.bias is None else norm.bias)
    layer.bias = nn.Parameter(shift.detach().clone())
    weight = layer.base if isinstance(layer, SplineLayer) else layer.weight
    if weight is not None:
        weight.mul_(scale.view(-1, *[1] * (weight.dim() - 1)))
    if isinstance(layer, SplineLayer):
        layer.knots.mul_(scale.view(-1, 1))
    parent, _, child = norm_name.rpartition(".")
    setattr(net.get_submodule(parent), child, nn.Identity())


# Knots in fewer bytes: 16 bits, or 8 bits and a scale for each filter of each knot


class Storage(nn.Module):
    """A parametrisation: what is stored, and how to have the numbers again."""

    def forward(self, *stored: Tensor) -> Tensor:
        """Numbers again, float32."""
        raise NotImplementedError

    def right_inverse(self, values: Tensor) -> tuple[Tensor, ...]:
        """What to store."""
        raise NotImplementedError


class BFloat16(Storage):
    """The upper half of a float32."""

    def forward(self, *stored: Tensor) -> Tensor:
        """(...,), bf16 -> (...,), float32."""
        return stored[0].to(torch.promote_types(stored[0].dtype, torch.float32))

    def right_inverse(self, values: Tensor) -> tuple[Tensor, ...]:
        """(...,) -> (...,), bf16."""
        return (values.bfloat16(),)


class Int8(Storage):
    """Whole numbers from -127 to 127, and what one of them is worth in each row."""

    def forward(self, *stored: Tensor) -> Tensor:
        """(..., M), int8, and (..., 1) -> (..., M), float32."""
        codes, scale = stored
        return codes.float() * scale

    def right_inverse(self, values: Tensor) -> tuple[Tensor, ...]:
        """(..., M) -> (..., M), int8, and (..., 1)."""
        scale = values.abs().amax(-1, keepdim=True).clamp(min=torch.finfo(values.dtype).tiny * 128) / 127
        return (values / scale).round().to(torch.int8), scale


STORAGES: dict[str, type[Storage] | None] = {"float32": None, "bf16": BFloat16, "int8": Int8}


@torch.no_grad()
def deploy(net: Net, example: Any = None, *, knots: str = "float32") -> Net:
    """A copy for inference: batch norms, the knots' base and the projections' standardisation are folded.

    knots  how knots and decision parameters are stored: "float32", "bf16" or "int8"
    """
    if knots not in STORAGES:
        raise ValueError(f"unknown storage of knots {knots!r}, choose from {list(STORAGES)}")
    net = fold_batchnorm(net, example).eval()
    folded: dict[tuple[int, int], nn.Parameter] = {}  # layers that share a weight share its knots
    for layer in net.modules():
        if not isinstance(layer, SplineLayer):
            continue
        if isinstance(layer.projection, Projection):
            layer.projection = FoldedProjection(layer.projection)
        if layer.base is not None or layer.curves.closed:
            key = (id(layer.knots), id(layer.base))
            layer.stand_alone(folded.setdefault(key, nn.Parameter(layer.curves.opened().control_points())))
        if (kind := STORAGES[knots]) is not None:
            _store(layer, "knots", kind)
            if isinstance(layer.projection, FoldedProjection):
                _store(layer.projection, "weight", kind)
    return net.requires_grad_(False)


def stored(module: nn.Module, name: str) -> tuple[Tensor, Tensor | None]:
    """A parameter in the form in which it is kept: numbers (..., M), and their scale (..., 1) where they have one."""
    if not parametrize.is_parametrized(module, name):
        return module.get_parameter(name), None
    kept: Any = module.get_submodule(f"parametrizations.{name}")
    numbers, *scale = (getattr(kept, f"original{i}") for i in range(kept.ntensors))
    return numbers, scale[0] if scale else None


def _store(module: nn.Module, name: str, kind: type[Storage]) -> None:
    getattr(module, name).requires_grad_(False)
    if not parametrize.is_parametrized(module, name):
        parametrize.register_parametrization(module, name, kind(), unsafe=True)


@overload
def collapse(net: Conditioned, at: Given | Mapping[str, Any] = 0.5, tolerance: float = 1e-3) -> nn.Module: ...


@overload
def collapse(net: Net, at: float | Mapping[str, Tensor] = 0.5, tolerance: float = 1e-3) -> Net: ...


def collapse(net: nn.Module, at: Given | Mapping[str, Any] = 0.5, tolerance: float = 1e-3) -> nn.Module:
    """A copy without splines: every layer keeps the weights of one position.

    at         a position for all layers, or positions as ``sn.trace`` gives them: a layer collapses to their mean, if
               they are constant. For a network of ``sn.condition`` a condition, as it is called with: layers that are
               told keep the weights of this one value, others stay as they are, and nobody is told anything any more
    tolerance  by how much positions may differ from sample to sample and still be called constant
    """
    net = copy_network(net)
    layers = {name: m for name, m in net.named_modules() if isinstance(m, SplineLayer)}
    if not layers:
        raise ValueError(f"{type(net).__name__} has no spline layers to collapse")
    if isinstance(net, Conditioned) and not (isinstance(at, Mapping) and set(at) & set(layers)):
        chosen = _told(net, layers, at)
    else:
        chosen = {name: _position(layer, name, at, tolerance) for name, layer in layers.items()}
    for name, position in chosen.items():
        _flatten(layers[name], position)
    if len(chosen) == len(layers):
        remove_path(net)
    return net.net if isinstance(net, Conditioned) else net


def _told(net: Conditioned, layers: Mapping[str, SplineLayer], at: Given | Mapping[str, Any]) -> dict[str, Tensor]:
    """Where a condition puts the layers that listen to it, by name: (1, dims) each."""
    _, given = net.conditions.sort((net, at), {})
    like, positions = next(net.levels()).like(), {}
    for name, value in given.items():
        one = value if isinstance(value, int | float) else torch.as_tensor(value).reshape(1, -1)
        positions[name] = net.conditions.place(name, net.conditions.read(name, one, 1, like))
        if not positions[name].isfinite().all():
            raise ValueError(f"a network cannot keep the weights of a condition {name!r} that is not a number")
    if heirs := [name for name, layer in layers.items() if layer.needs_parent and not layer.begins]:
        raise ValueError(f"layer {heirs[0]!r} inherits positions, which layers of one value no longer hand on")
    listening = {name: layer.projection for name, layer in layers.items() if isinstance(layer.projection, External)}
    return {name: torch.cat([positions[c] for c in each.conditions], 1) for name, each in listening.items()}


def _position(layer: SplineLayer, name: str, at: Given | Mapping[str, Tensor], tolerance: float) -> Tensor:
    if not isinstance(at, Mapping):
        at = float(at)
        if not 0 <= at <= 1:
            raise ValueError(f"a position lies in [0, 1], got {at}")
        return layer.knots.new_full((1, layer.coordinates), at)
    if name not in at:
        raise ValueError(f"there are no positions for layer {name!r}; there are some for {', '.join(at) or 'no layer'}")
    positions = at[name].detach().flatten(1).to(layer.knots.dtype)
    moves = (positions.amax(0) - positions.amin(0)).max().item()
    if moves > tolerance:
        raise ValueError(f"positions of layer {name!r} are not constant: they differ by up to {moves:.3g}")
    return positions.mean(0, keepdim=True)


@torch.no_grad()
def _flatten(layer: SplineLayer, position: Tensor) -> None:
    weight = layer.weights_at(position).squeeze(0).clone()
    stored_apart = parametrize.is_parametrized(layer, "knots")
    layer.__class__ = layer.torch_layer  # type: ignore[assignment]
    for name in ("parametrizations" if n == "knots" and stored_apart else n for n in SPLINES_OWN):
        delattr(layer, name)
    layer.weight = nn.Parameter(weight)
