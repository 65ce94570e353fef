"""Histograms of positions: plain ones, soft bins and kernel densities with gradients, and their entropies."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Protocol

import torch
from torch import Tensor

NOTHING = 2.0**-53  # what float64 cannot add to 1


class Context(Protocol):
    """What autograd hands from a forward to its backward; ``rows`` is our own."""

    saved_tensors: tuple[Tensor, ...]
    rows: int

    def save_for_backward(self, *tensors: Tensor) -> None:
        """Keep tensors for the backward."""


def soft_bins(position: Tensor, bins: int, bin_slope: float) -> Tensor:
    """How far each bin counts a position as its own: (...) -> (..., bins).

    U = sigmoid((1 - z^2) ln v) with z = 2 (position - centre) / width and v the slope: nearly 1 inside the bin, 1/2 at
    its edges, nearly 0 outside. As printed in the paper, 1 - 1 / (1 + v^(z^2)), U is 1/2 at the centre and 1 outside,
    the opposite of its description.
    """
    centre = (torch.arange(bins, device=position.device, dtype=position.dtype) + 0.5) / bins
    z = 2 * (position.unsqueeze(-1) - centre) * bins
    return torch.sigmoid((1 - z.square()) * math.log(bin_slope))


def bins_in_reach(bins: int, bin_slope: float) -> int:
    """How many bins to either side can see a position: farther ones count less of it than float64 can add to 1."""
    farthest_z = math.sqrt(1 - math.log(NOTHING) / math.log(bin_slope))
    return min(math.ceil((farthest_z - 1) / 2), bins - 1)


def soft_histogram(
    position: Tensor, labels: Tensor, classes: int, bins: int, bin_slope: float, weight: Tensor | None = None
) -> Tensor:
    """``soft_bins`` summed over the samples of each class: (N, C), (N,) -> (classes, C, bins).

    Only the few bins within reach are computed: three of 50 at slope 100. A sample counts once, or its weight (N,).
    """
    reach = bins_in_reach(bins, bin_slope)
    home = _home(position, bins)
    shifts = torch.arange(-reach, reach + 1, device=position.device).view(-1, 1, 1)
    z = (2 * bins * position - (2 * home + 1)) - 2 * shifts
    values = _weighed(torch.sigmoid((1 - z.square()) * math.log(bin_slope)), weight)
    # as many cells beyond either end take what no bin counts
    cells = sum_by_class(values, home.long(), labels, classes, bins + 2 * reach)
    return cells[..., reach : reach + bins]


def kernel_histogram(
    position: Tensor, labels: Tensor, classes: int, bins: int, bandwidth: float, weight: Tensor | None = None
) -> Tensor:
    """A kernel density at the bins' centres, summed over the samples of each class: (N, C), (N,) -> (classes, C, bins).

    Every sample spreads 1 over the bins, as a Gaussian that is reflected at 0 and 1. Quadratic B-splines share it out
    between the three nearest centres, of which one lies beyond either end; then one matrix smooths all centres, so the
    cost does not grow with the bandwidth. These B-splines have a deviation of half a bin; the matrix adds the rest.
    """
    home = _home(position, bins)
    shares = _weighed(_Shares.apply(bins * position - home), weight)  # type: ignore[no-untyped-call]
    return sum_by_class(shares, home.long(), labels, classes, bins + 2) @ _smoothing(bins, bandwidth).to(shares)


class _Shares(torch.autograd.Function):
    """The quadratic B-splines of a bin that see t, its place from 0 to 1 in it: (...) -> (3, ...)."""

    @staticmethod
    def forward(ctx: Context, t: Tensor) -> Tensor:
        ctx.save_for_backward(t)
        shares = t.new_empty(3, *t.shape)
        left, middle, right = shares
        torch.mul(t, t, out=right).mul_(0.5)
        torch.sub(right, t, out=left).add_(0.5)
        torch.sub(1, left, out=middle).sub_(right)
        return shares

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> Tensor:
        (t,) = ctx.saved_tensors
        left, middle, right = grad
        return t * (left - 2 * middle + right) + (middle - left)


def _weighed(values: Tensor, weight: Tensor | None) -> Tensor:
    """(A, N, C), (N,) -> (A, N, C)."""
    return values if weight is None else values * weight.unsqueeze(1)


def _home(position: Tensor, bins: int) -> Tensor:
    """The number of the bin a position lies in, a float without a gradient; 1 lies in the last."""
    return (position.detach() * bins).floor().clamp(0, bins - 1)


def sum_by_class(values: Tensor, first: Tensor, labels: Tensor, classes: int, cells: int) -> Tensor:
    """Add values to the cells first, first + 1, ..: (A, N, C), (N, C), (N,) -> (classes, C, cells)."""
    coordinates = first.shape[1]
    row = labels.unsqueeze(1) * coordinates + torch.arange(coordinates, device=labels.device)
    index = (row * cells + first).flatten()
    total: Tensor = _Scatter.apply(values.flatten(1), index, classes * coordinates * cells)  # type: ignore[no-untyped-call]
    return total.view(classes, coordinates, cells)


class _Scatter(torch.autograd.Function):
    """Row a of the values goes to the cells index + a: (A, M), (M,) -> (cells,). No index is written down A times."""

    @staticmethod
    def forward(ctx: Context, values: Tensor, index: Tensor, cells: int) -> Tensor:
        ctx.save_for_backward(index)
        ctx.rows = len(values)
        total = values.new_zeros(cells)
        for shift, row in enumerate(values):
            total[shift:].index_add_(0, index, row)
        return total

    @staticmethod
    def backward(ctx: Context, grad: Tensor) -> tuple[Tensor, None, None]:
        (index,) = ctx.saved_tensors
        return torch.stack([grad[shift:].index_select(0, index) for shift in range(ctx.rows)]), None, None


@lru_cache
@torch.inference_mode(False)  # who calls first may be without gradients, who comes later with
def _smoothing(bins: int, bandwidth: float) -> Tensor:
    """(bins + 2, bins): how much of what is at each centre, the first and last lying outside, moves to each bin."""
    node = (torch.arange(bins + 2, dtype=torch.float64).unsqueeze(1) - 0.5) / bins
    centre = (torch.arange(bins, dtype=torch.float64) + 0.5) / bins
    variance = bandwidth**2 - (0.5 / bins) ** 2
    mirrors = range(-math.ceil(4 * bandwidth), math.ceil(4 * bandwidth) + 1)  # between two mirrors, images repeat
    distances = torch.stack([centre - 2 * i - side * node for i in mirrors for side in (1, -1)])
    density = torch.exp(-distances.square() / (2 * variance)).sum(0)
    return density / density.sum(1, keepdim=True)


def histogram(position: Tensor, bins: int = 50) -> Tensor:
    """How many positions lie in each bin, all splines together: (N, ...) -> (bins,)."""
    return torch.bincount((position.flatten() * bins).long().clamp(0, bins - 1), minlength=bins)


def count_by_class(position: Tensor, group: Tensor, groups: int, bins: int) -> Tensor:
    """A plain histogram for each group: (N, C), (N,) -> (groups, C, bins)."""
    cell = (position * bins).long().clamp(max=bins - 1)
    return sum_by_class(torch.ones_like(position).unsqueeze(0), cell, group, groups, bins)


def entropy(histogram: Tensor) -> Tensor:
    """H = -sum_b p_b log p_b in nats, of histograms to be normalised: (..., bins) -> (...); 0 for an empty one."""
    return _Entropy.apply(histogram)  # type: ignore[no-untyped-call]


class _Entropy(torch.autograd.Function):
    """With dH / dh_b = -(log p_b + H) / sum(h): a few passes over the histogram, where autograd makes a dozen."""

    @staticmethod
    def forward(ctx: Context, histogram: Tensor) -> Tensor:
        tiny = torch.finfo(histogram.dtype).tiny
        total = histogram.sum(-1).clamp(min=tiny)
        p = histogram / total.unsqueeze(-1)
        log_p = p.clamp(min=tiny).log_()  # finite for an empty bin, which adds 0
        result = -p.mul_(log_p).sum(-1).clamp(min=-math.log(histogram.shape[-1]))
        ctx.save_for_backward(log_p, result, total)
        return result

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Context, grad: Tensor) -> Tensor:
        log_p, result, total = ctx.saved_tensors
        return (log_p + result.unsqueeze(-1)).mul_(-(grad / total).unsqueeze(-1))


def conditional_entropy(histogram: Tensor, counts: Tensor) -> Tensor:
    """H(position | label) = sum_c P(c) H(position | c): (classes, C, bins), (classes,) -> (C,)."""
    share = counts / counts.sum().clamp(min=1)
    return share @ entropy(histogram)
