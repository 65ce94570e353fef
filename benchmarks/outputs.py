"""``python -m benchmarks.outputs [PAGE...]``: run pages of the docs, and write below each block what it printed.

A block that is followed by one in the language ``output`` has its output shown. Each page runs in a folder of its own,
from top to bottom: Python in one process, command lines one by one. Without a page, all that show an output are run.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.helpers.pages import BLOCK, ROOT, Piece, command_lines

DOCS = ROOT / "docs"
SHOWN = "output"
MOST, LAST = 36, 10  # lines of an output, and how many of them come from its end
NOT_RUN = ("import timm", "import torchvision")  # packages that need not be there


def refreshed(text: str) -> str:
    """A page whose outputs are what its blocks print now, in the current folder."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    printed = ""

    def block(match: re.Match[str]) -> str:
        nonlocal printed
        language, content = match["language"], match["block"]
        if language == SHOWN:
            return f"```{SHOWN}\n{printed}```"
        if language == "python" and not content.startswith(NOT_RUN):
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                exec(compile(content, "page", "exec"), namespace)
            printed = tidy(out.getvalue())
        elif language == "sh":
            printed = tidy("".join(output(line) for _, line in command_lines(Piece("sh", 0, content))))
        return match[0]

    return BLOCK.sub(block, text)


def output(line: str) -> str:
    """What a command line of ours prints, errors and progress included."""
    program, *words = shlex.split(line)
    if program != "splinenets":
        return ""
    found = subprocess.run(
        [sys.executable, "-m", "splinenets", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if found.returncode:
        raise RuntimeError(f"{line}: {found.stdout}")
    return found.stdout


def tidy(printed: str) -> str:
    """Without spaces at the end of lines and empty lines at both ends; what is very long is cut in the middle."""
    lines = "\n".join(line.rstrip() for line in printed.splitlines()).strip("\n").split("\n")
    if len(lines) > MOST:
        lines[MOST - LAST : -LAST] = [f"... ({len(lines) - MOST} lines more)"]
    return "\n".join(lines) + "\n" if any(lines) else ""


def main(names: list[str]) -> None:
    pages = [Path(name).resolve() for name in names] or [p for p in sorted(DOCS.rglob("*.md")) if shows(p)]
    for page in pages:
        text, home = page.read_text(), Path.cwd()
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            try:
                text = refreshed(text)
            finally:
                os.chdir(home)
        page.write_text(text)
        print(f"{page.relative_to(ROOT)}: done")


def shows(page: Path) -> bool:
    """Whether a page has an output."""
    return f"\n```{SHOWN}\n" in page.read_text()


if __name__ == "__main__":
    main(sys.argv[1:])
