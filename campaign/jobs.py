"""Work that writes files, for the chapter of faults: what is there before, the work, and what may be there after."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import matplotlib.figure  # noqa: F401 (what jobs import late is imported here, not in each child)
import onnxruntime  # noqa: F401
import onnxscript  # noqa: F401
import torch
import torch._dynamo
from tests.helpers import loopback, runs, subjects, tiny
from torch import nn

import splinenets as sn
from splinenets.analysis.gallery import write_figures
from splinenets.analysis.report import write_report
from splinenets.data import store
from splinenets.data.download import Patience, download
from splinenets.exporting import native, onnx_file, pt2_file  # noqa: F401
from splinenets.files import read_sealed, write_sealed
from splinenets.kernels import build
from splinenets.training import checkpoint
from splinenets.training.checkpoint import Checkpoint, Standing

OLD = b"what was there before"
CONTENT = bytes(range(256)) * 1000
STANDING = Standing(totals=[1.0, 2.0, 3.0, 4.0], best=None, warned=[], metrics_length=0)
HASTY = Patience(pause=0.0, timeout=10.0)


@dataclass(frozen=True, kw_only=True)
class Job:
    """Work in a folder that may be broken off anywhere.

    before  makes what was there before
    work    is done in the folder; the second argument is what the chapter made beforehand
    whole   whether what is there is old or new; raises if it is neither
    left    the names that are there at the end, if nothing goes wrong
    """

    before: Callable[[Path], object]
    work: Callable[[Path, Path], object]
    whole: Callable[[Path], object]
    left: frozenset[str]


def old_or(read: Callable[[Path], object], name: str) -> Callable[[Path], object]:
    """A file has its old content, or a new one that can be read."""

    def whole(folder: Path) -> object:
        return (folder / name).read_bytes() == OLD or read(folder / name)

    return whole


def one_file(name: str, work: Callable[[Path, Path], object], read: Callable[[Path], object]) -> Job:
    """A job that replaces one file."""
    return Job(
        before=lambda folder: (folder / name).write_bytes(OLD),
        work=lambda folder, shared: work(folder / name, shared),
        whole=old_or(read, name),
        left=frozenset({name}),
    )


# Checkpoints and sealed files


def saved(step: int) -> Checkpoint:
    """A small checkpoint, the same for the same step."""
    generator = torch.Generator().manual_seed(step)
    return Checkpoint(step, {"model.weight": torch.randn(50, 30, generator=generator)}, STANDING)


def read_saved(folder: Path) -> None:
    """The newest checkpoint is one that was written, and nothing had to be passed over."""
    notes: list[str] = []
    found = checkpoint.read_last(folder, notes.append)
    assert found is not None
    assert found.step in (10, 20)
    assert not notes, notes
    assert torch.equal(found.tensors["model.weight"], saved(found.step).tensors["model.weight"])


SAVE = Job(
    before=lambda folder: checkpoint.write(folder, saved(10)),
    work=lambda folder, _: checkpoint.write(folder, saved(20), keep=1),
    whole=read_saved,
    left=frozenset({"00000020.json", "00000020.safetensors"}),
)
SEALED = {"a": [1, 2.5, None], "b": "x" * 500}
SEAL = Job(
    before=lambda folder: write_sealed(folder / "run.json", {}),
    work=lambda folder, _: write_sealed(folder / "run.json", SEALED),
    whole=lambda folder: expect(read_sealed(folder / "run.json") in ({}, SEALED)),
    left=frozenset({"run.json"}),
)


def expect(right: bool) -> None:
    """An assertion, for a lambda."""
    assert right


# Exports, reports, figures


@cache
def network() -> tuple[nn.Module, torch.Tensor]:
    """A small network and images for it."""
    torch.manual_seed(0)
    images = torch.randn(4, 1, 12, 12)
    layers = nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3)
    return sn.convert(nn.Sequential(*layers), "D(3)-C-R3", example=images, spread=0.3).eval(), images


def export(path: Path, _: Path) -> None:
    """Write the network for another runtime."""
    net, images = network()
    sn.export(net, images, path)


def read_export(path: Path) -> None:
    """The file answers as the network does."""
    net, images = network()
    with torch.no_grad():
        torch.testing.assert_close(sn.load_export(path)(images), net(images), rtol=1e-3, atol=1e-3)


@cache
def lenet() -> tuple[nn.Module, torch.Tensor]:
    """A network that a file can say how to build."""
    torch.manual_seed(0)
    images = torch.randn(3, 1, 28, 28)
    return sn.convert(sn.models.lenet(2), "H(3)-C-R3", example=images, spread=0.3).eval(), images


def save(path: Path, _: Path) -> None:
    """Write a network that can be loaded anywhere."""
    sn.save(lenet()[0], path)


def read_network(path: Path) -> None:
    """The file is the network."""
    net, images = lenet()
    with torch.no_grad():
        assert torch.equal(sn.load(path)(images), net(images))


def trained(shared: Path) -> Path:
    """A run to report about."""
    return shared / "spline"


def read_page(path: Path) -> None:
    """A report from its first to its last line."""
    text = path.read_text()
    assert text.lower().startswith("<!doctype html>")
    assert text.rstrip().endswith("</html>")


def read_figures(folder: Path) -> None:
    """Every figure that is there is whole."""
    for path in folder.glob("*.svg"):
        assert path.read_bytes() == OLD or path.read_text().rstrip().endswith("</svg>"), path


FIGURES = Job(
    before=lambda folder: (folder / "health.svg").write_bytes(OLD),
    work=lambda folder, shared: write_figures(trained(shared), folder, ["health"], "svg"),
    whole=read_figures,
    left=frozenset({"health.svg"}),
)


# Downloads, data sets, compiled code


def bring(path: Path, _: Path) -> None:
    """Download a file from this machine, cut off twice."""
    os.environ["no_proxy"] = "127.0.0.1"
    with loopback.Server({path.name: CONTENT}, [loopback.cut_after(70_000), loopback.cut_after(65_536)]) as server:
        digest = hashlib.sha256(CONTENT).hexdigest()
        download(f"{server.address}/{path.name}", path, size=len(CONTENT), sha256=digest, patience=HASTY)


DOWNLOAD = one_file("file", bring, lambda path: expect(path.read_bytes() == CONTENT))
KNOWN = replace(tiny.MNIST, name="small")


def read_store(folder: Path) -> None:
    """The data set is there and verified, or was never there."""
    if store.stored_path(KNOWN.name, folder).exists():
        store.read_stored(KNOWN, folder)


STORE = Job(
    before=lambda _: None,
    work=lambda folder, _: store.write_stored(KNOWN, tiny.GREY, "web", folder),
    whole=read_store,
    left=frozenset({"small.safetensors"}),
)


def compile_kernels(folder: Path, shared: Path) -> None:
    """Have kernels compiled, by a compiler that has them ready: what is tried here is what happens to files."""
    os.environ |= {"XDG_CACHE_HOME": str(folder), "CXX": str(shared / "compiler")}
    build.load(build.SOURCE, build.FLAGS)


def ready_compiler(shared: Path) -> None:
    """A program that is called as a compiler is, and copies what it was asked to make."""
    made = Path(build.load(build.SOURCE, build.FLAGS)._name)
    shutil.copy(made, shared / "kernels.so")
    program = shared / "compiler"
    program.write_text(f'#!/bin/sh\nfor last; do :; done\ntest "$1" = --version || cp {shared}/kernels.so "$last"\n')
    program.chmod(0o755)


KERNELS = Job(before=lambda _: None, work=compile_kernels, whole=lambda _: None, left=frozenset({"splinenets"}))

JOBS = {
    "checkpoint": SAVE,
    "run.json": SEAL,
    "saved network": one_file("net.safetensors", save, read_network),
    "native export": one_file("net.native", export, read_export),
    "pt2 export": one_file("net.pt2", export, read_export),
    "onnx export": one_file("net.onnx", export, read_export),
    "report": one_file("report.html", lambda path, shared: write_report([trained(shared)], path), read_page),
    "figures": FIGURES,
    "download": DOWNLOAD,
    "data set": STORE,
    "kernels": KERNELS,
}


def prepare(shared: Path) -> None:
    """A run to report about, and a compiler."""
    subjects.train_small(trained(shared), "D(3)-D-R3", width=2, epochs=1, images=600)
    ready_compiler(shared)
    runs.train(runs.recipe(), shared / "undisturbed")
