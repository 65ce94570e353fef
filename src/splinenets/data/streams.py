"""Images that need not fit into memory: decoded when they are asked for, ahead of time by worker processes.

Which images make up a batch is said by whoever asks, so a stream has nothing to remember: a run that goes on, or that
is shared out between ranks, sees what it would see of images in memory, bit for bit.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from .decoding import Place, read_image

AHEAD = 2  # batches that each worker keeps ready
SHARE = 0.5  # of the memory, beyond which images stay on disk
PR_SET_PDEATHSIG = 1  # of Linux' prctl
CHOICES = ("auto", "always", "never")

Chosen: TypeAlias = slice | Tensor | int


class Stream:
    """Stands where a tensor of images (N, C, H, W), uint8, stands, and decodes those that are asked for."""

    dtype = torch.uint8

    def __init__(self, files: Sequence[Place], channels: int, height: int, width: int) -> None:
        self.files, self.shape = files, torch.Size((len(files), channels, height, width))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, chosen: Chosen) -> Tensor:
        """Some images, as a tensor of that many would give them."""
        if isinstance(chosen, int):
            return self[torch.tensor([chosen])][0]
        wanted = torch.arange(len(self))[chosen] if isinstance(chosen, slice) else chosen
        with ThreadPoolExecutor() as pool:  # decoding lets other threads run
            return self.stack(pool.map(self.decode, wanted.tolist()), len(wanted))

    def decode(self, index: int) -> Tensor:
        """One image: (C, H, W), or (1, H, W) if it is grey among coloured ones."""
        return read_image(self.files[index], *self.shape[2:])

    def stack(self, images: Iterable[Tensor], count: int) -> Tensor:
        """Images side by side; grey ones among coloured ones have three equal channels."""
        batch = torch.empty(count, *self.shape[1:], dtype=torch.uint8)
        for place, image in zip(batch, images, strict=True):
            place[:] = image
        return batch

    def narrow(self, part: slice) -> Stream:
        """A part of it, nothing decoded."""
        return Stream(self.files[part], *self.shape[1:])

    def expand(self, samples: int, channels: int, height: int, width: int) -> Stream:
        """The same with more channels; the other sizes are -1, as they stay."""
        return Stream(self.files, channels, *self.shape[2:])

    def split(self, count: int) -> Iterator[Tensor]:
        """All images, so many at a time."""
        return (self[slice(at, at + count)] for at in range(0, len(self), count))

    def to(self, device: torch.device | None) -> Stream:
        """Itself: what is decoded goes to devices, not what decodes."""
        return self


class _Decoder(Dataset[Tensor]):
    """What a worker does: a batch, or why there is none; an exception would cross processes as a page of text."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def __getitems__(self, indices: list[int]) -> Tensor | str:
        try:
            return self.stream.stack(map(self.stream.decode, indices), len(indices))
        except ValueError as error:
            return str(error)


class _Batches:
    """Index tensors as the lists that workers want."""

    def __init__(self, batches: Iterable[Tensor]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[list[int]]:
        return (chosen.tolist() for chosen in self.batches)


def _as_it_is(batch: Any) -> Any:
    return batch


def _end_with_parent(worker: int) -> None:
    """Where the system can, a worker ends as soon as the process that it works for does, however that ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def in_batches(images: Tensor | Stream, batches: Iterable[Tensor], workers: int) -> Generator[Tensor, None, None]:
    """The images of each batch in turn, a stream's decoded ahead by so many processes: (n,) each -> (n, C, H, W) each.

    Processes start now, in the thread that calls this.
    """
    if not isinstance(images, Stream) or not workers:
        return (images[chosen] for chosen in batches)
    loader: DataLoader[Tensor] = DataLoader(
        _Decoder(images),
        batch_sampler=_Batches(batches),
        num_workers=workers,
        prefetch_factor=AHEAD,
        collate_fn=_as_it_is,
        worker_init_fn=_end_with_parent,
        generator=torch.Generator(),  # so that torch's own stays as it is
    )
    return _received(iter(loader))


def _received(loader: Iterator[Tensor | str]) -> Generator[Tensor, None, None]:
    try:
        for batch in loader:
            if isinstance(batch, str):
                raise ValueError(batch)
            yield batch
    except RuntimeError as error:
        if "DataLoader worker" not in str(error):
            raise
        raise ChildProcessError("a process that decodes images was lost: continue with --resume") from None


def exceeds_memory(size: int) -> bool:
    """Whether so many bytes of images should better stay on disk."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0
    return 0 < memory * SHARE < size
