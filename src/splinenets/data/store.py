"""Data sets on disk: one safetensors file each, written whole and verified whenever it is read."""

from __future__ import annotations

import json
import os
from pathlib import Path

from torch import Tensor

from ..files import replacing
from .catalog import Arrays, Known, verify

ORIGINS = ("by hand", "system", "web", "npm")


def data_root(root: str | Path | None = None) -> Path:
    """The folder that holds the data sets: the one given, $SPLINENETS_DATA, or ~/.cache/splinenets."""
    return Path(root or os.environ.get("SPLINENETS_DATA") or "~/.cache/splinenets").expanduser()


def stored_path(name: str, root: Path) -> Path:
    """Where a data set is stored."""
    return root / f"{name}.safetensors"


def write_stored(known: Known, arrays: Arrays, origin: str, root: Path) -> Path:
    """Verify the arrays, then store them; a file of that name is replaced at once, or stays as it was."""
    from safetensors.torch import save

    path = stored_path(known.name, root)
    verify(known, arrays, origin)
    content = save({name: array.contiguous() for name, array in arrays.items()}, metadata={"origin": origin})
    with replacing(path) as file:
        file.write(content)
    return path


def read_stored(known: Known, root: Path) -> tuple[dict[str, Tensor], str]:
    """The arrays of a stored data set, verified, and where they came from."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    path = stored_path(known.name, root)
    if not path.exists():
        raise FileNotFoundError(f"{known.name} is not in {root}: get it with 'splinenets data get {known.name}'")
    content = path.read_bytes()
    try:
        arrays = load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        origin = header["__metadata__"]["origin"]
    except (SafetensorError, ValueError, KeyError) as error:
        raise ValueError(f"{path} is damaged ({error}): get it again with 'splinenets data get {known.name}'") from None
    if origin not in ORIGINS:
        raise ValueError(f"{path} is damaged: its origin is {origin!r}, expected one of {ORIGINS}")
    verify(known, arrays, str(path))
    return arrays, origin
