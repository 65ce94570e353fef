"""The IDX format of MNIST and Fashion-MNIST."""

from __future__ import annotations

import struct
from math import prod

import torch
from torch import Tensor

UNSIGNED_BYTES = 0x08


def parse_idx(content: bytes, name: str) -> Tensor:
    """An array of unsigned bytes in its own shape, as uint8; ``name`` stands in error messages."""
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] != UNSIGNED_BYTES:
        raise ValueError(
            f"{name} is not an IDX file of unsigned bytes: it starts with {content[:4].hex() or 'nothing'}"
        )
    rank = content[3]
    header = 4 + 4 * rank
    if len(content) < header:
        raise ValueError(f"{name} is damaged: it ends within its header")
    shape = struct.unpack(f">{rank}I", content[4:header])
    if len(content) - header != prod(shape):
        raise ValueError(
            f"{name} is damaged: it should hold {prod(shape)} bytes for {shape}, got {len(content) - header}"
        )
    if not prod(shape):
        raise ValueError(f"{name} is empty: its shape is {shape}")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)[header:].view(shape).clone()
