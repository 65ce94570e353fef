"""Which files hold a data set, how they may be packed, and how they become arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..files import read_bytes
from .archives import read_members
from .cifar import parse_binary, parse_labels, parse_strip
from .idx import parse_idx


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
