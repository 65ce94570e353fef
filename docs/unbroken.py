"""What should stand in one line does: specs, short code, and numbers with what belongs to them."""

import re
from typing import Any

SPEC = re.compile(r"(?<![\w(&;])[DH]\([\dK]+\)-[CDX]-[RG]\d+")
CODE = re.compile(r"<code>([^<\s]{1,28})</code>")
CELL = re.compile(r"(<t[dh][^>]*>)(.*?)(?=</t[dh]>)", re.DOTALL)
FIRST = re.compile(r"(?<=<tr>\n)<td>(.*?)(?=</td>)", re.DOTALL)
SHORT = 30  # letters of a row's name


def on_page_content(html: str, **_: Any) -> str:
    """Called by MkDocs with the body of every page."""
    html = CODE.sub(r'<code class="unbroken">\1</code>', html)
    html = CELL.sub(lambda cell: cell[1] + _joined(cell[2]), html)
    return FIRST.sub(lambda cell: f"<td{' class=unbroken' * _is_short(cell[1])}>{cell[1]}", html)


def _is_short(cell: str) -> bool:
    return len(re.sub(r"<.*?>", "", cell)) <= SHORT


def _joined(cell: str) -> str:
    cell = cell.replace(" ± ", "\u00a0±\u00a0").replace(" -&gt; ", "\u00a0→\u00a0")
    cell = re.sub(r"\bx (?=\d)", "x\u00a0", cell)
    return cell if "<" in cell else SPEC.sub(lambda spec: f'<span class="unbroken">{spec[0]}</span>', cell)
