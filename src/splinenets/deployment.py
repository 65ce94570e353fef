"""Smaller networks with the same answers: everything folded for inference, and splines as points."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, overload

import torch
from torch import Tensor, nn

from .conditions import Conditioned, Given
from .conversion import copy_network
from .folding import fold_batchnorm
from .layers import SplineLayer
from .path import around
from .projection import External, FoldedProjection, Projection
from .storage import STORAGES, store
from .structure import become_plain, mark
from .tracing import remove_path

Net = TypeVar("Net", bound=nn.Module)


@torch.inference_mode(False)
@torch.no_grad()
def deploy(net: Net, example: object = None, *, knots: str = "float32") -> Net:
    """A copy for inference: batch norms, the knots' base and the projections' standardisation are folded.

    knots  how knots and decision parameters are stored: "float32", "bf16" or "int8"

    Examples:
        >>> net = sn.convert(sn.models.lenet(4), "D(5)-C-R3", spread=0.1).eval()
        >>> fast, images = sn.deploy(net), torch.randn(4, 1, 28, 28)
        >>> torch.allclose(fast(images), net(images), atol=1e-5)
        True
    """
    if knots not in STORAGES:
        raise ValueError(f"unknown storage of knots {knots!r}, choose from {', '.join(STORAGES)}")
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
            store(layer, "knots", kind)
            if isinstance(layer.projection, FoldedProjection):
                store(layer.projection, "weight", kind)
    return net.requires_grad_(False)


@overload
def collapse(net: Conditioned, at: Given | Mapping[str, Any] = 0.5, tolerance: float = 1e-3) -> nn.Module: ...


@overload
def collapse(net: Net, at: float | Mapping[str, Tensor] = 0.5, tolerance: float = 1e-3) -> Net: ...


@torch.inference_mode(False)
def collapse(net: nn.Module, at: Given | Mapping[str, Any] = 0.5, tolerance: float = 1e-3) -> nn.Module:
    """A copy without splines: every layer keeps the weights of one position.

    at         a position for all layers, or positions as ``sn.trace`` gives them: a layer collapses to their mean, if
               they are constant. For a network of ``sn.condition`` a condition, as it is called with: layers that are
               told keep the weights of this one value, others stay as they are, and the copy takes no condition
    tolerance  how far positions may differ from sample to sample and still count as constant

    Examples:
        >>> net = sn.convert(sn.models.lenet(4), "D(5)-C-R3")
        >>> type(sn.collapse(net, 0.5).conv1).__name__
        'Conv2d'
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
    mark(net)
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
    given = torch.as_tensor(at[name]).detach()
    positions = given.flatten(min(1, given.dim() - 1)).to(layer.knots.dtype)
    if positions.dim() != 2 or not len(positions) or positions.shape[1] != layer.coordinates:
        raise ValueError(
            f"positions of layer {name!r} have the shape (N, {layer.coordinates}), got {tuple(given.shape)}"
        )
    if not ((positions >= 0) & (positions <= 1)).all():
        raise ValueError(
            f"positions of layer {name!r} lie in [0, 1], got {positions.min():.3g} to {positions.max():.3g}"
        )
    if layer.curves.closed:  # 0 and 1 are one place, so look from the first
        positions = positions[:1] + around(positions - positions[:1] + 0.5) - 0.5
    moves = (positions.amax(0) - positions.amin(0)).max().item()
    if moves > tolerance:
        raise ValueError(f"positions of layer {name!r} are not constant: they differ by up to {moves:.3g}")
    middle = positions.mean(0, keepdim=True)
    return around(middle) if layer.curves.closed else middle


@torch.no_grad()
def _flatten(layer: SplineLayer, position: Tensor) -> None:
    become_plain(layer, layer.weights_at(position).squeeze(0).clone())
