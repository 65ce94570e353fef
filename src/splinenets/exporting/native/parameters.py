"""Parameters in the order in which the engine reads them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ...storage import stored
from .program import LANES, Matrix, padded

TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}


class Numbers(NamedTuple):
    """Numbers (rows..., length) as they are stored, and the scale of each row, (rows...)."""

    values: Tensor
    scale: Tensor | None = None

    @classmethod
    def of(cls, module: nn.Module, name: str) -> Numbers:
        """A parameter of a deployed module."""
        values, scale = stored(module, name)
        return cls(values, None if scale is None else scale.squeeze(-1))

    def again(self, count: int) -> Numbers:
        """The first ``count`` of the outermost dimension once more at the end."""
        scale = None if self.scale is None else torch.cat([self.scale, self.scale[:count]])
        return Numbers(torch.cat([self.values, self.values[:count]]), scale)

    def channels_first(self, channels: int) -> Numbers:
        """Rows over features whose channels come last, (..., H * W * C), as those of an image: (..., C * H * W)."""
        return Numbers(self.values.unflatten(-1, (-1, channels)).mT.flatten(-2), self.scale)


class Parameters:
    """All parameters of a program in one piece of memory, each at a multiple of 64 bytes."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.length = 0

    def put(self, values: Tensor) -> int:
        """Add numbers; where they begin."""
        numbers = values.detach().contiguous().view(-1).view(torch.uint8).numpy()
        start, content = self.length, numbers.tobytes()
        self.parts.append(content + bytes(-len(content) % 64))
        self.length += len(self.parts[-1])
        return start

    def matrix(self, numbers: Numbers) -> Matrix:
        """Add numbers and their scale; type and places."""
        values, scale = numbers
        return Matrix(TYPES[values.dtype], self.put(values), -1 if scale is None else self.put(scale))

    def channels(self, values: Tensor | None) -> int:
        """Add a number for each channel, padded to whole blocks; where they begin, -1 for none."""
        return -1 if values is None else self.put(pad(values.detach().float(), 0))

    def bytes(self) -> NDArray[np.uint8]:
        """Everything."""
        return np.frombuffer(b"".join(self.parts) or bytes(64), np.uint8)


def image_rows(weight: Numbers, shape: tuple[int, int, int]) -> Numbers:
    """Rows over an image's features, in the order of blocks of channels: (..., C * H * W) -> (..., B * H * W * 16)."""
    values, scale = weight
    channels, height, width = shape
    images = pad(values.reshape(-1, channels, height * width), 1)
    blocks = images.unflatten(1, (-1, LANES)).transpose(2, 3)
    return Numbers(blocks.reshape(*values.shape[:-1], -1), scale)


def filter_blocks(weight: Numbers, kernel: tuple[int, ...], *, groups: int = 1, apart: bool = False) -> Numbers:
    """Filters (F, fan_in) or knots (K, F, fan_in) as a convolution reads them.

    Together: ([K,] blocks of filters, kernel x channels, 16). Apart, for splines that mix filter by filter:
    (F, K, kernel x channels). Lengths are padded to multiples of 16, and scales follow their rows.
    """
    values, scale = weight
    taps = values.unflatten(-1, (-1, *kernel))
    fan = taps.movedim(-len(kernel) - 1, -1).flatten(-len(kernel) - 1, -2)  # (..., F, taps, channels)
    fan = spread_groups(fan, groups)
    if apart:
        return Numbers(fan.transpose(0, 1), None if scale is None else scale.T)
    blocks = pad(fan, -2).unflatten(-2, (-1, LANES)).transpose(-2, -1)
    return Numbers(blocks, None if scale is None else pad(scale, -1))


def spread_groups(fan: Tensor, groups: int) -> Tensor:
    """Filters (..., F, taps, c) over the channels that their block of 16 looks at: (..., F, taps * seen), padded.

    Filters of several groups share a block: each then has zeros where the channels of the others are. Depthwise filters
    stay as they are: the engine knows which channel each looks at.
    """
    *others, count, taps, channels = fan.shape
    filters = count // groups
    if groups == 1 or (filters == channels == 1):
        return pad(fan.flatten(-2), -1)
    spread = fan.new_zeros(*others, count, padded(taps * seen_channels(count, filters, channels)))
    for number in range(count):
        first, last = block_groups(number // LANES * LANES, count, filters)
        row = fan.new_zeros(*others, taps, last - first + 1, channels)
        row[..., number // filters - first, :] = fan[..., number, :, :]
        spread[..., number, : taps * (last - first + 1) * channels] = row.flatten(-3)
    return spread


def block_groups(start: int, count: int, filters: int) -> tuple[int, int]:
    """The first and the last group of which a block of 16 out of ``count`` filters has one."""
    return start // filters, (min(start + LANES, count) - 1) // filters


def seen_channels(count: int, filters: int, channels: int) -> int:
    """How many channels a block of 16 out of ``count`` filters looks at, at most; a group has so many of both."""
    blocks = (block_groups(start, count, filters) for start in range(0, count, LANES))
    return max(last - first + 1 for first, last in blocks) * channels


def filter_length(kernel: tuple[int, ...], channels: int, count: int, groups: int) -> int:
    """How long the filters of a block are: (kernel x channels seen), padded."""
    taps = int(np.prod(kernel))
    if groups == 1 or groups == channels == count:
        return padded(taps * channels // groups)
    return padded(taps * seen_channels(count, count // groups, channels // groups))


def pad(values: Tensor, dim: int) -> Tensor:
    """Zeros at the end of a dimension, up to a multiple of 16."""
    shape = list(values.shape)
    shape[dim] = -shape[dim] % LANES
    return torch.cat([values, values.new_zeros(shape)], dim)
