"""Image files, their labels, and which of them are for training: from a folder of folders, a CSV file or archives."""

from __future__ import annotations

import csv
import hashlib
import io
import math
import tarfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDER_PREFIX = "folder:"
CSV_PREFIX = "csv:"
TAR_PREFIX = "tar:"
PREFIXES = (FOLDER_PREFIX, CSV_PREFIX, TAR_PREFIX)
SUFFIXES = frozenset(
    (
        *(".avif", ".bmp", ".gif", ".heic", ".heif", ".jfif", ".jp2", ".jpeg"),
        *(".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"),
    )
)
TESTS = ("test", "val")  # parts that can be tested on; the first that is there is
PARTS = {"train": "train", "training": "train", "test": "test", "testing": "test"} | dict.fromkeys(
    ("val", "valid", "validation"), "val"
)
DEBRIS = (".", "__MACOSX")  # how names of what systems leave among files begin


@dataclass(frozen=True)
class Member:
    """A file inside a tar archive, which is read where it lies."""

    archive: Path
    name: str
    offset: int
    size: int

    def open(self) -> io.BytesIO:
        """Its content."""
        with self.archive.open("rb") as file:
            file.seek(self.offset)
            return io.BytesIO(file.read(self.size))

    def __str__(self) -> str:
        return f"{self.name} in {self.archive}"


@dataclass(frozen=True, kw_only=True)
class File:
    """An image file: its class, what it is called within that class, its part, and its number.

    ``part`` is train, test or val, or empty where nobody has said; ``value`` is what a CSV file may say of an image.
    """

    path: Path | Member
    label: str
    name: str
    part: str = ""
    value: float | None = None


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The files of a data set, classes mixed. All of them have a value, or none."""

    name: str
    train: tuple[File, ...]
    test: tuple[File, ...]
    classes: tuple[str, ...]


def is_listed(name: str) -> bool:
    """Whether a data set is a folder, a CSV file or archives of a user's own."""
    return name.startswith(PREFIXES)


def list_images(name: str, held_out: float = 0.2) -> Listing:
    """What "folder:PATH", "csv:PATH" or "tar:PATH" holds.

    Where there is no test part, the share ``held_out`` of each class is one: chosen by file names, the same everywhere.
    """
    if not 0 < held_out < 1:
        raise ValueError(f"held_out must be between 0 and 1, got {held_out}")
    kind = next(prefix for prefix in PREFIXES if name.startswith(prefix))
    path = Path(name.removeprefix(kind)).expanduser()
    files = {FOLDER_PREFIX: folder_files, CSV_PREFIX: csv_files, TAR_PREFIX: tar_files}[kind](path)
    train, test = parts_of(files, path, held_out)
    labels = {file.label for file in train}
    counted = kind != FOLDER_PREFIX and all(label.isdecimal() for label in labels)
    classes = tuple(sorted(labels, key=int if counted else str))
    return Listing(name=f"{kind}{path}", train=mixed(train), test=mixed(test), classes=classes)


# Training and test


def parts_of(files: Sequence[File], where: Path, held_out: float) -> tuple[list[File], list[File]]:
    """The files to train on and those to test on."""
    present = {file.part for file in files}
    chosen = next((part for part in TESTS if part in present), None)
    if chosen is None:
        return hold_out(files, where, held_out)
    train, test = ([file for file in files if file.part == part] for part in ("train", chosen))
    if odd := sorted({file.label for file in train} ^ {file.label for file in test}):
        only = "train" if any(file.label == odd[0] for file in train) else chosen
        raise ValueError(f"train and {chosen} in {where} must hold the same classes, but only {only} has {odd[0]!r}")
    return train, test


def hold_out(files: Iterable[File], where: Path, share: float) -> tuple[list[File], list[File]]:
    """A share of each class, chosen by names, as test files."""
    train: list[File] = []
    test: list[File] = []
    for label, some in by_label(files).items():
        if len(some) < 2:
            raise ValueError(f"class {label!r} in {where} has 1 image: to train and to test takes at least 2")
        some = sorted(some, key=lambda file: digest(file.name))
        count = min(max(round(share * len(some)), 1), len(some) - 1)
        test, train = test + some[:count], train + some[count:]
    return train, test


def by_label(files: Iterable[File]) -> dict[str, list[File]]:
    """The files of each class."""
    found: dict[str, list[File]] = {}
    for file in files:
        found.setdefault(file.label, []).append(file)
    return found


def mixed(files: Iterable[File]) -> tuple[File, ...]:
    """In an order that has nothing to do with classes and is the same everywhere: the first few are a fair sample."""
    return tuple(sorted(files, key=lambda file: digest(f"{file.label}/{file.name}")))


def digest(text: str) -> bytes:
    """A hash of a name, whatever bytes a file system allows in it."""
    return hashlib.sha256(text.encode(errors="surrogateescape")).digest()


# Folders


def folder_files(path: Path) -> list[File]:
    """Below ``path`` lie train/CLASS/... and test/CLASS/... (or val/ in place of test/), train/ or CLASS/... alone."""
    if not path.is_dir():
        raise ValueError(absent(path, "folder"))
    folders = visible_folders(path)
    parts = {PARTS[folder.name.lower()]: folder for folder in folders if folder.name.lower() in PARTS}
    second = next((part for part in TESTS if part in parts), None)
    if "train" in parts and second:
        return [file for part in ("train", second) for file in class_folders(parts[part], part)]
    if len(folders) == 1 and "train" in parts and visible_folders(folders[0]):
        return class_folders(folders[0])
    return class_folders(path)


def visible_folders(path: Path) -> list[Path]:
    """The folders in a folder that its owner put there."""
    return sorted(folder for folder in path.iterdir() if folder.is_dir() and not folder.name.startswith(DEBRIS))


def class_folders(path: Path, part: str = "") -> list[File]:
    """The image files in each folder of ``path``, however deep they lie."""
    folders = visible_folders(path)
    if len(folders) < 2:
        beside = "; for images in one folder, write a CSV file with the columns file,label" if not folders else ""
        raise ValueError(f"{path} must hold one folder for each of at least 2 classes, got {len(folders)}{beside}")
    found = []
    for folder in folders:
        images = {file.relative_to(folder): file for file in folder.rglob("*") if file.suffix.lower() in SUFFIXES}
        names = sorted(name for name in images if not any(step.startswith(DEBRIS) for step in name.parts))
        if not names:
            raise ValueError(f"class {folder.name!r} is empty: {folder} has no images ({', '.join(sorted(SUFFIXES))})")
        found += [File(path=images[name], label=folder.name, name=name.as_posix(), part=part) for name in names]
    return found


def absent(path: Path, kind: str) -> str:
    """That there is no such file or folder, and what there is instead or where it was looked for."""
    if path.is_dir():
        return f"{path} is a folder: say {FOLDER_PREFIX}{path}"
    if path.exists():
        return f"{path} is a file, not a folder of folders; a CSV file is {CSV_PREFIX}{path}"
    return f"there is no {kind} {path}" + ("" if path.is_absolute() else f" in {Path.cwd()}")


# CSV files


def csv_files(path: Path) -> list[File]:
    """The files that a CSV file lists; they are relative to it.

    Its first line names its columns: file and label and, if you like, split (train, test or val) and value, a number.
    Others are left alone. Without such a line they are file and label, or file, label and value.
    """
    files = [csv_file(path, line, row) for line, row in read_rows(path).items()]
    if len({file.label for file in files}) < 2:
        raise ValueError(f"{path} must list images of at least 2 classes")
    if twice := next((name for name, count in Counter(file.name for file in files).items() if count > 1), None):
        raise ValueError(f"{path} lists {twice!r} twice")
    return files


def read_rows(path: Path) -> dict[int, dict[str, str]]:
    """The lines of a CSV file by their numbers, and their cells by the names of their columns."""
    if not path.is_file():
        raise ValueError(absent(path, "file"))
    try:
        text = path.read_text(encoding="utf-8-sig").splitlines()
        lines = list(csv.reader(text, delimiter=separator(next(filter(None, text), ""))))
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not a CSV file in UTF-8: {error}") from None
    cells = {number: [cell.strip() for cell in line] for number, line in enumerate(lines, 1) if any(line)}
    head = [name.lower() for name in next(iter(cells.values()), ())]
    named = {"file", "label"} <= set(head)
    names = head if named else ["file", "label", "value"][: len(head)]
    if len(set(names)) < 2 or len(set(names)) != len(head):
        found = f", got {','.join(head)}" if head else ""
        raise ValueError(f"{path} must begin with a line that names its columns, such as file,label{found}")
    if wrong := next((number for number, line in cells.items() if len(line) != len(names)), None):
        raise ValueError(
            f"{path}, line {wrong}: needs {len(names)} cells ({', '.join(names)}), got {len(cells[wrong])}"
        )
    return {number: dict(zip(names, line, strict=True)) for number, line in [*cells.items()][named:]}


def separator(line: str) -> str:
    """What stands between the cells of a line: spreadsheets write other things than commas in some countries."""
    return next((mark for mark in ",;\t" if mark in line), ",")


def csv_file(path: Path, line: int, row: Mapping[str, str]) -> File:
    """What a line says of a file."""
    file, part = path.parent / row["file"], PARTS.get(row.get("split", "").lower(), "")
    if not file.is_file():
        columns = f"; a line that names columns has file and label, got {','.join(row.values())}" if line == 1 else ""
        raise ValueError(f"{path}, line {line}: there is no file {file}{columns}")
    if not row["label"]:
        raise ValueError(f"{path}, line {line}: {row['file']} has no label")
    if "split" in row and not part:
        raise ValueError(f"{path}, line {line}: split is train, test or val, got {row['split']!r}")
    value = to_number(row["value"]) if "value" in row else None
    if "value" in row and value is None:
        raise ValueError(f"{path}, line {line}: value must be a finite number, got {row['value']!r}")
    return File(path=file, label=row["label"], name=row["file"], part=part, value=value)


def to_number(cell: str) -> float | None:
    """A finite number, or None."""
    try:
        number = float(cell)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


# Tar archives, laid out as WebDataset has them: KEY.jpg and KEY.cls beside each other


def tar_files(path: Path) -> list[File]:
    """The images in a tar archive, or in all archives of a folder.

    Archives that are named train..., test... or val... are these parts. What stands in KEY.cls is the label of KEY.jpg,
    or of any other kind of image. Other files are left alone.
    """
    archives = sorted(path.glob("*.tar")) if path.is_dir() else [path]
    if not archives or not archives[0].is_file():
        raise ValueError(f"there is no tar archive {path}" if not path.is_dir() else f"{path} holds no .tar files")
    parts = [next((part for part in ("train", *TESTS) if a.name.startswith(part)), "") for a in archives]
    some = all(parts) and any(part in TESTS for part in parts)  # or else a share is held out
    listed = zip(archives, parts, strict=True)
    files = [file for archive, part in listed for file in archive_files(archive, part if some else "")]
    if len({file.label for file in files}) < 2:
        raise ValueError(f"{path} must hold images of at least 2 classes")
    return files


def archive_files(archive: Path, part: str) -> list[File]:
    """The images in one archive, of which nothing but the labels is read."""
    images: dict[str, Member] = {}
    labels: dict[str, str] = {}
    try:
        with tarfile.open(archive, "r:") as members:
            for member in (m for m in members if m.isfile()):
                folder, slash, name = member.name.rpartition("/")
                key, _, kind = name.partition(".")
                if f".{kind.lower()}" in SUFFIXES:
                    images[folder + slash + key] = Member(archive, member.name, member.offset_data, member.size)
                elif kind == "cls":
                    content = members.extractfile(member)
                    labels[folder + slash + key] = content.read().decode().strip() if content else ""
    except (tarfile.TarError, UnicodeDecodeError) as error:
        raise ValueError(f"{archive} cannot be read as an archive of images: {error}") from None
    if missing := next((image for key, image in images.items() if not labels.get(key)), None):
        raise ValueError(f"{missing} has no label: a file beside it, of the same name but for .cls, must hold it")
    return [File(path=m, label=labels[key], name=f"{archive.name}/{m.name}", part=part) for key, m in images.items()]
