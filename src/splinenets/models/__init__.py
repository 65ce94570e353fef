"""Plain networks, those of the paper and a quick one; ``sn.convert`` makes SplineNets of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from torch import nn

from .air import Air, air
from .lenet import LeNet, lenet
from .resnet import ResNet, resnet

__all__ = ["Air", "LeNet", "ResNet", "air", "build", "lenet", "resnet"]

FAMILIES: dict[str, Callable[..., nn.Module]] = {"air": air, "lenet": lenet, "resnet": resnet}


def build(name: str, *, in_channels: int = 3, image_size: int = 32, classes: int = 10, **options: object) -> nn.Module:
    """A plain network by name, such as "lenet32", "resnet110" or "air64-128-128", for images of this kind."""
    match = re.fullmatch(r"([a-z]+)-?(\d{1,5}(?:-\d{1,5})*)", name.lower())
    numbers = [int(number) for number in match[2].split("-")] if match else []
    if match is None or match[1] not in FAMILIES or (len(numbers) > 1) != (match[1] == "air"):
        raise ValueError(
            f"unknown network {name!r}, choose from lenet<s> such as lenet32, resnet<depth> such as resnet32 and "
            f"air<widths> such as air64-128-128"
        )
    if match[1] == "lenet":  # the others take images of any size
        options["image_size"] = image_size
    size: Any = numbers if match[1] == "air" else numbers[0]
    return FAMILIES[match[1]](size, in_channels=in_channels, classes=classes, **options)
