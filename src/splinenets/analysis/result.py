"""What came out of runs: one sentence of result, and the same in large numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ..health_check import Health
from .counts import standard_error
from .glossary import explained
from .observe import Observation
from .records import Record
from .text import Markup, compact, element


@dataclass(frozen=True)
class Subject:
    """A run, what its network does, and how many seconds one image takes; None where that is not known.

    latency   in torch
    deployed  in the native runtime
    calm      whether nothing else ran while these were measured
    """

    record: Record
    seen: Observation | None
    latency: float | None = None
    deployed: float | None = None
    calm: bool = True

    @property
    def health(self) -> Health | None:
        """Of its positions on test images; whether they were still shifting is what its epochs tell."""
        if self.seen is None or self.seen.health is None:
            return None
        last = self.record.epochs[-1].layers if self.record.epochs else {}
        moving = {name for name, layer in last.items() if layer.verdict == "shifting"}
        layers = self.seen.health.layers
        return Health(tuple(replace(each, verdict="shifting") if each.layer in moving else each for each in layers))

    @property
    def accuracy(self) -> float | None:
        """The share of test images that it got right after its last epoch."""
        return self.record.epochs[-1].test_accuracy if self.record.epochs else None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A SplineNet and its twin: by how much it is better, and what both cost, as (what, own, other, unit)."""

    own: str
    twin: str
    accuracies: tuple[float, float]
    samples: int
    costs: list[tuple[str, float, float, str]]

    @property
    def points(self) -> float:
        """Percentage points of accuracy that are won."""
        return 100 * (self.accuracies[0] - self.accuracies[1])

    @property
    def error(self) -> float:
        """The standard error of the difference, if the test images were independent for each."""
        return 100 * sum(standard_error(a, self.samples) ** 2 for a in self.accuracies) ** 0.5


def twins(subjects: Sequence[Subject]) -> tuple[Subject, Subject] | None:
    """The first SplineNet and what it is best compared with, a static network of the same data before others."""
    seen = [s for s in subjects if s.seen is not None]
    for own in [s for s in seen if not s.record.is_static][:1]:
        alike = [s for s in seen if s is not own and s.record.data == own.record.data]
        for twin in sorted(alike, key=lambda s: not s.record.is_static)[:1]:
            return twin, own
    return None


def comparison(subjects: Sequence[Subject]) -> Comparison | None:
    """How much better and how much dearer; None if there is nothing to compare."""
    pair = twins(subjects)
    if pair is None:
        return None
    twin, own = pair
    if twin.seen is None or own.seen is None or twin.accuracy is None or own.accuracy is None:
        return None
    costs: list[tuple[str, float, float, str]] = [("MACs", own.seen.cost.macs, twin.seen.cost.macs, "")]
    if own.deployed and twin.deployed:
        costs.append(("latency when deployed", 1e3 * own.deployed, 1e3 * twin.deployed, " ms"))
    if own.latency and twin.latency:
        costs.append(("latency in torch", 1e3 * own.latency, 1e3 * twin.latency, " ms"))
    costs.append(("parameters", own.seen.cost.parameters, twin.seen.cost.parameters, ""))
    return Comparison(
        own=own.record.name,
        twin=twin.record.name,
        accuracies=(own.accuracy, twin.accuracy),
        samples=len(own.seen.task.data.test.labels),
        costs=costs,
    )


def result(subjects: Sequence[Subject]) -> str:
    """One sentence about what came out."""
    if (found := comparison(subjects)) is not None:
        better = f"{abs(found.points):.1f} points {'more' if found.points >= 0 else 'less'} accurate than"
        costs = [_times(own, other, what) for what, own, other, _ in found.costs]
        return f"{found.own} is {better} {found.twin}, with {', '.join(costs[:-1])} and {costs[-1]}."
    for subject in subjects:
        if subject.accuracy is not None:
            return f"{subject.record.name} gets {subject.accuracy:.1%} of the test images right."
    return "No run has finished an epoch yet."


def tiles(subjects: Sequence[Subject]) -> Iterator[Markup]:
    """The result in large numbers, and how sure it is."""
    if (found := comparison(subjects)) is None:
        return
    mine, other = found.accuracies
    yield element(
        "div",
        _tile(f"{found.points:+.1f} points", "test accuracy", f"{mine:.1%} and {other:.1%}"),
        *(_tile(_factor(a, b), what, f"{compact(a)}{unit} and {compact(b)}{unit}") for what, a, b, unit in found.costs),
        class_="tiles",
    )
    sure = "less than" if abs(found.points) < found.error else "more than"
    text = (
        f"One run each, {found.samples:,} test images: the difference in accuracy is {sure} its standard error of "
        f"{found.error:.1f} points."
    )
    if not all(s.calm for s in subjects):
        text += " The machine was busy while latency was measured, so these times say little."
    yield element("p", explained(text), class_="small")


def _tile(number: str, what: str, detail: str) -> Markup:
    return element("div", element("b", number), element("span", explained(what)), element("small", detail))


def _factor(own: float, other: float) -> str:
    """1.15 -> "+15%"; 2.8 -> "2.8 times"."""
    ratio = own / max(other, 1e-12)
    if ratio >= 1.5 or ratio <= 0.5:
        return f"{ratio:.1f} times"
    percent = round(100 * (ratio - 1))
    return f"{percent:+d}%" if percent else "the same"


def _times(own: float, other: float, what: str) -> str:
    """1.15 -> "15% more"; 2.8 -> "2.8 times the"."""
    ratio = own / max(other, 1e-12)
    if ratio >= 1.5 or ratio <= 0.5:
        return f"{ratio:.1f} times the {what}"
    percent = round(100 * (ratio - 1))
    return f"the same {what}" if not percent else f"{abs(percent)}% {'more' if percent > 0 else 'less'} {what}"
