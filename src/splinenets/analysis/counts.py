"""What figures show, as numbers: positions counted by class, and the splines that tell most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from ..health_check import count_by_class, information

T = TypeVar("T")

CLASSES = 12  # shown by name; more cannot be told apart


def spread_out(items: Sequence[T], most: int) -> list[T]:
    """At most so many, evenly spaced, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(i * (len(items) - 1) / (most - 1))] for i in range(most)]


def join_rare(labels: Tensor, classes: Sequence[str], most: int = CLASSES) -> tuple[Tensor, list[str]]:
    """Keep the most frequent classes and join the others, as the last: (N,) -> (N,), and the names."""
    if len(classes) <= most:
        return labels, list(classes)
    counts = torch.bincount(labels, minlength=len(classes))
    kept = counts.argsort(descending=True, stable=True)[: most - 1].sort().values
    to = torch.full((len(classes),), most - 1)
    to[kept] = torch.arange(most - 1)
    return to[labels], [*(classes[i] for i in kept.tolist()), f"{len(classes) - most + 1} others"]


def by_class(position: Tensor, labels: Tensor, classes: int, bins: int = 50) -> Tensor:
    """Samples of each class in each bin of each spline: (N, C), (N,) -> (classes, C, bins)."""
    return count_by_class(position.flatten(1), labels, classes, bins)


def shares(counts: Tensor) -> Tensor:
    """Each bin's classes as shares, as in the paper's figure 7; 0 in an empty bin: (classes, ...) -> (classes, ...)."""
    return counts / counts.sum(0, keepdim=True).clamp(min=1)


def telling(position: Tensor, labels: Tensor) -> Tensor:
    """The splines of a layer, the one whose positions tell most about the labels first: (N, C), (N,) -> (C,)."""
    return information(position.flatten(1), labels).argsort(descending=True, stable=True)


def most_telling(positions: Mapping[str, Tensor], labels: Tensor) -> dict[str, int]:
    """{layer: the spline whose positions tell most about the labels}."""
    return {name: int(telling(position, labels)[0]) for name, position in positions.items()}
