"""Trained networks that ship with the package, for a first look without training: nothing is downloaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

import torch
from torch import Tensor, nn

from .conversion import convert
from .data import augmentation
from .files import read_metadata
from .models import build
from .saving import dress

FOLDER = Path(__file__).parent / "trained"


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

    ``net.prepare(images)`` makes of uint8 images (N, C, H, W) what ``net(...)`` wants, ``net.classes`` are the names of
    its answers, and ``net.card`` says how it was trained and how well it does.
    """
    from safetensors.torch import load_file

    if name not in names():
        raise ValueError(f"there is no trained network {name!r}, choose from {', '.join(names())}")
    path = FOLDER / file_name(name)
    card = read_card(path)
    channels, size = card["channels"], card["image_size"]
    net: nn.Module = build(card["network"], in_channels=channels, image_size=size, classes=len(card["classes"]))
    if card["model"] != "static":
        net = convert(net, card["model"], example=torch.zeros(1, channels, size, size), skip=card["plain"])
    net.load_state_dict(load_file(path))
    augment = augmentation(card["augment"], mean=card["mean"], std=card["std"])
    dress(net, card["classes"], augment.preparation, card)
    return net.eval()


def names() -> list[str]:
    """What ships with the package."""
    return sorted(read_card(path)["name"] for path in FOLDER.glob("*.safetensors"))


def save(card: Mapping[str, object], weights: dict[str, Tensor], folder: Path = FOLDER) -> Path:
    """Write a trained network: its card is part of the file."""
    from safetensors.torch import save_file

    path = folder / file_name(str(card["name"]))
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(weights, path, metadata={"card": json.dumps(card)})
    return path


def file_name(name: str) -> str:
    """fashion-mnist/D(5)-D-R3 -> fashion-mnist_D5-D-R3.safetensors."""
    return name.translate({ord("/"): "_", ord("("): None, ord(")"): None}) + ".safetensors"


def read_card(path: Path) -> Card:
    """The card that is part of a file."""
    with path.open("rb") as file:
        return json.loads(read_metadata(file)["card"])
