"""``python -m benchmarks.newcomer clone|wheel``: do what the README says, line by line, where nothing is prepared.

``clone`` copies the repository's last commit and runs every line there. ``wheel`` builds a wheel and a source
distribution, installs the wheel into a new environment, outside of the repository, and runs what follows the
installation. ``--python`` names the interpreter of that environment. Packages come from wherever pip finds them, in the
versions of requirements.lock.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.helpers.pages import ROOT, command_lines, pieces

INSTALL = ("make", "source", "pip", "git", "cd")


def shell_lines(page: Path, *, installed: bool) -> list[str]:
    """The shell lines of a page; without those that install, where a wheel is installed already."""
    lines = [line for piece in pieces(page) if piece.language == "sh" for _, line in command_lines(piece)]
    return [line for line in lines if not (installed and line.startswith(INSTALL))]


def python_of(page: Path) -> str:
    """All Python blocks of a page, as one program."""
    return "\n".join(piece.text for piece in pieces(page) if piece.language == "python")


def run(line: str, folder: Path, **environment: str) -> None:
    """Run a line of shell, and stop at an error."""
    began = time.perf_counter()
    done = subprocess.run(["bash", "-c", line], cwd=folder, env={**os.environ, **environment}, check=False)
    print(f"{time.perf_counter() - began:6.0f} s  {line.splitlines()[-1][:100]}", flush=True)
    if done.returncode:
        sys.exit(f"this failed: {line}")


def follow(folder: Path, page: Path, before: str, *, installed: bool, **environment: str) -> None:
    """Everything that a page says, in one folder; ``before`` is what a shell has done already."""
    for line in shell_lines(page, installed=installed):
        if line.startswith("source"):
            before = f"{before}{line} && "
        else:
            run(before + line, folder, **environment)
    (folder / "pasted.py").write_text(python_of(page))
    run(f"{before}python -W error::SyntaxWarning pasted.py", folder, **environment)
    run(f"{before}splinenets --help > /dev/null", folder, **environment)


def clone(folder: Path) -> None:
    run(f"git clone --quiet {ROOT} repository", folder)
    repository = folder / "repository"
    constraint = str(repository / "requirements.lock")
    run(
        "make .venv/.ready && .venv/bin/python -m build --outdir dist > /dev/null",
        repository,
        PIP_CONSTRAINT=constraint,
    )
    follow(repository, repository / "README.md", "", installed=False, PIP_CONSTRAINT=constraint)


def wheel(folder: Path, python: str) -> None:
    constraint = {"PIP_CONSTRAINT": str(ROOT / "requirements.lock")}
    run(f"git clone --quiet {ROOT} source && {sys.executable} -m build --outdir dist source > /dev/null", folder)
    run(f"{python} -m venv fresh", folder)
    before = ". fresh/bin/activate && "
    run(
        f"{before}pip install --quiet 'splinenets[figures,export]' transformers --find-links dist", folder, **constraint
    )
    follow(folder, folder / "source" / "README.md", before, installed=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["clone", "wheel"])
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the new environment")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        clone(Path(place)) if asked.what == "clone" else wheel(Path(place), asked.python)
    print("everything ran")
