"""Train a Spline-LeNet and its static twin on the embedded images, and compare them: ``make demo``."""

from __future__ import annotations

import time

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch import Tensor, nn

import splinenets as sn

EPOCHS, BATCH, SPEC = 6, 100, "D(5)-D-R3"


def train(net: nn.Module, images: Tensor, labels: Tensor, name: str, progress: Progress) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    steps = EPOCHS * len(images) // BATCH
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, steps)
    task = progress.add_task(name, total=steps)
    net.train()
    for epoch in range(EPOCHS):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
        for pick in order.split(BATCH):
            loss = F.cross_entropy(net(images[pick]), labels[pick])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            progress.update(task, advance=1, description=f"{name}  loss {loss.item():.3f}")


@torch.no_grad()
def evaluate(net: nn.Module, images: Tensor, labels: Tensor) -> tuple[float, sn.Positions]:
    logits, positions = sn.trace(net.eval(), images)
    return (logits.argmax(1) == labels).float().mean().item(), positions


def main() -> None:
    data = sn.data.load("embedded")
    mean, deviation = data.train.images.float().mean(), data.train.images.float().std()
    images, tests = ((split.images.float() - mean) / deviation for split in (data.train, data.test))

    torch.manual_seed(0)
    twin = sn.models.lenet(16)
    nets = {"static": twin, f"spline {SPEC}": sn.convert(twin, SPEC, example=images[:100], skip=("conv1",), spread=0.1)}
    console = Console()
    table = Table("LeNet-16", "accuracy", "parameters", "seconds", "positions (standard deviation, share at the ends)")
    with Progress(console=console) as progress:
        for name, net in nets.items():
            start = time.perf_counter()
            train(net, images, data.train.labels, name, progress)
            seconds = time.perf_counter() - start
            accuracy, positions = evaluate(net, tests, data.test.labels)
            health = "\n".join(
                f"{layer}: {p.std():.2f}, {((p < 0.01) | (p > 0.99)).float().mean():.0%}"
                for layer, p in positions.items()
            )
            count = sum(p.numel() for p in net.parameters())
            table.add_row(name, f"{accuracy:.1%}", f"{count:,}", f"{seconds:.0f}", health or "-")
    console.print(table)


if __name__ == "__main__":
    main()
