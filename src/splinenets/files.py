"""Files: where ours are kept, reading them whole, and writing them so that they are whole or not there at all."""

from __future__ import annotations

import errno
import gzip
import hashlib
import json
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, get_args, get_origin, get_type_hints, is_typeddict
from weakref import WeakSet

Json: TypeAlias = dict[str, Any]  # an object of JSON

if sys.platform != "win32":
    import fcntl

DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}
LARGEST = 1 << 30  # bytes; the largest file of a data set that we know holds 47 million


def slug(text: str) -> str:
    """A text as part of a file's name: H(5)-D-R3 -> H5-D-R3."""
    return re.sub(r"[^\w.=-]+", "", text.replace(" ", "_"))


def cache_folder() -> Path:
    """Where we keep what can be had again, data sets and compiled code: below $XDG_CACHE_HOME, or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "splinenets"


# Reading


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


def content_of(path: Path) -> bytes:
    """The bytes of a file; one that is missing is said to be, without the system's number for that."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {path}") from None


def file_digest(path: Path) -> str:
    """The SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def read_metadata(file: BinaryIO) -> dict[str, str]:
    """What stands in the head of a safetensors file beside its tensors; ValueError or KeyError if there is nothing."""
    length = int.from_bytes(file.read(8), "little")
    return json.loads(file.read(min(length, LARGEST)))["__metadata__"]


# Writing: whole or not at all, one at a time


def rename_durably(temporary: Path, path: Path) -> None:
    """Put a whole file on disk, give it its final name, and put the name on disk too."""
    with naming(path):
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

    Whoever else writes the same file at the same time is waited for.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    with naming(path), _open_alone(temporary) as file:
        try:
            file.truncate()  # what a process left that was killed
            yield file
            file.flush()
            rename_durably(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def _open_alone(path: Path) -> BinaryIO:
    """A file, locked, once nobody else has it; whoever had it may have renamed or removed it."""
    while True:
        path.touch()
        try:
            file = path.open("r+b")
        except FileNotFoundError:
            continue
        wait_for_lock(file)
        if _names(path, file):
            return file
        file.close()


def _names(path: Path, file: BinaryIO) -> bool:
    """Whether a path still leads to an open file."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def lock(file: BinaryIO) -> bool:
    """Take the lock on an open file, False if another process has it; it ends with the process, however that ends."""
    if sys.platform != "win32":
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        LOCKED.add(file)
    return True


LOCKED: WeakSet[BinaryIO] = WeakSet()


def _let_go() -> None:
    """A process that was forked off has no lock: it would keep the lock of one that was killed."""
    for file in LOCKED:
        file.close()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_let_go)


def wait_for_lock(file: BinaryIO) -> None:
    """Take the lock on an open file when whoever has it is done."""
    if sys.platform != "win32":
        fcntl.flock(file, fcntl.LOCK_EX)


@contextmanager
def exclusive(path: Path, note: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock file ``path``, waiting for whoever holds it."""
    with path.open("wb") as file:
        if not lock(file):
            note(f"waiting for another process that works in {path.parent}")
            wait_for_lock(file)
        yield


# JSON files that tell whether they are whole: beside the content stands its SHA-256


class DamagedError(ValueError):
    """A file is not what was written."""


def write_sealed(path: Path, content: Mapping[str, object]) -> None:
    """Write JSON and its digest; ``path`` is replaced whole, or stays as it was."""
    with replacing(path) as file:
        file.write(seal(content).encode())


def read_sealed(path: Path) -> Json:
    """The content, or ``DamagedError`` with the reason."""
    return unseal(path.read_bytes(), path)


def seal(content: Mapping[str, object]) -> str:
    """JSON with its digest beside it."""
    return json.dumps({"content": content, "sha256": _digest(content)}, indent=1)


def unseal(sealed: str | bytes, path: Path) -> Json:
    """What was sealed, or ``DamagedError`` with the reason."""
    try:
        parsed = json.loads(sealed)
        content, expected = parsed["content"], parsed["sha256"]
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"{path} is damaged: it is not JSON ({error})") from None
    except (KeyError, TypeError):
        raise DamagedError(f"{path} is damaged: it is JSON, but not a content and its SHA-256") from None
    if not isinstance(content, dict) or _digest(content) != expected:
        raise DamagedError(f"{path} is damaged: its content does not have the SHA-256 that stands beside it")
    return content


def _digest(content: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def check_fields(content: Mapping[str, object], kind: type, path: Path) -> None:
    """Raise ``DamagedError`` unless a file's content has the fields of this TypedDict, of their types."""
    if wrong := misfit(content, kind, "content"):
        raise DamagedError(f"{path} is damaged: its {wrong}")


def misfit(value: object, kind: Any, name: str) -> str:
    """What is wrong with a value out of JSON that should be of this type, in words; empty if nothing is."""
    parts: Iterable[tuple[object, Any, str]] = ()
    if is_typeddict(kind):
        fits = isinstance(value, dict) and kind.__required_keys__ <= value.keys()
        if isinstance(value, dict) and not fits:
            return f"{name} has no {min(kind.__required_keys__ - value.keys())!r}"
        parts = ((value[key], hint, key) for key, hint in get_type_hints(kind).items() if key in value) if fits else ()  # type: ignore[index,operator]
    elif get_origin(kind) is list:
        fits = isinstance(value, list)
        parts = ((part, get_args(kind)[0], name) for part in value) if fits else ()  # type: ignore[attr-defined]
    elif get_origin(kind) is not None and get_origin(kind) is not dict:  # one of several
        fits = any(not misfit(value, each, name) for each in get_args(kind))
    else:
        kinds = {float: (int, float)}.get(kind, get_origin(kind) or kind)
        fits = isinstance(value, kinds) and (kind is bool or not isinstance(value, bool))
    if not fits:
        return f"{name} is {json.dumps(value)[:60]}"
    return next((wrong for part in parts if (wrong := misfit(*part))), "")
