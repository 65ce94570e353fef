"""The words of a report: what they mean, and terms that say so when one points at them or reaches them by keyboard."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .text import Markup, element, escape

GLOSSARY = {
    "spline": "A curve that a few sets of weights, the knots, shape; every place on it is a set of weights.",
    "position": "Where on a spline an image is, from 0 to 1: it decides which weights the image gets.",
    "knot": "One of the learned sets of weights that shape a spline.",
    "MACs": "Multiply-accumulates: how much arithmetic one image costs, on any machine.",
    "parameters": "The numbers that the network has learned and that its file holds.",
    "read for one image": "The parameters that one image needs: only the knots near its positions.",
    "deciding": "Multiply-accumulates spent on finding an image's positions.",
    "mixing": "Multiply-accumulates spent on mixing weights from knots.",
    "applying": "Multiply-accumulates of the convolution or product itself, with the weights that were mixed.",
    "latency": "How long one image takes on this machine, with one thread.",
    "deployed": "Exported to the native runtime that ships with splinenets, as a served network would be.",
    "static": "The plain network of the same shape, whose weights are the same for all images.",
    "entropy": "How evenly positions are spread: 100% if perfectly evenly, 0% if all images share one position.",
    "deviation": "The standard deviation of positions; 0.29 if they are spread evenly.",
    "saturated": "The share of positions at the very ends of their spline.",
    "bits": "How much a position tells about the class of an image; 0 means nothing.",
    "healthy": "Positions differ between images, cover most of the spline, and do not just switch between two places.",
    "standard error": "How much the result would typically differ on another set of as many test images.",
    "told": "The network is given a number with each image, and takes its positions from it.",
}
FORMS = {f"{word}s": word for word in ("spline", "position", "knot")}
WORDS = re.compile(rf"\b({'|'.join(sorted([*GLOSSARY, *FORMS], key=len, reverse=True))})\b")


def term(word: str, shown: str = "") -> Markup:
    """A word that explains itself."""
    return element("abbr", shown or word, tabindex=0, aria_describedby=_place(word))


def explained(text: str, names: Sequence[str] = ()) -> Markup:
    """A sentence whose words explain themselves, each the first time that it is there; not those of ``names``."""
    known = {FORMS.get(word, word) for name in names for word in WORDS.findall(name)}
    parts = []
    for piece in WORDS.split(text):  # every second one is a word of ours
        word = FORMS.get(piece, piece)
        new = word in GLOSSARY and word not in known
        known.add(word)
        parts.append(term(word, piece) if new else escape(piece))
    return Markup("".join(parts))


def glossary() -> Markup:
    """All words, also for those who cannot point."""
    lines = [
        part for word, text in GLOSSARY.items() for part in (element("dt", word), element("dd", text, id=_place(word)))
    ]
    return element("dl", *lines, class_="glossary")


def _place(word: str) -> str:
    return f"word-{word.replace(' ', '-').lower()}"
