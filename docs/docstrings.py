"""Docstrings as Markdown: aligned lists of arguments become lists, and double backquotes single ones."""

import re
from typing import Any

import griffe

ENTRY = re.compile(r"""^(?P<name>[A-Za-z_*"][\w, *."]*?) {2,}(?P<text>\S.*)$""")
FORMULA = re.compile(r"^\w+ *= ")


class Arguments(griffe.Extension):
    """``name   what it is``, with further lines indented, is how this project lists arguments."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of whatever has one."""
        if obj.docstring:
            obj.docstring.value = markdown(obj.docstring.value)


def markdown(text: str) -> str:
    """The lines of a docstring, with lists as Markdown has them."""
    lines: list[str] = []
    inside = False
    for line in text.replace("``", "`").splitlines():
        entry = ENTRY.match(line)
        if entry:
            lines += [] if inside else [""]
            lines.append(f"- **{entry['name']}**: {entry['text']}")
        elif FORMULA.match(line):
            lines.append(f"    {line}")  # code, in Markdown
        elif inside and line.startswith("  "):
            lines[-1] += " " + line.strip()
        else:
            lines.append(line)
        inside = bool(entry) or (inside and line.startswith("  "))
    return "\n".join(lines)
