"""``python -m benchmarks.costs``: the paper's parameter and FLOP figures beside ours, as tables for docs/results.md."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

import splinenets as sn

GREY, COLOUR = torch.zeros(1, 1, 28, 28), torch.zeros(1, 3, 32, 32)
RESNET_SPECS = ["D(5)-C-R4", "D(5)-C-R3", "H(5)-C-R3", "D(5)-D-R4", "H(5)-D-R4", "D(5)-D-R3", "H(5)-D-R3"]


def cost(net: nn.Module, spec: str, example: torch.Tensor) -> sn.Cost:
    return sn.cost(net if spec == "static" else sn.convert(net, spec, example=example), example)


def resnet_rows() -> Iterator[str]:
    large = cost(sn.models.resnet(110), "static", COLOUR)
    paper = {"H(5)-D-R3": "42M", "D(5)-D-R3": "10M", "H(5)-D-R4": "3.67M"}
    yield "| ResNet, CIFAR-10 | paper | parameters | / 2^20 | MACs | ResNet-110's MACs over it |"
    yield "|---|---|---|---|---|---|"
    rows = [("ResNet-110", large), ("ResNet-32", cost(sn.models.resnet(32), "static", COLOUR))]
    rows += [(f"32 {spec}", cost(sn.models.resnet(32), spec, COLOUR)) for spec in RESNET_SPECS]
    for name, found in rows:
        printed = paper.get(name.removeprefix("32 "), "")
        yield (
            f"| {name} | {printed} | {found.parameters:,} | {found.parameters / 2**20:.2f} | {found.macs:,} "
            f"| {large.macs / found.macs:.2f} |"
        )


def lenet_rows() -> Iterator[str]:
    large = cost(sn.models.lenet(128, in_channels=3, image_size=32), "static", COLOUR)
    yield "| LeNet, CIFAR-10 | parameters | MACs | LeNet-128's parameters over it | LeNet-128's MACs over it |"
    yield "|---|---|---|---|---|"
    nets = {f"LeNet-{s}": (s, "static") for s in (128, 64, 32)}
    nets |= {f"32 {kind}({knots})-D-R3": (32, f"{kind}({knots})-D-R3") for kind in "DH" for knots in (2, 3, 4, 5)}
    for name, (s, spec) in nets.items():
        found = cost(sn.models.lenet(s, in_channels=3, image_size=32), spec, COLOUR)
        ratios = f"{large.parameters / found.parameters:.2f} | {large.macs / found.macs:.2f}"
        yield f"| {name} | {found.parameters:,} | {found.macs:,} | {ratios} |"


def mnist_rows() -> Iterator[str]:
    yield "| LeNet-32, MNIST | paper | parameters | / 2^20 |"
    yield "|---|---|---|---|"
    for spec in ("static", "H(2)-D-R3", "D(4)-D-R3", "H(4)-D-R3"):
        found = cost(sn.models.lenet(32), spec, GREY)
        printed = "2.25M" if spec == "H(4)-D-R3" else ""
        yield f"| {spec} | {printed} | {found.parameters:,} | {found.parameters / 2**20:.2f} |"


def tables() -> str:
    """All three, as Markdown."""
    return "\n\n".join("\n".join(rows()) for rows in (resnet_rows, lenet_rows, mnist_rows))


if __name__ == "__main__":
    print(tables())
