"""Plain text for everything that prints itself: tables, which notebooks have as HTML, and words of messages."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape


def text_table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Aligned columns under a head; columns of numbers stand to the right."""
    widths = [max(len(row[i]) for row in (head, *body)) for i in range(len(head))]
    numeric = [bool(body) and all(_is_number(row[i]) for row in body) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        cells = (c.rjust(w) if n else c.ljust(w) for c, w, n in zip(row, widths, numeric, strict=True))
        return "  ".join(cells).rstrip()

    return "\n".join([line(head), "  ".join("-" * w for w in widths), *map(line, body)])


def html_table(head: Sequence[str], body: Sequence[Sequence[str]], notes: Sequence[str] = ()) -> str:
    """The same for a notebook, lines of notes below it; everything is escaped."""

    def row(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"

    rows = "".join(row(cells, "td") for cells in body)
    below = "".join(f"<p>{escape(note)}</p>" for note in notes)
    return f"<table><thead>{row(head, 'th')}</thead><tbody>{rows}</tbody></table>{below}"


def bars(shares: Sequence[float]) -> str:
    """Numbers from 0 to 1 as a line of small bars."""
    return "".join("▁▂▃▄▅▆▇█"[min(7, max(0, int(8 * share)))] for share in shares)


def some(words: Iterable[str], most: int, what: str = "") -> str:
    """The first words of a list, and how many more there are."""
    words = list(words)
    more = f" and {len(words) - most} more{what}" if len(words) > most else ""
    return ", ".join(words[:most]) + more


def first_line(error: Exception) -> str:
    """What an error says, in short."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _is_number(cell: str) -> bool:
    return cell[:1].isdigit() or cell[:2].lstrip("-+").isdigit() or cell in ("", "-")
