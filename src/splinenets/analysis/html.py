"""HTML that stays inert: every text is escaped, and the page's own rules forbid network and foreign scripts."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .text import printable

PAGE = Path(__file__).parent / "page"


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def escape(value: object) -> Markup:
    """Any value as HTML; what is HTML already stays."""
    return value if isinstance(value, Markup) else Markup(html.escape(printable(value, 4_000)))


def element(name: str, *content: object, **attributes: object) -> Markup:
    """``<name attribute="..">content</name>``; class_ means class, data_run means data-run."""
    pairs = "".join(f' {k.rstrip("_").replace("_", "-")}="{escape(v)}"' for k, v in attributes.items())
    return Markup(f"<{name}{pairs}>{''.join(map(escape, content))}</{name}>")


def table(head: Sequence[object], rows: Sequence[Sequence[object]], **attributes: object) -> Markup:
    """A table whose first column names the rows."""
    top = element("tr", *(element("th", cell, scope="col") for cell in head))
    body = [
        element("tr", element("th", row[0], scope="row"), *(element("td", cell) for cell in row[1:])) for row in rows
    ]
    whole = element("table", element("thead", top), element("tbody", *body), **attributes)
    return element("div", whole, class_="scroll")


def image(content: bytes, kind: str, alt: str, **attributes: object) -> Markup:
    """A picture inside the page; in an img no script of an SVG ever runs."""
    source = f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
    pairs = "".join(f' {k.rstrip("_")}="{escape(v)}"' for k, v in attributes.items())
    return Markup(f'<img src="{source}" alt="{escape(alt)}"{pairs}>')


def data_block(name: str, content: Any) -> Markup:
    """JSON for a page's script; no text in it can end the block."""
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(f'<script type="application/json" id="{escape(name)}">{text}</script>')


def document(title: str, body: Markup, styles: str, script: str) -> str:
    """A whole page that may neither ask the network for anything nor run any script but this one."""
    rules = f"default-src 'none'; img-src data:; style-src {_hash(styles)}; script-src {_hash(script)}; base-uri 'none'"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{rules}; form-action \'none\'">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{styles}</style>\n</head>\n<body>\n{body}\n"
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def page_file(name: str) -> str:
    """A style sheet or script that ships with the package."""
    return (PAGE / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
