"""What should stand in one line does: specs, short code, and numbers with what belongs to them."""

import re
from typing import Any

SPEC = re.compile(r"(?<![\w(&;])[DH]\([\dK]+\)-[CDX]-[RG]\d+")
CODE = re.compile(r"<code>([^<\s]{1,28})</code>")
CELL = re.compile(r"(?P<row><tr>\n)?<(?P<kind>t[dh])(?P<more>[^>]*)>(?P<text>.*?)(?=</t[dh]>)", re.DOTALL)
SHORT, LONG = 30, 45  # letters: the name of a row stays in one line, a sentence wants some width


def on_page_content(html: str, **_: Any) -> str:
    """Called by MkDocs with the body of every page."""
    return CELL.sub(_cell, CODE.sub(r'<code class="unbroken">\1</code>', html))


def _cell(found: re.Match[str]) -> str:
    letters = len(re.sub(r"<.*?>", "", found["text"]))
    named = ' class="unbroken"' if found["row"] and letters <= SHORT else ' class="sentence"' if letters > LONG else ""
    return f"{found['row'] or ''}<{found['kind']}{named}{found['more']}>{_joined(found['text'])}"


def _joined(cell: str) -> str:
    cell = cell.replace(" ± ", "\u00a0±\u00a0").replace(" -&gt; ", "\u00a0→\u00a0")
    cell = re.sub(r"\bx (?=\d)", "x\u00a0", cell)
    return cell if "<" in cell else SPEC.sub(lambda spec: f'<span class="unbroken">{spec[0]}</span>', cell)
