"""How long each strategy took for layers that were measured, and what that says of layers like them."""

from __future__ import annotations

import json
import os
from functools import lru_cache
from importlib import resources
from math import log2
from pathlib import Path
from typing import Any, NamedTuple

MEASUREMENTS = "SPLINENETS_MEASUREMENTS"  # a file to use instead of the one that ships with the package


class Case(NamedTuple):
    """A layer and its batch, as far as the time depends on it."""

    kind: str  # convolution | linear
    numbers: str  # float32 | bfloat16
    learning: bool  # gradients are wanted
    samples: int
    filters: int
    fan_in: int
    places: int  # pixels of an image, rows of a linear layer's sample
    splines: int
    knots: int


def own_file() -> Path:
    """Where measurements of the user's own machine are kept."""
    named = os.environ.get(MEASUREMENTS)
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(named) if named else Path(root) / "splinenets" / "strategies.json"


@lru_cache(maxsize=1)
def measurements() -> list[tuple[Case, dict[str, float]]]:
    """The measured cases, each with the seconds that each strategy took: of this machine, or else of ours."""
    try:
        return parse(json.loads(own_file().read_text()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        shipped = resources.files(__package__) / "measurements.json"
        return parse(json.loads(shipped.read_text()))


def parse(content: dict[str, Any]) -> list[tuple[Case, dict[str, float]]]:
    """The cases of a file that ``splinenets bench strategies`` wrote."""
    rows = [dict(zip(content["columns"], row, strict=True)) for row in content["rows"]]
    return [(Case(**{f: row.pop(f) for f in Case._fields}), {k: t for k, t in row.items() if t}) for row in rows]


@lru_cache(maxsize=4096)
def ranking(case: Case) -> tuple[str, ...]:
    """The strategies, fastest first, as they were for the measured case that is most like this one."""
    _, seconds = min(measurements(), key=lambda measured: distance(case, measured[0]))
    return tuple(sorted(seconds, key=lambda name: seconds[name]))


def distance(case: Case, other: Case) -> float:
    """How unlike two cases are: twice as many of anything count 1."""
    sizes = ("samples", "filters", "fan_in", "places", "knots")
    apart = sum(abs(log2(max(1, getattr(case, s)) / getattr(other, s))) for s in sizes)
    one_spline = abs((case.splines == 1) - (other.splines == 1))
    # what decides between strategies most counts so much that it is never traded for sizes
    return (
        apart
        + 2 * one_spline
        + 1000 * (case.kind != other.kind)
        + 100 * (case.learning != other.learning)
        + 100 * (case.numbers != other.numbers)
    )
