"""Seven layers that learn CIFAR-10 in minutes, after the idea of airbench (Jordan 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..constructors import remembered

PATCH = 2  # pixels along a side of what the first layer whitens
GROUPS = 3  # of two convolutions each


class Group(nn.Module):
    """Two 3x3 convolutions; the image is halved after the first."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.conv1 = convolution(in_channels, channels)
        self.norm1 = normalisation(channels)
        self.conv2 = convolution(channels, channels)
        self.norm2 = normalisation(channels)
        self.pool = nn.MaxPool2d(2)
        self.gelu = nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, channels, H / 2, W / 2)."""
        x = self.gelu(self.norm1(self.pool(self.conv1(x))))
        return self.gelu(self.norm2(self.conv2(x)))


class Air(nn.Module):
    """Whitened patches, three groups of two convolutions, the largest answer of each channel, and a linear layer.

    The first layer does not learn its filters: ``whiten`` computes them from images.
    """

    def __init__(self, widths: Sequence[int], in_channels: int, classes: int) -> None:
        super().__init__()
        directions = in_channels * PATCH**2
        self.whitening = nn.Conv2d(in_channels, 2 * directions, PATCH)
        self.whitening.weight.requires_grad_(False)
        channels = [2 * directions, *widths]
        self.groups = nn.Sequential(*(Group(*pair) for pair in pairwise(channels)))
        self.pool = nn.AdaptiveMaxPool2d(1)
        self.dense = nn.Linear(channels[-1], classes)
        self.gelu = nn.GELU()

    @torch.no_grad()
    def whiten(self, images: Tensor) -> None:
        """Let the first layer whiten such images, as the network sees them: (N, C, H, W).

        Its filters are the main directions of their patches, scaled to a variance of 1, and the opposites of these.
        """
        filters = whitening_filters(images, PATCH).to(self.whitening.weight)
        self.whitening.weight.copy_(torch.cat((filters, -filters)))

    def forward(self, images: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, classes)."""
        x = self.groups(self.gelu(self.whitening(images)))
        return self.dense(self.pool(x).flatten(1))


@remembered
def air(widths: Sequence[int] = (64, 128, 128), *, in_channels: int = 3, classes: int = 10) -> Air:
    """Air with so many filters in its three groups, for images of 9 pixels a side or more."""
    if len(widths) != GROUPS or min(widths) < 1:
        raise ValueError(f"air has the widths of {GROUPS} groups, such as (64, 128, 128), got {tuple(widths)}")
    return Air(widths, in_channels, classes)


def convolution(in_channels: int, channels: int) -> nn.Conv2d:
    """A 3x3 convolution whose first filters hand their channels on, as far as they go."""
    conv = nn.Conv2d(in_channels, channels, 3, padding=1, bias=False)
    nn.init.dirac_(conv.weight[: min(in_channels, channels)])
    return conv


def normalisation(channels: int) -> nn.BatchNorm2d:
    """Batch norm that learns where its channels lie and not how large they are."""
    norm = nn.BatchNorm2d(channels)
    norm.weight.requires_grad_(False)
    return norm


def whitening_filters(images: Tensor, patch: int, eps: float = 5e-4) -> Tensor:
    """The main directions of patches, scaled to a variance of about 1: (N, C, H, W) -> (M, C, patch, patch)."""
    patches = F.unfold(images.double(), patch)  # (N, M, places)
    variances, directions = torch.linalg.eigh((patches @ patches.mT).mean(0) / patches.shape[2])
    filters = directions.T / (variances + eps).sqrt().unsqueeze(1)
    return filters.flip(0).unflatten(1, (-1, patch, patch))
