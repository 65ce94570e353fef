"""What the regulariser does to positions, in short trainings of a small Spline-LeNet on the embedded images.

python -m benchmarks.information NAME    one of the experiments, or "all"

Each experiment prints its rows and leaves benchmarks/results/information_NAME.json, of which a table of
docs/regularizer_study.md is made.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import splinenets as sn
from benchmarks.timing import RESULTS, about, markdown, write
from splinenets.health_check import health

Row: TypeAlias = dict[str, Any]
Rows: TypeAlias = Iterator[Row]
LAYERS = ("conv1", "conv2", "dense1", "dense2")
WIDTH, HEIGHT, GAP, MARGIN = 200, 120, 24, 12  # of a histogram in the figure


@cache
def images() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training images and labels, test images and labels."""
    data = sn.data.load("embedded")
    train, test = ((split.images.float() / 255 - 0.286) / 0.353 for split in (data.train, data.test))
    return train, data.train.labels, test, data.test.labels


def network(seed: int, spec: str = "D(5)-D-R3") -> nn.Module:
    """A Spline-LeNet-8 without dropout."""
    torch.manual_seed(seed)
    return sn.convert(sn.models.lenet(8, dropout=0), spec, example=images()[0][:2], spread=0.1)


def fit(
    net: nn.Module,
    loss_of: Callable[[Tensor, Tensor], Tensor],
    seed: int,
    epochs: int,
    rate: float,
    clip: float = math.inf,
) -> bool:
    """Stochastic gradient descent, batches of 250, momentum 0.9, one cycle of the learning rate; False: it broke."""
    train, labels, *_ = images()
    order = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.SGD(net.parameters(), rate, momentum=0.9)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=epochs * len(train) // 250)
    net.train()
    for _ in range(epochs):
        for chosen in torch.split(torch.randperm(len(train), generator=order), 250):
            loss = loss_of(train[chosen], labels[chosen])
            if not loss.isfinite():
                return False
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            if clip < math.inf:
                nn.utils.clip_grad_norm_(net.parameters(), clip)
            optimizer.step()
            cycle.step()
    return all(bool(p.isfinite().all()) for p in net.parameters())


def train_on(
    net: nn.Module, regularizer: nn.Module, seed: int, epochs: int, rate: float, clip: float = math.inf
) -> bool:
    """Cross-entropy plus a regulariser."""

    def loss_of(batch: Tensor, labels: Tensor) -> Tensor:
        logits, positions = sn.trace(net, batch)
        loss = F.cross_entropy(logits, labels)
        return loss + regularizer(positions, labels) if loss.isfinite() else loss

    return fit(net, loss_of, seed, epochs, rate, clip)


def train_classifier(
    seed: int,
    *,
    spec: str = "D(5)-D-R3",
    epochs: int = 3,
    rate: float = 0.05,
    clip: float = math.inf,
    **options: Any,
) -> Row:
    """What comes of training with these options of the regulariser, on the test images."""
    net = network(seed, spec)
    finite = train_on(net, sn.MutualInformation(10, **options), seed, epochs, rate, clip)
    return {"seed": seed, "finite": finite} | (look(net) if finite else {})


@torch.no_grad()
def look(net: nn.Module) -> Row:
    """Accuracy and health on the test images."""
    *_, test, labels = images()
    logits, positions = sn.trace(net.eval(), test)
    layers = health(positions, labels).layers
    return {
        "accuracy": round(float((logits.argmax(1) == labels).double().mean()), 4),
        "entropy": {layer.layer: round(layer.entropy, 4) for layer in layers},
        "bits": {layer.layer: round(layer.information or 0, 4) for layer in layers},
        "verdicts": [layer.verdict for layer in layers],
    }


def mean(rows: list[Row], key: str) -> Any:
    """The mean over seeds, of a number or of a dict of numbers."""
    values = [row[key] for row in rows if key in row]
    if not values or not isinstance(values[0], dict):
        return statistics.fmean(values) if values else None
    return {name: statistics.fmean(v[name] for v in values) for name in values[0]}


def summary(runs: list[Row]) -> Row:
    return {key: mean(runs, key) for key in ("accuracy", "entropy", "bits")} | {"runs": runs}


def utilization(seeds: range) -> Rows:
    """Raising the utilisation weight raises entropy in every layer; standardised and raw projections."""
    for spec in ("D(5)-D-R3", "D(5)-D-R3 raw"):
        for weight in (0.0, 0.05, 0.2, 0.8):
            options: Row = {"spec": spec, "utilization": weight, "specialization": 0.0}
            yield options | summary([train_classifier(seed, **options) for seed in seeds])


def specialization(seeds: range) -> Rows:
    """Raising the specialisation weight raises the information that positions have about the labels."""
    for estimator in ("bins", "kernel"):
        for weight in (0.0, 0.02, 0.06, 0.2):
            options: Row = {"estimator": estimator, "utilization": 0.2, "specialization": weight}
            yield options | summary([train_classifier(seed, **options) for seed in seeds])


def gradients(seeds: range) -> Rows:
    """The three ways to estimate, at the paper's weights for LeNet: soft bins smooth and exact, kernels."""
    for options in ({}, {"exact_gradient": True}, {"estimator": "kernel"}):
        for weights in ((0.2, 0.0), (0.2, 0.2)):
            given: Row = options | dict(zip(("utilization", "specialization"), weights, strict=True))
            yield given | summary([train_classifier(seed, **given) for seed in seeds])


def alive(run: Row) -> bool:
    """All numbers finite, no layer that has stopped moving, and a network that classifies; a dead one guesses 10%."""
    return run["finite"] and run["accuracy"] > 0.5 and "constant" not in run["verdicts"]


def endure(case: Row, seeds: range) -> Row:
    """Short runs with weights 0.2: how many end alive."""
    options: Row = {"utilization": 0.2, "specialization": 0.2, "epochs": 2} | case
    runs = [train_classifier(seed, **options) for seed in seeds]
    return options | {"stable": sum(map(alive, runs)), "of": len(runs)} | summary(runs)


# no regulariser; the two ways of the default estimator
PLAIN: tuple[Row, ...] = (
    {"utilization": 0.0, "specialization": 0.0},
    {"full_gradient": False},
    {"full_gradient": True},
)


def stability(seeds: range) -> Rows:
    """Ten short runs with weights 0.2 for each gradient: how many end with numbers and a network that works."""
    cases: list[Row] = [*PLAIN, *({"rate": 0.1} | case for case in PLAIN)]
    cases += [{"full_gradient": full, "estimator": "kernel"} for full in (False, True)]
    cases += [{"full_gradient": full, "exact_gradient": True} for full in (False, True)]
    for spec in ("H(5)-D-R3", "D(5)-C-R4", "D(5)-D-R3 raw"):
        cases += [{"spec": spec, "full_gradient": full} for full in (False, True)]
    for case in cases:
        yield endure(case, seeds)


def remedies(seeds: range) -> Rows:
    """Where not all ten were stable: a lower learning rate, or gradients clipped to a norm of 1."""
    conv = {"spec": "D(5)-C-R4"}
    cases: list[Row] = [conv | PLAIN[0]]  # to compare with
    cases += [{"rate": 0.03} | other | plain for other in ({}, conv) for plain in PLAIN]
    cases += [{"clip": 1.0} | PLAIN[2], {"clip": 1.0} | conv | PLAIN[1]]
    cases += [{"clip": 1.0, "rate": 0.1} | plain for plain in PLAIN]
    for case in cases:
        yield endure(case, seeds)


def distance_from_uniform(seed: int, *, spec: str = "D(5)-D-R3", bins: int = 50) -> tuple[float, Tensor]:
    """Total variation between positions and uniform ones, mean over layers; and the histograms (coordinates, 50)."""
    train, _, test, _ = images()
    net = network(seed, spec)
    train_on(net, sn.MutualInformation(10, bins=bins, utilization=0.2, specialization=0), seed, 3, 0.05)
    with torch.no_grad():
        _, positions = sn.trace(net.eval(), torch.cat([train, test]))
    shares = [torch.stack([c.histc(50, 0, 1) for c in p.flatten(1).T]) / p.shape[0] for p in positions.values()]
    return statistics.fmean(float((s - 1 / 50).abs().sum(1).mean() / 2) for s in shares), torch.cat(shares)


def histograms(seeds: range) -> Rows:
    """The paper's figure 6: how far from uniform positions are after training with few or many bins."""
    for spec in ("D(5)-D-R3", "D(5)-D-R3 raw"):
        for bins in (2, 3, 5, 50):
            results = [distance_from_uniform(seed, spec=spec, bins=bins) for seed in seeds]
            distances, shares = [d for d, _ in results], results[0][1]
            # for the picture: the coordinate in the middle of the field
            middle = (shares - 1 / 50).abs().sum(1).argsort()[len(shares) // 2]
            row: Row = {"spec": spec, "bins": bins, "distance": statistics.fmean(distances)}
            yield row | {"runs": distances, "picture": [round(v, 5) for v in shares[middle].tolist()]}


def bias(seeds: range) -> Rows:
    """What estimators see where there is nothing: positions independent of ten labels, in nats."""
    torch.manual_seed(seeds[0])
    for samples in (50, 100, 250, 1000, 4000):
        position, labels = torch.rand(samples, 200), torch.randint(10, (samples,))
        row: Row = {"samples": samples}
        for name, options in (("bins", {}), ("kernel", {"estimator": "kernel"})):
            regularizer = sn.MutualInformation(10, **options)  # type: ignore[arg-type]
            row[name] = float(regularizer.parts({"a": position}, labels).mutual_information)
        yield row | {"health": health({"a": position}, labels)["a"].row()["information"] * math.log(2)}


def views(batch: Tensor, generator: torch.Generator) -> Tensor:
    """Each image twice, moved by up to two pixels and with noise: (N, ...) -> (2 N, ...)."""
    padded = F.pad(batch, (2, 2, 2, 2), value=float(batch.min()))
    seen = []
    for image in torch.cat([padded, padded]):
        x, y = torch.randint(0, 5, (2,), generator=generator).tolist()
        seen.append(image[:, y : y + 28, x : x + 28])
    return torch.stack(seen) + 0.2 * torch.randn(2 * len(batch), 1, 28, 28, generator=generator)


def train_without_labels(seed: int, options: Row | None) -> Row:
    """No cross-entropy, no label; then what positions tell about labels, and how far two views lie apart."""
    train, train_labels, test, labels = images()
    net = network(seed)
    noise = torch.Generator().manual_seed(seed)
    regularizer = sn.MutualInformation(None, **(options or {}))
    rate = 0.05 if options else 0.0  # at rate 0 projections only learn their features' mean and deviation
    fit(net, lambda batch, _: regularizer(sn.trace(net, views(batch, noise))[1]), seed, 3, rate)
    net.eval()

    def positions_of(batch: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.cat([p.flatten(1) for p in sn.trace(net, batch)[1].values()], 1)

    nearest = torch.cdist(positions_of(test), positions_of(train)).topk(5, largest=False).indices
    voted = train_labels[nearest].mode(1).values
    first, second = positions_of(views(test, noise)).chunk(2)
    return look(net) | {
        "between_views": float((first - second).square().mean().sqrt()),
        "between_images": float((first - first.roll(1, 0)).square().mean().sqrt()),
        "nearest_neighbours": float((voted == labels).float().mean()),
    }


def unlabelled(seeds: range) -> Rows:
    """Training without a single label: what positions then tell about labels, and how far two views lie apart."""
    for options in (
        None,
        {"utilization": 0.2, "views": 1},
        {"utilization": 0.2, "specialization": 0.02, "views": 2},
        {"utilization": 0.2, "specialization": 0.06, "views": 2},
        {"utilization": 0.2, "specialization": 0.2, "views": 2},
        {"utilization": 0.2, "specialization": 0.2, "views": 2, "estimator": "kernel"},
    ):
        runs = [train_without_labels(seed, options) for seed in seeds]
        extra = {key: mean(runs, key) for key in ("between_views", "between_images", "nearest_neighbours")}
        yield (options or {"untrained": True}) | extra | summary(runs)


EXPERIMENTS: dict[str, Callable[[range], Rows]] = {
    f.__name__: f for f in (utilization, specialization, gradients, stability, remedies, histograms, bias, unlabelled)
}
SEEDS = {"stability": range(10), "remedies": range(10), "bias": range(1)}  # the others: three


def run(name: str) -> list[Row]:
    """Make, print and write the rows of one experiment."""
    began = time.perf_counter()
    rows = []
    seeds = SEEDS.get(name, range(3))
    for row in EXPERIMENTS[name](seeds):
        rows.append(row)
        print({k: _short(v) for k, v in row.items() if k not in ("runs", "picture")}, flush=True)
    what = " ".join((EXPERIMENTS[name].__doc__ or "").split())
    spent = round(time.perf_counter() - began, 1)
    made = about(f"python -m benchmarks.information {name}", what=what, seeds=list(seeds), seconds=spent)
    write(RESULTS / f"information_{name}.json", {**made, "rows": rows})
    return rows


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _short(v) for k, v in value.items()}
    return round(value, 3) if isinstance(value, float) else value


def kept(name: str) -> list[Row]:
    """The rows that the last run of an experiment left."""
    return list(json.loads((RESULTS / f"information_{name}.json").read_bytes())["rows"])


def how(row: Row) -> str:
    """The gradient of a row, in words."""
    kind = "kernel" if row.get("estimator") == "kernel" else "bins"
    exact = ", exact gradient" if row.get("exact_gradient") else ""
    return f"{kind}{exact}"


def whom(row: Row) -> str:
    if not row["utilization"]:
        return "no regulariser"
    return f"{how(row)}, {'features too' if row.get('full_gradient') else 'projections only'}"


def percent(value: float) -> str:
    return f"{100 * value:.1f}"


def per_layer(key: str, form: Callable[[float], str]) -> dict[str, Callable[[Row], str]]:
    def cell(layer: str) -> Callable[[Row], str]:
        return lambda row: form(row[key][layer])

    return {layer: cell(layer) for layer in LAYERS}


def total_bits(row: Row) -> str:
    return f"{sum(row['bits'].values()):.2f}"


def bits(value: float) -> str:
    return f"{value:.2f}"


def spec(row: Row) -> str:
    return f"`{row.get('spec', 'D(5)-D-R3')}`"


def accuracy(row: Row) -> str:
    return percent(row["accuracy"])


# Experiment -> {heading: what to write of a row}
COLUMNS: dict[str, dict[str, Callable[[Row], str]]] = {
    "utilization": {
        "spec": spec,
        "utilization": lambda r: f"{r['utilization']:g}",
        **per_layer("entropy", percent),
        "accuracy %": accuracy,
    },
    "specialization": {
        "estimator": how,
        "specialization": lambda r: f"{r['specialization']:g}",
        **per_layer("bits", bits),
        "all": total_bits,
        "accuracy %": accuracy,
    },
    "gradients": {
        "gradient": how,
        "weights": lambda r: f"{r['utilization']:g} / {r['specialization']:g}",
        **per_layer("entropy", percent),
        "bits in all": total_bits,
        "accuracy %": accuracy,
    },
    "stability": {
        "spec": spec,
        "learning rate": lambda r: f"{r.get('rate', 0.05):g}",
        "regulariser": whom,
        "stable": lambda r: f"{r['stable']} of {r['of']}",
        "accuracy %": accuracy,
    },
    "remedies": {
        "spec": spec,
        "learning rate": lambda r: f"{r.get('rate', 0.05):g}",
        "clipped": lambda r: f"{r['clip']:g}" if "clip" in r else "no",
        "regulariser": whom,
        "stable": lambda r: f"{r['stable']} of {r['of']}",
        "accuracy %": accuracy,
    },
    "histograms": {
        "spec": spec,
        "B": lambda r: str(r["bins"]),
        "distance from uniform": lambda r: f"{r['distance']:.3f}",
        "three seeds": lambda r: ", ".join(f"{d:.3f}" for d in r["runs"]),
    },
    "bias": {
        "samples": lambda r: str(r["samples"]),
        "bins": lambda r: f"{r['bins']:.2f}",
        "kernel": lambda r: f"{r['kernel']:.2f}",
        "`sn.health`": lambda r: f"{r['health']:.2f}",
    },
    "unlabelled": {
        "training": lambda r: (
            "none"
            if "untrained" in r
            else f"utilisation {r['utilization']:g} alone"
            if r["views"] == 1
            else f"{how(r)}, two views, {r['utilization']:g} / {r['specialization']:g}"
        ),
        "bits about labels, all layers": total_bits,
        "distance of two views": lambda r: f"{r['between_views']:.3f}",
        "of two images": lambda r: f"{r['between_images']:.3f}",
        "5 nearest neighbours right %": lambda r: percent(r["nearest_neighbours"]),
    },
}


def table(name: str) -> str:
    """One experiment, for the docs."""
    columns = COLUMNS[name]
    return markdown(list(columns), [[write_cell(row) for write_cell in columns.values()] for row in kept(name)])


def figure() -> str:
    """The paper's figure 6 as an SVG: a histogram for each number of bins, standardised above raw projections."""
    rows = kept("histograms")
    across = len(rows) // 2
    parts = [part for i in range(len(rows)) for part in panel(rows, i, across)]
    wide, high = 2 * MARGIN + across * (WIDTH + GAP) - GAP, 2 * MARGIN + 2 * (HEIGHT + 3 * GAP) - GAP
    style = (
        "rect{fill:#4878a8}path{stroke:#888;fill:none}.even{stroke:#c44}text{font:13px sans-serif;fill:#444}"
        ".paper{fill:#fff}@media(prefers-color-scheme:dark){.paper{fill:#1a2029}text{fill:#ccc}rect{fill:#6b9bc9}}"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}">',
            f"<style>{style}</style>",
            f'<rect width="{wide}" height="{high}" class="paper"/>',
            *parts,
            "</svg>\n",
        ]
    )


def panel(rows: list[Row], i: int, across: int) -> Iterator[str]:
    """One histogram, with a scale for all panels of its line."""
    row, line = rows[i], i // across
    left, bottom = MARGIN + (i % across) * (WIDTH + GAP), MARGIN + HEIGHT + line * (HEIGHT + 3 * GAP)
    tallest = max(share for other in rows[line * across : (line + 1) * across] for share in other["picture"])
    for j, share in enumerate(row["picture"]):
        bar = share / tallest * HEIGHT
        yield f'<rect x="{left + 4 * j}" y="{bottom - bar:.1f}" width="3.5" height="{bar:.1f}"/>'
    yield f'<path class="even" d="M{left} {bottom - 0.02 / tallest * HEIGHT:.1f}h{WIDTH}"/>'
    yield f'<path d="M{left} {bottom}h{WIDTH}"/>'
    kind = "raw" if "raw" in row["spec"] else "standardised"
    label = f"B = {row['bins']}, {kind}: {row['distance']:.3f}"
    yield f'<text x="{left}" y="{bottom + 15}">0</text>'
    yield f'<text x="{left + WIDTH}" y="{bottom + 15}" text-anchor="end">1</text>'
    yield f'<text x="{left + WIDTH // 2}" y="{bottom + 34}" text-anchor="middle">{label}</text>'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=[*EXPERIMENTS, "all"])
    chosen = parser.parse_args().name
    torch.set_num_threads(1)
    for name in EXPERIMENTS if chosen == "all" else [chosen]:
        print(f"{name}: {' '.join((EXPERIMENTS[name].__doc__ or '').split())}", flush=True)
        run(name)


if __name__ == "__main__":
    main()
