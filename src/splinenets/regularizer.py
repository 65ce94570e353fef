"""The regulariser: mutual information between positions and labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from .collectives import sum_over_ranks
from .histograms import conditional_entropy, entropy, kernel_histogram, soft_histogram
from .spec import Limit
from .tracing import Positions

Weight: TypeAlias = float | Callable[[float], float]
Histogram: TypeAlias = Callable[[Tensor, Tensor, int, int, float, Tensor | None], Tensor]

BINS = Limit(2, 1000, "every class counts all of them, for every spline")
ESTIMATORS = ("bins", "kernel")
SUMS = 0.01  # shares of classes in bf16 may sum to 1 give or take this
ROUNDING = 0.005  # matrices in bf16 whose rows should sum to 1 may take a position that far out of [0, 1]


def view_entropy(position: Tensor, views: int, bins: int) -> Tensor:
    """An upper bound of H(position | input) in nats, from several views of each input: (views * N, C) -> (C,).

    InfoGAN bounds I(code; x) = H(code) - H(code | x) by H(code) + E log Q(code | x) with a Gaussian Q. So do we; but
    positions are computed from the input, so Q needs no network of its own: its mean is the mean over the views of an
    input, its variance that of the views around it. One bin's width is as fine as we look, so that views which agree
    have the entropy 0: H = 1/2 log(1 + 2 pi e (bins * deviation)^2).
    """
    split = position.view(views, len(position) // views, -1)
    scatter = sum_over_ranks((split - split.mean(0)).square().sum((0, 1)))
    inputs = sum_over_ranks(scatter.new_tensor(split.shape[1]))
    variance = scatter / (inputs * (views - 1)).clamp(min=1)
    return 0.5 * torch.log1p(2 * math.pi * math.e * bins**2 * variance)


@dataclass(frozen=True)
class Information:
    """What positions tell about labels (or inputs), in nats: entropies per layer, means over its coordinates."""

    loss: Tensor  # the weighted sum over layers, -w_u H(position) + w_s H(position | label)
    layers: tuple[str, ...]
    entropy: Tensor  # (layers,), at most log(bins)
    conditional_entropy: Tensor  # (layers,)

    @property
    def mutual_information(self) -> Tensor:
        """H(position) - H(position | label): (layers,)."""
        return self.entropy - self.conditional_entropy

    def log(self) -> dict[str, float]:
        """Numbers for a logger: {"loss": .., "entropy/conv1": .., "entropy/total": .., ...}."""
        numbers = {"loss": float(self.loss.detach())}
        for part in ("entropy", "conditional_entropy", "mutual_information"):
            values: Tensor = getattr(self, part).detach()
            numbers |= {f"{part}/{name}": v for name, v in zip(self.layers, values.tolist(), strict=True)}
            numbers[f"{part}/total"] = float(values.sum())
        return numbers


class MutualInformation(nn.Module):
    """The paper's regulariser: ``loss = cross_entropy + sn.MutualInformation(classes=10)(positions, labels)``.

    Summed over layers, L = -utilization H(position) + specialization H(position | label), in nats; the entropies are
    taken per spline and averaged over a layer's splines. The first term spreads samples over the splines, the second
    gathers those of a class; with equal weights L is minus the mutual information of positions and labels.

    classes         number of labels; None if you never have labels
    bins            B, how finely positions are told apart
    bin_slope       v, how sharply a soft bin ends (estimator "bins")
    utilization     w_u, a number or a function of the training's progress from 0 to 1
    specialization  w_s, likewise
    estimator       "bins": the paper's soft quantisation; "kernel": kernel density with reflection at the ends
    bandwidth       standard deviation of a kernel; None: 0.05 for "kernel", the width of a bin for "bins"
    views           without labels: how many views of each input a batch holds, all of the first view, then the second
    full_gradient   False: trains projections only; True: also features and parents, as in the paper
    exact_gradient  False: soft bins have the gradient of kernel densities as wide as a bin. Their own is steep at the
                    edges of bins and nothing within, and mostly noise while a batch has few samples in a bin: it can
                    ruin features, and need not even spread positions (docs/regularizer_study.md)

    Labels are class numbers (N,), or shares of the classes (N, classes) as mixup and label smoothing make them; then a
    sample counts for each class as much as its share says.

    ``sn.trace`` gives positions with both gradients. A plain dict of tensors is used as it is, with exact gradients.
    Positions that were given from outside are left alone.

    Examples:
        >>> labels = torch.arange(10).repeat(20)
        >>> sorted_by_class = {"conv1": (labels[:, None] + 0.5) / 10}
        >>> regularizer = sn.MutualInformation(classes=10)
        >>> regularizer(sorted_by_class, labels) < regularizer({"conv1": torch.full((200, 1), 0.5)}, labels)
        tensor(True)
    """

    def __init__(
        self,
        classes: int | None,
        bins: int = 50,
        bin_slope: float = 100,
        utilization: Weight = 0.05,
        specialization: Weight = 0.05,
        *,
        estimator: str = "bins",
        bandwidth: float | None = None,
        views: int = 1,
        full_gradient: bool = False,
        exact_gradient: bool = False,
    ) -> None:
        super().__init__()
        if classes is not None and classes < 1:
            raise ValueError(f"classes must be 1 or more (or None, without labels), got {classes}")
        BINS.check("bins", bins)
        if not 1 < bin_slope < math.inf:
            raise ValueError(f"bin_slope must be a number above 1, got {bin_slope}")
        for name, weight in (("utilization", utilization), ("specialization", specialization)):
            if not callable(weight) and not 0 <= weight < math.inf:
                raise ValueError(f"{name} must be a weight of 0 or more, or a function of progress, got {weight}")
        if estimator not in ESTIMATORS:
            raise ValueError(f"unknown estimator {estimator!r}, choose from {', '.join(ESTIMATORS)}")
        if bandwidth is None:
            bandwidth = max(0.05, 1 / bins) if estimator == "kernel" else 1 / bins
        if not 1 / bins <= bandwidth <= 1:
            raise ValueError(f"bandwidth must lie between the width of a bin, 1/{bins}, and 1, got {bandwidth}")
        if views < 1:
            raise ValueError(f"views must be 1 or more, got {views}")
        self.classes, self.bins, self.bin_slope = classes, bins, bin_slope
        self.utilization, self.specialization = utilization, specialization
        self.estimator, self.bandwidth, self.views = estimator, bandwidth, views
        self.full_gradient, self.exact_gradient = full_gradient, exact_gradient

    def forward(
        self, positions: Mapping[str, Tensor], labels: Tensor | None = None, progress: float | None = None
    ) -> Tensor:
        """{layer: (N, S) or (N, S, dims)}, (N,) or (N, classes) -> the loss, a scalar."""
        return self.parts(positions, labels, progress).loss

    def parts(
        self, positions: Mapping[str, Tensor], labels: Tensor | None = None, progress: float | None = None
    ) -> Information:
        """The loss and what it is made of, for logging."""
        utilization, specialization = (_weigh(w, progress) for w in (self.utilization, self.specialization))
        exact = self.exact_gradient or not isinstance(positions, Positions)
        if isinstance(positions, Positions):
            if positions and len(positions.given) == len(positions):
                nothing = next(iter(positions.values())).new_zeros(0)
                return Information(nothing.sum(), (), nothing, nothing)
            positions = positions.inferred() if self.full_gradient else positions.inferred().local
        position, sizes = join(positions)
        with torch.autocast(position.device.type, enabled=False):
            per_spline = self._entropies(position, labels, exact)
            entropies, conditional = mean_by_layer(per_spline, sizes)
            loss = (specialization * conditional - utilization * entropies).sum()
        return Information(loss, tuple(positions), entropies, conditional)

    def _entropies(self, position: Tensor, labels: Tensor | None, exact: bool) -> Tensor:
        """H(position) and H(position | label or input): (N, C), (N,) -> (2, C)."""
        samples = position.shape[0]
        if labels is not None:
            labels = self._check_labels(labels, samples)
        elif samples % self.views:
            raise ValueError(f"a batch of {self.views} views must be a multiple of that, got {samples} samples")
        if self.estimator == "kernel":
            return self._measure(position, labels, kernel_histogram, self.bandwidth)
        if exact or not (position.requires_grad and torch.is_grad_enabled()):
            return self._measure(position, labels, soft_histogram, self.bin_slope)
        value = self._measure(position.detach(), labels, soft_histogram, self.bin_slope)
        smooth = self._measure(position, labels, kernel_histogram, self.bandwidth)
        return value + (smooth - smooth.detach())  # the value of one with the gradient of the other

    def _measure(self, position: Tensor, labels: Tensor | None, histogram: Histogram, parameter: float) -> Tensor:
        if labels is None:
            nobody = torch.zeros_like(position[:, 0], dtype=torch.long)
            whole = entropy(sum_over_ranks(histogram(position, nobody, 1, self.bins, parameter, None))[0])
            # seen once, an input decides its position: nothing remains open
            rest = view_entropy(position, self.views, self.bins) if self.views > 1 else torch.zeros_like(whole)
            return torch.stack([whole, rest])
        counted, counts = map(sum_over_ranks, self._count(position, labels, histogram, parameter))
        return torch.stack([entropy(counted.sum(0)), conditional_entropy(counted, counts)])

    def _count(self, position: Tensor, labels: Tensor, histogram: Histogram, parameter: float) -> tuple[Tensor, Tensor]:
        """A histogram and the number of samples for each class: (N, C), labels -> (classes, C, bins), (classes,)."""
        assert self.classes is not None
        if labels.dim() == 1:
            counts = torch.bincount(labels, minlength=self.classes).to(position.dtype)
            return histogram(position, labels, self.classes, self.bins, parameter, None), counts
        labels = labels.to(position.dtype)
        # what all classes have of a sample, as label smoothing gives it, is counted once for all of them
        shared, nobody = labels.amin(1), torch.zeros_like(labels[:, 0], dtype=torch.long)
        sample, label, share = _pairs(labels - shared.unsqueeze(1))
        own = histogram(position[sample], label, self.classes, self.bins, parameter, share)
        return own + histogram(position, nobody, 1, self.bins, parameter, shared), labels.sum(0)

    def _check_labels(self, labels: Tensor, samples: int) -> Tensor:
        if self.classes is None:
            raise ValueError("labels were given, but classes=None: say how many classes there are")
        if labels.dim() == 2 and labels.dtype.is_floating_point:
            return self._check_shares(labels.detach(), samples)
        if labels.dim() != 1 or labels.dtype.is_floating_point or labels.dtype == torch.bool:
            raise ValueError(
                f"labels must be integers (N,) or shares of classes (N, {self.classes}), "
                f"got {labels.dtype} of shape {tuple(labels.shape)}"
            )
        if labels.shape[0] != samples:
            raise ValueError(f"every sample needs one label, got {samples} positions and {labels.shape[0]} labels")
        if samples and not torch.compiler.is_compiling():
            low, high = (int(v) for v in labels.aminmax())
            if low < 0 or high >= self.classes:
                wrong = low if low < 0 else high
                raise ValueError(f"labels must lie in 0..{self.classes - 1} for {self.classes} classes, got {wrong}")
        return labels.long()

    def _check_shares(self, shares: Tensor, samples: int) -> Tensor:
        if tuple(shares.shape) != (samples, self.classes):
            raise ValueError(
                f"shares of classes must have shape {(samples, self.classes)} here, got {tuple(shares.shape)}"
            )
        shares = shares.to(torch.promote_types(shares.dtype, torch.float32))
        right = (shares >= 0) & ((shares.sum(1, keepdim=True) - 1).abs() <= SUMS)
        if not torch.compiler.is_compiling() and not bool(right.all()):
            raise ValueError("shares of classes must be 0 or more and sum to 1 for each sample")
        return shares

    def extra_repr(self) -> str:
        """Shown in the repr."""
        how = f"bin_slope={self.bin_slope:g}" if self.estimator == "bins" else f"bandwidth={self.bandwidth:g}"
        weights = f"utilization={self.utilization}, specialization={self.specialization}"
        return f"classes={self.classes}, bins={self.bins}, {weights}, estimator={self.estimator!r}, {how}"


def _pairs(shares: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Samples, classes and what the ones have of the others, where that is anything: (N, classes) -> 3 x (pairs,)."""
    if not torch.compiler.is_compiling():
        sample, label = torch.where(shares > 0)
    else:  # which wants to know beforehand how many pairs there are
        samples, classes = (torch.arange(n, device=shares.device) for n in shares.shape)
        sample, label = samples.repeat_interleave(shares.shape[1]), classes.repeat(shares.shape[0])
    return sample, label, shares[sample, label]


def mean_by_layer(per_spline: Tensor, sizes: list[int]) -> Tensor:
    """(A, C) -> (A, layers)."""
    size = torch.tensor(sizes, device=per_spline.device)
    layer = torch.repeat_interleave(size, output_size=per_spline.shape[1])
    sums = per_spline.new_zeros(len(per_spline), len(sizes)).index_add(1, layer, per_spline)
    return sums / size


def join(positions: Mapping[str, Tensor]) -> tuple[Tensor, list[int]]:
    """All coordinates side by side, in float32 at least, and their number per layer: {layer: (N, ...)} -> (N, C)."""
    if not positions:
        raise ValueError("there are no positions: does the network have spline layers?")
    for name, position in positions.items():
        if position.dim() < 2 or not position.dtype.is_floating_point:
            got = f"{position.dtype} {tuple(position.shape)} in {name!r}"
            raise ValueError(f"positions must be floats (N, S) or (N, S, dims), got {got}")
    sizes = {name: p.shape[0] for name, p in positions.items()}
    if len(set(sizes.values())) > 1:
        raise ValueError(f"all layers must have positions of the same samples, got batch sizes {sizes}")
    flat = [p.flatten(1).to(torch.promote_types(p.dtype, torch.float32)) for p in positions.values()]
    joined = torch.cat(flat, 1)
    inside = False
    if joined.numel() and not torch.compiler.is_compiling():
        low, high = (float(v) for v in joined.detach().aminmax())
        if not (low >= -ROUNDING and high <= 1 + ROUNDING):
            name, wrong = _first_outside(positions)
            raise ValueError(f"positions must lie in [0, 1], got {wrong:g} in {name!r}")
        inside = low >= 0 and high <= 1
    return joined if inside else joined.clamp(0, 1), [f.shape[1] for f in flat]


def _first_outside(positions: Mapping[str, Tensor]) -> tuple[str, float]:
    for name, position in positions.items():
        outside = position[~((position >= -ROUNDING) & (position <= 1 + ROUNDING))]
        if outside.numel():
            return name, float(outside[0])
    raise AssertionError("all positions lie inside")


def _weigh(weight: Weight, progress: float | None) -> float:
    if not callable(weight):
        return float(weight)
    if progress is None:
        raise ValueError("a weight is a function of progress, so call with progress=, from 0 to 1")
    return float(weight(progress))
