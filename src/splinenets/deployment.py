"""Smaller networks with the same answers: everything folded for inference, and splines as points."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from .conversion import copy_network
from .folding import fold_batchnorm
from .layers import SplineLayer
from .projection import FoldedProjection, Projection
from .tracing import remove_path

# what a spline layer has and torch's own layer has not
SPLINES_OWN = (
    *("knots", "projection", "matching", "path", "begins"),
    *("spec", "filters", "fan_in", "splines", "dims", "input_size"),
)
Net = TypeVar("Net", bound=nn.Module)


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
        return stored[0].float()

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


@torch.inference_mode(False)
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


@torch.inference_mode(False)
def collapse(net: Net, at: float | Mapping[str, Tensor] = 0.5, tolerance: float = 1e-3) -> Net:
    """A copy without splines: every layer keeps the weights of one position.

    at         a position for all layers, or positions as ``sn.trace`` gives them: a layer collapses to their mean, if
               they are constant
    tolerance  by how much positions may differ from sample to sample and still be called constant
    """
    net = copy_network(net)
    layers = {name: m for name, m in net.named_modules() if isinstance(m, SplineLayer)}
    if not layers:
        raise ValueError(f"{type(net).__name__} has no spline layers to collapse")
    chosen = {name: _position(layer, name, at, tolerance) for name, layer in layers.items()}
    for name, layer in layers.items():
        _flatten(layer, chosen[name])
    remove_path(net)
    return net


def _position(layer: SplineLayer, name: str, at: float | Mapping[str, Tensor], tolerance: float) -> Tensor:
    if not isinstance(at, Mapping):
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
