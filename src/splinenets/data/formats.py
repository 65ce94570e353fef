"""The files in which data sets are published: their formats, their archives, and how they become arrays.

A file becomes an array whole and in memory; nothing is ever unpacked to disk.
"""

from __future__ import annotations

import gzip
import io
import json
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path, PurePosixPath

import torch
from torch import Tensor

from ..files import LARGEST, read_bytes

UNSIGNED_BYTES = 0x08  # the only kind of IDX file that is read here
SIDE = 32  # of the images of CIFAR-10
PIXELS = SIDE * SIDE
RECORD = 1 + 3 * PIXELS  # of CIFAR-10's binary version: a label, then the red, the green and the blue plane


# One file


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
            pixels = bytearray(strip.tobytes())
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(f"{name} is damaged: {error}") from None
    return torch.frombuffer(pixels, dtype=torch.uint8).view(-1, SIDE, SIDE, 3).permute(0, 3, 1, 2).contiguous()


def parse_labels(content: bytes, name: str) -> Tensor:
    """A JSON list of class numbers: (N,), uint8."""
    try:
        labels = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} is damaged: {error}") from None
    if not isinstance(labels, list) or not all(type(label) is int and 0 <= label < 256 for label in labels):
        raise ValueError(f"{name} is damaged: it should hold a list of class numbers")
    return torch.tensor(labels, dtype=torch.uint8)


# Files in a tar archive


def read_members(path: Path, names: Iterable[str], inside: str = "") -> dict[str, bytes]:
    """The content of the files ``names`` in the folder ``inside`` of the archive ``path``.

    An archive with a member that would land elsewhere or is no plain file (an absolute path, "..", a link, a device)
    is refused whole, although nothing of it would be written.
    """
    wanted = {str(PurePosixPath(inside) / name): name for name in names}
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r:*") as archive:
            size = 0
            for member in archive:
                refuse_hostile(member, path)
                size += member.size
                if size > LARGEST:
                    raise ValueError(f"{path} is refused: it unpacks to more than {LARGEST} bytes")
                name = wanted.get(str(PurePosixPath(member.name)))
                file = archive.extractfile(member) if name is not None else None
                if name is None or file is None:
                    continue
                if name in found:
                    raise ValueError(f"{path} is refused: it holds {member.name} twice")
                found[name] = file.read()
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is damaged or is no tar archive: {error}") from None
    if missing := sorted(set(wanted) - {str(PurePosixPath(inside) / name) for name in found}):
        raise ValueError(f"{path} has no {missing[0]}")
    return found


def refuse_hostile(member: tarfile.TarInfo, path: Path) -> None:
    """Raise if an archive's member is not a plain file or folder below the place where it would be unpacked."""
    name = PurePosixPath(member.name)
    if name.is_absolute() or ".." in name.parts:
        raise ValueError(f"{path} is refused: its member {member.name!r} lies outside")
    if not (member.isreg() or member.isdir()):
        raise ValueError(f"{path} is refused: its member {member.name!r} is neither a plain file nor a folder")


# All files of a data set


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Files by name, the tar archive that may hold them, the folder in which they lie in it, and their decoder."""

    files: tuple[str, ...]
    decode: Callable[[Mapping[str, bytes]], dict[str, Tensor]]
    archive: str = ""
    inside: str = ""


def read_folder(folder: Path, layout: Layout) -> dict[str, Tensor]:
    """The arrays of the files in a folder: in an archive, or loose, plain or compressed with gzip."""
    if layout.archive and (folder / layout.archive).is_file():
        return read_archive(folder / layout.archive, layout)
    if layout.inside and (folder / layout.inside).is_dir():
        folder = folder / layout.inside
    return layout.decode({name: read_bytes(folder, name) for name in layout.files})


def read_archive(path: Path, layout: Layout) -> dict[str, Tensor]:
    """The arrays of the files in a tar archive."""
    return layout.decode(read_members(path, layout.files, layout.inside))


def idx(test: str = "t10k", inside: str = "") -> Layout:
    """The four IDX files of MNIST and its like; ``test`` is what the names of the test files start with."""
    splits = {"train": "train", "test": test}
    files = {
        f"{split}_{kind}": f"{start}-{kind}-{rank}-ubyte"
        for split, start in splits.items()
        for kind, rank in (("images", "idx3"), ("labels", "idx1"))
    }

    def decode(contents: Mapping[str, bytes]) -> dict[str, Tensor]:
        arrays = {name: parse_idx(contents[file], file) for name, file in files.items()}
        return {name: array.unsqueeze(1) if name.endswith("images") else array for name, array in arrays.items()}

    return Layout(files=tuple(files.values()), decode=decode, inside=inside)


BATCHES = {"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)}


def decode_cifar_binary(contents: Mapping[str, bytes]) -> dict[str, Tensor]:
    """The arrays of the six .bin files."""
    arrays: dict[str, Tensor] = {}
    for split, batches in BATCHES.items():
        images, labels = zip(
            *(parse_binary(contents[f"{batch}.bin"], f"{batch}.bin") for batch in batches), strict=True
        )
        arrays |= {f"{split}_images": torch.cat(images), f"{split}_labels": torch.cat(labels)}
    return arrays


def decode_cifar_strips(contents: Mapping[str, bytes]) -> dict[str, Tensor]:
    """The arrays of six PNG files and two lists of labels."""
    arrays = {}
    for split, batches in BATCHES.items():
        labels = f"{split}_lables.json"  # spelt so in the package
        arrays[f"{split}_images"] = torch.cat(
            [parse_strip(contents[f"{batch}.png"], f"{batch}.png") for batch in batches]
        )
        arrays[f"{split}_labels"] = parse_labels(contents[labels], labels)
    return arrays


ALL_BATCHES = (*BATCHES["train"], *BATCHES["test"])
IDX = idx()
CIFAR_BINARY = Layout(
    files=tuple(f"{batch}.bin" for batch in ALL_BATCHES),
    decode=decode_cifar_binary,
    archive="cifar-10-binary.tar.gz",
    inside="cifar-10-batches-bin",
)
CIFAR_STRIPS = Layout(
    files=(*(f"{batch}.png" for batch in ALL_BATCHES), "train_lables.json", "test_lables.json"),
    decode=decode_cifar_strips,
    inside="package",
)
