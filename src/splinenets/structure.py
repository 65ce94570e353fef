"""What makes a network a SplineNet, as data: read from a network, and given to a plain one again."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from .conditions import Condition, Conditioned, Conditions
from .files import Json
from .layers import SplineConv1d, SplineConv2d, SplineConv3d, SplineLayer, SplineLinear
from .path import Path
from .projection import External, FoldedProjection, Projection
from .spec import SplineSpec
from .storage import STORAGES, storage_of, store
from .tracing import plain_name, remove_path

SPLINES: dict[type[nn.Module], type[SplineLayer]] = {
    nn.Linear: SplineLinear,
    nn.Conv1d: SplineConv1d,
    nn.Conv2d: SplineConv2d,
    nn.Conv3d: SplineConv3d,
}
# what a spline layer has and torch's own layer has not
SPLINES_OWN = (
    *("knots", "projection", "matching", "path", "begins"),
    *("spec", "filters", "fan_in", "splines", "dims", "input_size"),
)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def spline_class(module: nn.Module) -> type[SplineLayer]:
    """The class that a torch layer has as a spline layer."""
    torch_type = next((t for t in SPLINES if isinstance(module, t)), None)
    if torch_type is None:
        raise ValueError(f"{type(module).__name__} cannot be a spline layer")
    if type(module) is torch_type:
        return SPLINES[torch_type]
    # a subclass that computes what its parent computes keeps its other methods
    return type(f"Spline{type(module).__name__}", (SPLINES[torch_type], type(module)), {"torch_layer": type(module)})


# From a network to a record


def describe(net: nn.Module) -> Json:
    """Everything that ``rebuild`` must know beside the weights, in words and numbers."""
    modules = {plain_name(name): module for name, module in net.named_modules()}
    folded = [name for name, module in modules.items() if type(module) is nn.Identity]
    return {
        "layers": {n: _describe_layer(m) for n, m in modules.items() if isinstance(m, SplineLayer)},
        "paths": list(_describe_paths(modules)),
        "folded": folded,  # batch norms that are part of the layers before them, and others that always were nothing
        "biased": [n for n, m in modules.items() if folded and _has_bias(m)],
        "conditions": {n: _describe_conditions(m) for n, m in modules.items() if isinstance(m, Conditioned)},
    }


def _has_bias(module: nn.Module) -> bool:
    return isinstance(module, tuple(SPLINES)) and module._parameters.get("bias") is not None


def _describe_layer(layer: SplineLayer) -> Json:
    projection, size = layer.projection, layer.input_size
    return {
        "spec": str(layer.spec),
        "input_size": None if size is None else list(size),
        "first": layer.begins,
        "matching": sorted(layer.matching),
        "alone": layer.base is None,
        "balanced": [layer.balanced, getattr(projection, "balanced", True)],
        "opened": layer.spec.closed and not layer.curves.closed,
        "storage": storage_of(layer, "knots"),
        "hierarchical": projection.hierarchical,
        "deployed": isinstance(projection, FoldedProjection),
        "projection_storage": storage_of(projection, "weight"),
        "conditions": list(projection.conditions) if isinstance(projection, External) else [],
    }


def _describe_paths(modules: dict[str, nn.Module]) -> Iterator[Json]:
    """Which layers share a path, and which modules begin and end its runs."""
    layers = {name: m for name, m in modules.items() if isinstance(m, SplineLayer)}
    for path in dict.fromkeys(layer.path for layer in layers.values()):
        roots = [name for name, m in modules.items() if any(h == path.enter for h in m._forward_pre_hooks.values())]
        yield {"layers": [name for name, layer in layers.items() if layer.path is path], "roots": roots}


def _describe_conditions(net: Conditioned) -> Json:
    return {"conditions": {name: asdict(c) for name, c in net.conditions.items()}, "sizes": net.conditions.sizes}


# From a record to a network


@torch.no_grad()
def rebuild(net: nn.Module, record: Json) -> nn.Module:
    """Give a network, plain or not, the structure of the one that was described; its weights may be anything then."""
    for name in sorted(record["conditions"], key=len):
        net = _put(net, name, _rebuild_conditions(_find(net, name), record["conditions"][name]))
    kinds: dict[nn.Module, type[nn.Module]] = {}
    for module in _splines(net):
        kinds[module] = parametrize.type_before_parametrizations(module)
        become_plain(module, module.knots.new_empty(module.filters, *module.weight_shape))
    remove_path(net)
    for name in record["folded"]:
        if isinstance(_find(net, name), BATCH_NORMS):
            net = _put(net, name, nn.Identity())
    for name in record["biased"]:
        layer: Any = _find(net, name)
        if layer.bias is None:
            layer.bias = nn.Parameter(layer.weight.new_zeros(len(layer.weight)))
    for name, described in record["layers"].items():
        _rebuild_layer(found := _find(net, name), kinds.get(found), name, described)
    for path in record["paths"]:
        _rebuild_path(net, **path)
    return net


def _splines(net: nn.Module) -> list[SplineLayer]:
    return [module for module in net.modules() if isinstance(module, SplineLayer)]


def _find(net: nn.Module, name: str) -> nn.Module:
    try:
        return net.get_submodule(name)
    except AttributeError:
        raise ValueError(f"{type(net).__name__} has no layer {name!r}") from None


def _put(net: nn.Module, name: str, module: nn.Module) -> nn.Module:
    """Put a module in the place of another, or of the whole network."""
    if not name:
        return module
    net.set_submodule(name, module)
    return net


def _rebuild_conditions(net: nn.Module, described: Json) -> Conditioned:
    conditions = {
        name: Condition(**{k: _bound(v) for k, v in c.items()}) for name, c in described["conditions"].items()
    }
    return Conditioned(net, Conditions(conditions, described["sizes"]))


def _bound(value: object) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _rebuild_layer(module: nn.Module, kind: type[nn.Module] | None, name: str, described: Json) -> None:
    module.__class__ = kind or spline_class(module)
    assert isinstance(module, SplineLayer)
    size = described["input_size"]
    try:
        module.become_spline(SplineSpec.parse(described["spec"]), None if size is None else tuple(size))
    except ValueError as error:
        raise ValueError(f"layer {name!r}: {error}") from None
    module.begins = described["first"]
    for inherited in described["matching"]:
        module.matching[inherited] = nn.Parameter(module.knots.new_zeros(module.coordinates, int(inherited)))
    projection = module.projection
    module.balanced, responses_balanced = described["balanced"]
    if isinstance(projection, Projection):
        projection.balanced = responses_balanced
    if projection.hierarchical and not described["hierarchical"]:
        projection.forget_parent()
    if described["deployed"] and isinstance(projection, Projection):
        module.projection = FoldedProjection(projection)
    if isinstance(projection, External):
        projection.conditions = tuple(described["conditions"])
    if described["opened"]:
        module.stand_alone(module.curves.opened().control_points())
    elif described["alone"] and module.base is not None:
        module.stand_alone(module.curves.control_points())
    for owner, parameter, storage in (
        (module, "knots", "storage"),
        (module.projection, "weight", "projection_storage"),
    ):
        if (form := STORAGES[described[storage]]) is not None:
            store(owner, parameter, form)


def _rebuild_path(net: nn.Module, layers: Iterable[str], roots: Iterable[str]) -> None:
    path = Path()
    for name in layers:
        layer: Any = _find(net, name)
        layer.path = path
    for name in roots:
        path.follow(_find(net, name))


# Networks whose own save_pretrained writes their configuration (those of the transformers package) carry the record in
# it, in the place where such configurations say how layers differ from those of the plain network

METHOD = "splinenets (its layers are splines: import splinenets.hub before you load it, or use sn.save)"


class Mark:
    """The record of a network, made when somebody writes it."""

    def __init__(self, net: nn.Module) -> None:
        self.net = weakref.ref(net)

    def to_dict(self) -> Json:
        """What stands in the configuration's file."""
        net = self.net()
        return {"quant_method": METHOD, "structure": None if net is None else describe(net)}

    def __deepcopy__(self, memo: dict[int, Any]) -> Mark:
        net: Any = self.net()
        return Mark(memo.get(id(net), net))


def mark(net: nn.Module) -> None:
    """Let the configuration that a network writes beside its weights tell of its splines, or that none are left."""
    config: Any = getattr(net, "config", None)
    if not hasattr(net, "save_pretrained") or not hasattr(config, "to_dict"):
        return
    if _splines(net):
        config.quantization_config = Mark(net)
    elif isinstance(getattr(config, "quantization_config", None), Mark):
        del config.quantization_config


def become_plain(layer: SplineLayer, weight: Tensor) -> None:
    """Turn a spline layer into torch's own layer with this weight."""
    stored_apart = parametrize.is_parametrized(layer, "knots")
    layer.__class__ = layer.torch_layer  # type: ignore[assignment]
    for name in ("parametrizations" if n == "knots" and stored_apart else n for n in SPLINES_OWN):
        delattr(layer, name)
    layer.weight = nn.Parameter(weight)
    layer._parameters["bias"] = layer._parameters.pop("bias")  # behind the weight, as optimizers count
