"""Named data sets, whole and in memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from .idx import read_idx

EMBEDDED = Path(__file__).parent / "embedded"
FASHION = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip


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


def load_embedded() -> Dataset:
    """The subset of Fashion-MNIST that ships with the package: 6,000 training and 1,000 test images."""
    train, test = (
        Split(
            read_idx(EMBEDDED / f"{split}-images-idx3-ubyte.gz").unsqueeze(1),
            read_idx(EMBEDDED / f"{split}-labels-idx1-ubyte.gz").long(),
        )
        for split in ("train", "test")
    )
    return Dataset(name="embedded", train=train, test=test, classes=FASHION)


DATASETS = {"embedded": load_embedded}


def load(name: str = "embedded") -> Dataset:
    """A data set by name."""
    if name not in DATASETS:
        raise ValueError(f"unknown data set {name!r}, choose from {sorted(DATASETS)}")
    return DATASETS[name]()
