"""Picture files that somebody sends, as the images of a network: read with care, whatever they are."""

from __future__ import annotations

import io

from PIL import Image
from torch import Tensor

from .decoding import to_pixels

FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "MPO")  # MPO is what some phones call JPEG
MOST_PIXELS = 40_000_000


def read_picture(content: bytes, shape: tuple[int, int, int]) -> Tensor:
    """A file's content, scaled and cut to size: (C, H, W), bytes."""
    channels, height, width = shape
    try:
        with Image.open(io.BytesIO(content), formats=FORMATS) as file:
            if file.width * file.height > MOST_PIXELS:
                raise ValueError("too many pixels")
            pixels = to_pixels(file, height, width)
    except Exception:  # decoders fail in many ways
        raise ValueError(
            f"This file cannot be used: send an image ({', '.join(FORMATS[:5])}) of at most "
            f"{MOST_PIXELS // 1_000_000} million pixels."
        ) from None
    if len(pixels) > channels:
        return pixels.float().mean(0, keepdim=True).round().byte()
    return pixels.expand(channels, -1, -1).contiguous()
