"""``python -m benchmarks.balance``: how much of a gradient changes nothing but the sum of a filter's weights."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from splinenets.layers import SplineLayer
from splinenets.tables import text_table
from splinenets.training import load_recipe
from splinenets.training.build import build_network, load_task

SETTINGS = ("network=resnet", "depth=8", "plain=conv", "knots=at 1")
IMAGES = 100


def common_share(gradient: Tensor) -> float:
    """The share of a gradient's square that all weights of a filter have in common: (..., M) -> number."""
    return float(gradient.mean(-1).square().sum() * gradient.shape[-1] / gradient.square().sum())


def main() -> None:
    """A Spline-ResNet-8 before its first step, on the first embedded images."""
    recipe = load_recipe("demo", overrides=SETTINGS, model="D(5)-C-R3")
    task = load_task(recipe)
    net = build_network(recipe, task)
    images = task.augment.evaluate(task.data.train.images[:IMAGES])
    F.cross_entropy(net(images), task.data.train.labels[:IMAGES]).backward()
    rows = []
    for name, layer in net.named_modules():
        if isinstance(layer, SplineLayer):
            assert layer.weight.grad is not None
            assert layer.knots.grad is not None
            shares = (common_share(layer.weight.grad.flatten(1)), common_share(layer.knots.grad))
            rows.append((name, str(layer.fan_in), *(f"{100 * share:.0f}%" for share in shares)))
    print(text_table(("layer", "weights a filter", "common, weight", "common, knots"), rows))


if __name__ == "__main__":
    main()
