"""Cross entropy plus regulariser, for any training loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .regularizer import MutualInformation
from .tracing import Positions, levels_of, trace

Criterion: TypeAlias = Callable[[Tensor, Tensor], Tensor]


class Regularized(nn.Module):
    """A network with its loss: ``loss, logits = sn.Regularized(net, 10)(images, labels=labels)``.

    regularizer  the number of classes, or a ``MutualInformation`` of your own; None: cross entropy alone
    criterion    (logits, labels) -> what the network got wrong; labels are class numbers (N,), or shares of the classes
                 (N, classes) as mixup makes them

    Without labels it is the network itself. A network without splines has no positions to regularise, so its loss is
    the criterion alone: a static twin trains by the same line.
    """

    accepts_loss_kwargs = False  # what the Trainer of transformers asks of a network that computes its own loss

    def __init__(
        self, net: nn.Module, regularizer: MutualInformation | int | None, criterion: Criterion = F.cross_entropy
    ) -> None:
        super().__init__()
        self.module, self.criterion = net, criterion
        self.regularizer = MutualInformation(regularizer) if isinstance(regularizer, int) else regularizer

    def forward(self, *inputs: Any, labels: Tensor | None = None, progress: float | None = None, **named: Any) -> Any:
        """The inputs of the network and labels -> loss, logits; without labels the network's own output.

        progress  of the training, from 0 to 1, where a weight of the regulariser depends on it
        """
        if labels is None:
            return self.module(*inputs, **named)
        output, positions = self.trace(*inputs, **named)
        logits: Tensor = getattr(output, "logits", output)
        return self.criterion(logits, labels) + self.penalty(positions, labels, progress), logits

    def trace(self, *inputs: Any, **named: Any) -> tuple[Any, Positions]:
        """The network's output, and positions if they are to be regularised."""
        if self.regularizer is None or not levels_of(self.module):
            return self.module(*inputs, **named), Positions({})
        return trace(self.module, *inputs, **named)

    def penalty(self, positions: Positions, labels: Tensor, progress: float | None = None) -> Tensor:
        """What the regulariser adds to the loss; 0 where there is nothing to regularise."""
        if self.regularizer is None or not positions:
            return torch.zeros((), device=labels.device)
        return self.regularizer(positions, labels, progress)
