"""Who is told how training goes."""

from __future__ import annotations

from typing import Any


class Watcher:
    """Hears what happens. This one keeps silent; the command line shows it."""

    def begin(self, step: int, steps: int, batch: int) -> None:
        """Training starts, or goes on, after ``step`` of ``steps`` steps of ``batch`` samples."""

    def step(self, step: int, loss: float, accuracy: float) -> None:
        """A step is done; loss and accuracy are those of the epoch so far."""

    def epoch(self, line: dict[str, Any], seconds: float) -> None:
        """An epoch is done; ``line`` is its line of metrics."""

    def note(self, text: str) -> None:
        """One sentence."""
