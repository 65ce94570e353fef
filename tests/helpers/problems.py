"""Slow and obvious versions of everything: one sample, one spline and one knot at a time."""

from __future__ import annotations

from collections.abc import Callable
from math import comb, factorial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import splinenets as sn
from splinenets.path import Path, Run

# Small layers of every kind: name -> (how to make one from spec keywords, shape of one sample).
LAYERS: dict[str, tuple[Callable[..., sn.SplineLayer], tuple[int, ...]]] = {
    "linear": (lambda **k: sn.SplineLinear(5, 4, **k), (5,)),
    "linear-rows": (lambda **k: sn.SplineLinear(3, 4, bias=False, **k), (2, 3)),
    "conv1d": (lambda **k: sn.SplineConv1d(3, 4, 3, padding="same", dilation=2, **k), (3, 6)),
    "conv2d": (lambda **k: sn.SplineConv2d(3, 4, (3, 2), stride=(2, 1), padding=(1, 0), **k), (3, 5, 4)),
    "conv2d-grouped": (lambda **k: sn.SplineConv2d(4, 4, 3, groups=2, padding=1, bias=False, **k), (4, 4, 4)),
    "conv2d-depthwise": (lambda **k: sn.SplineConv2d(2, 4, 3, groups=2, padding=2, padding_mode="reflect", **k), (2, 4, 4)),
    "conv3d": (lambda **k: sn.SplineConv3d(2, 4, 2, stride=2, **k), (2, 3, 4, 2)),
}  # fmt: skip


def make(name: str, spec: str, **kwargs: object) -> tuple[sn.SplineLayer, tuple[int, ...]]:
    """A layer of ``LAYERS`` in float64 with knots well apart and running statistics of its own, and a sample's shape."""
    build, shape = LAYERS[name]
    inner = shape[:-1] if name.startswith("linear") else shape[1:]
    layer = build(spec=spec, input_size=inner, **kwargs).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    if layer.spec.standardize and not layer.external:
        nn.init.uniform_(layer.projection.running_mean, -0.5, 0.5)
        nn.init.uniform_(layer.projection.running_var, 0.5, 2)
    return layer, shape


def basis(position: Tensor, knots: int, degree: int, closed: bool = False) -> Tensor:
    """B_k(position) as differences of truncated powers, degree >= 1: () -> (K,)."""
    if closed:  # functions that leave at one end come in again at the other
        longer = basis(position, knots + degree, degree)
        return longer[:knots] + F.pad(longer[knots:], (0, knots - degree))
    u = position * (knots - degree) + degree - torch.arange(knots)  # how far into the k-th function
    terms = ((-1) ** i * comb(degree + 1, i) * (u - i).clamp(min=0) ** degree for i in range(degree + 2))
    return sum(terms) / factorial(degree)


def response(layer: sn.SplineLayer, x: Tensor, theta: Tensor) -> Tensor:
    """One decision vector's response to one sample, the way the paper words it."""
    if layer.spec.projection == "dot":
        return (x.flatten() * theta).sum()
    if isinstance(layer, sn.SplineLinear):
        return (x.reshape(-1, layer.in_features) * theta).sum(1).mean()
    one_by_one = theta.view(1, -1, *[1] * (x.dim() - 1))
    convolve = {2: F.conv1d, 3: F.conv2d, 4: F.conv3d}[x.dim()]
    return convolve(x.unsqueeze(0), one_by_one).mean()


def proposals(layer: sn.SplineLayer, x: Tensor, parent: Tensor | None) -> Tensor:
    """Raw responses of one sample on every coordinate, theta built from its decision spline: (C,)."""
    spec, projection = layer.spec, layer.projection
    out = []
    for c in range(layer.coordinates * (2 if spec.closed else 1)):
        theta = 0
        if projection.weight is not None:
            theta = theta + projection.weight[c]
        if projection.knots is not None:
            at = parent[c % layer.coordinates] if parent is not None else torch.tensor(0.5, dtype=x.dtype)
            values = basis(at, spec.knots, spec.spline_degree, spec.closed)
            theta = theta + sum(values[k] * projection.offsets[k, c] for k in range(spec.knots))
        out.append(response(layer, x, theta))
    return torch.stack(out)


def reference(
    layer: sn.SplineLayer, x: Tensor, parent: Tensor | None = None, diffusion: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Outputs and positions of a layer, one sample after the other."""
    spec = layer.spec
    raw = torch.stack([proposals(layer, x[n], None if parent is None else parent[n]) for n in range(len(x))])
    if spec.standardize:
        mean, variance = layer.projection.running_mean, layer.projection.running_var
        if layer.training and len(x) > 1:
            mean, variance = raw.mean(0), raw.var(0, correction=0)
        raw = (raw - mean) / (variance + layer.projection.eps).sqrt()
    positions = direction(*raw.chunk(2, 1)) if spec.closed else squash(layer, raw)
    if parent is not None and not spec.closed:
        positions = (1 - diffusion) * parent + diffusion * positions
    elif parent is not None and diffusion < 1:
        step = positions - parent
        positions = (parent + diffusion * (step - step.detach().round())).remainder(1)
    outputs = [_sample(layer, x[n], positions[n]) for n in range(len(x))]
    return torch.stack(outputs), positions


def squash(layer: sn.SplineLayer, raw: Tensor) -> Tensor:
    """Positions on an open curve."""
    if layer.spec.standardize:
        raw = raw / (1 + (raw / layer.projection.bound) ** 2).sqrt()
    return 1 / (1 + torch.exp(-layer.spec.slope * raw))


def direction(x: Tensor, y: Tensor) -> Tensor:
    """Positions on a closed curve; their gradient fades near the middle of the plane."""
    turns = torch.atan2(y, x) / (2 * torch.pi)
    square = (x**2 + y**2).detach()
    return (turns.detach() + (turns - turns.detach()) * square / (square + 0.1)).remainder(1)


def _sample(layer: sn.SplineLayer, x: Tensor, position: Tensor) -> Tensor:
    spec, points = layer.spec, layer.control_points()  # (dims * K, filters, *filter)
    share = points.shape[1] // layer.splines
    stacked = []
    for spline in range(layer.splines):
        weight = 0
        for dim in range(spec.dims):
            values = basis(position[spline * spec.dims + dim], spec.knots, spec.spline_degree, spec.closed)
            for k in range(spec.knots):
                knot = points[dim * spec.knots + k, spline * share : (spline + 1) * share]
                weight = weight + values[k] * knot / spec.dims
        stacked.append(weight)
    return plain(layer, x.unsqueeze(0), torch.cat(stacked)).squeeze(0)


def plain(layer: sn.SplineLayer, x: Tensor, weight: Tensor) -> Tensor:
    """What torch's own layer does with one weight."""
    if isinstance(layer, sn.SplineLinear):
        return F.linear(x, weight, layer.bias)
    return layer.torch_layer._conv_forward(layer, x, weight, layer.bias)


def with_parent(layer: sn.SplineLayer, parent: Tensor | None, level: int = 2) -> sn.SplineLayer:
    """Put a layer on a path where these positions came before."""
    layer.path = Path()
    if parent is not None:
        state = layer.path.of_thread.state
        state.run = Run(None)
        state.run.position, state.run.level = parent, level - 1
    return layer
