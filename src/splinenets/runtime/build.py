"""engine.cpp -> a library for this machine, compiled once and kept. Where that cannot be done, a sentence says why."""

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
SWITCH = "SPLINENETS_NATIVE"  # 0: do without
INSTEAD = "export to onnx instead"


class Unavailable(ValueError):
    """The native runtime cannot be used here; the message says why, in one sentence."""


@lru_cache(maxsize=1)
def build() -> ctypes.CDLL:
    """The engine for this machine: compiled when it is first asked for, which takes seconds, and found again later."""
    if os.environ.get(SWITCH) == "0":
        raise Unavailable(f"the native runtime is switched off by {SWITCH}=0: {INSTEAD}")
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        raise Unavailable(f"the native runtime needs a C++ compiler such as g++, and there is none: {INSTEAD}")
    library = _cache() / f"engine-{_fingerprint(compiler)}.so"
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        if not library.exists():
            _compile(compiler, library)
        return ctypes.CDLL(str(library))
    except OSError as error:
        raise Unavailable(f"the native runtime cannot be kept in {library.parent} ({error}): {INSTEAD}") from None


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "splinenets" / "native"


def _fingerprint(compiler: str) -> str:
    """Changes with the source, the compiler and the processor: a home folder may be shared by different machines."""
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    flags = next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())
    parts = (SOURCE.read_text(), version, flags, platform.machine(), *FLAGS)
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _compile(compiler: str, library: Path) -> None:
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:  # several processes may build at once
        made = Path(folder) / library.name
        command = [compiler, *FLAGS, str(SOURCE), "-o", str(made)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            reason = next((line for line in done.stderr.splitlines() if "error" in line), "no reason given")
            raise Unavailable(f"{compiler} cannot build the native runtime ({reason.strip()}): {INSTEAD}")
        made.replace(library)
