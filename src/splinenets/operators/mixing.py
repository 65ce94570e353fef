"""Knots and positions -> weights per sample; and the gradient by which knots learn."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..basis import bspline_basis, compact_basis, open_knots
from .serving import transformed


class Curves(NamedTuple):
    """The splines of a layer: S of them, each with ``dims`` positions, which share out the layer's filters evenly."""

    knots: Tensor  # (dims * K, filters, fan_in)
    base: Tensor | None  # (filters, ...), as torch's layer keeps it: what the knots are offsets from
    splines: int
    dims: int
    degree: int
    closed: bool = False  # positions 0 and 1 are one place

    @property
    def knots_per_dim(self) -> int:
        """K."""
        return self.knots.shape[0] // self.dims

    def control_points(self) -> Tensor:
        """The knots with their base: one small sum instead of one for every sample, because the basis sums to 1."""
        return self.knots if self.base is None else self.knots + self.base.flatten(1)

    def opened(self) -> Curves:
        """The same curves, none of them closed: what all strategies compute with."""
        if not self.closed:
            return self
        each = [open_knots(knots, self.degree) for knots in self.knots.unflatten(0, (self.dims, -1))]
        return self._replace(knots=torch.cat(each) if self.dims > 1 else each[0], closed=False)


def dense_basis(position: Tensor, curves: Curves) -> Tensor:
    """The weight of every knot, rows summing to 1: (N, S * dims) -> (N, S, dims * K).

    On a surface the bases of the dims stand side by side, each divided by dims: a mean of splines, not a sum, so that
    equal knots give their own value there too. The family of surfaces is the same.
    """
    basis = bspline_basis(position, curves.knots_per_dim, curves.degree)
    basis = basis.unflatten(1, (curves.splines, curves.dims)).flatten(2)
    return basis / curves.dims if curves.dims > 1 else basis


def mix_weights(position: Tensor, curves: Curves) -> Tensor:
    """Weights per sample from all knots: (N, S * dims) -> (N, filters, fan_in)."""
    curves = curves.opened()
    knots, splines = curves.control_points(), curves.splines
    basis = dense_basis(position, curves).to(knots.dtype)
    if splines == 1:
        mixed = basis.squeeze(1) @ knots.flatten(1)
    else:
        per_spline = knots.reshape(knots.shape[0], splines, -1).transpose(0, 1)
        mixed = (basis.transpose(0, 1) @ per_spline).transpose(0, 1)
    return mixed.reshape(-1, *knots.shape[1:])


def has_active_knots(position: Tensor, curves: Curves) -> bool:
    """Whether ``active_knots`` can say which: for one spline, on the CPU, outside of graphs and of torch.func."""
    return (
        curves.splines * curves.dims == 1
        and position.is_cpu
        and type(position) is Tensor
        and not (torch.compiler.is_compiling() or transformed())
    )


def active_knots(position: Tensor, curves: Curves) -> tuple[Tensor, Tensor]:
    """The degree + 1 knots that one sample touches, where they stand: (1,) -> (degree + 1,), (degree + 1, ...)."""
    values, first = compact_basis(position, curves.knots_per_dim, curves.degree)
    return values[0], curves.knots.narrow(0, int(first), curves.degree + 1)


def mix_active_weights(position: Tensor, curves: Curves) -> Tensor:
    """Weights of one sample from the degree + 1 knots it touches: (S * dims,) -> (filters, fan_in)."""
    knots, base, splines, dims, *_ = curves
    values, first = compact_basis(position, curves.knots_per_dim, curves.degree)
    # the knots of dimension i start at row i * K; a row holds the shares of all splines
    start = torch.arange(dims, device=position.device) * curves.knots_per_dim
    rows = (first.view(splines, dims) + start).unsqueeze(2) + torch.arange(curves.degree + 1, device=position.device)
    shares = rows.flatten(1) * splines + torch.arange(splines, device=position.device).unsqueeze(1)  # (S, A)
    active = knots.reshape(knots.shape[0] * splines, -1).index_select(0, shares.flatten())
    values = (values / dims).view(splines, 1, -1).to(knots.dtype)
    mixed = (values @ active.view(*shares.shape, -1)).view(knots.shape[1:])
    return mixed if base is None else mixed + base.flatten(1).to(mixed.dtype)


def balanced(knots: Tensor) -> Tensor:
    """The same knots; in their gradient, what all weights of a filter share counts once: (..., M) -> (..., M).

    Inputs of a layer are mostly positive, so a filter's M weights are all pushed the way that makes its sum larger or
    smaller. Batch norm takes that from a weight which all samples share, and cannot take it from offsets, which differ
    from sample to sample: most of their gradient lies in this one direction, in which the loss is M times as steep as
    in others. So the mean of the gradient is divided by M; gradient descent does the same with parameters in which a
    filter's mean is stored sqrt(M) times as large.
    """
    if not (torch.is_grad_enabled() and knots.requires_grad):
        return knots
    if torch.compiler.is_compiling() or transformed():  # neither of which looks into functions of our own
        even = knots - knots.mean(-1, keepdim=True) * (1 - 1 / knots.shape[-1])
        return even + (knots - even).detach()
    return _Balanced.apply(knots)  # type: ignore[no-untyped-call]


class _Balanced(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, knots: Tensor) -> Tensor:
        return knots.view_as(knots)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return torch.sub(grad, grad.mean(-1, keepdim=True), alpha=1 - 1 / grad.shape[-1])
