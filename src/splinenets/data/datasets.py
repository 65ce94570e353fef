"""Data sets by name, whole and in memory."""

from __future__ import annotations

from pathlib import Path

from .catalog import EMBEDDED, FETCHED, Known, to_dataset, verify
from .dataset import Dataset, Split
from .folders import load_folder
from .layouts import idx, read_folder
from .store import data_root, read_stored

__all__ = ["Dataset", "Split", "known", "load", "load_embedded"]

EMBEDDED_FOLDER = Path(__file__).parent / "embedded"
FOLDER = "folder:"
KNOWN = {EMBEDDED.name: EMBEDDED, **FETCHED}


def known(name: str) -> Known:
    """What is known of a data set."""
    if name not in KNOWN:
        raise ValueError(f"unknown data set {name!r}, choose from {sorted(KNOWN)}")
    return KNOWN[name]


def load(
    name: str = "embedded", root: str | Path | None = None, *, size: int | tuple[int, int] | None = None
) -> Dataset:
    """A data set by name, verified by the SHA-256 of its arrays, or the images in a folder, as "folder:PATH".

    ``root`` is where data sets are stored (default $SPLINENETS_DATA, then ~/.cache/splinenets); ``size`` resizes the
    images of a folder (default 32) and goes with nothing else.
    """
    if name.startswith(FOLDER):
        return load_folder(name.removeprefix(FOLDER), 32 if size is None else size)
    if name not in KNOWN:
        raise ValueError(f"unknown data set {name!r}, choose from {sorted(KNOWN)} or give a folder as 'folder:PATH'")
    if size is not None:
        raise ValueError(f"size resizes the images of a folder only, got size={size} for {name!r}")
    if name == EMBEDDED.name:
        return load_embedded()
    return to_dataset(KNOWN[name], read_stored(KNOWN[name], data_root(root))[0])


def load_embedded() -> Dataset:
    """The subset of Fashion-MNIST that ships with the package: 6,000 training and 1,000 test images."""
    arrays = read_folder(EMBEDDED_FOLDER, idx(test="test"))
    verify(EMBEDDED, arrays, str(EMBEDDED_FOLDER))
    return to_dataset(EMBEDDED, arrays)
