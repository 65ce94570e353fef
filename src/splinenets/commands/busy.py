"""A sign of life on a terminal, for work that takes more than a moment."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def busy(what: str) -> Iterator[None]:
    """Say what is being done for as long as it is; where there is no terminal, say nothing."""
    from rich.console import Console
    from rich.text import Text

    console = Console(file=sys.stderr)  # this one, even while others redirect it
    if not console.is_terminal:
        yield
        return
    with console.status(Text(what)):
        yield
