"""Tables of plain text, for everything that prints itself."""

from __future__ import annotations

from collections.abc import Sequence


def text_table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """Aligned columns under a head; columns of numbers stand to the right."""
    widths = [max(len(row[i]) for row in (head, *body)) for i in range(len(head))]
    numeric = [bool(body) and all(_is_number(row[i]) for row in body) for i in range(len(head))]

    def line(row: Sequence[str]) -> str:
        cells = (c.rjust(w) if n else c.ljust(w) for c, w, n in zip(row, widths, numeric, strict=True))
        return "  ".join(cells).rstrip()

    return "\n".join([line(head), "  ".join("-" * w for w in widths), *map(line, body)])


def _is_number(cell: str) -> bool:
    return cell[:1].isdigit() or cell[:2].lstrip("-+").isdigit() or cell in ("", "-")
