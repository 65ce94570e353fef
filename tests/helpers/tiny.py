"""Small data sets in every form in which the large ones come."""

import gzip
import hashlib
import io
import json
import tarfile
from pathlib import Path

import numpy
import torch
from PIL import Image

from splinenets.data.dataset import Known
from splinenets.data.sources import Archive


def arrays(shape, train=20, test=10):
    """Four arrays with something of everything in them."""
    generator = torch.Generator().manual_seed(1)

    def draw(*size, high=256):
        return torch.randint(0, high, size, dtype=torch.uint8, generator=generator)

    return {
        "train_images": draw(train, *shape),
        "train_labels": draw(train, high=10),
        "test_images": draw(test, *shape),
        "test_labels": draw(test, high=10),
    }


def known(name, content):
    return Known(
        name=name,
        classes=tuple("0123456789"),
        shape=tuple(content["train_images"].shape[1:]),
        train=len(content["train_images"]),
        test=len(content["test_images"]),
        digests={key: hashlib.sha256(array.numpy().tobytes()).hexdigest() for key, array in content.items()},
    )


GREY = arrays((1, 28, 28))
COLOUR = arrays((3, 32, 32))
MNIST = known("mnist", GREY)
CIFAR = known("cifar10", COLOUR)


def idx_bytes(array):
    return (
        b"\0\0\x08"
        + bytes([array.dim()])
        + b"".join(n.to_bytes(4, "big") for n in array.shape)
        + array.numpy().tobytes()
    )


def idx_files():
    """Name -> content of the four IDX files."""
    return {
        f"{start}-{kind}-{rank}-ubyte": idx_bytes(GREY[f"{split}_{kind}"].squeeze())
        for split, start in (("train", "train"), ("test", "t10k"))
        for kind, rank in (("images", "idx3"), ("labels", "idx1"))
    }


def packed_idx_files():
    return {f"{name}.gz": gzip.compress(content, mtime=0) for name, content in idx_files().items()}


def parts(split):
    """Batch name, images and labels of the files of one split."""
    images, labels = COLOUR[f"{split}_images"], COLOUR[f"{split}_labels"]
    if split == "test":
        return [("test_batch", images, labels)]
    chunks = zip(images.chunk(5), labels.chunk(5), strict=True)
    return [(f"data_batch_{number}", *chunk) for number, chunk in enumerate(chunks, 1)]


def binary_files():
    """Name -> content of the six .bin files."""
    return {
        f"{name}.bin": torch.cat((labels.unsqueeze(1), images.flatten(1)), 1).numpy().tobytes()
        for split in ("train", "test")
        for name, images, labels in parts(split)
    }


def strip_files():
    """Name -> content of the PNG strips and their labels."""
    files = {}
    for split in ("train", "test"):
        files[f"{split}_lables.json"] = json.dumps(COLOUR[f"{split}_labels"].tolist()).encode()
        for name, images, _ in parts(split):
            rows = images.permute(0, 2, 3, 1).reshape(len(images), 1024, 3).numpy()
            files[f"{name}.png"] = png(rows)
    return files


def png(pixels):
    content = io.BytesIO()
    Image.fromarray(numpy.asarray(pixels)).save(content, "PNG")
    return content.getvalue()


def tar(files, inside="", extra=()):
    """A tar.gz of files in a folder, and of further members as they are given."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(f"{inside}/{name}" if inside else name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
        for member in extra:
            archive.addfile(member, io.BytesIO(bytes(member.size)))
    return content.getvalue()


def archive(name, content):
    """What is known of a published file."""
    return Archive(name=name, size=len(content), sha256=hashlib.sha256(content).hexdigest())


def write(folder: Path, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def damaged(content, count, seed=0):
    """Copies of ``content`` with one bit flipped or the end cut off, spread over its length."""
    places = numpy.random.default_rng(seed).permutation(len(content))[:count].tolist()
    for number, place in enumerate(places):
        if number % 3 == 2:
            yield content[:place]
        else:
            yield content[:place] + bytes([content[place] ^ 1 << number % 8]) + content[place + 1 :]


def same(left, right):
    return left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)
