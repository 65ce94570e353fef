"""``python -m benchmarks.newcomer clone|wheel|small``: do what the README says, where nothing is prepared.

clone  copies the repository's last commit and runs every line of the README there
wheel  builds a wheel and a source distribution, installs the wheel into a new environment outside of the repository,
       and runs what follows the installation
small  installs the wheel without extras, converts and calls a small network, saves and loads it, and asks for help

--python names the interpreters of the new environments, one or several. Packages come from wherever pip finds them, in
the versions of requirements.lock. What ran is noted in benchmarks/results/newcomer.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.helpers.pages import ROOT, command_lines, pieces

from benchmarks.timing import RESULTS, markdown, write

FILE = RESULTS / "newcomer.json"
INSTALL = ("make", "source", "pip", "git", "cd")
SMALL = """
import torch, splinenets as sn
images = torch.randn(4, 3, 32, 32)
net = sn.convert(sn.models.resnet(8), "H(5)-D-R3", example=images, spread=0.1).eval()
sn.save(net, "net.safetensors")
assert torch.equal(sn.load("net.safetensors")(images), net(images))
with sn.strategy("grouped"):
    assert torch.allclose(sn.load("net.safetensors")(images), net(images), atol=1e-4)
"""


class Newcomer:
    """Somebody with an empty folder, who notes what was typed and how long it took."""

    def __init__(self, folder: Path, python: str) -> None:
        self.folder, self.python = folder, python
        self.lines: list[list[Any]] = []

    def run(self, line: str, within: str = ".", before: str = "", **environment: str) -> None:
        """Run a line of shell after some others, and stop at an error."""
        began, place = time.perf_counter(), self.folder / within
        done = subprocess.run(["bash", "-c", before + line], cwd=place, env={**os.environ, **environment}, check=False)
        named = line.replace(self.python, "python").replace(sys.executable, "python").replace(str(ROOT), "SOURCE")
        self.lines.append([named, round(time.perf_counter() - began)])
        print(f"{self.lines[-1][1]:6} s  {line.splitlines()[-1][:100]}", flush=True)
        if done.returncode:
            sys.exit(f"this failed: {line}")

    def follow(self, page: Path, within: str, before: str, *, installed: bool, **environment: str) -> None:
        """Everything that a page says, in one folder; ``before`` is what a shell has done already."""
        for line in shell_lines(page, installed=installed):
            if line.startswith("source"):
                before = f"{before}{line} && "
            else:
                self.run(line, within, before, **environment)
        (self.folder / within / "pasted.py").write_text(python_of(page))
        self.run("python -W error::SyntaxWarning pasted.py", within, before, **environment)
        self.run("splinenets --help > /dev/null", within, before, **environment)

    def versions(self, before: str, within: str = ".") -> list[str]:
        """Of Python and torch in the new environment."""
        asked = f"{before}python -c 'import platform, torch; print(platform.python_version(), torch.__version__)'"
        done = subprocess.run(
            ["bash", "-c", asked], cwd=self.folder / within, capture_output=True, text=True, check=True
        )
        return done.stdout.split()


def shell_lines(page: Path, *, installed: bool) -> list[str]:
    """The shell lines of a page; without those that install, where a wheel is installed already."""
    lines = [line for piece in pieces(page) if piece.language == "sh" for _, line in command_lines(piece)]
    return [line for line in lines if not (installed and line.startswith(INSTALL))]


def python_of(page: Path) -> str:
    """All Python blocks of a page, as one program."""
    return "\n".join(piece.text for piece in pieces(page) if piece.language == "python")


def clone(who: Newcomer) -> list[str]:
    """The README in a fresh clone; a wheel is built beforehand, as it says that one can be."""
    who.run(f"git clone --quiet {ROOT} repository")
    constraint = {"PIP_CONSTRAINT": str(who.folder / "repository" / "requirements.lock")}
    who.run(f"make .venv/.ready PYTHON={who.python}", "repository", **constraint)
    who.run(".venv/bin/python -m build --outdir dist > /dev/null", "repository", **constraint)
    who.follow(who.folder / "repository" / "README.md", "repository", "", installed=False, **constraint)
    return who.versions(". .venv/bin/activate && ", "repository")


def wheel(who: Newcomer) -> list[str]:
    """The README with a wheel in a new environment."""
    before = install(who, "'splinenets[figures,export]' transformers")
    who.follow(who.folder / "source" / "README.md", ".", before, installed=True)
    return who.versions(before)


def small(who: Newcomer) -> list[str]:
    """A wheel without extras, and a few calls."""
    before = install(who, "splinenets")
    (who.folder / "small.py").write_text(SMALL)
    who.run("python -W error small.py", before=before)
    who.run("splinenets --help > /dev/null", before=before)
    return who.versions(before)


def install(who: Newcomer, what: str) -> str:
    """Build a wheel, install it into a new environment, and say how a shell enters that."""
    who.run(f"git clone --quiet {ROOT} source && {sys.executable} -m build --outdir dist source > /dev/null")
    who.run(f"{who.python} -m venv fresh")
    before = ". fresh/bin/activate && "
    constraint = str(who.folder / "source" / "requirements.lock")
    who.run(f"pip install --quiet {what} --find-links dist", before=before, PIP_CONSTRAINT=constraint)
    return before


KINDS = {"clone": clone, "wheel": wheel, "small": small}


def note(what: str, versions: Sequence[str], lines: Sequence[Sequence[Any]]) -> None:
    """Put a trial into the file of results, in the place of an earlier one of its kind and Python."""
    python, torch = versions
    trial = {"what": what, "python": python, "torch": torch, "lines": lines}
    others = [each for each in read() if (each["what"], each["python"]) != (what, python)]
    command = f"python -m benchmarks.newcomer {'|'.join(KINDS)}"
    write(FILE, {"about": {"command": command}, "trials": sorted([*others, trial], key=_order)})


def read() -> list[dict[str, Any]]:
    return json.loads(FILE.read_text())["trials"] if FILE.exists() else []


def _order(trial: dict[str, Any]) -> tuple[int, list[int]]:
    return list(KINDS).index(trial["what"]), [int(part) for part in trial["python"].split(".")]


def table() -> str:
    """The table of the docs."""
    rows = [
        [each["what"], each["python"], each["torch"], str(len(each["lines"])), f"{sum(s for _, s in each['lines']):,}"]
        for each in read()
    ]
    return markdown(["", "Python", "torch", "lines that ran", "seconds"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=KINDS)
    parser.add_argument("--python", nargs="+", default=[sys.executable], help="the interpreters of new environments")
    asked = parser.parse_args()
    for python in asked.python:
        with tempfile.TemporaryDirectory() as place:
            who = Newcomer(Path(place), python)
            note(asked.what, KINDS[asked.what](who), who.lines)
        print(f"{python}: everything ran")


if __name__ == "__main__":
    main()
