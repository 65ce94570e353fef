"""Image files, alone, inside a tar archive or sent by somebody -> pixels: decoded, scaled and cut to size."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor

from .listing import Member

if TYPE_CHECKING:
    from PIL import Image

Place: TypeAlias = Path | Member

GREY = frozenset(("1", "L", "LA", "La", "I;16", "I;16B", "I;16L", "I;16N"))
COLOUR = frozenset(("P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV"))
SENT = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "MPO")  # what somebody may send; MPO is what some phones call JPEG
MOST_PIXELS = 40_000_000  # of what somebody sends
SKIPPING = "; broken=skip leaves such files out"
FINER = 2  # times as many pixels a side as asked for, at least, are decoded where there are more
BEHIND = (128, 128, 128, 255)  # what shows where an image is transparent: neither dark nor light things vanish on it


@contextmanager
def opened(path: Place) -> Iterator[Image.Image]:
    """An image file to read inside a with block; what is wrong with it is said with its name."""
    from PIL import Image

    try:
        with Image.open(path if isinstance(path, Path) else path.open()) as file:
            yield file
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path} cannot be read as an image: {error}{SKIPPING}") from None


def read_image(path: Place, height: int, width: int) -> Tensor:
    """One file as (C, H, W), uint8: grey with C = 1, or RGB."""
    with opened(path) as file:
        return to_pixels(file, height, width)


def read_shape(path: Place) -> tuple[int, int, int]:
    """Channels, height and width of an image file, whose pixels are not read."""
    with opened(path) as file:
        return 1 if file.mode in GREY else 3, file.height, file.width


def read_picture(content: bytes, shape: tuple[int, int, int]) -> Tensor:
    """A file that somebody sent, read with care whatever it is, scaled and cut to size: (C, H, W), uint8."""
    from PIL import Image

    channels, height, width = shape
    try:
        with Image.open(io.BytesIO(content), formats=SENT) as file:
            if file.width * file.height > MOST_PIXELS:
                raise ValueError("too many pixels")
            pixels = to_pixels(file, height, width)
    except Exception:  # decoders fail in many ways
        raise ValueError(
            f"This file cannot be used: send an image ({', '.join(SENT[:5])}) of at most "
            f"{MOST_PIXELS // 1_000_000} million pixels."
        ) from None
    if len(pixels) > channels:
        return pixels.float().mean(0, keepdim=True).round().byte()
    return pixels.expand(channels, -1, -1).contiguous()


def to_pixels(file: Image.Image, height: int, width: int) -> Tensor:
    """An open image, scaled and cut to size: (C, H, W), uint8, grey with C = 1, or RGB."""
    from PIL import Image, ImageOps

    finest = FINER * max(height, width)
    file.draft(None, (finest, finest))  # a JPEG file of many pixels is decoded to fewer, which takes less time
    ImageOps.exif_transpose(file, in_place=True)
    image = file
    if image.mode not in GREY | COLOUR:
        raise ValueError(f"its pixels are {image.mode!r}, which is not read here: save it with 8 or 16 bits")
    if image.mode.startswith("I;16"):  # 16 bits: keep the upper 8
        image = Image.frombytes("L", image.size, image.tobytes()[upper_byte(image.mode) :: 2])
    mode = "L" if image.mode in GREY else "RGB"
    if image.has_transparency_data:
        image = Image.alpha_composite(Image.new("RGBA", image.size, BEHIND), with_alpha(image))
    image = image if image.mode == mode else image.convert(mode)
    pixels = bytearray(ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR).tobytes())
    return torch.frombuffer(pixels, dtype=torch.uint8).view(height, width, -1).permute(2, 0, 1)


def with_alpha(image: Image.Image) -> Image.Image:
    """The same image as RGBA."""
    return (image.convert("LA") if image.mode == "La" else image).convert("RGBA")


def upper_byte(mode: str) -> int:
    """Which of a pixel's two bytes counts more, by a mode such as "I;16B"; N is this machine's own order."""
    return 0 if mode.endswith("B") or (mode.endswith("N") and sys.byteorder == "big") else 1
