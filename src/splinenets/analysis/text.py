"""Names as others gave them, made safe to show."""

from __future__ import annotations

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def printable(value: object, most: int = 500) -> str:
    """One line of text that every font, XML and HTML parser can take; what has no shape becomes a question mark.

    Control characters break SVG, lone surrogates cannot be encoded, and marks of direction turn the text after them.
    """
    text = "".join(c if c.isprintable() else REPLACEMENT for c in str(value))
    return text if len(text) <= most else f"{text[: most - 1]}…"


def unique(names: list[str]) -> list[str]:
    """The same names, with a number behind those that came before."""
    seen: dict[str, int] = {}
    result = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        result.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return result
