"""Values of a recipe's fields: from text by type, from TOML with their types checked."""

from __future__ import annotations

import math
import sys
from typing import get_args, get_origin

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
WORDS |= {dict: "a table like {key = 1}", tuple: 'a list like 1,2 or ["a", "b"]'}
TRUTHS = {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}


def from_text(key: str, text: str, kind: type) -> object:
    """Read what a user typed for a field of this type; a tuple is as in TOML, or its members between commas."""
    if get_origin(kind) is tuple and not (text.startswith("[") and text.endswith("]")):
        return tuple(from_text(key, part.strip(), get_args(kind)[0]) for part in text.split(",") if part.strip())
    try:
        if kind is bool:
            return TRUTHS[text.lower()]
        if kind is str:
            return text
        if get_origin(kind) in (dict, tuple):
            return from_value(key, tomllib.loads(f"value = {text}")["value"], kind)
        return kind(text)
    except (ValueError, KeyError, RecursionError):  # a TOMLDecodeError is a ValueError
        raise ValueError(f"{key} must be {WORDS[get_origin(kind) or kind]}, got {text!r}") from None


def from_value(key: str, value: object, kind: type) -> object:
    """Check a value that has a type already; whole numbers are numbers, and truths are not."""
    if get_origin(kind) is tuple:
        if not isinstance(value, list | tuple):
            raise ValueError(f"{key} must be a list, got {value!r}")
        return tuple(from_value(key, part, get_args(kind)[0]) for part in value)
    if get_origin(kind) is dict:
        if not isinstance(value, dict) or not is_plain(value):
            raise ValueError(f"{key} must be {WORDS[dict]}, of text, numbers, true or false, and lists, got {value!r}")
        return value
    if kind is float and isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53:
        return float(value)
    if type(value) is not kind:
        raise ValueError(f"{key} must be {WORDS[kind]}, got {value!r}")
    return value


def is_plain(value: object) -> bool:
    """Whether JSON knows a value: TOML has dates too."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_plain(part) for key, part in value.items())
    if isinstance(value, list):
        return all(map(is_plain, value))
    return isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value))
