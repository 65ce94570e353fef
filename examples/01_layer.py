"""One spline layer in the place of a convolution."""

from __future__ import annotations

import torch
from torch import nn

import splinenets as sn

net = nn.Sequential(
    sn.SplineConv2d(3, 16, 3, padding=1, spec="H(5)-C-R3"),
    nn.ReLU(),
    sn.SplineConv2d(16, 32, 3, stride=2, padding=1, spec="H(5)-C-R3"),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(32, 10),
)
sn.connect(net)  # positions travel from layer to layer

images = torch.randn(8, 3, 32, 32)
logits, positions = sn.trace(net, images)
print(net)
for name, position in positions.items():
    print(f"layer {name}: positions {tuple(position.shape)}, from {position.min():.2f} to {position.max():.2f}")

layer = net[2]
assert isinstance(layer, sn.SplineConv2d)
print("filters of the first two samples:", tuple(layer.weights_at(positions["2"][:2]).shape))
