"""Reading plain or compressed files, and writing files that are whole or not there at all."""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

if sys.platform != "win32":
    import fcntl

DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}
LARGEST = 1 << 30  # bytes; the largest file of a data set that we know holds 47 million


def read_bytes(folder: Path, name: str) -> bytes:
    """The content of ``name``, or of ``name``.gz unpacked, whichever is in the folder."""
    plain, packed = folder / name, folder / f"{name}.gz"
    if not plain.exists() and not packed.exists():
        raise FileNotFoundError(f"{folder} has no {name} or {name}.gz")
    path = plain if plain.exists() else packed
    try:
        with plain.open("rb") if path is plain else gzip.open(packed) as file:
            content = file.read(LARGEST + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    if len(content) > LARGEST:
        raise ValueError(
            f"{path} holds more than {LARGEST} bytes, which is more than any file of a data set known here"
        )
    return content


def file_digest(path: Path) -> str:
    """The SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def rename_durably(temporary: Path, path: Path) -> None:
    """Put a whole file on disk, give it its final name, and put the name on disk too."""
    with temporary.open("r+b") as file:
        os.fsync(file.fileno())
    temporary.replace(path)
    if sys.platform != "win32":
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name ``path`` in an error of the disk; a failed write does not say where it failed."""
    try:
        yield
    except OSError as error:
        if error.filename is None and error.errno in DISK_ERRORS:
            error.filename = str(path)
        raise


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A new file that takes the name ``path`` once it is whole and on disk; on any error ``path`` stays as it was.

    One writer at a time: see ``exclusive``.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with naming(path):
            with temporary.open("wb") as file:
                yield file
            rename_durably(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def exclusive(path: Path, note: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock file ``path``, waiting for whoever holds it; the lock ends with the process, however it ends."""
    with path.open("w") as lock:
        if sys.platform != "win32":
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                note(f"waiting for another process that works in {path.parent}")
                fcntl.flock(lock, fcntl.LOCK_EX)
        yield
