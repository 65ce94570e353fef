"""``python -m benchmarks.precision``: a training step in float32 and in bf16, interleaved."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import splinenets as sn
from benchmarks.timing import interleaved
from splinenets.tables import text_table

Case = tuple[Callable[[], nn.Module], tuple[int, ...], str]
CASES: dict[str, Case] = {
    "LeNet-16, batch 100": (lambda: sn.models.lenet(16), (100, 1, 28, 28), "D(5)-D-R3"),
    "LeNet-32, batch 250": (lambda: sn.models.lenet(32), (250, 1, 28, 28), "D(5)-D-R3"),
    "ResNet-20, batch 64": (lambda: sn.models.resnet(20), (64, 3, 32, 32), "D(5)-C-R3"),
}


def step(net: nn.Module, images: Tensor, labels: Tensor, bf16: bool) -> Callable[[], None]:
    def run() -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            logits, _ = sn.trace(net, images)
        F.cross_entropy(logits.float(), labels).backward()

    return run


def main() -> None:
    body = []
    for name, (make, shape, spec) in CASES.items():
        images = torch.randn(shape).contiguous(memory_format=torch.channels_last)  # as in training
        labels = torch.randint(10, (shape[0],))
        twin = make()
        for model, net in (("static", twin), (spec, sn.convert(twin, spec, example=images))):
            rows = {str(bf16): step(net, images, labels, bf16) for bf16 in (False, True)}
            times = interleaved(rows, 5)
            single, half = times["False"], times["True"]
            body.append((name, model, f"{single * 1e3:.0f}", f"{half * 1e3:.0f}", f"{single / half:.2f}"))
    print(f"{torch.get_num_threads()} threads")
    print(text_table(("network", "model", "float32, ms", "bf16, ms", "ratio"), body))


if __name__ == "__main__":
    main()
