"""The commands of the command line, one file for each group."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import typer


def add(group: typer.Typer, function: Callable[..., None], *lines: str, name: str | None = None) -> None:
    """A command whose help has paragraphs as wide as the terminal, and an example on each of the ``lines``."""
    paragraphs = (inspect.getdoc(function) or "").split("\n\n")
    told = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    group.command(name, help=told, epilog=examples(*lines))(function)


def examples(*lines: str) -> str:
    """What stands at the end of a command's help."""
    return "\n".join(["", "Examples:" if len(lines) > 1 else "Example:", *(f"  [bold]{line}[/bold]" for line in lines)])
