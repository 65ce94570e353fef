"""Text as others wrote it, made safe to show: as one line, and as HTML that stays inert. Numbers made short."""

from __future__ import annotations

import base64
import hashlib
import html
import io
import json
from collections.abc import Sequence
from pathlib import Path

from PIL import Image
from torch import Tensor

PAGE = Path(__file__).parent / "page"
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def printable(value: object, most: int = 500) -> str:
    """One line of text that every font, XML and HTML parser can take; what has no shape becomes a question mark.

    Control characters break SVG, lone surrogates cannot be encoded, and marks of direction turn the text after them.
    """
    text = "".join(c if c.isprintable() else REPLACEMENT for c in str(value))
    return text if len(text) <= most else f"{text[: most - 1]}…"


def unique(names: Sequence[str]) -> list[str]:
    """The same names, with a number behind those that came before."""
    seen: dict[str, int] = {}
    result = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        result.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return result


def compact(value: float) -> str:
    """1500000 -> 1.5M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def escape(value: object) -> Markup:
    """Any value as HTML; what is HTML already stays."""
    return value if isinstance(value, Markup) else Markup(html.escape(printable(value, 4_000)))


def element(name: str, *content: object, **attributes: object) -> Markup:
    """``<name attribute="..">content</name>``; class_ means class, data_run means data-run."""
    return Markup(f"<{name}{_pairs(attributes)}>{''.join(map(escape, content))}</{name}>")


def table(head: Sequence[object], rows: Sequence[Sequence[object]], **attributes: object) -> Markup:
    """A table whose first column names the rows."""
    top = element("tr", *(element("th", cell, scope="col") for cell in head))
    body = [
        element("tr", element("th", row[0], scope="row"), *(element("td", cell) for cell in row[1:])) for row in rows
    ]
    whole = element("table", element("thead", top), element("tbody", *body), **attributes)
    return element("div", whole, class_="scroll")


def image(content: bytes, kind: str, alt: str) -> Markup:
    """A picture inside the page; in an img no script of an SVG ever runs."""
    source = f"data:image/{kind};base64,{base64.b64encode(content).decode()}"
    return Markup(f"<img{_pairs({'src': Markup(source), 'alt': alt})}>")


def png(pixels: Tensor) -> bytes:
    """An image of bytes, (C, H, W), as PNG."""
    array = pixels.squeeze(0).numpy() if len(pixels) == 1 else pixels.permute(1, 2, 0).contiguous().numpy()
    file = io.BytesIO()
    Image.fromarray(array).save(file, "PNG")
    return file.getvalue()


def data_block(name: str, content: object) -> Markup:
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
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>{styles}</style>\n</head>\n<body>\n{body}\n"
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def page_file(name: str) -> str:
    """A style sheet or script that ships with the package."""
    return (PAGE / name).read_text(encoding="utf-8")


def _pairs(attributes: dict[str, object]) -> str:
    return "".join(f' {k.rstrip("_").replace("_", "-")}="{escape(v)}"' for k, v in attributes.items())


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
