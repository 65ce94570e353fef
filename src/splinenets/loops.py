"""For training loops of one's own: a network with its loss, and the health of positions for a logger."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .health_check import FEWEST, Health, health
from .regularizer import MutualInformation
from .tracing import Positions, levels_of, logits_of, trace

Criterion: TypeAlias = Callable[[Tensor, Tensor], Tensor]
MEASURES = ("entropy", "deviation", "saturated", "information", "drift", "unhealthy")


class Regularized(nn.Module):
    """A network with its loss: ``loss, logits = sn.Regularized(net, 10)(images, labels=labels)``.

    regularizer  the number of classes, or a ``MutualInformation`` of your own; None: cross entropy alone
    criterion    (logits, labels) -> what the network got wrong; labels are class numbers (N,), or shares of the classes
                 (N, classes) as mixup makes them

    Without labels it is the network itself. A network without splines has no positions to regularise, so its loss is
    the criterion alone: the same line trains a static twin.

    Examples:
        >>> images, labels = torch.randn(20, 1, 28, 28), torch.randint(10, (20,))
        >>> model = sn.Regularized(sn.convert(sn.models.lenet(4), "D(5)-C-R3"), 10)
        >>> loss, logits = model(images, labels=labels)
        >>> loss.backward()
    """

    accepts_loss_kwargs = False  # what the Trainer of transformers asks of a network that computes its own loss

    def __init__(
        self, net: nn.Module, regularizer: MutualInformation | int | None, criterion: Criterion = F.cross_entropy
    ) -> None:
        super().__init__()
        self.module, self.criterion = net, criterion
        self.regularizer = MutualInformation(regularizer) if isinstance(regularizer, int) else regularizer

    def forward(
        self, *inputs: object, labels: Tensor | None = None, progress: float | None = None, **named: object
    ) -> Any:
        """The inputs of the network and labels -> loss, logits; without labels the network's own output.

        progress  of the training, from 0 to 1, where a weight of the regulariser depends on it
        """
        if labels is None:
            return self.module(*inputs, **named)
        output, positions = self.trace(*inputs, **named)
        logits: Tensor = logits_of(output)
        return self.criterion(logits, labels) + self.penalty(positions, labels, progress), logits

    def trace(self, *inputs: object, **named: object) -> tuple[Any, Positions]:
        """The network's output, and positions if they are to be regularised."""
        if self.regularizer is None or not levels_of(self.module):
            return self.module(*inputs, **named), Positions({})
        return trace(self.module, *inputs, **named)

    def penalty(self, positions: Positions, labels: Tensor, progress: float | None = None) -> Tensor:
        """What the regulariser adds to the loss; 0 where there is nothing to regularise."""
        if self.regularizer is None or not positions:
            return torch.zeros((), device=labels.device)
        return self.regularizer(positions, labels, progress)


class HealthMetric:
    """Update it with each batch, compute at the end of an epoch, reset: ``self.log_dict(metric.compute())``.

    samples   how many of an epoch are kept, the first ones; a few hundred are enough
    remember  how many earlier epochs drift is judged by
    """

    def __init__(self, samples: int = 1_000, remember: int = 5) -> None:
        if samples < FEWEST or remember < 1:
            raise ValueError(f"samples must be {FEWEST} or more and remember 1 or more, got {samples} and {remember}")
        self.samples, self.remember = samples, remember
        self.history: list[Health] = []
        self.gathered: list[tuple[Positions, Tensor | None]] = []

    @torch.no_grad()
    def update(self, positions: Mapping[str, Tensor], labels: Tensor | None = None) -> None:
        """Positions {layer: (N, S)} of a batch, as ``sn.trace`` gives them, and their labels (N,) if there are any."""
        own = positions.inferred() if isinstance(positions, Positions) else positions
        room = self.samples - sum(_count(p) for p, _ in self.gathered)
        if room > 0 and own:
            kept = Positions({name: p[:room].detach().float().cpu() for name, p in own.items()})
            self.gathered.append((kept, None if labels is None else labels[:room].cpu()))

    def report(self) -> Health:
        """The health of what was gathered, with drift since the epochs before; prints as a table.

        Of fewer samples than can be judged, as in a trainer's trial of a few batches, it is empty.
        """
        if sum(_count(p) for p, _ in self.gathered) < FEWEST:
            return Health(())
        names = self.gathered[0][0]
        positions = {name: torch.cat([p[name] for p, _ in self.gathered]) for name in names}
        labels = [label for _, label in self.gathered if label is not None]
        known = len(labels) == len(self.gathered)
        return health(positions, torch.cat(labels) if known else None, self.history)

    def compute(self) -> dict[str, float]:
        """Numbers for a logger: {"entropy/conv1": .., "unhealthy/conv1": .., ..}."""
        rows = self.report().rows()
        return {f"{name}/{r['layer']}": float(r[name]) for r in rows for name in MEASURES if r[name] is not None}

    def reset(self) -> None:
        """End the epoch: remember its health, and forget its samples."""
        if (report := self.report()).layers:
            self.history = [*self.history, report][-self.remember :]
        self.gathered = []


def _count(positions: Positions) -> int:
    return len(next(iter(positions.values())))
