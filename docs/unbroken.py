"""What should stand in one line does: specs, short code, and numbers with what belongs to them."""

import re
from typing import Any

SPEC = re.compile(r"(?<![\w(&;])[DH]\([\dK]+\)-[CDX]-[RG]\d+")
CODE = re.compile(r"<code>([^<\s]{1,28})</code>")
CELL = re.compile(r"(?P<row><tr>\n)?<(?P<kind>t[dh])(?P<more>[^>]*)>(?P<text>.*?)(?=</t[dh]>)", re.DOTALL)
NUMBER = re.compile(r"[-+x<>=\d][^a-z]{0,23}(times|ms)?$")
SHORT, LONG = 30, 45  # letters: the name of a row stays in one line, a sentence wants some width
COMMAND = 20  # letters of code that want some width, too


def on_page_content(html: str, **_: Any) -> str:
    """Called by MkDocs with the body of every page."""
    return CELL.sub(_cell, CODE.sub(r'<code class="unbroken">\1</code>', html))


def _cell(found: re.Match[str]) -> str:
    named = _kind(re.sub(r"<.*?>", "", found["text"]), first=bool(found["row"]), code="<code>" in found["text"])
    return f"{found['row'] or ''}<{found['kind']}{named}{found['more']}>{_joined(found['text'])}"


def _kind(text: str, *, first: bool, code: bool) -> str:
    """The class by which docs/stylesheets/extra.css knows what is in a cell."""
    if first and len(text) <= SHORT:
        return ' class="unbroken"'
    if len(text) > (COMMAND if code else LONG):
        return ' class="sentence"'
    return ' class="number"' if not first and NUMBER.match(text) else ""


def _joined(cell: str) -> str:
    cell = cell.replace(" ± ", "\u00a0±\u00a0").replace(" -&gt; ", "\u00a0→\u00a0")
    cell = re.sub(r"\bx (?=\d)", "x\u00a0", cell)
    return cell if "<" in cell else SPEC.sub(lambda spec: f'<span class="unbroken">{spec[0]}</span>', cell)
