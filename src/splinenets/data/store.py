"""Data sets by name, and on disk: one safetensors file each, written whole and verified whenever it is read."""

from __future__ import annotations

import io
import os
from pathlib import Path

from torch import Tensor

from ..files import cache_folder, read_metadata, replacing
from .dataset import EMBEDDED, KNOWN, Arrays, Dataset, Known, joined, parts_of, to_dataset, verify
from .folders import load_listed
from .formats import idx, read_folder
from .listing import is_listed

EMBEDDED_FOLDER = Path(__file__).parent / "embedded"
ORIGINS = ("by hand", "system", "web", "npm")


def load(
    name: str = "embedded",
    root: str | Path | None = None,
    *,
    size: int | tuple[int, int] | None = None,
    stream: str = "auto",
    broken: str = "stop",
) -> Dataset:
    """A data set by name, verified by the SHA-256 of its arrays, or image files, as "folder:PATH", "csv:PATH" or
    "tar:PATH"; "mnist+cifar10" joins two, with the classes of both.

    ``root`` is where data sets are stored (default $SPLINENETS_DATA, then the cache folder, ~/.cache/splinenets unless
    $XDG_CACHE_HOME says otherwise); ``size`` resizes the images of files (default 32) and goes with nothing else.
    ``stream`` and ``broken`` are for image files too: see ``load_listed``.

    Examples:
        >>> data = sn.data.load("embedded")
        >>> data.train.images.shape, data.classes[0]
        (torch.Size([6000, 1, 28, 28]), 'T-shirt/top')
    """
    if is_listed(name):
        return load_listed(name, 32 if size is None else size, stream=stream, broken=broken)
    if size is None and (parts := parts_of(name)):
        return joined([load(part, root) for part in parts])
    if name not in KNOWN:
        raise ValueError(
            f"unknown data set {name!r}, choose from {', '.join(sorted(KNOWN))}, several of these with a + between "
            f"them, or give images of your own as 'folder:PATH', 'csv:PATH' or 'tar:PATH'"
        )
    if size is not None:
        raise ValueError(f"size resizes the images of a folder or CSV file only, got size={size} for {name!r}")
    if name == EMBEDDED.name:
        return load_embedded()
    return to_dataset(KNOWN[name], read_stored(KNOWN[name], data_root(root))[0])


def load_embedded() -> Dataset:
    """The subset of Fashion-MNIST that ships with the package: 6,000 training and 1,000 test images."""
    arrays = read_folder(EMBEDDED_FOLDER, idx(test="test"))
    verify(EMBEDDED, arrays, str(EMBEDDED_FOLDER))
    return to_dataset(EMBEDDED, arrays)


def data_root(root: str | Path | None = None) -> Path:
    """The folder that holds the data sets: the one given, $SPLINENETS_DATA, or the cache folder."""
    given = root or os.environ.get("SPLINENETS_DATA")
    return Path(given).expanduser() if given else cache_folder()


def stored_path(name: str, root: Path) -> Path:
    """Where a data set is stored."""
    return root / f"{name}.safetensors"


def found_path(name: str, root: Path) -> Path:
    """Where a data set is found: splinenets 0.1 used ~/.cache even where $XDG_CACHE_HOME names another folder."""
    path, old = (stored_path(name, folder) for folder in (root, Path("~/.cache/splinenets").expanduser()))
    return old if root == cache_folder() and old.exists() and not path.exists() else path


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

    path = found_path(known.name, root)
    if not path.exists():
        raise FileNotFoundError(f"{known.name} is not in {root}: get it with 'splinenets data get {known.name}'")
    content = path.read_bytes()
    try:
        arrays = load(content)
        origin = read_metadata(io.BytesIO(content))["origin"]
    except (SafetensorError, ValueError, KeyError) as error:
        raise ValueError(f"{path} is damaged ({error}): get it again with 'splinenets data get {known.name}'") from None
    if origin not in ORIGINS:
        raise ValueError(f"{path} is damaged: its origin is {origin!r}, expected one of {ORIGINS}")
    verify(known, arrays, str(path))
    return arrays, origin
