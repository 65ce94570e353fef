"""JSON files that tell whether they are whole: beside the content stands its SHA-256."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from ..files import replacing


class DamagedError(ValueError):
    """A file is not what was written."""


def write_sealed(path: Path, content: dict[str, Any]) -> None:
    """Write JSON and its digest; ``path`` is replaced whole, or stays as it was."""
    with replacing(path) as file:
        file.write(json.dumps({"content": content, "sha256": _digest(content)}, indent=1).encode())


def read_sealed(path: Path) -> dict[str, Any]:
    """The content, or ``DamagedError`` with the reason."""
    try:
        sealed = json.loads(path.read_bytes())
        content, expected = sealed["content"], sealed["sha256"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedError(f"{path} is damaged: {type(error).__name__}, {error}") from None
    if not isinstance(content, dict) or _digest(content) != expected:
        raise DamagedError(f"{path} is damaged: its content does not have the SHA-256 that stands beside it")
    return content


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
