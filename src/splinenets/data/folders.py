"""Folders of images, one folder per class."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from .dataset import Dataset, Split

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = frozenset((".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"))
GREY = frozenset(("1", "L", "LA", "La", "I;16", "I;16B", "I;16L", "I;16N"))
COLOUR = frozenset(("P", "PA", "RGB", "RGBA", "RGBa", "RGBX", "CMYK", "YCbCr", "LAB", "HSV"))


def load_folder(path: str | Path, size: int | tuple[int, int] = 32, *, held_out: float = 0.2) -> Dataset:
    """A data set of image files, one folder per class, resized to ``size`` (a side, or height and width).

    Below ``path`` lie either train/CLASS/... and test/CLASS/... (or val/ in place of test/), or CLASS/... alone; then
    the share ``held_out`` of each class becomes its test images, chosen by file name: the same on every machine.
    An image is scaled until it fills ``size``, and what juts out is cut off evenly. Images are grey if all files are,
    otherwise RGB; transparency is dropped.
    """
    path = Path(path).expanduser()
    height, width = (size, size) if isinstance(size, int) else size
    if height < 1 or width < 1:
        raise ValueError(f"size must be at least 1 pixel, got {size}")
    if not 0 < held_out < 1:
        raise ValueError(f"held_out must be between 0 and 1, got {held_out}")
    train, test = find_images(path, held_out)
    count = sum(map(len, train.values()))
    images = read_images([file for files in (*train.values(), *test.values()) for file in files], height, width)
    return Dataset(
        name=f"folder:{path}",
        train=Split(images[:count], class_numbers(train)),
        test=Split(images[count:], class_numbers(test)),
        classes=tuple(train),
    )


def find_images(path: Path, held_out: float) -> tuple[dict[str, list[Path]], dict[str, list[Path]]]:
    """The files of each class, for training and for testing."""
    if not path.is_dir():
        raise ValueError(f"there is no folder {path}")
    tests = [path / name for name in ("test", "val") if (path / name).is_dir()]
    if (path / "train").is_dir() and tests:
        train, test = files_by_class(path / "train"), files_by_class(tests[0])
        if odd := sorted(set(train) ^ set(test)):
            raise ValueError(f"{path / 'train'} and {tests[0]} must hold the same classes, but only one has {odd[0]!r}")
        return train, test
    classes = files_by_class(path)
    train, test = {}, {}
    for name, files in classes.items():
        if len(files) < 2:
            raise ValueError(f"class {name!r} in {path} has 1 image: to train and to test takes at least 2")
        mixed = sorted(files, key=lambda file: hashlib.sha256(file.name.encode(errors="surrogateescape")).digest())
        count = min(max(round(held_out * len(files)), 1), len(files) - 1)
        train[name], test[name] = sorted(mixed[count:]), sorted(mixed[:count])
    return train, test


def files_by_class(path: Path) -> dict[str, list[Path]]:
    """The image files in each folder of ``path``, all in alphabetical order."""
    folders = sorted(folder for folder in path.iterdir() if folder.is_dir() and not folder.name.startswith("."))
    if len(folders) < 2:
        raise ValueError(f"{path} must hold one folder for each of at least 2 classes, got {len(folders)}")
    classes = {}
    for folder in folders:
        classes[folder.name] = sorted(
            file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES and not file.name.startswith(".")
        )
        if not classes[folder.name]:
            raise ValueError(f"class {folder.name!r} is empty: {folder} has no images ({', '.join(sorted(SUFFIXES))})")
    return classes


def class_numbers(classes: Mapping[str, Sequence[Path]]) -> Tensor:
    """The label of every file, in order: (N,), int64."""
    counts = torch.tensor([len(files) for files in classes.values()])
    return torch.arange(len(classes)).repeat_interleave(counts)


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
    # by way of RGBA, because a palette may hold transparent colours
    image = image.convert("L") if image.mode in GREY else image.convert("RGBA").convert("RGB")
    pixels = bytearray(ImageOps.fit(image, (width, height), Image.Resampling.BILINEAR).tobytes())
    return torch.frombuffer(pixels, dtype=torch.uint8).view(height, width, -1).permute(2, 0, 1)


def upper_byte(mode: str) -> int:
    """Which of a pixel's two bytes counts more, by a mode such as "I;16B"; N is this machine's own order."""
    return 0 if mode.endswith("B") or (mode.endswith("N") and sys.byteorder == "big") else 1
