"""Plain networks that are told a condition: what a SplineNet whose curves are told it has to be compared with."""

from __future__ import annotations

from math import tau

import torch
from torch import Tensor, nn

from ..data.changes import Change

HIDDEN = 16  # units between a condition and the scales and shifts it gives


class Told(nn.Module):
    """A network called as ``net(images, values)``; ``features`` are what it is told."""

    def __init__(self, net: nn.Module, change: Change) -> None:
        super().__init__()
        self.net, self.change = net, change

    def features(self, values: Tensor, like: Tensor) -> Tensor:
        """Values in their range as numbers around 0; on a circle as a point of it: (N,) -> (N, 1) or (N, 2)."""
        position = (values.to(like) - self.change.low) / (self.change.high - self.change.low)
        if self.change.closed:
            return torch.stack([(tau * position).cos(), (tau * position).sin()], 1)
        return (2 * position - 1).unsqueeze(1)


class ToldByChannels(Told):
    """What is told stands in channels of its own behind the image's, the same number in every pixel."""

    def forward(self, images: Tensor, values: Tensor) -> Tensor:
        """(N, C, H, W), (N,) -> what the network gives."""
        told = self.features(values, images)[:, :, None, None].expand(-1, -1, *images.shape[2:])
        return self.net(torch.cat([images, told], 1).contiguous(memory_format=torch.channels_last))


class ToldByScales(Told):
    """What is told scales and shifts the output of every layer but the last, channel by channel (FiLM)."""

    def __init__(self, net: nn.Module, change: Change) -> None:
        super().__init__(net, change)
        layers = [m for m in net.modules() if isinstance(m, nn.Conv2d | nn.Linear)][:-1]
        widths = [layer.weight.shape[0] for layer in layers]
        self.hidden = nn.Linear(told_features(change), HIDDEN)
        self.scales = nn.ModuleList(nn.Linear(HIDDEN, 2 * width) for width in widths)
        for parameter in self.scales.parameters():
            nn.init.zeros_(parameter)
        for layer in layers:
            layer.register_forward_hook(self.modulate)
        self.given: dict[nn.Module, Tensor] = {}
        self.layers = layers

    def modulate(self, layer: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        """A layer's output, (1 + scale) times itself plus a shift."""
        scale, shift = self.given[layer].to(output.dtype).chunk(2, 1)
        shape = (*scale.shape, *(1,) * (output.dim() - 2))
        return output * (1 + scale.view(shape)) + shift.view(shape)

    def forward(self, images: Tensor, values: Tensor) -> Tensor:
        """(N, C, H, W), (N,) -> what the network gives."""
        hidden = torch.relu(self.hidden(self.features(values, images)))
        self.given = {layer: scale(hidden) for layer, scale in zip(self.layers, self.scales, strict=True)}
        try:
            return self.net(images)
        finally:
            self.given = {}


def told_features(change: Change) -> int:
    """How many numbers say a value, each a channel that ``ToldByChannels`` adds to an image."""
    return 2 if change.closed else 1
