"""Compile a C++ file for this machine, once, and keep it. Where that cannot be done, a sentence says why."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

import torch

from ..files import cache_folder, file_digest

SOURCE = Path(__file__).with_name("kernels.cpp")
FLAGS = ("-std=c++17", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC")
SWITCH = "SPLINENETS_NATIVE"  # 0: do without


class Unavailable(ValueError):
    """Compiled code cannot be had here; the message says why, in one sentence."""


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """The kernels, or None where they cannot be had: everything works without them."""
    _work_alone_when_forked()
    try:
        return load(SOURCE, FLAGS)
    except Unavailable:
        return None


@lru_cache(maxsize=1)
def _work_alone_when_forked() -> None:
    """Give torch one thread in processes forked from now on.

    They have none of their parent's threads, for which torch's OpenMP would wait for ever; kernels see to themselves.
    """
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


def load(source: Path, flags: tuple[str, ...]) -> ctypes.CDLL:
    """A library: compiled when it is first asked for, which takes seconds, and found again later."""
    if os.environ.get(SWITCH) == "0":
        raise Unavailable(f"compiled code is switched off by {SWITCH}=0")
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        raise Unavailable("there is no C++ compiler such as g++")
    folder = cache_folder() / "native"
    target = folder / f"{source.stem}-{fingerprint(source, compiler, flags)}.so"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        made = compiled(target) or compile_to(target, source, compiler, flags)
        return ctypes.CDLL(str(made))
    except OSError as error:
        raise Unavailable(f"compiled code cannot be kept in {folder} ({error})") from None


def fingerprint(source: Path, compiler: str, flags: tuple[str, ...]) -> str:
    """Changes with the source, the compiler and the processor: a home folder may be shared by different machines."""
    folders = (source.parent, *(Path(flag[2:]) for flag in flags if flag.startswith("-I")))
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    features = next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    parts = (*_texts(source, folders), version, features, platform.machine())
    parts += tuple(flag for flag in flags if not flag.startswith("-I"))  # where a header lies does not matter
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _texts(source: Path, folders: tuple[Path, ...]) -> tuple[str, ...]:
    """A source and the headers beside it that it includes, which may include others."""
    text = source.read_text()
    named = re.findall(r'^#include "(.+)"', text, flags=re.MULTILINE)
    headers = [folder / name for name in named for folder in folders if (folder / name).exists()]
    return text, *(part for header in headers for part in _texts(header, folders))


def compiled(target: Path) -> Path | None:
    """What was compiled before and is whole; damaged code would end the process, so its name ends with its digest."""
    kept = target.parent.glob(f"{target.stem}-*.so")
    return next((path for path in kept if path == sealed(target, path)), None)


def sealed(target: Path, content: Path) -> Path:
    """The name under which compiled code is kept."""
    return target.with_stem(f"{target.stem}-{file_digest(content)[:16]}")


def compile_to(target: Path, source: Path, compiler: str, flags: tuple[str, ...]) -> Path:
    """Compile under another name first: several processes may do so at once. Where it is kept in the end."""
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        made = Path(folder) / target.name
        done = subprocess.run(
            [compiler, *flags, str(source), "-o", str(made)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            reason = next((line for line in done.stderr.splitlines() if "error" in line), "no reason given")
            raise Unavailable(f"{compiler} cannot compile {source.name} ({reason.strip()})")
        return made.replace(sealed(target, made))
