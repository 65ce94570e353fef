"""SplineSpec <-> the paper's notation ``M(K)-T-R``, for example ``H(5)-D-R3``."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import NamedTuple, TypeGuard

EXAMPLE = "D(5)-C-R3"
KINDS = {"D": "dynamic", "H": "hierarchical"}
PROJECTIONS = {"C": "conv", "D": "dot", "X": "external"}

# Options that may follow the notation, as they are spelled in a string: spelling -> (field, type).
OPTIONS = {
    "degree": ("degree", int),
    "diffusion": ("diffusion", str),
    "slope": ("sigmoid_slope", float),
    "variance": ("variance", float),
    "dims": ("dims", int),
}
FLAGS = {"raw": ("standardize", False), "independent": ("centered", False), "closed": ("closed", True)}


class Limit(NamedTuple):
    """From where to where a number is sensible, and why not beyond; a whole number if its least is one."""

    least: int | float
    most: int | float
    why: str

    def check(self, name: str, value: object) -> None:
        """Raise for anything else."""
        whole = isinstance(self.least, int)
        fits = _is_number(value) and self.least <= value <= self.most
        if not fits or (whole and not isinstance(value, int)):
            kind = "a whole number" if whole else "a number"
            raise ValueError(f"{name} must be {kind} from {self.least} to {self.most} ({self.why}), got {value}")


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


LIMITS = {
    "knots": Limit(2, 1024, "one knot is a point and no curve, and every knot takes as much memory as the plain layer"),
    "degree": Limit(0, 20, "the basis of a higher degree loses its digits"),
    "sigmoid_slope": Limit(1e-6, 1000.0, "a steeper sigmoid is a step, and nothing learns from one"),
    "variance": Limit(0.0, 100.0, "weights that start larger overflow within a few layers"),
    "dims": Limit(1, 16, "every direction of a surface has knots of its own"),
}


def check_knots(knots: int, degree: int, *, closed: bool = False) -> None:
    """Raise unless a spline with this many knots can have this degree."""
    if not 0 <= degree <= LIMITS["degree"].most:
        LIMITS["degree"].check("degree", degree)
    if knots <= degree:
        raise ValueError(f"knots must exceed degree, got knots={knots}, degree={degree}")
    if closed and degree == 0:
        raise ValueError("a closed spline needs degree 1 or more, got degree=0, which only has steps")


def check_sides(*sides: int) -> None:
    """Raise if no tensor can have a side of such a length, for which torch has fifty lines of words."""
    for side in sides:
        if side >= 1 << 63:
            raise ValueError(f"a layer has fewer than 2^63 inputs and outputs, got {side}")


def check_memory(size: int, what: str) -> None:
    """Raise if this machine has no room for so many bytes, before they are asked for."""
    if size > _memory() > 0:
        raise ValueError(
            f"{what} would take {size / 2**30:,.0f} GB of memory, and this machine has {_memory() / 2**30:,.0f} GB"
        )


@cache
def _memory() -> int:
    """How many bytes this machine has; 0 where that is not known."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 0


@dataclass(frozen=True)
class Tree:
    """Diffusion of a ``branching``-ary decision tree: branching ** (1 - level)."""

    branching: float

    def __post_init__(self) -> None:
        if not 1 <= self.branching < float("inf"):
            raise ValueError(f"tree(b) needs a branching factor b >= 1, got {self.branching:g}")

    def __str__(self) -> str:
        return f"tree({int(self.branching) if float(self.branching).is_integer() else self.branching})"


@dataclass(frozen=True, kw_only=True)
class SplineSpec:
    """What kind of spline layer to build; ``str(spec)`` and ``SplineSpec.parse`` are inverse to each other.

    kind           "dynamic" (D): the position depends on the features;
                   "hierarchical" (H): the decision parameters also lie on a spline, indexed by the parent's position
    knots          K, control points per spline
    projection     "conv" (C): a 1x1 convolution and global averaging; "dot" (D): a dot product with all features;
                   "external" (X): none, the position comes from whoever calls the network, see ``sn.condition``
    rank           "R4": one spline for the whole filter bank; "R3": one per filter; "G8": eight groups of filters.
                   A linear layer always has one spline, its knots are whole matrices, as in the paper; so has a layer
                   whose position comes from outside, as all its filters are told the same
    degree         of the B-spline; None means min(2, knots - 1)
    diffusion      in [0, 1], how far a position may move from its parent (1: anywhere), or ``Tree(b)`` / "tree(b)"
    sigmoid_slope  None means 1.7 for standardised projections (positions then start out nearly uniform, because
                   sigmoid(1.7 z) is close to the normal distribution function) and the paper's 0.4 for raw ones
    variance       c: weights start normal with variance c / fan_in, as in the paper; None: as torch's own layer starts
    dims           positions per spline; above 1 the weights lie on a surface, a mean of ``dims`` splines
    standardize    projections have mean 0 and variance 1 and are bounded, so that positions neither saturate nor die;
                   False ("raw" in a string) is the paper's form
    centered       knots are offsets from one shared weight; False ("independent" in a string) is the paper's form
    closed         curves are closed: positions 0 and 1 are one place, as for angles, hues and hours

    Examples:
        >>> spec = sn.SplineSpec.parse("H(5)-D-R3 degree=3")
        >>> spec.kind, spec.knots, spec.degree, str(spec)
        ('hierarchical', 5, 3, 'H(5)-D-R3 degree=3')
    """

    kind: str = "dynamic"
    knots: int = 5
    projection: str = "conv"
    rank: str = "R3"
    degree: int | None = None
    diffusion: float | Tree | str = 1.0
    sigmoid_slope: float | None = None
    variance: float | None = None
    dims: int = 1
    standardize: bool = True
    centered: bool = True
    closed: bool = False

    def __post_init__(self) -> None:
        if self.kind not in KINDS.values():
            raise ValueError(f"unknown kind {self.kind!r}, choose from {', '.join(sorted(KINDS.values()))}")
        if self.projection not in PROJECTIONS.values():
            raise ValueError(
                f"unknown projection {self.projection!r}, choose from {', '.join(sorted(PROJECTIONS.values()))}"
            )
        if not isinstance(self.rank, str) or not re.fullmatch(r"R3|R4|G[1-9]\d*", self.rank):
            raise ValueError(f"unknown rank {self.rank!r}, choose R3, R4 or G<number of splines> such as G8")
        for name, limit in LIMITS.items():
            if (value := getattr(self, name)) is not getattr(SplineSpec, name):  # a default, which may be None
                limit.check(name.replace("_", " "), value)
        check_knots(self.knots, self.spline_degree, closed=self.closed)
        if isinstance(self.diffusion, str):
            object.__setattr__(self, "diffusion", _parse_diffusion(self.diffusion))
        if not isinstance(self.diffusion, Tree) and not (_is_number(self.diffusion) and 0 <= self.diffusion <= 1):
            raise ValueError(f"diffusion must lie in [0, 1] or be tree(b), got {self.diffusion}")
        decided = self.hierarchical or self.diffusion != 1 or self.sigmoid_slope is not None or not self.standardize
        if self.external and decided:
            raise ValueError(
                "X takes positions from outside, so nothing decides on them: no H, diffusion, slope or raw"
            )

    @property
    def hierarchical(self) -> bool:
        """Whether decision parameters lie on a spline of their own."""
        return self.kind == "hierarchical"

    @property
    def external(self) -> bool:
        """Whether positions come from whoever calls the network."""
        return self.projection == "external"

    @property
    def spline_degree(self) -> int:
        """The degree, with None resolved."""
        return min(2, self.knots - 1) if self.degree is None else self.degree

    @property
    def slope(self) -> float:
        """The sigmoid's slope, with None resolved."""
        if self.sigmoid_slope is not None:
            return self.sigmoid_slope
        return 1.7 if self.standardize else 0.4

    def splines(self, filters: int) -> int:
        """S, the number of splines of a convolution with this many filters."""
        if self.external:
            return 1
        count = {"R4": 1, "R3": filters}.get(self.rank) or int(self.rank[1:])
        if filters % count:
            raise ValueError(f"{self.rank} asks for {count} splines, which do not divide {filters} filters")
        return count

    def diffusion_at(self, level: int) -> float:
        """The paper's delta^i for level i, the first being 1."""
        if isinstance(self.diffusion, Tree):
            return self.diffusion.branching ** (1 - level)
        return float(self.diffusion)

    def replace(self, **changes: object) -> SplineSpec:
        """A copy with some fields changed."""
        return replace(self, **changes)  # type: ignore[arg-type]

    def __str__(self) -> str:
        letter = next(k for k, v in KINDS.items() if v == self.kind)
        decision = next(k for k, v in PROJECTIONS.items() if v == self.projection)
        words = [f"{letter}({self.knots})-{decision}-{self.rank}"]
        defaults = {f.name: f.default for f in fields(self)}
        for spelling, (name, _) in OPTIONS.items():
            if (value := getattr(self, name)) != defaults[name]:
                words.append(f"{spelling}={value}")
        words += [flag for flag, (name, value) in FLAGS.items() if getattr(self, name) == value]
        return " ".join(words)

    @classmethod
    def parse(cls, text: str | SplineSpec) -> SplineSpec:
        """Read ``"H(5)-D-R3"``, with options behind it: ``"D(8)-C-G4 degree=3 diffusion=tree(2) raw"``."""
        if isinstance(text, SplineSpec):
            return text
        if not isinstance(text, str):
            raise ValueError(f"a spec is a string such as {EXAMPLE!r} or a SplineSpec, got {type(text).__name__}")
        head, *words = text.replace(",", " ").split() or [""]
        match = re.fullmatch(r"([A-Za-z]+)\((-?\d+)\)-([A-Za-z]+)-(\w+)", head)
        if match is None:
            raise _wrong(text, f"{head!r} does not have the form M(K)-T-R")
        kind, knots, projection, rank = match.groups()
        if kind not in KINDS:
            raise _wrong(text, f"the kind M is {kind!r}, choose D (dynamic) or H (hierarchical)")
        if projection not in PROJECTIONS:
            raise _wrong(
                text, f"the decision T is {projection!r}, choose C (convolution), D (dot product) or X (external)"
            )
        values: dict[str, object] = {}
        for word in words:
            name, value = _parse_option(text, word)
            if name in values:
                raise _wrong(text, f"{word!r} sets {name} a second time")
            values[name] = value
        try:
            return cls(
                kind=KINDS[kind],
                knots=int(knots),
                projection=PROJECTIONS[projection],
                rank=rank,
                **values,  # type: ignore[arg-type]
            )
        except ValueError as error:
            raise _wrong(text, str(error)) from None


def _wrong(text: str, reason: str) -> ValueError:
    return ValueError(f"cannot read the spec {text!r}: {reason}; a valid one is {EXAMPLE!r}")


def _parse_option(text: str, word: str) -> tuple[str, object]:
    if word in FLAGS:
        return FLAGS[word]
    spelling, equals, value = word.partition("=")
    if not equals or spelling not in OPTIONS:
        raise _wrong(
            text, f"unknown option {word!r}, choose from {', '.join([f'{o}=...' for o in OPTIONS] + [*FLAGS])}"
        )
    name, kind = OPTIONS[spelling]
    try:
        return name, kind(value)
    except ValueError:
        raise _wrong(
            text, f"{spelling} needs {'a whole number' if kind is int else 'a number'}, got {value!r}"
        ) from None


def _parse_diffusion(text: str) -> float | Tree:
    tree = re.fullmatch(r"tree\((.+)\)", text)
    try:
        return Tree(float(tree[1])) if tree else float(text)
    except ValueError as error:
        if "branching" in str(error):
            raise
        raise ValueError(f"diffusion must be a number in [0, 1] or tree(b), got {text!r}") from None
