"""Features -> proposed position, with plain decision parameters or parameters that lie on a decision spline."""

from __future__ import annotations

from collections.abc import Sequence
from math import tau
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from .basis import bspline_basis
from .collectives import sum_over_ranks
from .operators import Decision, balanced, decide, transformed
from .path import around
from .spec import SplineSpec

UNNAMED = "condition"  # the name of a condition that has no other


def in_one_order(x: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
    """Features in a row, and decision parameters in the same order: (N, ...), (C, M) each -> (N, M), (C, M) each.

    Images whose channels come last in memory stay where they are, if there are fewer parameters to move.
    """
    if torch.compiler.is_compiling() or transformed() or x.dim() != 4 or len(x) <= sum(map(len, parameters)):
        return x.flatten(1), parameters
    if x.is_contiguous() or not x.is_contiguous(memory_format=torch.channels_last):
        return x.flatten(1), parameters
    moved = [p.unflatten(1, x.shape[1:]).permute(0, 2, 3, 1).flatten(1) for p in parameters]
    return x.permute(0, 2, 3, 1).flatten(1), moved


def mix_scores(scores: Tensor, parent: Tensor | None, degree: int, *, closed: bool = False) -> Tensor:
    """theta(parent) . x from the responses to all decision knots: (N, K, C), (N, C) -> (N, C).

    On closed splines a position has two responses: (N, K, 2 C), (N, C) -> (N, 2 C).

    Without a parent, nobody came before: the middle of the decision spline.

    sum_k B_k(parent) (knots_k . x) equals theta(parent) . x, so in a batch no theta is ever built: features meet all
    knots in one matmul, and only N x K x C numbers are mixed.
    """
    if parent is None:
        parent = scores.new_full((scores.shape[0], scores.shape[2]), 0.5)
    elif closed:
        parent = parent.repeat(1, 2)
    return (bspline_basis(parent, scores.shape[1], degree, closed=closed).mT * scores).sum(1)


def middle(knots: Tensor, degree: int, *, closed: bool = False) -> Tensor:
    """The decision parameters in the middle of their spline: (K, C, M) -> (C, M)."""
    return torch.tensordot(bspline_basis(knots.new_full((), 0.5), knots.shape[0], degree, closed=closed), knots, 1)


def moments(raw: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, variance and number of the finite values of each column, over all ranks: (N, C) -> (C,), (C,), (C,)."""
    finite = raw.isfinite()
    others = ~finite
    count = sum_over_ranks(finite.sum(0, dtype=raw.dtype))
    some = count.clamp(min=1)
    mean = sum_over_ranks(raw.masked_fill(others, 0).sum(0)) / some
    variance = sum_over_ranks((raw - mean).masked_fill(others, 0).square().sum(0)) / some
    return mean, variance, count


def bounded(z: Tensor, bound: float) -> Tensor:
    """Nearly z while that is small, never beyond +-bound, with a slope that fades slowly: (...,) -> (...,).

    An outlier through the sigmoid alone has no gradient left to come back with.
    """
    return z * torch.rsqrt(1 + (z / bound).square())


def direction(responses: Tensor, softness: float = 0.1) -> Tensor:
    """The direction of points in a plane, as positions on a closed curve: (N, 2 C) -> (N, C).

    Near the middle of the plane a direction changes fast, so its gradient fades there.
    """
    x, y = responses.unflatten(1, (2, -1)).unbind(1)
    radius = (x.square() + y.square()).detach()
    nowhere = radius == 0
    turns = torch.atan2(torch.where(nowhere, 0, y), torch.where(nowhere, 1, x)) / tau
    share = 1 - softness / (radius + softness)  # 1, and not inf / inf, where the square is infinite
    return around(torch.lerp(turns.detach(), turns, share))


class Proposal(NamedTuple):
    """Positions in [0, 1], (N, C); ``local`` has the same numbers with a gradient for the decision parameters alone."""

    position: Tensor
    local: Tensor | None


class Proposer(nn.Module):
    """What a layer asks for its positions: a ``Projection``, the form it has in a deployed network, or ``External``."""

    features: int  # M, how many numbers of a sample it reads
    coordinates: int  # C, how many positions it proposes

    @property
    def hierarchical(self) -> bool:
        """Whether the decision parameters lie on a spline, so that the parent's position is read."""
        raise TypeError(f"{type(self).__name__} is not a projection by itself")

    def forget_parent(self) -> None:
        """Become a plain projection, as the first level has no parent: keep the middle of the decision spline."""
        raise TypeError(f"{type(self).__name__} is not a projection by itself")

    def forward(self, features: Tensor, parent: Tensor | None, *, update: bool = True, local: bool = False) -> Proposal:
        """(N, M) or (N, ...) with M numbers a sample, and (N, C) or None -> (N, C).

        update  whether running statistics may change
        local   whether the proposal is wanted once more, for a regulariser
        """
        raise TypeError(f"{type(self).__name__} is not a projection by itself")

    def extra_repr(self) -> str:
        """Shown in the repr of a network."""
        return f"{self.features} -> {self.coordinates}{', on a spline' if self.hierarchical else ''}"


class Projection(Proposer):
    """The paper's D(x; theta): a linear map of the features, standardised, through a sigmoid.

    On closed curves it gives two numbers a position, a point in the plane, and the position is their direction.
    """

    running_mean: Tensor
    running_var: Tensor
    batches: Tensor

    momentum = 0.1
    eps = 1e-6
    bound = 2.7  # standard deviations; with the default slope positions stay between 0.01 and 0.99
    balanced = True  # offsets have balanced gradients; False: plain ones, as before version 0.2
    spread = 0.3  # how far decision knots start from their centre; at 1 positions of a deep network are chaotic

    def __init__(self, features: int, coordinates: int, spec: SplineSpec) -> None:
        """``features`` M, the length of theta; ``coordinates`` C, the number of positions to propose."""
        super().__init__()
        if features < 1 or coordinates < 1:
            raise ValueError(f"a spline needs a feature to decide by and a filter, got {features} and {coordinates}")
        self.features, self.coordinates, self.spec = features, coordinates, spec
        plain = spec.centered or not spec.hierarchical
        self.responses = responses = coordinates * (2 if spec.closed else 1)
        self.weight = nn.Parameter(torch.empty(responses, features)) if plain else None
        self.knots = nn.Parameter(torch.empty(spec.knots, responses, features)) if spec.hierarchical else None
        if spec.standardize:
            self.register_buffer("running_mean", torch.zeros(responses))
            self.register_buffer("running_var", torch.ones(responses))
            self.register_buffer("batches", torch.zeros((), dtype=torch.long))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start with responses about as large as the features, which depend on the parent only a little."""
        if self.weight is not None:
            nn.init.normal_(self.weight, std=self.features**-0.5)
        if self.knots is not None:
            nn.init.normal_(self.knots, std=(1 if self.weight is None else self.spread) * self.features**-0.5)

    @property
    def hierarchical(self) -> bool:
        """Whether the decision parameters lie on a spline."""
        return self.knots is not None

    @torch.no_grad()
    def forget_parent(self) -> None:
        """Keep the middle of the decision spline."""
        if self.knots is not None:
            weight = middle(self.knots, self.spec.spline_degree, closed=self.spec.closed)
            self.weight = nn.Parameter(weight if self.weight is None else self.weight + weight)
            self.knots = None

    def forward(self, features: Tensor, parent: Tensor | None, *, update: bool = True, local: bool = False) -> Proposal:
        """(N, M) or (N, ...), and (N, C) or None -> (N, C)."""
        learning = self.training and self.spec.standardize
        if features.shape[0] == 1 and not (learning or self.spec.closed):
            position = decide(features, parent, self.decision())
            if position is not None:
                return Proposal(position, position if local else None)
        features, parameters = in_one_order(
            features, [p.flatten(0, -2) for p in (self.weight, self.offsets) if p is not None]
        )
        responses = [F.linear(features, p) for p in parameters]
        position = self._propose(responses, parent, update)
        if not local:
            return Proposal(position, None)
        again = [_weight_only(r, features, p) for r, p in zip(responses, parameters, strict=True)]
        return Proposal(position, self._propose(again, None if parent is None else parent.detach(), update=False))

    @property
    def offsets(self) -> Tensor | None:
        """The decision knots, to learn by."""
        if self.knots is None or self.weight is None or not self.balanced:
            return self.knots
        return balanced(self.knots)

    def decision(self) -> Decision:
        """The same for the kernel."""
        spec = self.spec
        mean, variance = (self.running_mean, self.running_var) if spec.standardize else (None, None)
        return Decision(self.weight, self.knots, mean, variance, spec.spline_degree, self.eps, self.bound, spec.slope)

    def _propose(self, responses: list[Tensor], parent: Tensor | None, update: bool) -> Tensor:
        raw = responses[0]
        if self.knots is not None:
            scores = responses[-1].unflatten(1, (-1, self.responses))
            mixed = mix_scores(scores, parent, self.spec.spline_degree, closed=self.spec.closed)
            raw = mixed if self.weight is None else raw + mixed
        raw = raw.to(torch.promote_types(raw.dtype, torch.float32))
        if self.spec.standardize:
            raw = self._standardize(raw, update)
        if self.spec.closed:
            return direction(raw)
        return torch.sigmoid(self.spec.slope * (bounded(raw, self.bound) if self.spec.standardize else raw))

    def _standardize(self, raw: Tensor, update: bool) -> Tensor:
        mean, variance = self.running_mean.to(raw.dtype), self.running_var.to(raw.dtype)
        if self.training:
            # values that are not finite stay out, and a batch of one has no variance: then the running ones serve
            batch_mean, batch_variance, count = moments(raw)
            several = count > 1
            mean = torch.where(several, batch_mean, mean)
            variance = torch.where(several, batch_variance, variance)
            if update:
                self._remember(mean.detach(), variance.detach())
        return (raw - mean) * torch.rsqrt(variance + self.eps)

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        # the first batches count fully, so that the running statistics are right from the first step on
        self.batches.add_(1)
        share = self.batches.to(mean.dtype).reciprocal().clamp(min=self.momentum).to(self.running_mean.dtype)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(variance.to(self.running_var.dtype), share)


class FoldedProjection(Proposer):
    """A projection for inference: base and standardisation are part of its weights.

    responses = weight . x + shift            where decision parameters lie on a spline, mixed at the parent
    proposal  = sigmoid(slope * responses)    where they were standardised, softly bounded at 1 before that;
                                              on closed curves their direction
    """

    weight: Tensor  # (C, M), or the decision knots (K, C, M)
    shift: Tensor  # (C,)

    def __init__(self, projection: Projection) -> None:
        super().__init__()
        spec = projection.spec
        self.features, self.coordinates = projection.features, projection.coordinates
        parameters = [p.detach() for p in (projection.knots, projection.weight) if p is not None]
        weight = parameters[0] if len(parameters) == 1 else parameters[0] + parameters[1]  # the basis sums to 1
        scale, mean = torch.ones_like(weight[..., 0]), weight.new_zeros(projection.responses)
        self.degree, self.bounded, self.slope = spec.spline_degree, spec.standardize, spec.slope
        self.closed = spec.closed
        if spec.standardize:
            scale = torch.rsqrt(projection.running_var + projection.eps) / projection.bound
            mean, self.slope = projection.running_mean, spec.slope * projection.bound
        self.weight = nn.Parameter(weight * scale.unsqueeze(-1), requires_grad=False)
        self.shift = nn.Parameter(-mean * scale if spec.standardize else mean, requires_grad=False)

    @property
    def hierarchical(self) -> bool:
        """Whether the decision parameters lie on a spline."""
        return self.weight.dim() == 3

    @torch.no_grad()
    def forget_parent(self) -> None:
        """Keep the middle of the decision spline, in full precision."""
        if self.hierarchical:
            weight = middle(self.weight, self.degree, closed=self.closed)
            if parametrize.is_parametrized(self, "weight"):
                # not remove_parametrizations, which changes a class that copies of this network share
                self.__class__ = FoldedProjection
                del self.parametrizations
            self.weight = nn.Parameter(weight, requires_grad=False)

    def forward(self, features: Tensor, parent: Tensor | None, *, update: bool = True, local: bool = False) -> Proposal:
        """(N, M) or (N, ...), and (N, C) or None -> (N, C)."""
        weight = self.weight
        responses = F.linear(features.flatten(1), weight.flatten(0, -2))
        if weight.dim() == 3:
            scores = responses.unflatten(1, weight.shape[:2])
            responses = mix_scores(scores, parent, self.degree, closed=self.closed)
        responses = responses + self.shift
        if self.closed:
            position = direction(responses)
        else:
            position = torch.sigmoid(self.slope * (bounded(responses, 1.0) if self.bounded else responses))
        return Proposal(position, position if local else None)


class External(Proposer):
    """No projection: positions come from whoever calls the network.

    ``conditions`` are the names under which they do; several share out the dimensions of a surface.
    """

    hierarchical = False
    features = 0

    def __init__(self, coordinates: int) -> None:
        super().__init__()
        self.coordinates = coordinates
        self.conditions: tuple[str, ...] = (UNNAMED,)

    def forget_parent(self) -> None:
        """There was none."""

    def forward(self, features: Tensor, parent: Tensor | None, *, update: bool = True, local: bool = False) -> Proposal:
        """The positions that were given: (N, C), None -> (N, C)."""
        return Proposal(features, features.detach() if local else None)

    def extra_repr(self) -> str:
        """Shown in the repr of a network."""
        return f"from outside: {', '.join(self.conditions)}"


class _WeightOnly(torch.autograd.Function):
    """A linear map whose value is already known, with a gradient for its weight alone."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, features: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(features)
        ctx.dtype = weight.dtype
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, None, Tensor]:
        (features,) = ctx.saved_tensors
        weight_grad = grad.mT @ features.to(grad.dtype)
        return None, None, weight_grad.to(ctx.dtype)


def _weight_only(value: Tensor, features: Tensor, weight: Tensor) -> Tensor:
    if torch.compiler.is_compiling():  # which computes twice what is written twice only if it must
        return F.linear(features.detach(), weight)
    return _WeightOnly.apply(value.detach(), features.detach(), weight)  # type: ignore[no-untyped-call]
