"""What a data set is, once it is in memory, and what is known beforehand of those that have a name."""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

Arrays = Mapping[str, Tensor]  # "train_images", "train_labels", "test_images", "test_labels", all uint8


@dataclass(frozen=True)
class Split:
    """Images (N, C, H, W), uint8, and their labels (N,), int64; and what is known of each, (N,), if anything is."""

    images: Tensor
    labels: Tensor
    values: Tensor | None = None

    def part(self, chosen: slice | Tensor, device: torch.device | None = None, images: Tensor | None = None) -> Split:
        """Some of it, on another device if one is named; ``images`` are those chosen, if they are there already."""
        values = None if self.values is None else self.values[chosen].to(device)
        images = self.images[chosen] if images is None else images
        return Split(images.to(device), self.labels[chosen].to(device), values)

    def whole(self, device: torch.device) -> Split:
        """All of it on another device, but for images that are still on disk."""
        return self.part(slice(None), device, self.images)

    def narrow(self, part: slice) -> Split:
        """A part of it, as it lies; images on disk stay there."""
        images = self.images[part] if isinstance(self.images, Tensor) else self.images.narrow(part)
        return self.part(part, images=images)


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A classification problem: training and test images, and the names of the classes."""

    name: str
    train: Split
    test: Split
    classes: tuple[str, ...]

    def in_colour(self) -> Dataset:
        """The same, grey images with three equal channels, which take no memory of their own."""
        train, test = (replace(part, images=part.images.expand(-1, 3, -1, -1)) for part in (self.train, self.test))
        return replace(self, train=train, test=test)


@dataclass(frozen=True, kw_only=True)
class Known:
    """A data set of known content. ``digests`` are the SHA-256 of its four arrays, as uint8, images as NCHW."""

    name: str
    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    train: int
    test: int
    digests: Mapping[str, str]

    def expected_shape(self, array: str) -> tuple[int, ...]:
        """The shape of one of the four arrays."""
        count = self.train if array.startswith("train") else self.test
        return (count, *self.shape) if array.endswith("images") else (count,)


def verify(known: Known, arrays: Arrays, where: str) -> None:
    """Raise unless the arrays are those of the data set, byte for byte; ``where`` stands in the message."""
    for name, expected in known.digests.items():
        if name not in arrays:
            raise ValueError(f"{where} is not {known.name}: it has no {name}")
        array, shape = arrays[name], known.expected_shape(name)
        if array.dtype != torch.uint8 or tuple(array.shape) != shape:
            raise ValueError(
                f"{where} is not {known.name}: its {name} are {array.dtype} of shape {tuple(array.shape)}, "
                f"expected {torch.uint8} of shape {shape}"
            )
        digest = array_digest(array)
        if digest != expected:
            raise ValueError(
                f"{where} is damaged or is not {known.name}: the SHA-256 of its {name} is {digest[:12]}..., "
                f"expected {expected[:12]}..."
            )


def array_digest(array: Tensor) -> str:
    """The SHA-256 of an array of bytes, where it lies in memory: neither numpy nor a copy is needed."""
    array = array.contiguous()
    return hashlib.sha256((ctypes.c_char * array.numel()).from_address(array.data_ptr())).hexdigest()


def to_dataset(known: Known, arrays: Arrays) -> Dataset:
    """The four arrays as a data set."""
    train, test = (Split(arrays[f"{split}_images"], arrays[f"{split}_labels"].long()) for split in ("train", "test"))
    return Dataset(name=known.name, train=train, test=test, classes=known.classes)


FASHION = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

EMBEDDED = Known(
    name="embedded",
    classes=FASHION,
    shape=(1, 28, 28),
    train=6_000,
    test=1_000,
    digests={
        "train_images": "2b17438af55637db62c122a92490b5b4275bed5719a838b5b0486ea2193a98a4",
        "train_labels": "f16e201ddc15b401c509545575d23793b230f5735ae378c1ced3a6156cb72251",
        "test_images": "3d7f6d64869a3f2d1afe64ae33ffb9b20670a91b31e3bbf0657e3999ec7b35cf",
        "test_labels": "6b25654537ff83dd6c40fe0a122c7778d8219b2a88ff02c36dbdd21152fdb075",
    },
)
FETCHED = {
    known.name: known
    for known in (
        Known(
            name="mnist",
            classes=tuple("0123456789"),
            shape=(1, 28, 28),
            train=60_000,
            test=10_000,
            digests={
                "train_images": "741c988805d008ac6e4c904b69001ba184c24b2c540a4ef403f4c71b676cf757",
                "train_labels": "1feba77c54802fa5339a11837ea4b2866434b83314ec45192930f1df69120c13",
                "test_images": "6d87418db22cc8025d05968bec9bd5c3932904b23485740db143a061a2c9d161",
                "test_labels": "ddeff807876a9661a1110d45c266c86239a3a1b7d37da0c3716a7a683c852ff5",
            },
        ),
        Known(
            name="fashion-mnist",
            classes=FASHION,
            shape=(1, 28, 28),
            train=60_000,
            test=10_000,
            digests={
                "train_images": "2e487a6c89124f78f2d7521542223cafe96f7123c3ca13d447772ac6ecbb3012",
                "train_labels": "657fbd221bfc9f4198cc14b5619cc33ec57c58dd0e47af4d99d6650759e869a7",
                "test_images": "c867c93ff95360594e8ec3287995350b824dd110b11595c0e13d5423f621867a",
                "test_labels": "3d0e6c6ea990b53b6f8f500a41cac93881d981b315f84578b7d915342ade01e9",
            },
        ),
        Known(
            name="cifar10",
            classes=CIFAR10,
            shape=(3, 32, 32),
            train=50_000,
            test=10_000,
            digests={
                "train_images": "9d5c2eddadb0deff02c14c350c0385aab7b1d5ff1edfeb4997c8dc8644960111",
                "train_labels": "2b7cd2f24487317614016b72ffd53071c3062f592f0eb300c18a770d41ae1253",
                "test_images": "177777c33ba79825320efa646ad04a94bdc3c80e4ebe3bd21724f8cdfd4b9d56",
                "test_labels": "cec8a24a1e92aa2ecaa0bbd3dbfa86bf6cd8759fbd209a832824c8cf0afca9d5",
            },
        ),
    )
}
KNOWN = {EMBEDDED.name: EMBEDDED, **FETCHED}


def parts_of(name: str) -> list[str]:
    """The data sets that a name such as "mnist+cifar10" puts together; none if it is not such a name."""
    parts = name.split("+")
    return parts if len(parts) > 1 and all(part in KNOWN for part in parts) else []


def joined(parts: Sequence[Dataset]) -> Dataset:
    """Several problems as one: all their classes side by side, all images in one mixed order.

    Images are scaled to the smallest size among them, and are grey if those of one part are.
    """
    channels, *size = (min(part.train.images.shape[axis] for part in parts) for axis in (1, 2, 3))
    firsts = [sum(len(part.classes) for part in parts[:i]) for i in range(len(parts))]

    def alike(images: Tensor) -> Tensor:
        seen = images.float()
        if channels == 1:
            seen = seen.mean(1, keepdim=True)
        if [*seen.shape[2:]] != size:
            seen = F.interpolate(seen, size, mode="bilinear", antialias=True)
        return seen.round().clamp(0, 255).to(torch.uint8)

    def mixed(splits: Sequence[Split]) -> Split:
        images = torch.cat([alike(split.images) for split in splits])
        labels = torch.cat([split.labels + first for split, first in zip(splits, firsts, strict=True)])
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
        return Split(images[order], labels[order])

    names = [name for part in parts for name in part.classes]
    own = [f"{part.name} {name}" for part in parts for name in part.classes]
    return Dataset(
        name="+".join(part.name for part in parts),
        train=mixed([part.train for part in parts]),
        test=mixed([part.test for part in parts]),
        classes=tuple(names if len(set(names)) == len(names) else own),
    )


def known(name: str) -> Known:
    """What is known of a data set."""
    if name not in KNOWN:
        raise ValueError(f"unknown data set {name!r}, choose from {', '.join(sorted(KNOWN))}")
    return KNOWN[name]
