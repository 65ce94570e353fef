"""Names as others gave them, made safe to show; numbers made short."""

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


def compact(value: float) -> str:
    """1500000 -> 1.5M."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"
