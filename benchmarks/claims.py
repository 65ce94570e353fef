"""The paper's claims, one by one, beside what we counted, trained and timed: the table of docs/claims.md."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from statistics import mean, stdev

import torch

import splinenets as sn
from benchmarks import latency
from benchmarks.timing import RESULTS, markdown
from splinenets.reproduce import EXPERIMENTS, collect
from splinenets.reproduce.outcome import Found, spread

REPRODUCED = RESULTS / "reproduce"
SCALE = "standard"
KNOTS = (2, 3, 4, 5)
SEEDS = 3  # fewer say neither yes nor no
CHANCE = 1.2  # points: two standard errors of a difference, at 80% of 10,000 test images
YES, NO, PARTLY, OPEN = "yes", "no", "partly", "open"


@cache
def results_of(name: str) -> dict[str, Found]:
    """What came out of an experiment of the paper: row -> seed -> result."""
    return collect(name, REPRODUCED, SCALE)


@cache
def cost_of(name: str, spec: str, channels: int = 3, size: int = 32) -> sn.Cost:
    """What a network costs for one image."""
    image = torch.zeros(1, channels, size, size)
    net = sn.models.build(name, in_channels=channels, image_size=size)
    return sn.cost(net if spec == "static" else sn.convert(net, spec, example=image), image)


def claims() -> str:
    """A line for each claim."""
    return markdown(
        ["the paper says", "the paper's number", "ours", "verdict"],
        [*_counted(), *_timed(), *_resnets(), *_lenets(), *_mnist(), *_positions()],
    )


def _counted() -> Iterator[list[str]]:
    paper = {"H(5)-D-R3": 42, "D(5)-D-R3": 10, "H(5)-D-R4": 3.67}
    own = {spec: cost_of("resnet32", spec).parameters / 2**20 for spec in paper}
    near = all(abs(own[spec] / said - 1) < 0.03 for spec, said in paper.items())
    yield [
        f"Million parameters of Spline-ResNet-32, as {_list(paper)}",
        _list(f"{said:g}" for said in paper.values()),
        f"{_list(f'{millions:.2f}' for millions in own.values())}, in units of 2^20",
        YES if near else NO,
    ]
    large = cost_of("resnet110", "static").macs
    third, half = (large / cost_of("resnet32", spec).macs for spec in ("D(5)-C-R3", "H(5)-D-R3"))
    yield ["D(5)-C-R3 is three times as fast as ResNet-110", "3", f"{third:.2f} times fewer MACs", _if(third >= 3)]
    yield ["H(5)-D-R3 needs almost half of ResNet-110's FLOPs", "2", f"{half:.2f} times fewer MACs", _if(half >= 1.8)]
    macs = [cost_of("resnet32", f"D({knots})-C-R3").macs for knots in (2, 5)]
    most = macs[1] / macs[0] - 1
    yield ["More knots cost no time", "", f"from 2 to 5 knots {most:.1%} more MACs", _if(most < 0.02)]


def _timed() -> Iterator[list[str]]:
    best = latency.fastest(latency.read(latency.WITH_AVX512).timings, 1)
    specs = ("D(5)-C-R4", "D(5)-D-R3", "H(5)-D-R3")
    times = {spec: best["ResNet-110"].median / best[f"ResNet-32 {spec}"].median for spec in specs}
    yield [
        "The same in milliseconds, one image (the paper counts FLOPs only)",
        "",
        "ResNet-110's time over that of " + _list(f"{spec}: {quotient:.1f}" for spec, quotient in times.items()),
        YES if min(times.values()) > 1 else PARTLY,
    ]


def _resnets() -> Iterator[list[str]]:
    found = results_of("cifar10-resnet-options")
    rows = ("ResNet-32", "ResNet-110", "D(5)-C-R3", "H(5)-C-R3", "H(5)-D-R4", "H(5)-D-R3")
    trained = [row for row in rows if found[row]]
    epochs = min((len(result.epochs) for row in trained for result in found[row].values()), default=0)
    large, own = found["ResNet-110"], found["H(5)-D-R3"]
    behind = [large[seed].accuracy - own[seed].accuracy for seed in large if seed in own]
    verdict = OPEN if len(behind) < SEEDS else _if(mean(behind) <= 2 * stdev(behind) / len(behind) ** 0.5)
    yield [
        "Spline-ResNet-32 comes close to ResNet-110 on CIFAR-10, H(5)-D-R3 matches it",
        "93.4% and more; ResNet-32 92.5%",
        f"after {epochs} epochs: {_list(f'{row} {_accuracy(found[row])}' for row in trained)}",
        verdict,
    ]


def _lenets() -> Iterator[list[str]]:
    found = results_of("cifar10-lenet")
    means = {row: 100 * mean(r.accuracy for r in seeds.values()) for row, seeds in found.items() if seeds}
    plain = _list(f"{row} {accuracy:.1f}%" for row, accuracy in means.items() if row.startswith("LeNet"))
    best = max((row for row in means if not row.startswith("LeNet")), key=lambda row: means[row])
    behind = means["LeNet-64"] - means[best]
    yield [
        "Spline-LeNet-32 is as accurate on CIFAR-10 as the larger LeNets",
        "",
        f"{best}, the best: {means[best]:.1f}%; {plain}",
        NO if behind > CHANCE else OPEN if behind > 0 else YES,
    ]
    large, small = cost_of("lenet128", "static"), cost_of("lenet32", "D(2)-D-R3")
    timed = latency.fastest(latency.read(latency.WITH_AVX512).timings, 1)
    faster = timed["LeNet-128"].median / timed["LeNet-32 D(2)-D-R3"].median
    fewer, smaller = large.macs / small.macs, large.parameters / small.parameters
    yield [
        "... while being 15 times faster and almost five times smaller",
        "15 and 5",
        f"D(2)-D-R3: {fewer:.1f} times fewer MACs, {smaller:.1f} times fewer parameters, {faster:.0f} times as fast",
        YES if fewer >= 14 and smaller >= 4.5 else PARTLY,
    ]
    rows = {kind: [found[f"{kind}({knots})-D-R3"] for knots in KNOTS] for kind in "DH"}
    accuracies = {kind: [100 * mean(r.accuracy for r in seeds.values()) for seeds in rows[kind]] for kind in "DH"}
    rising = all(values == sorted(values) for values in accuracies.values())
    enough = all(len(seeds) >= SEEDS for some in rows.values() for seeds in some)
    yield [
        "More knots, more accuracy (here LeNet-32, 2 to 5 knots)",
        "rising",
        "; ".join(f"{kind}(K): {_list(f'{value:.1f}' for value in values)}%" for kind, values in accuracies.items()),
        _if(rising) if enough else OPEN,
    ]


def _mnist() -> Iterator[list[str]]:
    found = results_of("mnist")
    rows = (
        ("On MNIST, H(2)-D-R3 beats LeNet-32", "H(2)-D-R3, original", "LeNet-32, original"),
        ("... on augmented images too", "H(2)-D-R3, augmented", "LeNet-32, augmented"),
        ("... and H(4)-D-R3 is the best", "H(4)-D-R3, augmented", "LeNet-32, augmented"),
    )
    printed = {row.name: row.paper for row in EXPERIMENTS["mnist"].rows}
    for claim, row, twin in rows:
        paper = f"{printed[row]:.2f}% for {printed[twin]:.2f}%"
        yield [claim, paper, f"{_accuracy(found[row])} for {_accuracy(found[twin])}", _gain("mnist", row)]


def _positions() -> Iterator[list[str]]:
    found = results_of("fashion-specialization")
    weights = [f"D(5)-D-R3, w = {w}" for w in ("0", "0.05", "0.2", "1")]
    bits = {
        layer: [
            mean(
                row["information"] for result in found[name].values() for row in result.layers if row["layer"] == layer
            )
            for name in weights
        ]
        for layer in ("conv2", "dense1")
    }
    yield [
        "The regulariser makes positions tell classes (figures 6 and 7)",
        "pictures",
        "bits about the class, as its weight goes from 0 to 1: "
        + "; ".join(f"{layer} {_list(f'{value:.1f}' for value in values)}" for layer, values in bits.items()),
        _if(all(values == sorted(values) for values in bits.values())),
    ]
    yield [
        "Soft bins as printed in equation 5",
        "",
        "upside down: 1 far from the bin, 0.5 in its middle ([errata](paper_map.md#errata))",
        NO,
    ]


def _accuracy(found: Found) -> str:
    seeds = "" if len(found) > 1 else " (one seed)"
    return f"{spread([100 * result.accuracy for result in found.values()])}%{seeds}"


def _gain(name: str, row: str) -> str:
    """Yes if a SplineNet is ahead of its twin by two standard errors, no if not; open with few seeds."""
    found = results_of(name)
    twin = found[next(each.twin for each in EXPERIMENTS[name].rows if each.name == row)]
    gains = [result.accuracy - twin[seed].accuracy for seed, result in found[row].items() if seed in twin]
    return OPEN if len(gains) < SEEDS else _if(mean(gains) > 2 * stdev(gains) / len(gains) ** 0.5)


def _if(holds: bool) -> str:
    return YES if holds else NO


def _list(words: Iterator[str] | Sequence[str] | dict[str, float]) -> str:
    return ", ".join(words)
