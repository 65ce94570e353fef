"""Which samples make up which batch: a function of seed, epoch, step and rank. Nothing random is ever stored."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

import torch
from torch import Tensor

UNEVEN = 2  # times as many images of the largest class as of the smallest


def seeded(use: str, *when: int) -> torch.Generator:
    """A generator for one use at one moment, such as ``seeded("augment", seed, epoch, step, rank)``.

    The moments' seeds are scattered by a hash, so that neighbouring seeds, epochs and steps have nothing in common.
    """
    key = hashlib.sha256(f"{use} {' '.join(map(str, when))}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(key[:8], "little") >> 1)


@lru_cache(maxsize=2)
def epoch_order(samples: int, seed: int, epoch: int) -> Tensor:
    """The order of the samples in an epoch. It is kept for the next step: do not change it."""
    return torch.randperm(samples, generator=seeded("order", seed, epoch))


def is_uneven(counts: Collection[float]) -> bool:
    """Whether classes with so many images each are so unequal that always naming the largest looks like success."""
    return max(counts) >= UNEVEN * min(counts)


@lru_cache(maxsize=2)
def even_order(labels: Tensor, seed: int, epoch: int) -> Tensor:
    """As many samples as there are, in an order in which all classes come equally often, give or take one.

    Of a class with many images some come, others in other epochs; one with few begins again when all have come.
    """
    generator = seeded("order", seed, epoch)
    groups = [(labels == label).nonzero().flatten().cpu() for label in labels.unique()]
    chosen = []
    for number, group in enumerate(groups):
        start, stop = share(0, len(labels), number, len(groups))
        rounds = -(-(stop - start) // len(group))
        orders = [group[torch.randperm(len(group), generator=generator)] for _ in range(rounds)]
        chosen.append(torch.cat([*orders, group[:0]])[: stop - start])
    return torch.cat(chosen)[torch.randperm(len(labels), generator=generator)]


@lru_cache(maxsize=2)
def mirrored(samples: int, seed: int, epoch: int) -> Tensor:
    """Which samples are mirrored in an epoch: each in every other one. It is kept for the next step too."""
    return (torch.rand(samples, generator=seeded("mirror", seed)) < 0.5) ^ bool(epoch % 2)


def share(start: int, stop: int, part: int, parts: int) -> tuple[int, int]:
    """The bounds of one of ``parts`` consecutive parts of a range; their lengths differ by at most 1."""
    length = stop - start
    return start + part * length // parts, start + (part + 1) * length // parts


@dataclass(frozen=True, kw_only=True)
class Batches:
    """Training batches of ``batch`` samples over all ranks, each sample once in an epoch.

    With ``labels`` (samples,), each class comes equally often instead (``even_order``).
    Where ``batch`` does not divide ``samples``, all batches of the epoch are made smaller by the same amount, give or
    take one sample: the steps are as many as with a short last batch, and none is too small for batch statistics.
    """

    samples: int
    batch: int
    seed: int = 0
    labels: Tensor | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ValueError(f"samples must be at least 1, got {self.samples}")
        if self.batch < 1:
            raise ValueError(f"batch must be at least 1, got {self.batch}")

    def __len__(self) -> int:
        """Steps in an epoch."""
        return -(-self.samples // self.batch)

    def size(self, step: int) -> int:
        """The number of samples of a step over all ranks: what a sum of losses is divided by."""
        start, stop = self.bounds(step)
        return stop - start

    def bounds(self, step: int) -> tuple[int, int]:
        """The places of a step's samples in the epoch's order."""
        if not 0 <= step < len(self):
            raise ValueError(f"step must be from 0 to {len(self) - 1}, got {step}")
        return share(0, self.samples, step, len(self))

    def indices(self, epoch: int, step: int, rank: int = 0, world: int = 1) -> Tensor:
        """The samples (n,), int64, that ``rank`` of ``world`` trains on; together the ranks see what one would see."""
        check_rank(rank, world)
        if self.samples // len(self) < world:
            raise ValueError(f"a batch of {self.samples // len(self)} samples is too small for {world} ranks")
        start, stop = share(*self.bounds(step), rank, world)
        return self.order(epoch)[start:stop]

    def order(self, epoch: int) -> Tensor:
        """The samples of an epoch."""
        if self.labels is None:
            return epoch_order(self.samples, self.seed, epoch)
        return even_order(self.labels, self.seed, epoch)


def in_order(samples: int, batch: int, rank: int = 0, world: int = 1) -> Iterator[slice]:
    """Evaluation batches: consecutive slices, in order; over all ranks each sample comes exactly once."""
    check_rank(rank, world)
    if batch < 1:
        raise ValueError(f"batch must be at least 1, got {batch}")
    start, stop = share(0, samples, rank, world)
    return (slice(at, min(at + batch, stop)) for at in range(start, stop, batch))


def check_rank(rank: int, world: int) -> None:
    """Raise unless ``rank`` is one of ``world`` ranks."""
    if not 0 <= rank < world:
        raise ValueError(f"rank must be from 0 to world - 1, got rank={rank}, world={world}")
