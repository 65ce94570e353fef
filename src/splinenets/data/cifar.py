"""The two forms of CIFAR-10 that are read here: the binary version, and strips of images in PNG files."""

from __future__ import annotations

import io
import json

import numpy
import torch
from torch import Tensor

SIDE = 32
PIXELS = SIDE * SIDE
RECORD = 1 + 3 * PIXELS  # a label, then the red, the green and the blue plane


def parse_binary(content: bytes, name: str) -> tuple[Tensor, Tensor]:
    """One .bin file: images (N, 3, 32, 32) and labels (N,), uint8."""
    if not content or len(content) % RECORD:
        raise ValueError(f"{name} is damaged: it should hold records of {RECORD} bytes, got {len(content)} bytes")
    records = torch.frombuffer(bytearray(content), dtype=torch.uint8).view(-1, RECORD)
    return records[:, 1:].reshape(-1, 3, SIDE, SIDE), records[:, 0].clone()


def parse_strip(content: bytes, name: str) -> Tensor:
    """A PNG file with one image of 32 x 32 pixels in each row of 1024: (N, 3, 32, 32), uint8."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(content), formats=["PNG"]) as strip:
            if strip.mode != "RGB" or strip.width != PIXELS:
                raise ValueError(f"it should hold RGB rows of {PIXELS} pixels, got {strip.mode} rows of {strip.width}")
            pixels = numpy.array(strip)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"{name} is damaged: {error}") from None
    return torch.from_numpy(pixels).view(-1, SIDE, SIDE, 3).permute(0, 3, 1, 2).contiguous()


def parse_labels(content: bytes, name: str) -> Tensor:
    """A JSON list of class numbers: (N,), uint8."""
    try:
        labels = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} is damaged: {error}") from None
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < 256 for label in labels):
        raise ValueError(f"{name} is damaged: it should hold a list of class numbers")
    return torch.tensor(labels, dtype=torch.uint8)
