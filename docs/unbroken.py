"""What should stand in one line does: specs, short code, and numbers with what belongs to them."""

import re
from typing import Any

SPEC = re.compile(r"(?<![\w(&;])[DH]\([\dK]+\)-[CDX]-[RG]\d+")
CODE = re.compile(r"<code>([^<\s]{1,28})</code>")
CELL = re.compile(r"(<t[dh][^>]*>)(.*?)(?=</t[dh]>)", re.DOTALL)


def on_page_content(html: str, **_: Any) -> str:
    """Called by MkDocs with the body of every page."""
    html = CODE.sub(r'<code class="unbroken">\1</code>', html)
    return CELL.sub(lambda cell: cell[1] + _joined(cell[2]), html)


def _joined(cell: str) -> str:
    cell = re.sub(r" (±|-&gt;) (?=\d)", "\u00a0\\1\u00a0", cell)
    cell = re.sub(r"\bx (?=\d)", "x\u00a0", cell)
    return cell if "<" in cell else SPEC.sub(lambda spec: f'<span class="unbroken">{spec[0]}</span>', cell)
