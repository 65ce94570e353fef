"""README and docs, taken apart: what a reader pastes, and the prose around it."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
PAGES = {"README.md": ROOT / "README.md"} | {str(p.relative_to(DOCS)): p for p in sorted(DOCS.rglob("*.md"))}

BLOCK = re.compile(r"^```(?P<language>\w*)\n(?P<block>.*?)^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(?<!`)`(?P<span>[^`\n]+)`(?!`)")
GENERATED = re.compile(r"^<!-- .+? -->\n.*?^<!-- end -->$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Piece:
    """A fenced block, or a code span within prose, whose language is ``span``."""

    language: str
    line: int
    text: str


def pieces(page):
    """Everything on a page that is set as code, from top to bottom."""
    text = page.read_text()
    found = re.finditer(f"{BLOCK.pattern}|{SPAN.pattern}", text, re.MULTILINE | re.DOTALL)
    return [_piece(text, match) for match in found]


def _piece(text, match):
    line = text.count("\n", 0, match.start()) + 1
    if match["span"] is not None:
        return Piece("span", line, match["span"])
    return Piece(match["language"], line + 1, match["block"])


def prose(page):
    """Lines of a page as (number, text), without blocks, generated parts and tables."""
    text = page.read_text()
    for pattern in (BLOCK, GENERATED):
        text = pattern.sub(lambda match: "\n" * match[0].count("\n"), text)
    return [(number, line) for number, line in enumerate(text.splitlines(), 1) if not line.startswith("|")]


def command_lines(piece):
    """Shell lines without comments, continued ones joined: [(line number, text)]."""
    if piece.language == "span":
        return [(piece.line, piece.text)]
    joined = re.sub(r"\\\n", lambda match: " \0", piece.text)  # keep count of lines
    lines, number = [], piece.line
    for line in joined.split("\n"):
        bare = re.sub(r"(^|\s)#.*", "", line.replace("\0", "")).strip()
        if bare:
            lines.append((number, bare))
        number += 1 + line.count("\0")
    return lines


def table_rows(page, columns):
    """The cells of a page's first table with so many columns."""
    lines = [line for line in PAGES[page].read_text().splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in rows if len(row) == columns and not row[0].startswith("---")][1:]
