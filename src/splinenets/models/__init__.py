"""Plain networks of the paper; ``sn.convert`` makes SplineNets of them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from torch import nn

from .lenet import LeNet, lenet
from .resnet import ResNet, resnet

__all__ = ["LeNet", "ResNet", "build", "lenet", "resnet"]

FAMILIES: dict[str, Callable[..., nn.Module]] = {"lenet": lenet, "resnet": resnet}


def build(name: str, *, in_channels: int = 3, image_size: int = 32, classes: int = 10, **options: Any) -> nn.Module:
    """A plain network by name, such as "lenet32" or "resnet110", for images of this kind."""
    match = re.fullmatch(r"([a-z]+)-?(\d{1,5})", name.lower())
    if match is None or match[1] not in FAMILIES:
        raise ValueError(
            f"unknown network {name!r}, choose from lenet<s> such as lenet32 and resnet<depth> such as resnet32"
        )
    if match[1] == "lenet":  # a residual network takes images of any size
        options["image_size"] = image_size
    return FAMILIES[match[1]](int(match[2]), in_channels=in_channels, classes=classes, **options)
