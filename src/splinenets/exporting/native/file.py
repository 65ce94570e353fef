"""Programs as files: the one that file.h reads, and that of version 0.1."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import load

from ..formats import KEY, NewerFile
from .program import LANES, STEP, Kind, Program, padded

VERSION = 2
ALIGNMENT = 64  # bytes
TOLD = np.dtype([("name", "S48"), ("low", np.float64), ("high", np.float64)])


def to_bytes(program: Program, metadata: str) -> bytes:
    """A first line, the SHA-256 of the rest, a header of eight numbers, and four parts; see file.h."""
    text = metadata.encode()
    told = np.array([(told.name.encode(), told.low, told.high) for told in program.told], TOLD)
    parts = (told.tobytes(), program.steps.tobytes(), text, program.weights.tobytes())
    sizes = STEP.itemsize, len(told), len(program.steps), len(text), len(program.weights), program.arena, 0, 0
    first = b"splinenets native %d\n" % VERSION
    body = bytes(ALIGNMENT - len(first) - 32) + np.array(sizes, np.int64).tobytes() + b"".join(map(_whole, parts))
    return first + hashlib.sha256(body).digest() + body


def _whole(part: bytes) -> bytes:
    return part + bytes(-len(part) % ALIGNMENT)


def current(content: bytes) -> bytes:
    """A file's content as the engine reads it: that of version 0.1 is written anew."""
    found = re.match(rb"splinenets native (\d+)\n(.{32})", content, flags=re.DOTALL)
    if found is None:
        raise ValueError("its first line is not known")
    version = int(found[1])
    if version > VERSION:
        raise NewerFile(f"is of version {version} of the native format, newer than this package reads ({VERSION})")
    if version == VERSION:
        return content
    if hashlib.sha256(content[found.end() :]).digest() != found[2]:
        raise ValueError("its content does not have the SHA-256 that stands before it")
    return to_bytes(*first_version(content[found.end() :]))


# Version 1: a safetensors file, whose steps had fewer fields, with other names for some

_IMAGE = np.dtype([(name, np.int64) for name in ("offset", "channels", "height", "width", "margin", "own")])
_MATRIX = np.dtype([(name, np.int64) for name in ("type", "offset", "scale")])
_FIRST = np.dtype(
    [
        ("kind", np.int64),
        *((name, _IMAGE) for name in ("input", "output", "other")),
        *((name, np.int64) for name in ("relu", "kernel_h", "kernel_w", "stride", "pad_h", "pad_w", "dilation")),
        ("weight", _MATRIX),
        *((name, np.int64) for name in ("sums", "mixed", "bias", "basis", "splines", "dims", "knots", "degree")),
        *((name, np.int64) for name in ("rows", "length", "matching", "bounded", "decision_knots", "decision_degree")),
        *((name, np.float64) for name in ("diffusion", "slope")),
    ]
)
_RENAMED = {
    "activation": "relu",  # which is the first of them
    **dict.fromkeys(("stride_h", "stride_w"), "stride"),
    **dict.fromkeys(("dilation_h", "dilation_w"), "dilation"),
}


def first_version(content: bytes) -> tuple[Program, str]:
    """A program and its metadata from a file of version 0.1."""
    tensors = load(content)
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    before = tensors["steps"].numpy().view(_FIRST)
    steps = np.zeros(len(before), STEP)
    steps["groups"], steps["narrow"] = 1, -1
    for name in STEP.names or ():
        old = _RENAMED.get(name, name)
        if old in (_FIRST.names or ()):
            steps[name] = before[old]
    arena = int(tensors["arena"])
    for step in _adding(steps):  # sums of one step each: those of the next once overwrote what others still read
        arena = _move_sums(steps, step, arena)
    return Program(steps, tensors["weights"].numpy(), arena), header["__metadata__"][KEY]


def _adding(steps: NDArray[np.void]) -> Iterator[int]:
    kinds = (Kind.CONV, Kind.SUM, Kind.PROJECT)
    return (i for i, step in enumerate(steps) if step["kind"] in kinds and step["sums"] >= 0)


def _move_sums(steps: NDArray[np.void], first: int, arena: int) -> int:
    """Give the sums of a step, and of those that read them, a place behind the arena; the arena's new end."""
    old = steps["sums"][first]
    for i in range(first, len(steps)):
        if i > first and steps["sums"][i] == old and steps["kind"][i] in (Kind.CONV, Kind.SUM, Kind.PROJECT):
            break
        if steps["sums"][i] == old:
            steps["sums"][i] = arena
    return arena + padded(int(max(steps[name]["channels"][first] for name in ("input", "output")))) + LANES
