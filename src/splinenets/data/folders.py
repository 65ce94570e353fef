"""Image files, in memory: decoded, scaled and cut to one size."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .dataset import Dataset, Split
from .listing import CSV_PREFIX, FOLDER_PREFIX, File, Listing, list_images

if TYPE_CHECKING:
    from PIL import Image

GREY = frozenset(("1", "L", "LA", "La", "I;16", "I;16B", "I;16L", "I;16N"))
COLOUR = frozenset(("P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV"))
BEHIND = (128, 128, 128, 255)  # what shows where an image is transparent: neither dark nor light things vanish on it


def load_folder(path: str | Path, size: int | tuple[int, int] = 32, *, held_out: float = 0.2) -> Dataset:
    """A data set of image files, one folder per class, resized to ``size`` (a side, or height and width).

    Below ``path`` lie either train/CLASS/... and test/CLASS/... (or val/ in place of test/), or CLASS/... alone; then
    the share ``held_out`` of each class becomes its test images, chosen by file name: the same on every machine.
    An image is scaled until it fills ``size``, and what juts out is cut off evenly. Images are grey if all files are,
    otherwise RGB; what is transparent is grey.
    """
    return load_listed(f"{FOLDER_PREFIX}{path}", size, held_out)


def load_csv(path: str | Path, size: int | tuple[int, int] = 32, *, held_out: float = 0.2) -> Dataset:
    """A data set of the image files that a CSV file lists, with their labels: like ``load_folder`` otherwise.

    Its columns are file and label and, if you like, split (train, test or val) and value, a number for each image.
    """
    return load_listed(f"{CSV_PREFIX}{path}", size, held_out)


def load_listed(name: str, size: int | tuple[int, int] = 32, held_out: float = 0.2) -> Dataset:
    """All images of "folder:PATH" or "csv:PATH", in memory."""
    height, width = (size, size) if isinstance(size, int) else size
    if height < 1 or width < 1:
        raise ValueError(f"size must be at least 1 pixel, got {size}")
    return load_listing(list_images(name, held_out), height, width)


def load_listing(listing: Listing, height: int, width: int) -> Dataset:
    """All files of a listing, in memory."""
    images = read_images([file.path for file in (*listing.train, *listing.test)], height, width)
    train, test = images.tensor_split([len(listing.train)])
    return Dataset(
        name=listing.name,
        train=Split(train, class_numbers(listing, listing.train), values_of(listing.train)),
        test=Split(test, class_numbers(listing, listing.test), values_of(listing.test)),
        classes=listing.classes,
    )


def class_numbers(listing: Listing, files: Sequence[File]) -> Tensor:
    """The label of every file: (N,), int64."""
    number = {label: index for index, label in enumerate(listing.classes)}
    return torch.tensor([number[file.label] for file in files])


def values_of(files: Sequence[File]) -> Tensor | None:
    """The number of every file: (N,), float32, or None if they have none."""
    values = [file.value for file in files if file.value is not None]
    return torch.tensor(values) if len(values) == len(files) else None


def read_images(files: Sequence[Path], height: int, width: int) -> Tensor:
    """Files as (N, C, H, W), uint8; C is 1 if all of them are grey, otherwise 3."""
    with ThreadPoolExecutor() as pool:  # decoding lets other threads run
        images = list(pool.map(lambda file: read_image(file, height, width), files))
    channels = max(len(image) for image in images)
    batch = torch.empty(len(images), channels, height, width, dtype=torch.uint8)
    for index, image in enumerate(images):
        batch[index] = image
    return batch


def read_image(path: Path, height: int, width: int) -> Tensor:
    """One file as (C, H, W), uint8: grey with C = 1, or RGB."""
    from PIL import Image

    try:
        with Image.open(path) as file:
            return to_pixels(file, height, width)
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path} cannot be read as an image: {error}") from None


def to_pixels(file: Image.Image, height: int, width: int) -> Tensor:
    """An open image, scaled and cut to size: (C, H, W), uint8, grey with C = 1, or RGB."""
    from PIL import Image, ImageOps

    image = ImageOps.exif_transpose(file)
    if image.mode not in GREY | COLOUR:
        raise ValueError(f"its pixels are of a kind that is not read here, {image.mode!r}")
    if image.mode.startswith("I;16"):  # 16 bits: keep the upper 8
        image = Image.frombytes("L", image.size, image.tobytes()[upper_byte(image.mode) :: 2])
    mode = "L" if image.mode in GREY else "RGB"
    if image.has_transparency_data:
        image = Image.alpha_composite(Image.new("RGBA", image.size, BEHIND), with_alpha(image))
    image = image.convert(mode)
    pixels = bytearray(ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR).tobytes())
    return torch.frombuffer(pixels, dtype=torch.uint8).view(height, width, -1).permute(2, 0, 1)


def with_alpha(image: Image.Image) -> Image.Image:
    """The same image as RGBA."""
    return (image.convert("LA") if image.mode == "La" else image).convert("RGBA")


def read_shape(path: Path) -> tuple[int, int, int]:
    """Channels, height and width of an image file, whose pixels are not read."""
    from PIL import Image

    try:
        with Image.open(path) as file:
            return 1 if file.mode in GREY else 3, file.height, file.width
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path} cannot be read as an image: {error}") from None


def upper_byte(mode: str) -> int:
    """Which of a pixel's two bytes counts more, by a mode such as "I;16B"; N is this machine's own order."""
    return 0 if mode.endswith("B") or (mode.endswith("N") and sys.byteorder == "big") else 1
