"""What a data set is, once it is in memory."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Split:
    """Images (N, C, H, W), uint8, and their labels (N,), int64."""

    images: Tensor
    labels: Tensor


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A classification problem: training and test images, and the names of the classes."""

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]
