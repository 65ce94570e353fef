"""How long each strategy takes for a layer: the measurements that ``auto`` chooses by."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from itertools import product
from statistics import median

import torch

from ..layers import SplineConv2d, SplineLayer, SplineLinear
from ..operators import STRATEGIES
from ..operators.choice import describe
from ..operators.fused import obstacle
from ..operators.measured import Case
from .timing import interleaved

CONVOLUTIONS = ((3, 16, 3, 32), (16, 16, 3, 32), (32, 32, 3, 16), (64, 64, 3, 8), (1, 32, 5, 28), (32, 64, 5, 14))
LINEAR = ((64, 10), (512, 10), (3136, 128))
SAMPLES, KNOTS = (1, 8, 250), (5, 20)
MANY = 8  # samples from which one after the other is out of the question
Setting = tuple[tuple[int, ...], int, int, bool, torch.dtype, bool]


def settings() -> list[Setting]:
    """Layer, samples, knots, whether each filter has its own spline, numbers, whether gradients are wanted."""
    both = (False, True)
    numbers = (torch.float32, torch.bfloat16)
    convolutions = product(CONVOLUTIONS, SAMPLES, KNOTS, both, numbers, both)
    return [*convolutions, *product(LINEAR, SAMPLES, KNOTS, (False,), numbers, both)]


def measure(setting: Setting, repeats: int) -> tuple[Case, dict[str, float]]:
    """Seconds of each strategy that can serve, for one layer; those that are far behind are not repeated."""
    sizes, samples, knots, each, numbers, learning = setting
    torch.manual_seed(0)
    layer: SplineLayer
    if len(sizes) == 2:
        layer = SplineLinear(*sizes, spec=f"D({knots})-C-R4")
        x = torch.randn(samples, sizes[0])
    else:
        channels, filters, kernel, size = sizes
        rank = "R3" if each else "R4"
        layer = SplineConv2d(channels, filters, kernel, padding=kernel // 2, spec=f"D({knots})-C-{rank}")
        x = torch.randn(samples, channels, size, size).contiguous(memory_format=torch.channels_last)
    x = x.to(numbers).requires_grad_(learning and sizes[0] > 3)  # the images themselves learn nothing
    position = torch.rand(samples, layer.coordinates).requires_grad_(learning)
    operation = layer.operation(x)[1]
    with torch.set_grad_enabled(learning):
        case = describe(x, layer.curves, operation)
        unfit = ["fused"] * bool(obstacle(x, layer.curves, operation)) + ["single"] * (samples > MANY)
        rows = {name: run(layer, x, position, name, learning) for name in STRATEGIES if name not in unfit}
        return case, interleaved(rows, repeats, hopeless=3)


def run(layer: SplineLayer, x: torch.Tensor, position: torch.Tensor, name: str, learning: bool) -> Callable[[], None]:
    """One forward pass, and one back if gradients are wanted."""

    def once() -> None:
        narrow = x.dtype == torch.bfloat16
        with torch.autocast("cpu", torch.bfloat16) if narrow else nullcontext():
            y = STRATEGIES[name](x, position, layer.curves, layer.operation(x)[1], None)
        if learning:
            y.backward(torch.ones_like(y))

    return once


def summary(cases: list[tuple[Case, dict[str, float]]]) -> list[list[str]]:
    """For each strategy how often it was the fastest, and how far ahead of the next one it was, in the middle."""
    leads: dict[str, list[float]] = {}
    for _, times in cases:
        first, *others = sorted(times, key=lambda name: times[name])
        leads.setdefault(first, []).append(times[others[0]] / times[first])
    return [[name, str(len(leads[name])), f"{median(leads[name]):.2f}"] for name in STRATEGIES if name in leads]
