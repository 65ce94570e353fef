"""``python -m benchmarks.hierarchy``: gradients of a deep hierarchical network, by where its decision knots start."""

from __future__ import annotations

from unittest.mock import patch

import torch
import torch.nn.functional as F

import splinenets as sn
from splinenets.projection import Projection


def norm(spec: str, images: int = 128) -> float:
    """The norm of the gradient of a Spline-ResNet-32 with its first weights, on embedded images."""
    torch.manual_seed(0)
    train = sn.data.load("embedded").train
    x = train.images[:images] / 255.0
    x = (x - x.mean()) / x.std()
    net = sn.convert(sn.models.resnet(32, in_channels=1), spec, example=x[:2], spread=0.1)
    F.cross_entropy(net(x), train.labels[:images]).backward()
    return float(torch.nn.utils.get_total_norm([p.grad for p in net.parameters() if p.grad is not None]))


def main() -> None:
    print(f"D(5)-C-R3: {norm('D(5)-C-R3'):.1f}")
    for spread in (1, 0.5, 0.3, 0.1):
        with patch.object(Projection, "spread", spread):
            print(f"H(5)-C-R3, decision knots at {spread}: {norm('H(5)-C-R3'):.1f}", flush=True)


if __name__ == "__main__":
    main()
