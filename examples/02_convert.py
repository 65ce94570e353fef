"""Start from a trained network: fine-tune it as a SplineNet and as it is, for the same time, and compare."""

from __future__ import annotations

import sys
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import splinenets as sn

seconds, epochs = (1.0, 1) if "--quick" in sys.argv else (30.0, 8)
data = sn.data.load("embedded")
images, tests = ((split.images.float() - 73) / 90 for split in (data.train, data.test))


def train(net: nn.Module, rate: float, budget: float, most_epochs: int) -> int:
    """One-cycle training until the time or the epochs are over; returns the number of steps."""
    optimizer = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9, weight_decay=5e-4)
    start, steps, total = time.perf_counter(), 0, most_epochs * 60
    net.train()
    for epoch in range(most_epochs):
        for pick in torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch)).split(100):
            progress = max((time.perf_counter() - start) / budget, steps / total)
            if progress >= 1:
                return steps
            optimizer.param_groups[0]["lr"] = rate * (1 - progress)
            loss = F.cross_entropy(net(images[pick]), data.train.labels[pick])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
    return steps


@torch.no_grad()
def accuracy(net: nn.Module, x: Tensor = tests) -> float:
    return (net.eval()(x).argmax(1) == data.test.labels).float().mean().item()


torch.manual_seed(0)
trained = sn.models.lenet(4, dropout=0.2)  # small: further training alone does not take it far
train(trained, 0.1, float("inf"), epochs)
print(f"trained network: {accuracy(trained):.1%} on {len(tests)} test images")

spline = sn.convert(trained, "D(5)-D-R3", example=images[:200], skip=("conv1",))
print(spline.conversion)
print(f"as a SplineNet, before training: the same outputs to {(spline(tests) - trained(tests)).abs().max():.0e}")

for name, net in (("as a SplineNet", spline), ("as it is", trained)):
    steps = train(net, 0.05, seconds, 1000)
    print(f"fine-tuned {name}, {seconds:.0f} s: {accuracy(net):.1%} after {steps} steps")
