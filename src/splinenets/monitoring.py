"""The health of positions, gathered batch by batch: what a logger of one's own training loop asks for."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from .health_check import FEWEST, Health, health
from .tracing import Positions

MEASURES = ("entropy", "deviation", "saturated", "information", "drift", "ailing")


class HealthMetric:
    """Update it with each batch, compute at the end of an epoch, reset: ``self.log_dict(metric.compute())``.

    samples   how many are kept of an epoch, the first ones; some hundred are enough
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
        """Numbers for a logger: {"entropy/conv1": .., "ailing/conv1": .., ..}."""
        rows = self.report().rows()
        return {f"{name}/{r['layer']}": float(r[name]) for r in rows for name in MEASURES if r[name] is not None}

    def reset(self) -> None:
        """The epoch is over: remember its health, and begin to gather anew."""
        if (report := self.report()).layers:
            self.history = [*self.history, report][-self.remember :]
        self.gathered = []


def _count(positions: Positions) -> int:
    return len(next(iter(positions.values())))
