"""The files an export can be, and reading them. Each format has a module of its own, imported when it is asked for."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from os import PathLike
from pathlib import Path
from typing import NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn

from ..conditions import Conditions
from ..files import Json, content_of
from ..kernels import Unavailable
from ..tables import first_line
from .capture import Inputs, Obstacles

KEY = "splinenets"  # of our metadata, beside others' in the same file
VERSION = 2  # of that metadata; files of version 1 had no seal unless they were native


@dataclass(frozen=True)
class Exported:
    """A network from a file: images (N, C, H, W) -> logits (N, classes).

    metadata  "purpose", "knots", "input" (C, H, W), "layers" (name -> spec), "conditions" (name -> low, high, size) of
              a network that is told something, and what the writer added; exports of runs have "classes",
              "preparation" (what to do with bytes to get images), "data", "network", "model", "step"
    forward   what the runtime computes from one batch: images, then the values of each condition, (N, size)
    """

    metadata: Json
    forward: Callable[..., Tensor]

    def __call__(self, *inputs: object, **named: object) -> Tensor:
        """The network's answer to ``(images)`` or ``(images, condition)``, as ``sn.condition`` takes them.

        An export for latency takes images one by one.
        """
        batch = Inputs.of(self.conditions, *inputs, **named)
        if self.metadata["purpose"] != "latency" or len(batch) <= 1:
            return self.forward(*batch.tensors())
        return torch.cat([self.forward(*part.tensors()) for part in batch.split(1)])

    @cached_property
    def conditions(self) -> Conditions:
        """What the network is told."""
        return Conditions.from_description(self.metadata.get("conditions", {}))


def seal(body: bytes, tail: Callable[[str], bytes]) -> bytes:
    """A file that ends with its digest; ``tail`` makes of a SHA-256 what its format allows to stand there."""
    return body + tail(hashlib.sha256(body).hexdigest())


def check_seal(content: bytes, tail: Callable[[str], bytes], old: bool) -> None:
    """Refuse what does not end with its digest, before a runtime sees it; but ``old`` files had none."""
    body = content[: -len(tail("0" * 64))]
    if seal(body, tail) != content and not old:
        raise ValueError("its content does not have the SHA-256 that stands behind it")


class NewerFile(ValueError):
    """A file that a later version of this package wrote; the message goes on after the file's name."""


class Runtime(Protocol):
    """What the module of a format has."""

    def dump(self, net: nn.Module, example: Inputs, any_batch: bool, metadata: str, obstacles: Obstacles) -> bytes:
        """A deployed network and its metadata as a file's content."""

    def load(self, content: bytes, threads: int) -> Exported:
        """A network from a file's content."""


class Format(NamedTuple):
    """A kind of file: the module that writes and reads it, and packages that this module needs."""

    module: str
    packages: tuple[str, ...] = ()

    def runtime(self) -> Runtime:
        """The module, imported now: importing this package needs torch alone."""
        return cast(Runtime, import_module(self.module, __package__))


ONNX = ("onnx", "onnxscript", "onnxruntime")
FORMATS = {
    "onnx": Format(".onnx_file", ONNX),
    "onnxruntime": Format(".onnxruntime_file", ONNX),
    "pt2": Format(".pt2_file"),
    "native": Format(".native"),
}


def runtime_of(path: Path, name: str | None = None) -> Runtime:
    """The runtime of the format of this name, or of that which the file's name ends with."""
    chosen = path.suffix.removeprefix(".") if name is None else name
    if chosen not in FORMATS:
        raise ValueError(f"unknown format {chosen!r}, choose from {', '.join(FORMATS)}")
    try:
        for package in FORMATS[chosen].packages:
            import_module(package)
    except ImportError as error:
        raise ValueError(f"{chosen} needs more packages ({error}): pip install 'splinenets[export]'") from None
    return FORMATS[chosen].runtime()


def load_export(path: str | PathLike[str], *, to: str | None = None, threads: int = 1) -> Exported:
    """Read an exported network; ``to`` as it was exported, if the file's name does not tell."""
    path = Path(path)
    runtime, content = runtime_of(path, to), content_of(path)
    try:
        exported = runtime.load(content, threads)
        exported.conditions  # noqa: B018  # which fails now, if at all
        return exported
    except (Unavailable, MemoryError):
        raise
    except NewerFile as error:
        raise ValueError(f"{path} {error}") from None
    except Exception as error:  # every runtime has errors of its own
        raise ValueError(f"{path} is damaged or not an export of this package ({first_line(error)})") from error
