"""How downloads look in a terminal."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from ..data import DownloadWatcher


class Display(DownloadWatcher):
    """Shows notes as lines and downloads as bars."""

    def __init__(self) -> None:
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self.tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Display:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.tasks:
            self.bars.stop()

    def note(self, text: str) -> None:
        """One line."""
        self.bars.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def progress(self, file: str, done: int, total: int) -> None:
        """One bar per file."""
        if file not in self.tasks:
            self.bars.start()
            self.tasks[file] = self.bars.add_task(file, total=total)
        self.bars.update(self.tasks[file], completed=done)
