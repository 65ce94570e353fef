"""ResNet for CIFAR (He et al. 2015, section 4.2)."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from ..constructors import remembered

SHORTCUTS = ("pad", "projection")
WIDTHS = (16, 32, 64)


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut around them."""

    def __init__(self, in_channels: int, channels: int, stride: int, shortcut: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != channels:
            self.shortcut = (
                PadShortcut(channels - in_channels, stride)
                if shortcut == "pad"
                else nn.Sequential(nn.Conv2d(in_channels, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))
            )

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, channels, H / stride, W / stride)."""
        y = self.relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return self.relu(y + self.shortcut(x))


class PadShortcut(nn.Module):
    """Without parameters: every stride-th pixel, and new channels of zeros."""

    def __init__(self, new_channels: int, stride: int) -> None:
        super().__init__()
        self.new_channels, self.stride = new_channels, stride

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, C + new_channels, H / stride, W / stride)."""
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.new_channels))


class ResNet(nn.Module):
    """Three stages of n blocks with so many channels; depth = 6n + 2."""

    def __init__(self, blocks: int, widths: Sequence[int], in_channels: int, classes: int, shortcut: str) -> None:
        super().__init__()
        channels, stages = widths[0], []
        self.conv = nn.Conv2d(in_channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.relu = nn.ReLU()
        for width, stride in zip(widths, (1, 2, 2), strict=True):
            stage = []
            for block in range(blocks):
                stage.append(Block(channels, width, stride if block == 0 else 1, shortcut))
                channels = width
            stages.append(nn.Sequential(*stage))
        self.stages = nn.Sequential(*stages)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.dense = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, classes)."""
        x = self.relu(self.norm(self.conv(images)))
        x = self.stages(x)
        return self.dense(self.pool(x).flatten(1))


@remembered
def resnet(
    depth: int = 32,
    *,
    widths: Sequence[int] = WIDTHS,
    in_channels: int = 3,
    classes: int = 10,
    shortcut: str = "pad",
) -> ResNet:
    """ResNet-20, 32, 44, 56, 110 or any depth 6n + 2; shortcuts "pad" (no parameters, the original) or "projection".

    Its three stages have ``widths`` channels, none fewer than the one before where shortcuts have no parameters.
    """
    if depth < 8 or (depth - 2) % 6:
        raise ValueError(f"the depth of a CIFAR ResNet is 6n + 2, such as 20, 32, 44, 56 or 110, got {depth}")
    if shortcut not in SHORTCUTS:
        raise ValueError(f"unknown shortcut {shortcut!r}, choose from {', '.join(SHORTCUTS)}")
    if len(widths) != len(WIDTHS) or min(widths) < 1 or (shortcut == "pad" and sorted(widths) != list(widths)):
        raise ValueError(f"a ResNet has three growing widths, such as 16, 32, 64, got {', '.join(map(str, widths))}")
    return ResNet((depth - 2) // 6, widths, in_channels, classes, shortcut)
