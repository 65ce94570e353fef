"""What figures show, in words and numbers: one sentence for each, to know where to look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import torch
from torch import Tensor

from ..histograms import histogram
from ..layers import SplineLayer
from .counts import by_class, enough_bins, most_telling
from .filters import STEPS
from .history import Epoch
from .text import printable

FIFTHS = 5


def spread(epoch: Epoch) -> str:
    """Which layers' positions are spread most and least evenly."""
    entropies = {name: layer.entropy for name, layer in epoch.layers.items()}
    even, odd = (_name(choose(entropies, key=entropies.__getitem__)) for choose in (max, min))
    best, worst = max(entropies.values()), min(entropies.values())
    if len(entropies) == 1:
        return f"after epoch {epoch.number}, {even} reaches {best:.0%} of the entropy of an even spread."
    return (
        f"after epoch {epoch.number}, {even} is spread most evenly ({best:.0%} of the possible entropy), "
        f"{odd} least ({worst:.0%})."
    )


def learned(epochs: Sequence[Epoch]) -> str:
    """Where positions tell most about the class in the end, and how many layers are healthy."""
    first, last = epochs[0], epochs[-1]
    most = max(last.layers, key=lambda name: last.layers[name].information)
    bits = last.layers[most].information
    before = f", {first.layers[most].information:.2f} after epoch {first.number}" if most in first.layers else ""
    healthy = sum(layer.verdict == "healthy" for layer in last.layers.values())
    return (
        f"in the end {_name(most)} tells most about the class, {bits:.2f} bits{before if first is not last else ''}; "
        f"{healthy} of {len(last.layers)} layers are healthy."
    )


def used(positions: Mapping[str, Tensor]) -> str:
    """The fifth of a layer's splines that is used least."""
    shares = {name: float((h := histogram(p, FIFTHS).double()).min() / h.sum()) for name, p in positions.items()}
    emptiest = min(shares, key=shares.__getitem__)
    return (
        f"the least used fifth of a spline is in {_name(emptiest)}, with {shares[emptiest]:.0%} of the positions "
        "instead of 20%."
    )


def telling_place(positions: Mapping[str, Tensor], labels: Tensor, classes: int) -> str:
    """How often the position on one spline gives the class away, which no image may say about itself."""
    rights = {}
    for name, spline in most_telling(positions, labels).items():
        place = positions[name].flatten(1)[:, [spline]]
        rights[name] = guessed(place, labels, classes)
    best = max(rights, key=rights.__getitem__)
    common = float(torch.bincount(labels).max()) / len(labels)
    return (
        f"its position on one spline of {_name(best)} is enough to name the class of an image in {rights[best]:.0%} of "
        f"cases; always naming the most frequent class would be right in {common:.0%}."
    )


def guessed(place: Tensor, labels: Tensor, classes: int) -> float:
    """The share of samples whose class is the most frequent among the others in their bin: (N, 1), (N,)."""
    bins = enough_bins(len(labels))
    counts = by_class(place, labels, classes, bins)[:, 0]  # (classes, bins)
    at = (place[:, 0] * bins).long().clamp(0, bins - 1)
    here = counts[:, at].T.clone()  # (N, classes)
    own = here.gather(1, labels[:, None]).squeeze(1) - 1
    here.scatter_(1, labels[:, None], -1)
    return float((own > here.amax(1)).double().mean()) if classes > 1 else 1.0


def ways(positions: Mapping[str, Tensor], labels: Tensor, classes: Sequence[str]) -> str:
    """Which classes take the most and the least similar ways; nothing for fewer than three classes."""
    seen = [c for c in range(len(classes)) if bool((labels == c).any())]
    if len(seen) < 3:
        return ""
    whole = [p.flatten(1).float() for p in positions.values()]
    means = {c: [p[labels == c].mean(0) for p in whole] for c in seen}
    apart = {
        (a, b): sum(float((x - y).abs().mean()) for x, y in zip(means[a], means[b], strict=True)) / len(whole)
        for a, b in combinations(seen, 2)
    }
    near, far = (choose(apart, key=apart.__getitem__) for choose in (min, max))
    return f"{_both(near, classes)} take the most similar paths, {_both(far, classes)} the most different ones."


@torch.no_grad()
def changing(layer: SplineLayer) -> str:
    """By how much weights differ along their curves."""
    like = next(layer.parameters())
    places = torch.linspace(0, 1, STEPS).to(like).view(-1, *(1 for _ in layer.position_shape))
    weights = layer.weights_at(places.expand(-1, *layer.position_shape)).float().flatten(1)
    mean = weights.mean(0)
    share = float((weights - mean).norm(dim=1).mean() / mean.norm().clamp(min=1e-12))
    return f"along the curves, weights differ from their mean by {share:.0%} on average."


def _both(pair: tuple[int, int], classes: Sequence[str]) -> str:
    return " and ".join(printable(classes[c], 40) for c in pair)


def _name(layer: str) -> str:
    return printable(layer, 40)
