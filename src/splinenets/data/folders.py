"""Data sets of image files: all of them in memory, or decoded when they are asked for."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from .dataset import Dataset, Split
from .decoding import SKIPPING, Place, read_image, read_shape
from .listing import CSV_PREFIX, FOLDER_PREFIX, File, Listing, list_images
from .streams import CHOICES, Stream, exceeds_memory

BROKEN = ("stop", "skip")


def load_folder(path: str | Path, size: int | tuple[int, int] = 32, *, held_out: float = 0.2) -> Dataset:
    """A data set of image files, one folder per class, resized to ``size`` (a side, or height and width).

    Below ``path`` lie either train/CLASS/... and test/CLASS/... (or val/ in place of test/), or CLASS/... alone; then
    the share ``held_out`` of each class becomes its test images, chosen by file name: the same on every machine.
    An image is scaled until it fills ``size``, and the rest is cut off evenly. Images are grey if all files are,
    otherwise RGB; what is transparent is grey.
    """
    return load_listed(f"{FOLDER_PREFIX}{path}", size, held_out)


def load_csv(path: str | Path, size: int | tuple[int, int] = 32, *, held_out: float = 0.2) -> Dataset:
    """A data set of the image files that a CSV file lists, with their labels: like ``load_folder`` otherwise.

    Its columns are file and label and, if you like, split (train, test or val) and value, a number for each image.
    """
    return load_listed(f"{CSV_PREFIX}{path}", size, held_out)


def load_listed(
    name: str,
    size: int | tuple[int, int] = 32,
    held_out: float = 0.2,
    *,
    stream: str = "auto",
    broken: str = "stop",
) -> Dataset:
    """The images of "folder:PATH", "csv:PATH" or "tar:PATH".

    stream  always: images are decoded when they are asked for; never: all of them are in memory; auto: they are, unless
            they would take more than half of it
    broken  stop: a file that cannot be read is an error, as soon as it is met; skip: all files are decoded once to
            begin with, and such files are left out with a warning
    """
    height, width = (size, size) if isinstance(size, int) else size
    if height < 1 or width < 1:
        raise ValueError(f"size must be at least 1 pixel, got {size}")
    for word, choices in ((stream, CHOICES), (broken, BROKEN)):
        if word not in choices:
            raise ValueError(f"unknown choice {word!r}, choose from {', '.join(choices)}")
    listing = list_images(name, held_out)
    if broken == "skip":
        listing = readable(listing, height, width)
    return load_listing(listing, height, width, stream)


def load_listing(listing: Listing, height: int, width: int, stream: str = "auto") -> Dataset:
    """All files of a listing."""
    files = [file.path for file in (*listing.train, *listing.test)]
    images: Tensor | Stream
    if stream == "always" or (stream == "auto" and exceeds_memory(3 * len(files) * height * width)):
        images = Stream(files, channels_of(files), height, width)
    else:
        images = read_images(files, height, width)
    train, test = slice(len(listing.train)), slice(len(listing.train), None)
    return Dataset(
        name=listing.name,
        train=_split(listing, listing.train, images, train),
        test=_split(listing, listing.test, images, test),
        classes=listing.classes,
    )


def _split(listing: Listing, files: Sequence[File], images: Tensor | Stream, part: slice) -> Split:
    own = images.narrow(part) if isinstance(images, Stream) else images[part]
    # a stream does all that a tensor of images is asked for
    return Split(cast(Tensor, own), class_numbers(listing, files), values_of(files))


def readable(listing: Listing, height: int, width: int) -> Listing:
    """A listing without the files that cannot be read, each of which is named in a warning."""

    def fault(file: File) -> str:
        try:
            read_image(file.path, height, width)
        except ValueError as error:
            return str(error).removesuffix(SKIPPING)
        return ""

    parts = []
    with ThreadPoolExecutor() as pool:
        for files in (listing.train, listing.test):
            faults = list(pool.map(fault, files))
            for reason in filter(None, faults):
                warnings.warn(f"{reason}; it is left out", stacklevel=2)
            parts.append(tuple(file for file, reason in zip(files, faults, strict=True) if not reason))
    train, test = parts
    for label in listing.classes:
        if not all(any(file.label == label for file in files) for files in (train, test)):
            raise ValueError(f"{listing.name} has too few images of {label!r} that can be read")
    return replace(listing, train=train, test=test)


def channels_of(files: Sequence[Place]) -> int:
    """1 if all files are grey, otherwise 3; their pixels are not read."""
    with ThreadPoolExecutor() as pool:
        return max(channels for channels, _, _ in pool.map(read_shape, files))


def class_numbers(listing: Listing, files: Sequence[File]) -> Tensor:
    """The label of every file: (N,), int64."""
    number = {label: index for index, label in enumerate(listing.classes)}
    return torch.tensor([number[file.label] for file in files])


def values_of(files: Sequence[File]) -> Tensor | None:
    """The number of every file: (N,), float32, or None if they have none."""
    values = [file.value for file in files if file.value is not None]
    return torch.tensor(values) if len(values) == len(files) else None


def read_images(files: Sequence[Place], height: int, width: int) -> Tensor:
    """Files as (N, C, H, W), uint8; C is 1 if all of them are grey, otherwise 3."""
    with ThreadPoolExecutor() as pool:  # decoding lets other threads run
        images = list(pool.map(lambda file: read_image(file, height, width), files))
    channels = max(len(image) for image in images)
    batch = torch.empty(len(images), channels, height, width, dtype=torch.uint8)
    for index, image in enumerate(images):
        batch[index] = image
    return batch
