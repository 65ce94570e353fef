"""Getting a data set: from the first place that has it, verified, stored whole or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..files import exclusive
from .catalog import EMBEDDED, Known, verify
from .datasets import EMBEDDED_FOLDER, known, load_embedded
from .sources import Source, sources
from .store import data_root, read_stored, stored_path, write_stored
from .watcher import Watcher


def get(
    name: str, root: str | Path | None = None, *, mirror: str | None = None, watcher: Watcher | None = None
) -> Path:
    """Make sure that a data set is stored below ``root``, intact; its path."""
    wanted, folder = known(name), data_root(root)
    if wanted is EMBEDDED:
        return EMBEDDED_FOLDER
    return fetch(wanted, sources(name, folder, mirror), folder, watcher or Watcher())


def fetch(wanted: Known, places: Sequence[Source], root: Path, watcher: Watcher) -> Path:
    """Store a data set from the first of the places that has it, unless it is stored already."""
    if stored(wanted, root, watcher):
        return stored_path(wanted.name, root)
    work = work_folder(wanted.name, root)
    work.mkdir(parents=True, exist_ok=True)
    with exclusive(root / ".lock", watcher.note):
        if stored(wanted, root, Watcher()):  # by another process, while this one waited
            return stored_path(wanted.name, root)
        reasons = []
        for place in places:
            try:
                arrays = place.fetch(work, watcher)
                verify(wanted, arrays, place.place)
            except (OSError, ValueError) as error:
                reasons.append(str(error) if place.place in str(error) else f"{place.place}: {error}")
                watcher.note(reasons[-1])
                continue
            path = write_stored(wanted, arrays, place.origin, root)
            shutil.rmtree(work)
            watcher.note(f"{wanted.name} came from {place.place}, verified")
            return path
    raise OSError(f"{wanted.name} could not be had from any place: {'; '.join(reasons)}")


def stored(wanted: Known, root: Path, watcher: Watcher) -> bool:
    """Whether a data set is stored and intact."""
    try:
        read_stored(wanted, root)
    except FileNotFoundError:
        return False
    except ValueError as error:
        watcher.note(str(error))
        return False
    watcher.note(f"{wanted.name} is already there, verified")
    return True


def work_folder(name: str, root: Path) -> Path:
    """Where downloads gather."""
    return root / ".downloads" / name


@dataclass(frozen=True, kw_only=True)
class Status:
    """What is there of a data set, and where it came from."""

    known: Known
    state: str  # "ready", "damaged", "partly downloaded" or "not here"
    origin: str
    path: Path
    size: int  # bytes on disk


def status(name: str, root: str | Path | None = None) -> Status:
    """Look for a data set and verify it."""
    wanted, folder = known(name), data_root(root)
    path = EMBEDDED_FOLDER if wanted is EMBEDDED else stored_path(name, folder)
    origin = ""
    try:
        if wanted is EMBEDDED:
            load_embedded()
            origin = "package"
        else:
            _, origin = read_stored(wanted, folder)
        state = "ready"
    except FileNotFoundError:
        path = work_folder(name, folder)
        state = "partly downloaded" if any(path.glob("*")) else "not here"
    except ValueError:
        state = "damaged"
    files = path.glob("*") if path.is_dir() else (path,)
    return Status(
        known=wanted, state=state, origin=origin, path=path, size=sum(f.stat().st_size for f in files if f.is_file())
    )
