"""Values of settings: from text by type, from TOML with their types checked, and near misses named."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, get_args, get_origin

WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
TRUTHS = {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}


def nearest(wrong: str, right: Iterable[str]) -> str:
    """', did you mean ...?', or a list of what there is."""
    right = list(right)
    close = get_close_matches(wrong, right, 1, 0.5)
    return f", did you mean {close[0]!r}?" if close else f"; there are {', '.join(right)}"


def from_text(key: str, text: str, kind: Any) -> Any:
    """Read what a user typed for a field of this type; a tuple's members stand between commas."""
    if get_origin(kind) is tuple:
        return tuple(from_text(key, part.strip(), get_args(kind)[0]) for part in text.split(",") if part.strip())
    try:
        if kind is bool:
            return TRUTHS[text.lower()]
        if kind is str:
            return text
        return kind(text)
    except (ValueError, KeyError):
        raise ValueError(f"{key} wants {WORDS[kind]}, got {text!r}") from None


def from_value(key: str, value: Any, kind: Any) -> Any:
    """Check a value that has a type already; whole numbers are numbers, and truths are not."""
    if get_origin(kind) is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{key} wants a list, got {value!r}")
        return tuple(from_value(key, part, get_args(kind)[0]) for part in value)
    if kind is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53:
        return float(value)
    if type(value) is not kind:
        raise ValueError(f"{key} wants {WORDS[kind]}, got {value!r}")
    return value
