"""Who is told how the getting of a data set goes."""

from __future__ import annotations


class Watcher:
    """Hears what happens and how many bytes of a file are there. This one keeps silent; the command line shows both."""

    def note(self, text: str) -> None:
        """One sentence on what happens."""

    def progress(self, file: str, done: int, total: int) -> None:
        """``done`` of ``total`` bytes of a file are there."""
