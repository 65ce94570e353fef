"""``python -m benchmarks.tables``: writes tables and figures anew, from benchmarks/results."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, stdev

from benchmarks import latency_tables
from benchmarks.search import RESULTS, SEARCHES, file_of
from splinenets.bench.latency import fastest
from splinenets.reproduce import EXPERIMENTS, collect, draw, read_result, table

ROOT = Path(__file__).parent.parent
REPRODUCED = ROOT / "benchmarks" / "results" / "reproduce"
SCALE = "standard"
DRAWN = ("fashion-specialization", "cifar10-lenet")
SUMMARY = (  # experiment, row, what is trained
    ("fashion-specialization", "D(5)-D-R3, w = 0.05", "Fashion-MNIST, LeNet-16"),
    ("fashion-specialization", "D(5)-D-R3, w = 1", "Fashion-MNIST, LeNet-16"),
    ("mnist", "H(4)-D-R3, augmented", "MNIST, LeNet-32"),
    ("cifar10-lenet", "D(5)-D-R3", "CIFAR-10, LeNet-32"),
    ("cifar10-lenet", "H(5)-D-R3", "CIFAR-10, LeNet-32"),
    ("cifar10-resnet-options", "D(5)-C-R3", "CIFAR-10, ResNet-32"),
    ("cifar10-resnet-options", "H(5)-C-R3", "CIFAR-10, ResNet-32"),
)


def reproduced() -> str:
    """A table for each experiment of the paper."""
    return "\n\n".join(
        f"### {experiment.title}\n\n`splinenets reproduce {name}`\n\n"
        + table(experiment, collect(experiment, REPRODUCED / name / SCALE))
        for name, experiment in EXPERIMENTS.items()
    )


def searched() -> str:
    """A table for each search, with a line for each trial."""
    lines = []
    for where, search in SEARCHES.items():
        lines += [f"| {where} | held-out accuracy, % | held-out loss | train loss |", "|---|---|---|---|"]
        for name in search.trials:
            files = [RESULTS / f"{file_of(where, name, seed)}.json" for seed in range(search.repeated.get(name, 1))]
            lines.append(f"| {name} | {outcome([file for file in files if file.exists()])} |")
        lines.append("")
    return "\n".join(lines[:-1])


def outcome(files: Sequence[Path]) -> str:
    """What a trial came to: the mean of its seeds, and each, as trials with one seed compare with the first."""
    if not files:
        return "not run yet | |"
    last = [read_result(file).epochs[-1] for file in files]
    accuracy, loss, train_loss = (
        [epoch[key] for epoch in last] for key in ("test_accuracy", "test_loss", "train_loss")
    )
    each = ", ".join(f"{100 * a:.2f}" for a in accuracy)
    seeds = f" ± {100 * stdev(accuracy):.2f} ({each})" if len(files) > 1 else ""
    return f"{100 * mean(accuracy):.2f}{seeds} | {mean(loss):.3f} | {mean(train_loss):.3f}"


def summary() -> str:
    """Some SplineNets beside their static twins, by the table of their experiment."""
    lines = ["| network | static twin, % | SplineNet, % | gain | seeds | epochs |", "|---|---|---|---|---|---|"]
    for name, row, title in SUMMARY:
        results = collect(EXPERIMENTS[name], REPRODUCED / name / SCALE)
        twin = next(each.twin for each in EXPERIMENTS[name].rows if each.name == row)
        seeds = sorted(set(results[row]) & set(results[twin]))
        own, plain = ([100 * results[each][seed].accuracy for seed in seeds] for each in (row, twin))
        epochs = len(results[row][seeds[0]].epochs)
        gain = mean(own) - mean(plain)
        cells = f"{mean(plain):.2f} | {mean(own):.2f} | {gain:+.2f} | {len(seeds)} | {epochs}"
        lines.append(f"| {title}, {row} | {cells} |")
    return "\n".join(lines)


def beside_lenet128() -> str:
    """The LeNets of CIFAR-10: what a static LeNet-128 costs over each of them, and how accurate both are."""
    results = collect(EXPERIMENTS["cifar10-lenet"], REPRODUCED / "cifar10-lenet" / SCALE)
    measured = latency_tables.read("lenet")
    best = fastest(measured.timings, 1)
    large = results["LeNet-128"][0]
    head = ["network", "test accuracy, %", "behind LeNet-128", "MACs", "parameters", "latency"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, found in results.items():
        timed = best.get(name) or best.get(f"LeNet-32 {name.partition(',')[0]}")
        if found and timed:
            accuracy, one = mean(100 * result.accuracy for result in found.values()), found[0]
            latency = best["LeNet-128"].median / timed.median
            cells = (f"{times:.1f}" for times in (large.macs / one.macs, large.parameters / one.parameters, latency))
            lines.append(f"| {name} | {accuracy:.2f} | {100 * large.accuracy - accuracy:.2f} | {' | '.join(cells)} |")
    return "\n".join(lines)


TABLES: tuple[tuple[str, str, Callable[[], str]], ...] = (  # page, marker, what stands there
    ("README.md", "splinenets reproduce", summary),
    ("docs/results.md", "splinenets reproduce", reproduced),
    ("docs/results.md", "beside LeNet-128", beside_lenet128),
    ("docs/decisions.md", "benchmarks.search", searched),
    ("docs/deployment.md", "latency, ratios", latency_tables.ratios),
    ("docs/deployment.md", "latency, milliseconds", latency_tables.milliseconds),
)


def section(page: str, marker: str) -> re.Match[str]:
    """What stands between ``<!-- marker -->`` and ``<!-- end -->`` in a page."""
    found = re.search(rf"(?<=<!-- {re.escape(marker)} -->\n).*?(?=\n<!-- end -->)", page, flags=re.DOTALL)
    if found is None:
        raise ValueError(f"the page has no <!-- {marker} --> with an <!-- end -->")
    return found


def main() -> None:
    for page, marker, table_of in TABLES:
        path = ROOT / page
        text = path.read_text()
        old = section(text, marker)
        path.write_text(text[: old.start()] + table_of() + text[old.end() :])
    for name in DRAWN:
        draw(collect(EXPERIMENTS[name], REPRODUCED / name / SCALE), ROOT / "docs" / "figures" / f"{name}.svg")


if __name__ == "__main__":
    main()
