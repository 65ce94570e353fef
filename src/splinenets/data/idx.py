"""The IDX format of MNIST and Fashion-MNIST, plain or compressed with gzip."""

from __future__ import annotations

import gzip
import struct
import zlib
from math import prod
from pathlib import Path

import torch
from torch import Tensor

UNSIGNED_BYTES = 0x08
LARGEST = 1 << 30  # bytes; the largest of these files holds 47 million


def read_idx(path: Path) -> Tensor:
    """An array of unsigned bytes in its own shape, as uint8."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            content = file.read(LARGEST + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    return parse_idx(content, str(path))


def parse_idx(content: bytes, name: str) -> Tensor:
    """The same, from bytes; ``name`` stands in error messages."""
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
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)[header:].view(shape).clone()
