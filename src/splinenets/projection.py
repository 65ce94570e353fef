"""Features -> proposed position, with plain decision parameters or parameters that lie on a decision spline."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import kernels
from .basis import bspline_basis
from .collectives import sum_over_ranks
from .spec import SplineSpec

LocalProposal: TypeAlias = Callable[[], Tensor]


def pooled_features(x: Tensor, channel_dim: int) -> Tensor:
    """The mean over everything but samples and channels: (N, C, ...) or (N, ..., C) -> (N, C).

    A 1x1 convolution followed by global averaging is a linear map of these: averaging commutes with it, so pool first.
    """
    others = [d for d in range(1, x.dim()) if d != channel_dim % x.dim()]
    return x.mean(others) if others else x


def pool_beside(x: Tensor) -> tuple[Tensor, Tensor]:
    """An image and its pooled features, for a projection beside a convolution of the same image.

    Backward the features' gradient is added to the image's where that is, and never written down at the image's size.
    """
    if not kernel_reads(x):
        return x, pooled_features(x, 1)
    if not torch.is_grad_enabled():
        return x, kernels.pool(x).to(x.dtype)
    return _Pool.apply(x)  # type: ignore[no-untyped-call]


def kernel_reads(x: Tensor) -> bool:
    """Whether the pooling kernels know such images."""
    return (
        not torch.compiler.is_compiling()
        and type(x) is Tensor
        and x.device.type == "cpu"
        and x.dim() == 4
        and x.is_contiguous(memory_format=torch.channels_last)
        and x.numel() > 0
        and kernels.has_kernel(x.dtype)
    )


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.shape = x.shape
        ctx.set_materialize_grads(False)
        return x.view_as(x), kernels.pool(x).to(x.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor | None, pooled_grad: Tensor | None) -> Tensor | None:
        if pooled_grad is None:
            return grad
        if grad is None or not kernel_reads(grad):
            each = (pooled_grad / prod(ctx.shape[2:]))[:, :, None, None]
            return each.expand(ctx.shape) if grad is None else grad + each
        # only the operation beside saw the image that was handed on, so nobody else holds its gradient
        kernels.spread(pooled_grad.float().contiguous(), grad)
        return grad


def in_one_order(x: Tensor, parameters: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Features in a row, and decision parameters in the same order: (N, ...), (C, M) each -> (N, M), (C, M) each.

    Images whose channels come last in memory stay where they are, if there are fewer parameters to move.
    """
    last = x.dim() == 4 and not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
    if not last or torch.compiler.is_compiling() or len(x) <= sum(map(len, parameters)):
        return x.flatten(1), parameters
    moved = [p.unflatten(1, x.shape[1:]).permute(0, 2, 3, 1).flatten(1) for p in parameters]
    return x.permute(0, 2, 3, 1).flatten(1), moved


def mix_scores(scores: Tensor, parent: Tensor, degree: int) -> Tensor:
    """theta(parent) . x from the responses to all decision knots: (N, K, C), (N, C) -> (N, C).

    sum_k B_k(parent) (knots_k . x) equals theta(parent) . x, so in a batch no theta is ever built: features meet all
    knots in one matmul, and only N x K x C numbers are mixed.
    """
    basis = bspline_basis(parent, scores.shape[1], degree)
    return torch.einsum("nck,nkc->nc", basis.to(scores.dtype), scores)


def moments(raw: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, variance and number of the finite values of each column, over all ranks: (N, C) -> (C,), (C,), (C,)."""
    finite = raw.isfinite()
    count = sum_over_ranks(finite.sum(0).to(raw.dtype))
    some = count.clamp(min=1)
    mean = sum_over_ranks(torch.where(finite, raw, 0).sum(0)) / some
    variance = sum_over_ranks(torch.where(finite, raw - mean, 0).square().sum(0)) / some
    return mean, variance, count


def bounded(z: Tensor, bound: float) -> Tensor:
    """Nearly z while that is small, never beyond +-bound, with a slope that fades slowly: (...,) -> (...,).

    An outlier through the sigmoid alone has no gradient left to come back with.
    """
    return z * torch.rsqrt(1 + (z / bound).square())


class Projection(nn.Module):
    """The paper's D(x; theta): a linear map of the features, standardised, through a sigmoid."""

    running_mean: Tensor
    running_var: Tensor
    batches: Tensor

    momentum = 0.1
    eps = 1e-6
    bound = 2.7  # standard deviations; with the default slope positions stay between 0.01 and 0.99
    spread = 0.3  # how far decision knots start from their centre; at 1 positions of a deep network are chaotic

    def __init__(self, features: int, coordinates: int, spec: SplineSpec) -> None:
        """``features`` M, the length of theta; ``coordinates`` C, the number of positions to propose."""
        super().__init__()
        self.features, self.coordinates, self.spec = features, coordinates, spec
        plain = spec.centered or not spec.hierarchical
        self.weight = nn.Parameter(torch.empty(coordinates, features)) if plain else None
        self.knots = nn.Parameter(torch.empty(spec.knots, coordinates, features)) if spec.hierarchical else None
        if spec.standardize:
            self.register_buffer("running_mean", torch.zeros(coordinates))
            self.register_buffer("running_var", torch.ones(coordinates))
            self.register_buffer("batches", torch.zeros((), dtype=torch.long))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Start with responses about as large as the features, which depend on the parent only a little."""
        if self.weight is not None:
            nn.init.normal_(self.weight, std=self.features**-0.5)
        if self.knots is not None:
            nn.init.normal_(self.knots, std=(1 if self.weight is None else self.spread) * self.features**-0.5)

    @torch.no_grad()
    def forget_parent(self) -> None:
        """Become a plain projection, as the first level has no parent: keep the middle of the decision spline."""
        if self.knots is not None:
            middle = bspline_basis(self.knots.new_full((), 0.5), self.spec.knots, self.spec.spline_degree)
            weight = torch.tensordot(middle, self.knots, 1)
            self.weight = nn.Parameter(weight if self.weight is None else self.weight + weight)
            self.knots = None

    def forward(self, features: Tensor, parent: Tensor | None, update: bool = True) -> tuple[Tensor, LocalProposal]:
        """The proposal in [0, 1]: (N, M), (N, C) or None -> (N, C); and a way to have it again for a regulariser.

        Features may have more dimensions, with M numbers a sample.

        The second is a function without arguments that gives the same proposal with a gradient for the decision
        parameters alone. ``update=False`` leaves the running statistics as they are.
        """
        if self._nothing_to_learn(features):
            proposal = self._decide(features.flatten(1), parent)
            return proposal, lambda: proposal
        features, parameters = in_one_order(
            features, [p.flatten(0, -2) for p in (self.weight, self.knots) if p is not None]
        )
        responses = [F.linear(features, p) for p in parameters]

        def local() -> Tensor:
            again = [_weight_only(r, features, p) for r, p in zip(responses, parameters, strict=True)]
            return self._propose(again, None if parent is None else parent.detach(), update=False)

        return self._propose(responses, parent, update), local

    def _nothing_to_learn(self, features: Tensor) -> bool:
        """Whether the kernel may decide: one sample, and nobody wants gradients or statistics."""
        return (
            not torch.is_grad_enabled()
            and not torch.compiler.is_compiling()
            and not (self.training and self.spec.standardize)
            and features.shape[0] == 1
            and type(features) is Tensor
            and features.device.type == "cpu"
            and features.dtype == torch.float32
            and not torch.is_autocast_enabled("cpu")
            and all(p is None or p.dtype == torch.float32 for p in (self.weight, self.knots))
            and kernels.has_kernel(torch.float32)
        )

    def _decide(self, features: Tensor, parent: Tensor | None) -> Tensor:
        return kernels.propose(
            features.contiguous(),
            None if parent is None else parent.float().contiguous(),
            None if self.weight is None else self.weight.contiguous(),
            None if self.knots is None else self.knots.contiguous(),
            (self.running_mean, self.running_var) if self.spec.standardize else None,
            degree=self.spec.spline_degree,
            epsilon=self.eps,
            bound=self.bound,
            slope=self.spec.slope,
        )

    def _propose(self, responses: list[Tensor], parent: Tensor | None, update: bool) -> Tensor:
        raw = responses[0]
        if self.knots is not None:
            scores = responses[-1].unflatten(1, (-1, self.coordinates))
            if parent is None:  # nobody came before: the middle of the decision spline
                parent = scores.new_full((scores.shape[0], self.coordinates), 0.5)
            mixed = mix_scores(scores, parent, self.spec.spline_degree)
            raw = mixed if self.weight is None else raw + mixed
        raw = raw.to(torch.promote_types(raw.dtype, torch.float32))
        if self.spec.standardize:
            raw = bounded(self._standardize(raw, update), self.bound)
        return torch.sigmoid(self.spec.slope * raw)

    def _standardize(self, raw: Tensor, update: bool) -> Tensor:
        mean, variance = self.running_mean.to(raw.dtype), self.running_var.to(raw.dtype)
        if self.training:
            # values that are not finite stay out, and a batch of one has no variance: then the running ones serve
            batch_mean, batch_variance, count = moments(raw)
            mean = torch.where(count > 1, batch_mean, mean)
            variance = torch.where(count > 1, batch_variance, variance)
            if update:
                self._remember(mean.detach(), variance.detach())
        return (raw - mean) * torch.rsqrt(variance + self.eps)

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor) -> None:
        # the first batches count fully, so that the running statistics are right from the first step on
        self.batches.add_(1)
        share = (1 / self.batches.to(mean.dtype)).clamp(min=self.momentum).to(self.running_mean.dtype)
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(variance.to(self.running_var.dtype), share)

    def extra_repr(self) -> str:
        """Shown in the repr of a network."""
        on_spline = f", knots={self.knots.shape[0]}" if self.knots is not None else ""
        return f"{self.features} -> {self.coordinates}{on_spline}"


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
    return _WeightOnly.apply(value.detach(), features.detach(), weight)  # type: ignore[no-untyped-call]
