"""Reading chosen files out of a tar archive. Nothing is ever unpacked to disk."""

from __future__ import annotations

import gzip
import tarfile
import zlib
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from ..files import LARGEST


def read_members(path: Path, names: Iterable[str], inside: str = "") -> dict[str, bytes]:
    """The content of the files ``names`` in the folder ``inside`` of the archive ``path``.

    An archive with a member that would land elsewhere or is no plain file (an absolute path, "..", a link, a device)
    is refused whole, although nothing of it would be written.
    """
    wanted = {str(PurePosixPath(inside) / name): name for name in names}
    found: dict[str, bytes] = {}
    try:
        with tarfile.open(path, "r:*") as archive:
            size = 0
            for member in archive:
                refuse_hostile(member, path)
                size += member.size
                if size > LARGEST:
                    raise ValueError(f"{path} is refused: it unpacks to more than {LARGEST} bytes")
                name = wanted.get(str(PurePosixPath(member.name)))
                file = archive.extractfile(member) if name is not None else None
                if name is None or file is None:
                    continue
                if name in found:
                    raise ValueError(f"{path} is refused: it holds {member.name} twice")
                found[name] = file.read()
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is damaged or is no tar archive: {error}") from None
    if missing := sorted(set(wanted) - {str(PurePosixPath(inside) / name) for name in found}):
        raise ValueError(f"{path} has no {missing[0]}")
    return found


def refuse_hostile(member: tarfile.TarInfo, path: Path) -> None:
    """Raise if an archive's member is not a plain file or folder below the place where it would be unpacked."""
    name = PurePosixPath(member.name)
    if name.is_absolute() or ".." in name.parts:
        raise ValueError(f"{path} is refused: its member {member.name!r} lies outside")
    if not (member.isreg() or member.isdir()):
        raise ValueError(f"{path} is refused: its member {member.name!r} is neither a plain file nor a folder")
