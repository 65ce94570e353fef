"""The figures while a network trains."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from ..tracing import Positions
from ..training.build import Task
from .gallery import at_the_end, over_epochs
from .records import parse_epoch, read_epochs
from .style import check_matplotlib, to_png


class Drawing:
    """Draws after every so many epochs and after the last; ``train(..., draw=Drawing(...))``."""

    def __init__(self, folder: Path, *, every: int, last: int) -> None:
        check_matplotlib()
        self.folder, self.every, self.last = folder, every, last

    def __call__(self, net: nn.Module, task: Task, positions: Positions, line: dict[str, Any]) -> dict[str, Tensor]:
        """{name: picture (H, W, 3), bytes}; nothing between the epochs that are drawn."""
        epoch = parse_epoch(line)
        if epoch.number % self.every and epoch.number != self.last:
            return {}
        # this epoch's line may or may not be in the file yet
        earlier = [e for e in read_epochs(self.folder)[0] if e.number < epoch.number]
        seen = {name: position.float().cpu() for name, position in positions.items()}
        labels, classes = task.data.test.labels[: len(next(iter(seen.values())))], task.data.classes
        drawn = [*over_epochs([*earlier, epoch]), *at_the_end(net, seen, labels, classes)]
        return {each.title: _pixels(to_png(each.figure)) for each in drawn}


def _pixels(content: bytes) -> Tensor:
    from PIL import Image

    with Image.open(io.BytesIO(content)) as image:
        return torch.from_numpy(numpy.array(image.convert("RGB")))
