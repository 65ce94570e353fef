"""Compile kernels.cpp for this machine, once, and load it. Where that cannot be done, do without."""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import lru_cache
from importlib import resources
from pathlib import Path

FLAGS = ("-std=c++17", "-O3", "-march=native", "-fopenmp", "-shared", "-fPIC")
SWITCH = "SPLINENETS_NATIVE"  # 0: do without


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL | None:
    """The compiled kernels, or None where they are switched off or cannot be had."""
    if os.environ.get(SWITCH) == "0":
        return None
    try:
        return ctypes.CDLL(str(build()))
    except (OSError, subprocess.SubprocessError, LookupError):
        return None


def build(flags: tuple[str, ...] = FLAGS) -> Path:
    """Compile, unless that was done before for the same source, compiler and processor."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        raise LookupError("there is no C++ compiler")
    source = (resources.files(__package__) / "kernels.cpp").read_bytes()
    version = subprocess.run([compiler, "--version"], capture_output=True, check=True, timeout=60).stdout
    identity = hashlib.sha256(b"\0".join((source, version, " ".join(flags).encode(), processor()))).hexdigest()[:16]
    target = cache_folder() / f"kernels-{identity}.so"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:  # several processes may build at once
            made = Path(folder) / target.name
            command = [compiler, *flags, "-x", "c++", "-", "-o", str(made)]
            subprocess.run(command, input=source, capture_output=True, check=True, timeout=300)
            made.replace(target)
    return target


def cache_folder() -> Path:
    """Where compiled kernels are kept."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "splinenets" / "native"


def processor() -> bytes:
    """What -march=native depends on: a home folder may be shared by different machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor().encode()
    return "\n".join(sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))})).encode()
