"""The smallest network with the same answers: everything folded that inference does not need."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from .fold import fold_batchnorm
from .layers import SplineLayer
from .projection import LocalProposal, Projection, bounded, mix_scores
from .storage import STORAGES, Storage

Net = TypeVar("Net", bound=nn.Module)


class FoldedProjection(nn.Module):
    """A projection for inference: base and standardisation are part of its weights.

    responses = weight . x + shift            where decision parameters lie on a spline, mixed at the parent
    proposal  = sigmoid(slope * responses)    where they were standardised, softly bounded at 1 before that
    """

    weight: Tensor  # (C, M), or the decision knots (K, C, M)
    shift: Tensor  # (C,)

    def __init__(self, projection: Projection) -> None:
        super().__init__()
        spec = projection.spec
        parameters = [p.detach() for p in (projection.knots, projection.weight) if p is not None]
        weight = parameters[0] if len(parameters) == 1 else parameters[0] + parameters[1]  # the basis sums to 1
        scale, mean = torch.ones_like(weight[..., 0]), weight.new_zeros(projection.coordinates)
        self.degree, self.bounded, self.slope = spec.spline_degree, spec.standardize, spec.slope
        if spec.standardize:
            scale = torch.rsqrt(projection.running_var + projection.eps) / projection.bound
            mean, self.slope = projection.running_mean, spec.slope * projection.bound
        self.weight = nn.Parameter(weight * scale.unsqueeze(-1), requires_grad=False)
        self.shift = nn.Parameter(-mean * scale if spec.standardize else mean, requires_grad=False)

    @property
    def hierarchical(self) -> bool:
        """Whether the decision parameters lie on a spline."""
        return self.weight.dim() == 3

    def forward(self, features: Tensor, parent: Tensor | None, update: bool = True) -> tuple[Tensor, LocalProposal]:
        """The same as ``Projection``: (N, ...), (N, C) or None -> (N, C)."""
        weight = self.weight
        responses = F.linear(features.flatten(1), weight.flatten(0, -2))
        if weight.dim() == 3:
            scores = responses.unflatten(1, (-1, weight.shape[1]))
            if parent is None:  # nobody came before: the middle of the decision spline
                parent = scores.new_full((scores.shape[0], weight.shape[1]), 0.5)
            responses = mix_scores(scores, parent, self.degree)
        responses = responses + self.shift
        proposal = torch.sigmoid(self.slope * (bounded(responses, 1.0) if self.bounded else responses))
        return proposal, lambda: proposal


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
        if not isinstance(layer.projection, FoldedProjection):
            layer.projection = FoldedProjection(layer.projection)
        if layer.weight is not None:
            key = (id(layer.knots), id(layer.weight))
            layer.knots = folded.setdefault(key, nn.Parameter(layer.curves.control_points()))
            layer.weight = None
        if (kind := STORAGES[knots]) is not None:
            _store(layer, "knots", kind)
            _store(layer.projection, "weight", kind)
    return net.requires_grad_(False)


def _store(module: nn.Module, name: str, kind: type[Storage]) -> None:
    getattr(module, name).requires_grad_(False)
    if not parametrize.is_parametrized(module, name):
        parametrize.register_parametrization(module, name, kind(), unsafe=True)
