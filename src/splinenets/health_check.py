"""Are positions alive? How they are spread in each layer, what is wrong with them, and what to try."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import NamedTuple

import torch
from torch import Tensor

from .files import Json
from .histograms import conditional_entropy, count_by_class, entropy
from .regularizer import join
from .tables import html_table, some, text_table
from .tracing import Positions

# Verdict -> what it means and what to try. The paper's figure 4 draws them.
ADVICE = {
    "healthy": "",
    "constant": "all samples share one position, so this is a plain layer; "
    "use standardised projections (no 'raw' in the spec) or raise utilization",
    "binary": "samples gather at two positions, and the spline between them is unused; "
    "harmless if accuracy is good, otherwise put slope=0.8 into the spec or raise utilization",
    "shifting": "all samples move together from epoch to epoch, and no knot keeps its samples; "
    "lower the learning rate or use standardised projections (no 'raw' in the spec)",
    "under-used": "samples use less than half of the spline; raise utilization",
}
FEWEST = 16  # samples, below which a distribution cannot be judged
SATURATED = 0.02  # from an end, where the sigmoid has lost 92% of its slope
NARROW = 0.05  # a constant position: nine samples of ten lie within this
SEPARATED = 5.0  # a binary position: two groups stand this many of their deviations apart, ..
APART = 0.2  # .. and this far
USED = 0.5  # an under-used spline: samples spread over less than this share of it
MOVED = 0.1  # a shifting position: the mean has moved this far, ..
DIRECTED = 0.9  # .. and correlates this well with time
STEADILY = 3  # epochs, below which nothing can move steadily: two points always lie on a line
LEVELS = 65  # quantiles by which distributions are compared


HEAD = ("layer", "positions", "entropy", "deviation", "saturated", "bits", "drift", "unhealthy", "verdict")


@dataclass(frozen=True, kw_only=True)
class LayerHealth:
    """One layer's positions, means over its coordinates."""

    layer: str
    coordinates: int
    entropy: float  # as a fraction of its maximum: 1 for uniform positions, 0 for a constant
    deviation: float  # standard deviation over samples; 0.289 for uniform positions
    saturated: float  # share of samples within 0.02 of an end; 0.04 for uniform positions
    information: float | None  # mutual information with the labels, in bits
    drift: float | None  # how far samples moved on average since the last epoch, as distributions
    unhealthy: float  # share of coordinates that are not healthy
    verdict: str
    quantiles: Tensor = field(repr=False, compare=False)  # (LEVELS, coordinates), for the next epoch's drift

    @property
    def advice(self) -> str:
        """What the verdict means, and what to try."""
        return ADVICE[self.verdict]

    def row(self) -> Json:
        """Plain values, as JSON knows them."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "quantiles"} | {"advice": self.advice}

    def cells(self) -> tuple[str, ...]:
        """What the table shows."""
        return (
            self.layer,
            str(self.coordinates),
            f"{self.entropy:.0%}",
            f"{self.deviation:.3f}",
            f"{self.saturated:.0%}",
            "-" if self.information is None else f"{self.information:.2f}",
            "-" if self.drift is None else f"{self.drift:.3f}",
            f"{self.unhealthy:.0%}",
            self.verdict,
        )

    @property
    def ailing(self) -> float:
        """What ``unhealthy`` was called in version 0.1."""
        return self.unhealthy


@dataclass(frozen=True)
class Health:
    """The health of every layer; prints as a table."""

    layers: tuple[LayerHealth, ...]

    @property
    def unhealthy(self) -> tuple[LayerHealth, ...]:
        """The layers that are not healthy."""
        return tuple(layer for layer in self.layers if layer.verdict != "healthy")

    @property
    def ailing(self) -> tuple[LayerHealth, ...]:
        """What ``unhealthy`` was called in version 0.1."""
        return self.unhealthy

    def warning(self) -> str:
        """What is wrong, in plain words, a clause for each verdict; empty if nothing is."""
        layers: dict[str, list[str]] = {}
        for layer in self.unhealthy:
            layers.setdefault(layer.verdict, []).append(layer.layer)
        return ". ".join(f"In {some(names, 4, ' layers')} {ADVICE[verdict]}" for verdict, names in layers.items())

    def __getitem__(self, name: str) -> LayerHealth:
        for layer in self.layers:
            if layer.layer == name:
                return layer
        raise KeyError(f"no layer {name!r}, choose from {', '.join(layer.layer for layer in self.layers)}")

    def rows(self) -> list[Json]:
        """A dict of plain values for each layer."""
        return [layer.row() for layer in self.layers]

    def to_json(self) -> str:
        """The rows as JSON."""
        return json.dumps(self.rows(), indent=1)

    def __str__(self) -> str:
        return "\n".join([text_table(HEAD, [layer.cells() for layer in self.layers]), *self._advice()])

    def _repr_html_(self) -> str:
        return html_table(HEAD, [layer.cells() for layer in self.layers], notes=self._advice())

    def _advice(self) -> list[str]:
        return [f"{verdict}: {ADVICE[verdict]}" for verdict in dict.fromkeys(layer.verdict for layer in self.unhealthy)]


History = Sequence["Mapping[str, Tensor] | Health"]


@torch.no_grad()
def health(positions: Mapping[str, Tensor], labels: Tensor | None = None, history: History | None = None) -> Health:
    """Judge how well positions are spread: healthy, constant, binary, under-used or shifting, for each layer.

    Positions are {layer: (N, S) or (N, S, dims)}, as ``sn.trace`` gives them, of a few hundred samples or more. Those
    that were given from outside are not judged.

    labels   (N,), to measure what positions tell about them
    history  positions of earlier epochs, oldest first, or the reports made of them; needed for drift

    Examples:
        >>> images, net = torch.rand(200, 1, 28, 28), sn.convert(sn.models.lenet(4), "D(5)-C-R3")
        >>> [layer.layer for layer in sn.health(sn.trace(net, images)[1]).layers]
        ['conv1', 'conv2', 'dense1', 'dense2']
    """
    if isinstance(positions, Positions) and positions.given:
        positions = positions.inferred()
        if not positions:
            return Health(())
    joined, sizes = join(positions)
    samples = joined.shape[0]
    if samples < FEWEST:
        raise ValueError(f"health needs {FEWEST} samples or more to judge how they are spread, got {samples}")
    past = [h if isinstance(h, Health) else health(h) for h in history or ()]
    measures = _measure(joined, _groups(labels, samples, joined.device))
    by_layer = zip(*(m.split(sizes, -1) for m in measures), strict=True)
    layers = []
    for name, parts in zip(positions, by_layer, strict=True):
        before = [layer.quantiles for report in past for layer in report.layers if layer.layer == name]
        layers.append(_judge_layer(name, _Measures(*parts), before, samples, labels is not None))
    return Health(tuple(layers))


class _Measures(NamedTuple):
    """What the verdicts rest on, for each coordinate: (C,)."""

    entropy: Tensor
    used: Tensor  # share of the spline
    deviation: Tensor
    saturated: Tensor
    information: Tensor  # bits
    width: Tensor  # nine samples of ten lie within
    within: Tensor  # the deviation within the best two groups, ..
    gap: Tensor  # .. their distance, ..
    smaller: Tensor  # .. and the smaller one's share
    quantiles: Tensor  # (LEVELS, C)


def _judge_layer(name: str, own: _Measures, before: Sequence[Tensor], samples: int, labelled: bool) -> LayerHealth:
    """Means over a layer's coordinates, and its verdict; ``before`` are the quantiles of earlier epochs."""
    quantiles = own.quantiles.cpu()
    shifting = _shifting(name, [*before, quantiles], samples)
    codes = _judge(own, shifting.to(own.gap.device))
    return LayerHealth(
        layer=name,
        coordinates=quantiles.shape[1],
        entropy=float(own.entropy.mean()),
        deviation=float(own.deviation.mean()),
        saturated=float(own.saturated.mean()),
        information=float(own.information.mean()) if labelled else None,
        drift=float((quantiles - before[-1]).abs().mean()) if before else None,
        unhealthy=float((codes > 0).float().mean()),
        verdict=_commonest(codes),
        quantiles=quantiles,
    )


def _groups(labels: Tensor | None, samples: int, device: torch.device) -> Tensor:
    if labels is None:
        return torch.zeros(samples, dtype=torch.long, device=device)
    if labels.shape != (samples,) or labels.dtype.is_floating_point:
        raise ValueError(
            f"labels must be integers, one for each of {samples} samples, got {labels.dtype} {tuple(labels.shape)}"
        )
    if int(labels.min()) < 0:
        raise ValueError(f"labels must be 0 or more, got {int(labels.min())}")
    return labels.to(device).long()


def _measure(position: Tensor, group: Tensor) -> _Measures:
    """(N, C), (N,) -> (C,) each, and quantiles (LEVELS, C)."""
    samples = position.shape[0]
    spread, bins = _spread(position)
    ordered = position.sort(0).values
    levels = torch.linspace(0, samples - 1, LEVELS, device=position.device).round().long()
    within, gap, smaller = _split_in_two(ordered)
    return _Measures(
        entropy=spread / math.log(bins),
        used=spread.exp() / bins,
        deviation=position.std(0, correction=0),
        saturated=((position < SATURATED) | (position > 1 - SATURATED)).to(position.dtype).mean(0),
        information=information(position, group) / math.log(2),
        width=ordered[int(0.95 * (samples - 1))] - ordered[math.ceil(0.05 * (samples - 1))],
        within=within,
        gap=gap,
        smaller=smaller,
        quantiles=ordered[levels],
    )


# Few samples make histograms look more ordered than they are. Against this: fewer bins, and Miller and Madow's
# correction, (occupied bins - 1) / (2 * samples) for each entropy.


def _spread(position: Tensor) -> tuple[Tensor, int]:
    """H(position) in nats, (N, C) -> (C,), and the number of bins it was counted in."""
    samples = position.shape[0]
    bins = max(4, min(50, samples // 8))
    counts = count_by_class(position, torch.zeros_like(position[:, 0], dtype=torch.long), 1, bins)[0]
    occupied = (counts > 0).sum(-1)
    return (entropy(counts) + (occupied - 1) / (2 * samples)).clamp(0, math.log(bins)), bins


def information(position: Tensor, group: Tensor) -> Tensor:
    """I(position; label) in nats: (N, C), (N,) -> (C,)."""
    samples = position.shape[0]
    per_class = torch.bincount(group).to(position.dtype)
    classes = int((per_class > 0).sum())
    bins = max(2, min(50, samples // (5 * classes)))
    counts = count_by_class(position, group, len(per_class), bins)
    whole = counts.sum(0)
    surplus = (counts > 0).sum((0, -1)) - (whole > 0).sum(-1) - classes + 1
    return (entropy(whole) - conditional_entropy(counts, per_class) - surplus / (2 * samples)).clamp(min=0)


def _split_in_two(ordered: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The best two groups of sorted positions: their deviation, distance and smaller share: (N, C) -> 3 x (C,)."""
    samples = ordered.shape[0]
    x = ordered.double()
    left = torch.arange(1, samples, device=x.device, dtype=x.dtype).unsqueeze(1)
    sums = x.cumsum(0)
    low, high = sums[:-1] / left, (sums[-1] - sums[:-1]) / (samples - left)
    between = left * (samples - left) * (high - low).square() / samples**2
    best, where = between.max(0)
    within = (x.var(0, correction=0) - best).clamp(min=0).sqrt()
    gap = (high - low).gather(0, where.unsqueeze(0)).squeeze(0)
    share = (where + 1).double() / samples
    return within, gap, torch.minimum(share, 1 - share)


def _shifting(name: str, quantiles: Sequence[Tensor], samples: int) -> Tensor:
    """Which coordinates move steadily from epoch to epoch: epochs x (LEVELS, C) -> (C,)."""
    shapes = [q.shape[1] for q in quantiles]
    if len(set(shapes)) > 1:
        raise ValueError(f"the history of {name!r} has {shapes[0]} positions a sample, now there are {shapes[-1]}")
    if len(quantiles) < STEADILY:
        return torch.zeros(shapes[0], dtype=torch.bool)
    mean = torch.stack([q.double().mean(0) for q in quantiles])  # (epochs, C)
    time = torch.linspace(-1, 1, len(mean), dtype=mean.dtype).unsqueeze(1)
    centred = mean - mean.mean(0)
    slope = (time * centred).sum(0) / time.square().sum()
    correlation = slope.abs() * time.norm() / centred.norm(dim=0).clamp(min=1e-12)
    # two batches of samples differ by chance: five times their standard error does not come by chance
    chance = 5 * quantiles[-1].double().std(0) * math.sqrt(2 / samples)
    return torch.logical_and(correlation >= DIRECTED, 2 * slope.abs() >= chance.clamp(min=MOVED))


def _judge(own: _Measures, shifting: Tensor) -> Tensor:
    """The verdict on each coordinate, as its place in ``ADVICE``: (C,)."""
    places = {verdict: i for i, verdict in enumerate(ADVICE)}
    binary = (own.gap >= SEPARATED * own.within) & (own.gap >= APART) & (own.smaller >= 0.05)
    codes = torch.zeros_like(binary, dtype=torch.long)
    # what stands below outranks what stands above
    codes = codes.masked_fill(own.used < USED, places["under-used"])
    codes = codes.masked_fill(binary, places["binary"])
    codes = codes.masked_fill(own.width < NARROW, places["constant"])
    return codes.masked_fill(shifting, places["shifting"])


def _commonest(codes: Tensor) -> str:
    """Healthy, unless more than half of a layer's coordinates are not; then their commonest verdict."""
    counts = torch.bincount(codes, minlength=len(ADVICE)).tolist()
    others = counts[1:]
    place = 0 if sum(others) <= counts[0] else 1 + others.index(max(others))
    return list(ADVICE)[place]


class PositionWarning(UserWarning):
    """Positions of a layer have stopped doing anything useful."""


class Watch:
    """Call it with each epoch's positions: it remembers them, and warns once, when a layer first becomes unhealthy.

    ``report = watch(positions, labels)``
    """

    def __init__(self, remember: int = 5) -> None:
        if remember < 1:
            raise ValueError(f"remember must be 1 epoch or more, got {remember}")
        self.remember = remember
        self.history: list[Health] = []
        self.warned = False

    def __call__(self, positions: Mapping[str, Tensor], labels: Tensor | None = None) -> Health:
        """The health of this epoch, with drift since the earlier ones."""
        report = health(positions, labels, self.history)
        self.history = [*self.history, report][-self.remember :]
        if report.unhealthy and not self.warned:
            self.warned = True
            warnings.warn(report.warning(), PositionWarning, stacklevel=2)
        return report
