"""What a trained network does with test images, and what it costs."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from ..costs import Cost, cost
from ..data import Split, in_order
from ..exporting import Exported, export
from ..health_check import FEWEST, Health, health
from ..tracing import Positions, evaluating, join_positions, trace
from ..training.build import Inputs, Task

LOOKED_AT = 2_000  # images
CALLS = 200  # of each network, to measure latency
CALM = 0.8  # of the time a process must have had a processor for its timings to count
CHECKED = 32  # images on which a deployed network is compared with its original


@dataclass(frozen=True, kw_only=True)
class Observation:
    """The first test images in a network: their logits (N, classes), labels (N,) and positions {layer: (N, S)}."""

    net: nn.Module
    task: Task
    logits: Tensor
    labels: Tensor
    positions: Positions
    cost: Cost
    health: Health | None

    @property
    def accuracy(self) -> float:
        """The share of right answers."""
        return float((self.logits.argmax(1) == self.labels).double().mean())


def observe(net: nn.Module, task: Task) -> Observation:
    """Look at a network's test images and count its cost."""
    logits, positions = travel(net, task, task.data.test)
    labels = task.data.test.labels[: len(logits)]
    judged = health(positions, labels) if positions and len(labels) >= FEWEST else None
    device = next(net.parameters()).device
    return Observation(
        net=net,
        task=task,
        logits=logits,
        labels=labels,
        positions=positions,
        cost=cost(net, tuple(each.to(device) for each in task.example(1))),
        health=judged,
    )


@torch.no_grad()
def travel(net: nn.Module, task: Task, split: Split, most: int = LOOKED_AT) -> tuple[Tensor, Positions]:
    """The logits and positions of a split's first images, in float32 on the processor."""
    device = next(net.parameters()).device
    logits, parts = [], []
    with evaluating(net):
        for part in in_order(min(most, len(split.labels)), 250):
            out, positions = trace(net, *task.show(split, part, device))
            logits.append(out.float().cpu())
            found = {name: position.float().cpu() for name, position in positions.items()}
            parts.append(Positions(found, given=positions.given))
    return torch.cat(logits), join_positions(parts)


def deployed(net: nn.Module, task: Task) -> Exported | None:
    """The network in the native runtime, one image at a time; None where that cannot be had."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            return export(net, task.example(CHECKED), Path(folder) / "net.native")
    except (OSError, ValueError):  # no room, no compiler, or an operation that the runtime does not know
        return None


class Latencies(list[float]):
    """The median time of one image through each network, in seconds.

    calm  whether this process had a processor to itself meanwhile; on a busy machine times say little
    """

    calm = True


def in_torch_and_deployed(loaded: Sequence[tuple[nn.Module, Task]]) -> tuple[list[tuple[float, float | None]], bool]:
    """Time one image through each network, in torch and, where it can be had, deployed; and whether all was calm."""
    served = [deployed(net, task) for net, task in loaded]
    images = [tuple(x.to(next(net.parameters()).device) for x in task.example(1)) for net, task in loaded]
    on_processor = [tuple(x.cpu().float() for x in each) for each in images]
    times = latencies(
        [*(net for net, _ in loaded), *(each for each in served if each is not None)],
        [*images, *(x for x, each in zip(on_processor, served, strict=True) if each is not None)],
    )
    in_torch, in_native = iter(times[: len(loaded)]), iter(times[len(loaded) :])
    return [(next(in_torch), None if each is None else next(in_native)) for each in served], times.calm


@torch.inference_mode()
def latencies(nets: Sequence[Callable[..., Tensor]], images: Sequence[Inputs]) -> Latencies:
    """Time one image through each network; they take turns, so that noise hits all alike."""
    times: list[list[float]] = [[] for _ in nets]
    on_processor, began_all = time.process_time(), time.perf_counter()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # one small image is no work to share
    try:
        for _ in range(CALLS):
            for net, image, spent in zip(nets, images, times, strict=True):
                began = time.perf_counter()
                net(*image)
                spent.append(time.perf_counter() - began)
    finally:
        torch.set_num_threads(threads)
    found = Latencies(statistics.median(spent[CALLS // 10 :]) for spent in times)
    found.calm = time.process_time() - on_processor > CALM * (time.perf_counter() - began_all)
    return found
