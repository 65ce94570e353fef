"""Something continuous that changes images, by a number for each: what a network may be told, or has to guess."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Generator, Tensor

from .augment import affine_matrix, deform
from .batches import seeded
from .dataset import Split

Apply = Callable[[Tensor, Tensor, Generator], Tensor]


@dataclass(frozen=True, kw_only=True)
class Change:
    """A change of images (N, C, H, W) by values (N,) between ``low`` and ``high``.

    closed  the highest value is the lowest one once more, as for angles
    still   the value that changes nothing
    """

    name: str
    low: float
    high: float
    apply: Apply
    closed: bool = False
    still: float = 0.0

    def __call__(self, images: Tensor, values: Tensor, generator: Generator) -> Tensor:
        """Bytes (N, C, H, W) -> bytes; only noise draws from the generator."""
        return self.apply(images.float(), values, generator).round_().clamp_(0, 255).to(torch.uint8)

    def draw(self, count: int, generator: Generator) -> Tensor:
        """Values for so many images, all of them equally likely: (count,)."""
        return self.low + (self.high - self.low) * torch.rand(count, generator=generator)

    def within(self, low: float, high: float) -> Change:
        """The same for a part of its values."""
        if not self.low <= low < high <= self.high:
            raise ValueError(f"{self.name} lies between {self.low:g} and {self.high:g}, got {low:g} to {high:g}")
        return replace(self, low=low, high=high, closed=self.closed and (low, high) == (self.low, self.high))


def turn(images: Tensor, degrees: Tensor, generator: Generator) -> Tensor:
    """Turned against the clock about their middle, black outside."""
    angle = degrees.to(images.device) * (math.pi / 180)
    still = angle.new_zeros(())
    matrix = affine_matrix(angle, still + 1, still)
    return deform(images, matrix, angle.new_zeros(2, 1), angle.new_zeros(2, 1, 1, 1))


def zoom(images: Tensor, factor: Tensor, generator: Generator) -> Tensor:
    """As large as before times a factor, about their middle."""
    factor = factor.to(images.device)
    matrix = affine_matrix(torch.zeros_like(factor), 1 / factor, factor.new_zeros(()))
    return deform(images, matrix, factor.new_zeros(2, 1), factor.new_zeros(2, 1, 1, 1))


def blur(images: Tensor, deviation: Tensor, generator: Generator) -> Tensor:
    """Smoothed by Gaussians, deviations in pixels."""
    down, across = (_gaussian_rows(size, deviation.to(images.device)).unsqueeze(1) for size in images.shape[2:])
    return down @ images @ across.mT


def _gaussian_rows(size: int, deviation: Tensor) -> Tensor:
    """The weights of all pixels around each pixel of a line, which sum to 1: (N,) -> (N, size, size)."""
    place = torch.arange(size, device=deviation.device)
    distance = (place - place.unsqueeze(1)).square()
    return torch.softmax(-0.5 * distance / deviation.clamp(min=1e-3).square()[:, None, None], 2)


def darken(images: Tensor, exposure: Tensor, generator: Generator) -> Tensor:
    """Only a share of their light is left."""
    return images * exposure.to(images.device)[:, None, None, None]


def add_noise(images: Tensor, deviation: Tensor, generator: Generator) -> Tensor:
    """With normal noise, deviations in grey levels out of 255."""
    noise = torch.randn(images.shape, generator=generator).to(images.device)
    return images + noise * deviation.to(images.device)[:, None, None, None]


CHANGES = {
    change.name: change
    for change in (
        Change(name="angle", low=0, high=360, apply=turn, closed=True),
        Change(name="scale", low=0.4, high=1.6, apply=zoom, still=1),
        Change(name="blur", low=0, high=3, apply=blur),
        Change(name="exposure", low=0.05, high=1, apply=darken, still=1),
        Change(name="noise", low=0, high=120, apply=add_noise),
    )
}


def changed(split: Split, change: Change, use: str) -> Split:
    """Images changed once and for all, and their values: the same on every machine for the same ``use``."""
    generator = seeded("condition", *use.encode())
    values = change.draw(len(split.labels), generator)
    parts = [change(i, v, generator) for i, v in zip(split.images.split(1000), values.split(1000), strict=True)]
    return replace(split, images=torch.cat(parts), values=values)
