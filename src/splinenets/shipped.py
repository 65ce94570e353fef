"""Trained networks that ship with the package, for a first look without training: nothing is downloaded."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

import torch
from torch import Tensor, nn

from .conversion import convert
from .data import augmentation
from .files import DamagedError, read_metadata, read_sealed, replacing, write_sealed
from .models import build
from .saving import dress

FOLDER = Path(__file__).parent / "trained"
DIGESTS = "digests.json"  # beside the networks: name -> SHA-256
GONE = {  # networks that shipped once, and what to do instead
    "mnist/H(4)-D-R3": "it took 5.5 MB to be no better than its plain twin; "
    "splinenets train mnist-lenet --model 'H(4)-D-R3' trains one like it",
}


class Card(TypedDict):
    """What a network must be told to be built again; the cards that ship say more, such as their test accuracy."""

    name: str
    network: str
    model: str
    plain: list[str]
    channels: int
    image_size: int
    classes: list[str]
    augment: str
    mean: list[float]
    std: list[float]


def pretrained(name: str) -> nn.Module:
    """A trained network in eval mode, such as "fashion-mnist/D(5)-D-R3".

    ``net.prepare(images)`` turns uint8 images (N, C, H, W) into what ``net(...)`` expects, ``net.classes`` are the
    names of its answers, and ``net.card`` says how it was trained and how well it does.

    Examples:
        >>> net = sn.pretrained("fashion-mnist/D(5)-D-R3")
        >>> images = sn.data.load("embedded").test.images[:3]
        >>> [net.classes[answer] for answer in net(net.prepare(images)).argmax(1)]
        ['Ankle boot', 'Pullover', 'Trouser']
    """
    from safetensors.torch import load

    digests = read_digests(FOLDER)
    if name in GONE and name not in digests:
        raise ValueError(f"{name!r} is no longer shipped: {GONE[name]}")
    if name not in digests:
        raise ValueError(f"there is no trained network {name!r}, choose from {', '.join(digests)}")
    content = read_whole(FOLDER / file_name(name), digests[name])
    card: Card = json.loads(read_metadata(io.BytesIO(content))["card"])
    channels, size = card["channels"], card["image_size"]
    net: nn.Module = build(card["network"], in_channels=channels, image_size=size, classes=len(card["classes"]))
    if card["model"] != "static":
        net = convert(net, card["model"], example=torch.zeros(1, channels, size, size), skip=card["plain"])
    net.load_state_dict(load(content))
    augment = augmentation(card["augment"], mean=card["mean"], std=card["std"])
    dress(net, card["classes"], augment.preparation, card)
    return net.eval()


def names() -> list[str]:
    """What ships with the package."""
    return list(read_digests(FOLDER))


def read_digests(folder: Path) -> dict[str, str]:
    """The SHA-256 of every network's file, by name."""
    path = folder / DIGESTS
    return dict(sorted(read_sealed(path).items())) if path.exists() else {}


def read_whole(path: Path, digest: str) -> bytes:
    """The content of a network's file, or an error unless it is what was written."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise DamagedError(f"{path} is missing: install the package again") from None
    if hashlib.sha256(content).hexdigest() != digest:
        raise DamagedError(f"{path} is damaged, it does not have the SHA-256 of {DIGESTS}: install the package again")
    return content


def save(card: Mapping[str, object], weights: dict[str, Tensor], folder: Path = FOLDER) -> Path:
    """Write a trained network, its card a part of the file, and note its digest beside it."""
    from safetensors.torch import save as pack

    name = str(card["name"])
    path, content = folder / file_name(name), pack(weights, metadata={"card": json.dumps(card)})
    folder.mkdir(parents=True, exist_ok=True)
    with replacing(path) as file:
        file.write(content)
    write_sealed(folder / DIGESTS, read_digests(folder) | {name: hashlib.sha256(content).hexdigest()})
    return path


def file_name(name: str) -> str:
    """fashion-mnist/D(5)-D-R3 -> fashion-mnist_D5-D-R3.safetensors."""
    return name.translate({ord("/"): "_", ord("("): None, ord(")"): None}) + ".safetensors"
