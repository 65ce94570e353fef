"""Damage: of every file that we read, flipped, cut, swapped and re-sealed copies: a sentence or a loud fall-back."""

from __future__ import annotations

import copy
import os
import random
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from tests.helpers import runs, subjects, tiny

import splinenets as sn
from campaign import jobs
from campaign.harness import Kind, Trial, or_a_sentence
from splinenets import shipped
from splinenets.analysis.records import read_records
from splinenets.data import store
from splinenets.data.formats import IDX, read_folder
from splinenets.files import read_sealed, write_sealed
from splinenets.kernels import build
from splinenets.training import Watcher, load_recipe
from splinenets.training.run import load_run

TITLE = "damage"


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Files that are read.

    folder   what ``prepare`` made
    file     the one that is damaged in a copy of it, as a pattern
    read     what comes of reading, comparable; it may call the note that it is given
    vouched  whether the file's content is known by a digest, so that no damage may pass without a word
    """

    folder: str
    file: str
    read: Callable[[Path, Callable[[str], None]], Any]
    vouched: bool = True

    def path(self, folder: Path) -> Path:
        """The file that is damaged."""
        return next(folder.glob(self.file))


# Damages: bytes -> other bytes


def flip(content: bytes, dice: random.Random) -> bytes:
    """One bit."""
    place = dice.randrange(len(content))
    return content[:place] + bytes([content[place] ^ 1 << dice.randrange(8)]) + content[place + 1 :]


def cut(content: bytes, dice: random.Random) -> bytes:
    """The end is missing."""
    return content[: dice.randrange(len(content))]


def grow(content: bytes, dice: random.Random) -> bytes:
    """Something stands behind the end."""
    return content + dice.randbytes(dice.randrange(1, 100))


def blank(content: bytes, dice: random.Random) -> bytes:
    """A block of zeros, as a disk leaves it."""
    start = dice.randrange(len(content))
    length = min(dice.choice((1, 64, 512, 4096)), len(content) - start)
    return content[:start] + bytes(length) + content[start + length :]


def swap(content: bytes, dice: random.Random) -> bytes:
    """Two blocks have changed places."""
    length = max(1, len(content) // dice.choice((4, 16, 64)))
    first, second = sorted(dice.randrange(len(content) - length + 1) for _ in range(2))
    if second < first + length:
        return flip(content, dice)
    blocks = content[first : first + length], content[second : second + length]
    return content[:first] + blocks[1] + content[first + length : second] + blocks[0] + content[second + length :]


def head(content: bytes, dice: random.Random) -> bytes:
    """A bit among the first few hundred bytes, where formats say what follows."""
    start = content[:300]
    return flip(start, dice) + content[len(start) :]


DAMAGES = (flip, cut, grow, blank, swap, head, flip, head)


def damaged(name: str, trial: Trial) -> None:
    """Reading gives what was there before, or says in one sentence that it does not."""
    subject, folder = SUBJECTS[name], trial.folder / "copy"
    whole = trial.shared / subject.folder
    expected = subject.read(copied(whole, trial.folder / "whole"), print)
    path = subject.path(copied(whole, folder))
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(trial.dice.choice(DAMAGES)(content, trial.dice))
    is_noticed(subject, folder, expected)


def is_noticed(subject: Subject, folder: Path, expected: Any) -> None:
    """A sentence, a note, or the same as before."""
    notes: list[str] = []
    with or_a_sentence():
        found = subject.read(folder, notes.append)
        assert notes or not subject.vouched or same(found, expected), "other content, without a word"


def same(left: Any, right: Any) -> bool:
    """Whether two results of reading are equal."""
    if isinstance(left, torch.Tensor):
        return torch.equal(left, right)
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    return bool(left == right)


def copied(source: Path, folder: Path) -> Path:
    """A copy to be damaged."""
    shutil.copytree(source, folder)
    return folder


# Swapped files


def exchanged(trial: Trial) -> None:
    """Files of one run or export have changed places with those of another that are just as whole."""
    name = trial.dice.choice([name for name in SUBJECTS if SUBJECTS[name].folder == "run"])
    subject, folder = SUBJECTS[name], copied(trial.shared / "run", trial.folder / "copy")
    expected = subject.read(copied(trial.shared / "run", trial.folder / "whole"), print)
    others = [path for path in (trial.shared / "other").rglob("*") if path.suffix == Path(subject.file).suffix]
    shutil.copy(trial.dice.choice(sorted(others)), subject.path(folder))
    is_noticed(subject, folder, expected)


# Sealed files with another content and a digest that fits


def resealed(name: str, trial: Trial) -> None:
    """A sentence, or something that was read: never an error of Python's own."""
    subject, folder = SUBJECTS[name], copied(trial.shared / SUBJECTS[name].folder, trial.folder / "copy")
    path = subject.path(folder)
    content = read_sealed(path)
    for _ in range(trial.dice.randrange(1, 3)):
        edit(content, trial.dice)
    path.unlink()
    write_sealed(path, content)
    with or_a_sentence():
        subject.read(folder, print)


ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    2**70,
    1e308,
    "",
    "x",
    "\x00",
    [],
    {},
    [[]],
    {"a": 1},
    "1",
    0.5,
    float("nan"),
)


def edit(value: Any, dice: random.Random) -> None:
    """Change, remove or add something somewhere within JSON."""
    inner = [each for each in (value.values() if isinstance(value, dict) else value) if isinstance(each, (dict, list))]
    inner = [each for each in inner if each]
    if inner and dice.random() < 0.6:
        edit(dice.choice(inner), dice)
        return
    key = dice.choice(sorted(value)) if isinstance(value, dict) else dice.randrange(len(value))
    if dice.random() < 0.3:
        del value[key]
    else:
        value[key] = copy.deepcopy(dice.choice(ODD))  # or a list might come to hold itself


# What is read


def read_run(folder: Path, note: Callable[[str], None]) -> Any:
    """The weights of a run's last checkpoint, as ``evaluate`` and ``export`` load them."""
    net, _, recipe, step = load_run(folder)
    return {"recipe": recipe, "step": step, **net.state_dict()}


class Notes(Watcher):
    """Hears notes."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self.hears = note

    def note(self, text: str) -> None:
        """One sentence."""
        self.hears(text)


def go_on(folder: Path, note: Callable[[str], None]) -> Any:
    """A stopped run, resumed to its end."""
    runs.train(runs.recipe(), folder, resume=True, watcher=Notes(note))
    return runs.files(folder)


def report(folder: Path, note: Callable[[str], None]) -> Any:
    """What a report reads of a run; what it cannot read is a note."""
    (record,) = read_records([folder])
    for text in record.notes:
        note(text)
    return record.epochs


def answers(folder: Path, note: Callable[[str], None]) -> Any:
    """What an export says."""
    (path,) = folder.iterdir()
    return sn.load_export(path)(jobs.network()[1])


def answers_of_saved(folder: Path, note: Callable[[str], None]) -> Any:
    """What a saved network says."""
    with torch.no_grad():
        return sn.load(folder / "net.safetensors")(jobs.lenet()[1])


def answers_of_shipped(folder: Path, note: Callable[[str], None]) -> Any:
    """What a trained network says."""
    sys.modules["splinenets.shipped"].FOLDER = folder  # type: ignore[attr-defined]
    net = sn.pretrained("x/D(3)-D-R3")
    return net(net.prepare(sn.data.load().test.images[:4]))  # type: ignore[operator]


def stored(folder: Path, note: Callable[[str], None]) -> Any:
    """A data set from the cache."""
    return store.read_stored(jobs.KNOWN, folder)[0]


def from_idx(folder: Path, note: Callable[[str], None]) -> Any:
    """A data set as its authors publish it, verified."""
    arrays = read_folder(folder, IDX)
    sn.data.dataset.verify(tiny.MNIST, arrays, str(folder))
    return arrays


def kernels(folder: Path, note: Callable[[str], None]) -> Any:
    """What a layer computes with compiled code from the cache, or without it."""
    os.environ |= {"XDG_CACHE_HOME": str(folder), "CXX": str(folder / "compiler")}
    build.library.cache_clear()
    if build.library() is None:
        note("done without")
    net, images = jobs.network()
    with torch.no_grad():
        return net(images)


def recipe(folder: Path, note: Callable[[str], None]) -> Any:
    """A recipe of one's own."""
    return load_recipe(str(folder / "mine.toml"))


def pictures(folder: Path, note: Callable[[str], None]) -> Any:
    """A folder of images: of the right shape, whatever a decoder makes of them."""
    return sn.data.load(f"folder:{folder}", size=8).train.images.shape


SUBJECTS = {
    "tensors of a checkpoint": Subject(folder="run", file="checkpoints/00000012.safetensors", read=read_run),
    "manifest of a checkpoint": Subject(folder="run", file="checkpoints/00000012.json", read=read_run),
    "run.json": Subject(folder="run", file="run.json", read=read_run),
    "run.json, report": Subject(folder="run", file="run.json", read=report),
    "metrics, report": Subject(folder="run", file="metrics.jsonl", read=report, vouched=False),
    "tensors, resumed": Subject(folder="stopped", file="checkpoints/00000006.safetensors", read=go_on),
    "manifest, resumed": Subject(folder="stopped", file="checkpoints/00000006.json", read=go_on),
    "metrics, resumed": Subject(folder="stopped", file="metrics.jsonl", read=go_on),
    "native export": Subject(folder="native", file="net.native", read=answers),
    "pt2 export": Subject(folder="pt2", file="net.pt2", read=answers),
    "onnx export": Subject(folder="onnx", file="net.onnx", read=answers),
    "onnxruntime export": Subject(folder="onnxruntime", file="net.onnxruntime", read=answers),
    "saved network": Subject(folder="saved", file="net.safetensors", read=answers_of_saved),
    "pretrained": Subject(folder="shipped", file="x_D3-D-R3.safetensors", read=answers_of_shipped),
    "stored data set": Subject(folder="stored", file="small.safetensors", read=stored),
    "published data set": Subject(folder="idx", file="train-images-idx3-ubyte.gz", read=from_idx),
    "compiled kernels": Subject(folder="cache", file="splinenets/native/kernels-*.so", read=kernels),
    "recipe": Subject(folder="recipe", file="mine.toml", read=recipe, vouched=False),
    "PNG": Subject(folder="pictures", file="cat/1.png", read=pictures, vouched=False),
    "JPEG": Subject(folder="pictures", file="cat/2.jpeg", read=pictures, vouched=False),
}
SEALED = ("run.json", "run.json, report", "manifest of a checkpoint", "manifest, resumed")
SLOW = ("pt2 export", "tensors, resumed", "manifest, resumed", "metrics, resumed")


def prepare(shared: Path) -> None:
    """Everything whole, once."""
    small = {"width": 2, "batch": 100, "images": 600, "log_every": 1}
    subjects.train_small(shared / "run", "D(3)-D-R3", **small)
    subjects.train_small(shared / "other", "H(3)-D-R3", seed=1, **small)
    stop_half_way(shared / "stopped")
    for to in ("native", "pt2", "onnx", "onnxruntime"):
        (shared / to).mkdir()
        jobs.export(shared / to / f"net.{to}", shared)
    ship(shared / "shipped")
    (shared / "saved").mkdir()
    jobs.save(shared / "saved/net.safetensors", shared)
    (shared / "stored").mkdir()
    store.write_stored(jobs.KNOWN, tiny.GREY, "web", shared / "stored")
    tiny.write(shared / "idx", tiny.packed_idx_files())
    draw(shared / "pictures")
    (shared / "recipe").mkdir()
    shutil.copy(Path(sn.__file__).parent / "recipes" / "demo.toml", shared / "recipe" / "mine.toml")
    keep_kernels(shared / "cache")


def stop_half_way(folder: Path) -> None:
    """A run that was stopped in the middle."""
    from campaign.faults import stop_at

    runs.outcome(runs.fork(partial(stop_at, 5, folder)))


def ship(folder: Path) -> None:
    """A trained network as it ships."""
    data = sn.data.load()
    card = {"name": "x/D(3)-D-R3", "network": "lenet2", "model": "D(3)-D-R3", "plain": [], "channels": 1}
    card |= {"image_size": 28, "classes": list(data.classes), "augment": "none", "mean": [0.1], "std": [0.3]}
    net = sn.convert(sn.models.lenet(2), "D(3)-D-R3", example=torch.zeros(1, 1, 28, 28), spread=0.3)
    folder.mkdir()
    shipped.save(card, net.state_dict(), folder)


def draw(folder: Path) -> None:
    """Pictures of two classes."""
    for name in ("cat", "dog"):
        (folder / name).mkdir(parents=True)
        for number, kind in enumerate(("png", "jpeg"), 1):
            noise = tiny.COLOUR["train_images"][number].permute(1, 2, 0).numpy()
            Image.fromarray(noise).save(folder / name / f"{number}.{kind}")


def keep_kernels(folder: Path) -> None:
    """Compiled code in a cache of its own, and the compiler that made it."""
    folder.mkdir()
    jobs.ready_compiler(folder)
    jobs.compile_kernels(folder, folder)


KINDS = {
    **{name: Kind(run=partial(damaged, name), trials=40 if name in SLOW else 80, seconds=120) for name in SUBJECTS},
    **{f"re-sealed: {name}": Kind(run=partial(resealed, name), trials=60, seconds=120) for name in SEALED},
    "files of another run": Kind(run=exchanged, trials=60, seconds=120),
}
