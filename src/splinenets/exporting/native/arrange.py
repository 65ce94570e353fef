"""Parameters in the order in which the engine reads them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils import parametrize

from .program import LANES

TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.int8: 2}


class Stored(tuple[Tensor, "Tensor | None"]):
    """Numbers (rows..., length) as they are stored, and the scale of each row, (rows...)."""

    @property
    def shape(self) -> torch.Size:
        """That of the numbers."""
        return self[0].shape


class Parameters:
    """All parameters of a program in one piece of memory, each at a multiple of 64 bytes."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.length = 0

    def put(self, values: NDArray[Any]) -> int:
        """Add an array; where it begins."""
        start, content = self.length, np.ascontiguousarray(values).tobytes()
        padded = content + bytes(-len(content) % 64)
        self.parts.append(padded)
        self.length += len(padded)
        return start

    def matrix(self, stored: Stored) -> tuple[int, int, int]:
        """Add numbers and their scale; type and places."""
        values, scale = stored
        raw = values.contiguous()
        bits = raw.view(torch.int16) if raw.dtype == torch.bfloat16 else raw
        place = self.put(bits.numpy())
        return TYPES[values.dtype], place, -1 if scale is None else self.put(scale.numpy())

    @staticmethod
    def stored(module: Any, name: str) -> Stored:
        """A parameter of a deployed module in the form in which it is kept."""
        if not parametrize.is_parametrized(module, name):
            return Stored((getattr(module, name).detach(), None))
        kept = module.parametrizations[name]
        codes, *scale = (getattr(kept, f"original{i}").detach() for i in range(kept.ntensors))
        return Stored((codes, scale[0].squeeze(-1) if scale else None))

    def bytes(self) -> NDArray[np.uint8]:
        """Everything."""
        return np.frombuffer(b"".join(self.parts) or bytes(64), np.uint8)


def image_rows(weight: Tensor | Stored, shape: tuple[int, int, int]) -> Stored:
    """Rows over an image's features, in the order of blocks of channels: (..., C * H * W) -> (..., B * H * W * 16)."""
    values, scale = weight if isinstance(weight, Stored) else Stored((weight, None))
    channels, height, width = shape
    images = _pad(values.reshape(-1, channels, height * width), 1)
    blocks = images.unflatten(1, (-1, LANES)).transpose(2, 3)
    return Stored((blocks.reshape(*values.shape[:-1], -1), scale))


def filter_blocks(weight: Tensor | Stored, kernel: tuple[int, ...], *, apart: bool = False) -> Stored:
    """Filters (F, fan_in) or knots (K, F, fan_in) as a convolution reads them.

    Together: ([K,] blocks of filters, kernel x channels, 16). Apart, for splines that mix filter by filter:
    (F, K, kernel x channels). Lengths are padded to multiples of 16, and scales follow their rows.
    """
    values, scale = weight if isinstance(weight, Stored) else Stored((weight, None))
    taps = values.unflatten(-1, (-1, *kernel))
    fan = _pad(taps.movedim(-len(kernel) - 1, -1).flatten(-len(kernel) - 1), -1)
    if apart:
        return Stored((fan.transpose(0, 1), None if scale is None else scale.T))
    blocks = _pad(fan, -2).unflatten(-2, (-1, LANES)).transpose(-2, -1)
    return Stored((blocks, None if scale is None else _pad(scale, -1)))


def _pad(values: Tensor, dim: int) -> Tensor:
    """Zeros at the end of a dimension, up to a multiple of 16."""
    shape = list(values.shape)
    shape[dim] = -shape[dim] % LANES
    return torch.cat([values, values.new_zeros(shape)], dim)
