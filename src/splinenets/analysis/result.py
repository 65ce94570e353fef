"""What came out of runs, in words: one sentence of result, and what the terms of the report mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .counts import standard_error
from .observe import Observation
from .records import Record
from .text import Markup, element

GLOSSARY = {
    "spline": "A curve through a few sets of weights, the knots; every place on it is a set of weights of its own.",
    "position": "Where on a spline an image is, from 0 to 1: it decides which weights the image gets.",
    "knots": "The sets of weights that are learned, and between which a spline passes.",
    "MACs": "Multiply-accumulates: the work that one image costs, whatever the machine.",
    "parameters": "Numbers that the network learned and that its file holds.",
    "read for one image": "Of the parameters, those that one image needs: only the knots near its positions.",
    "latency": "How long one image takes in torch on this machine, with one thread.",
    "static": "The plain network of the same shape, whose weights are the same for all images.",
    "entropy": "How evenly positions are spread: 100% for evenly, 0% if all images share one position.",
    "bits": "What a position tells about the class of an image; 0 if nothing.",
    "standard error": "How far a result on other test images of this number would typically be from this one.",
    "told": "The network is given a number with each image, and takes its positions from it.",
}


@dataclass(frozen=True)
class Subject:
    """A run, what its network does, and how long one image takes it; the last two are None without a network."""

    record: Record
    seen: Observation | None
    latency: float | None

    @property
    def accuracy(self) -> float | None:
        """The share of test images that it got right after its last epoch."""
        return self.record.epochs[-1].test_accuracy if self.record.epochs else None


def term(name: str, shown: str = "") -> Markup:
    """A word that explains itself when one points at it."""
    return element("abbr", shown or name, title=GLOSSARY[name])


def glossary() -> Markup:
    """All words, for those who cannot point."""
    lines = [part for name, text in GLOSSARY.items() for part in (element("dt", name), element("dd", text))]
    return element("dl", *lines, class_="glossary")


def twins(subjects: Sequence[Subject]) -> tuple[Subject, Subject] | None:
    """The first SplineNet and what it is best compared with, a static network of the same data before others."""
    seen = [s for s in subjects if s.seen is not None]
    for own in [s for s in seen if not s.record.is_static][:1]:
        alike = [s for s in seen if s is not own and s.record.data == own.record.data]
        for twin in sorted(alike, key=lambda s: not s.record.is_static)[:1]:
            return twin, own
    return None


def result(subjects: Sequence[Subject]) -> str:
    """One sentence about what came out."""
    pair = twins(subjects)
    if pair is not None and (compared := _compared(*pair)):
        return compared
    for subject in subjects:
        if subject.accuracy is not None:
            return f"{subject.record.name} gets {subject.accuracy:.1%} of the test images right."
    return "No run has finished an epoch yet."


def _compared(twin: Subject, own: Subject) -> str:
    """How much better and how much dearer; nothing if one of them has no result."""
    if twin.seen is None or own.seen is None or twin.accuracy is None or own.accuracy is None:
        return ""
    points = 100 * (own.accuracy - twin.accuracy)
    samples = len(own.seen.task.data.test.labels)
    error = 100 * (standard_error(own.accuracy, samples) ** 2 + standard_error(twin.accuracy, samples) ** 2) ** 0.5
    better = f"{abs(points):.1f} points {'more' if points >= 0 else 'less'} accurate than"
    costs = [_times(own.seen.cost.macs, twin.seen.cost.macs, "MACs")]
    if own.latency and twin.latency:
        costs.append(_times(own.latency, twin.latency, "latency"))
    costs.append(_times(own.seen.cost.parameters, twin.seen.cost.parameters, "parameters"))
    return (
        f"{own.record.name} is {better} {twin.record.name} ({own.accuracy:.1%} and {twin.accuracy:.1%} of {samples:,} "
        f"test images, one run each; the standard error of the difference is {error:.1f} points), with "
        f"{', '.join(costs[:-1])} and {costs[-1]}."
    )


def _times(own: float, other: float, what: str) -> str:
    """1.15 -> "15% more"; 2.8 -> "2.8 times the"."""
    ratio = own / max(other, 1e-12)
    if ratio >= 1.5 or ratio <= 0.5:
        return f"{ratio:.1f} times the {what}"
    percent = round(100 * (ratio - 1))
    return f"the same {what}" if not percent else f"{abs(percent)}% {'more' if percent > 0 else 'less'} {what}"
