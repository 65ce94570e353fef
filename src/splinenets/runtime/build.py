"""engine.cpp -> a library for this machine, compiled once and kept."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

SOURCE = Path(__file__).with_name("engine.cpp")
FLAGS = ("-std=c++20", "-O3", "-march=native", "-fPIC", "-shared", "-pthread")


class Unavailable(ValueError):
    """The native runtime cannot be used here; the message says why, in one sentence."""


@lru_cache(maxsize=1)
def build() -> ctypes.CDLL:
    """The engine for this machine: compiled when it is first asked for, which takes seconds, and found again later."""
    compiler = _compiler()
    for folder in (_cache(), Path(tempfile.gettempdir()) / f"splinenets-{os.getuid()}"):
        library = folder / f"engine-{_fingerprint(compiler)}.so"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not library.exists():
                _compile(compiler, library)
            return ctypes.CDLL(str(library))
        except OSError as error:
            reason = error
    raise Unavailable(f"the native runtime was built but cannot be loaded ({reason}): export to onnx instead")


def _compiler() -> str:
    for name in (os.environ.get("CXX"), "g++", "clang++", "c++"):
        if name and (path := shutil.which(name)):
            return path
    raise Unavailable("the native runtime needs a C++ compiler such as g++, and there is none: export to onnx instead")


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "splinenets"


def _fingerprint(compiler: str) -> str:
    """Changes with the source, the compiler and the processor, so that a shared home folder serves several machines."""
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    parts = (SOURCE.read_text(), version, flags, platform.machine(), *FLAGS)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _compile(compiler: str, library: Path) -> None:
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        made = Path(folder) / library.name
        done = subprocess.run(
            [compiler, *FLAGS, str(SOURCE), "-o", str(made)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            reason = next((line for line in done.stderr.splitlines() if "error" in line), "no reason given")
            raise Unavailable(f"{compiler} cannot build the native runtime ({reason}): export to onnx instead")
        made.replace(library)
