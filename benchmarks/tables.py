"""``make tables``: every table and drawn figure of the docs, from benchmarks/results.

``TABLES`` names them all. In a page a table stands between ``<!-- table: NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from campaign import results as campaign

import splinenets as sn
from benchmarks import (
    compiled,
    denoise,
    engine,
    folders,
    frontier,
    fuzz_native,
    information,
    latency,
    newcomer,
    regularizer,
    serving,
    smaller,
    streaming,
    turned,
    versions,
)
from benchmarks.claims import claims, cost_of, results_of
from benchmarks.search import RESULTS, SEARCHES, file_of
from benchmarks.timing import markdown
from splinenets import shipped
from splinenets.analysis import figures
from splinenets.analysis.style import for_both_lights, to_svg
from splinenets.reproduce import EXPERIMENTS, draw, read_result, table

ROOT = Path(__file__).resolve().parent.parent
HISTOGRAMS = "position_histograms.svg"
DRAWN = ("fashion-specialization", "cifar10-lenet")
SUMMARY = (  # experiment, row, what is trained
    ("fashion-specialization", "D(5)-D-R3, w = 0.05", "Fashion-MNIST, LeNet-16"),
    ("fashion-specialization", "D(5)-D-R3, w = 1", "Fashion-MNIST, LeNet-16"),
    ("mnist", "H(4)-D-R3, augmented", "MNIST, LeNet-32"),
    ("cifar10-lenet", "D(5)-D-R3", "CIFAR-10, LeNet-32"),
    ("cifar10-lenet", "H(5)-D-R3", "CIFAR-10, LeNet-32"),
    ("cifar10-resnet-options", "D(5)-C-R3", "CIFAR-10, ResNet-32"),
)


RESNET_SPECS = ["D(5)-C-R4", "D(5)-C-R3", "H(5)-C-R3", "D(5)-D-R4", "H(5)-D-R4", "D(5)-D-R3", "H(5)-D-R3"]


def reproduced() -> str:
    """A table for each experiment of the paper."""
    return "\n\n".join(
        f"### {experiment.title}\n\n`splinenets reproduce {name}`\n\n{table(experiment, results_of(name))}"
        for name, experiment in EXPERIMENTS.items()
        if experiment.paper
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


def balanced() -> str:
    """Train losses with plain and with balanced gradients of knots: the searches on embedded images."""
    ways = ("static", "plain gradients", "balanced")
    lines = []
    for where, search in SEARCHES.items():
        if "embedded images" in where:
            host, _, optimizer = where.partition(", embedded images")
            seeds = {way: range(search.repeated.get(way, 1)) for way in ways}
            files = {way: [RESULTS / f"{file_of(where, way, seed)}.json" for seed in seeds[way]] for way in ways}
            losses = [mean(read_result(file).epochs[-1]["train_loss"] for file in files[way]) for way in ways]
            lines.append([f"{host}{optimizer or ', SGD'}", *(f"{loss:.2f}" for loss in losses)])
    return markdown(["train loss", "static twin", *ways[1:]], lines)


def outcome(files: Sequence[Path]) -> str:
    """What a trial came to: the mean of its seeds, and each, as trials with one seed compare with the first."""
    if not files:
        return "not run yet | |"
    last = [read_result(file).epochs[-1] for file in files]
    accuracy, loss, train_loss = (
        [epoch[key] for epoch in last] for key in ("test_accuracy", "test_loss", "train_loss")
    )
    each = ", ".join(f"{100 * a:.2f}" for a in accuracy)
    seeds = f" ± {100 * stdev(accuracy) / len(files) ** 0.5:.2f} ({each})" if len(files) > 1 else ""
    return f"{100 * mean(accuracy):.2f}{seeds} | {mean(loss):.3f} | {mean(train_loss):.3f}"


def summary() -> str:
    """Some SplineNets beside their static twins, by the table of their experiment."""
    head = (
        "network",
        "plain twin, %",
        "SplineNet, %",
        "gain",
        "test loss, plain and spline",
        "MACs",
        "parameters",
        "seeds",
    )
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, row, title in SUMMARY:
        results = results_of(name)
        twin = next(each.twin for each in EXPERIMENTS[name].rows if each.name == row)
        seeds = sorted(set(results[row]) & set(results[twin]))
        if not seeds:
            continue
        own, plain = ([100 * results[each][seed].accuracy for seed in seeds] for each in (row, twin))
        losses = (mean(results[each][seed].epochs[-1]["test_loss"] for seed in seeds) for each in (twin, row))
        one, other = results[row][seeds[0]], results[twin][seeds[0]]
        cells = (
            f"{title}, {row}",
            f"{mean(plain):.2f}",
            f"{mean(own):.2f}",
            difference([a - b for a, b in zip(own, plain, strict=True)]),
            " and ".join(f"{loss:.3f}" for loss in losses),
            f"x {one.macs / other.macs:.2f}",
            f"x {one.parameters / other.parameters:.1f}",
            f"{len(seeds)}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def difference(each: Sequence[float]) -> str:
    """Mean and standard error over seeds."""
    error = f" ± {stdev(each) / len(each) ** 0.5:.2f}" if len(each) > 1 else ""
    return f"{mean(each):+.2f}{error}"


def beside_lenet128() -> str:
    """The LeNets of CIFAR-10: what a static LeNet-128 costs over each of them, and how accurate both are."""
    results, best = results_of("cifar10-lenet"), latency.fastest(latency.read(latency.WITH_AVX512).timings, 1)
    large = results["LeNet-128"][0]
    head = ["network", "test accuracy, %", "behind LeNet-128", "MACs", "parameters", "latency"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for name, found in results.items():
        timed = best.get(name) or best.get(f"LeNet-32 {name.partition(',')[0]}")
        if found and timed:
            accuracy, one = mean(100 * result.accuracy for result in found.values()), found[0]
            slower = best["LeNet-128"].median / timed.median
            cells = (f"{times:.1f}" for times in (large.macs / one.macs, large.parameters / one.parameters, slower))
            lines.append(f"| {name} | {accuracy:.2f} | {100 * large.accuracy - accuracy:.2f} | {' | '.join(cells)} |")
    return "\n".join(lines)


def costs() -> str:
    """The paper's figures of parameters and multiply-accumulates, beside ours."""
    return "\n\n".join("\n".join(rows()) for rows in (resnet_costs, lenet_costs, mnist_costs))


def resnet_costs() -> Iterator[str]:
    large = cost_of("resnet110", "static")
    paper = {"H(5)-D-R3": "42M", "D(5)-D-R3": "10M", "H(5)-D-R4": "3.67M"}
    yield "| ResNet, CIFAR-10 | paper | parameters | / 2^20 | MACs | ResNet-110's MACs over it |"
    yield "|---|---|---|---|---|---|"
    rows = [("ResNet-110", large), ("ResNet-32", cost_of("resnet32", "static"))]
    rows += [(f"32 {spec}", cost_of("resnet32", spec)) for spec in RESNET_SPECS]
    for name, found in rows:
        printed = paper.get(name.removeprefix("32 "), "")
        size = f"{found.parameters:,} | {found.parameters / 2**20:.2f}"
        yield f"| {name} | {printed} | {size} | {found.macs:,} | {large.macs / found.macs:.2f} |"


def lenet_costs() -> Iterator[str]:
    large = cost_of("lenet128", "static")
    yield "| LeNet, CIFAR-10 | parameters | MACs | LeNet-128's parameters over it | LeNet-128's MACs over it |"
    yield "|---|---|---|---|---|"
    nets = {f"LeNet-{s}": (s, "static") for s in (128, 64, 32)}
    nets |= {f"32 {kind}({knots})-D-R3": (32, f"{kind}({knots})-D-R3") for kind in "DH" for knots in (2, 3, 4, 5)}
    for name, (s, spec) in nets.items():
        found = cost_of(f"lenet{s}", spec)
        ratios = f"{large.parameters / found.parameters:.2f} | {large.macs / found.macs:.2f}"
        yield f"| {name} | {found.parameters:,} | {found.macs:,} | {ratios} |"


def mnist_costs() -> Iterator[str]:
    yield "| LeNet-32, MNIST | paper | parameters | / 2^20 |"
    yield "|---|---|---|---|"
    for spec in ("static", "H(2)-D-R3", "D(4)-D-R3", "H(4)-D-R3"):
        found = cost_of("lenet32", spec, 1, 28)
        printed = "2.25M" if spec == "H(4)-D-R3" else ""
        yield f"| {spec} | {printed} | {found.parameters:,} | {found.parameters / 2**20:.2f} |"


def card(name: str) -> str:
    """What is known of a network that ships."""
    net = sn.pretrained(name)
    known: dict[str, Any] = net.card  # type: ignore[assignment]
    file = shipped.FOLDER / shipped.file_name(name)
    lines = {
        "network": f"{known['network']}, {known['model']}; {', '.join(known['plain'])} stays plain",
        "input": f"{known['channels']} x {known['image_size']} x {known['image_size']}, {known['augment']}",
        "classes": ", ".join(known["classes"]),
        "trained on": f"{known['data']}, {known['epochs']} epochs, seed {known['seed']}",
        "test accuracy": f"{known['test_accuracy']:.2%}",
        "parameters": f"{known['parameters']:,}",
        "MACs for an image": f"{known['macs']:,}",
        "file": f"{file.stat().st_size / 1e6:.1f} MB",
    }
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in lines.items())])


TABLES: dict[str, tuple[str, Callable[[], str]]] = {  # name -> page, what stands there
    "gains in short": ("README.md", partial(frontier.gains, frontier.IN_SHORT)),
    "turned": ("docs/conditions.md", turned.turned),
    "frontier": ("docs/when.md", partial(frontier.frontier, "turned")),
    "frontier, CIFAR-10": ("docs/when.md", partial(frontier.frontier, "frontier")),
    "gains": ("docs/when.md", frontier.gains),
    "against plain": ("docs/when.md", frontier.against_plain),
    "rivals": ("docs/when.md", frontier.rivals),
    "smaller": ("docs/when.md", smaller.table),
    "denoised": ("docs/conditions.md", denoise.denoised),
    "claims": ("docs/claims.md", claims),
    "accuracy": ("docs/results.md", summary),
    "reproduced": ("docs/results.md", reproduced),
    "beside LeNet-128": ("docs/results.md", beside_lenet128),
    "costs": ("docs/results.md", costs),
    "search": ("docs/search.md", searched),
    "search, balanced": ("docs/search.md", balanced),
    "latency, ratios": ("docs/deployment.md", latency.ratios),
    "latency, milliseconds": ("docs/deployment.md", latency.milliseconds),
    "latency, newer, ratios": ("docs/deployment.md", partial(latency.ratios, latency.NEWER)),
    "latency without AVX-512, ratios": ("docs/deployment.md", partial(latency.ratios, latency.WITHOUT_AVX512)),
    "latency without AVX-512, milliseconds": (
        "docs/deployment.md",
        partial(latency.milliseconds, latency.WITHOUT_AVX512),
    ),
    "throughput": ("docs/deployment.md", latency.throughput),
    "serving": ("docs/deployment.md", serving.table),
    "fuzzed": ("docs/reliability.md", fuzz_native.table),
    "training": ("docs/performance.md", engine.training),
    "training, small batches": ("docs/performance.md", engine.small_batches),
    "training, knots": ("docs/performance.md", engine.knots),
    "inference": ("docs/performance.md", engine.inference),
    "memory": ("docs/performance.md", engine.memory),
    "compiled": ("docs/performance.md", compiled.compiled),
    "versions": ("docs/performance.md", versions.versions),
    "folders": ("docs/training.md", folders.table),
    "streaming": ("docs/data.md", streaming.table),
    **{name: ("docs/regularizer_study.md", partial(information.table, name)) for name in information.COLUMNS},
    "regulariser, cost": ("docs/regularizer_study.md", regularizer.added),
    **{f"card of {name}": ("docs/reference/models.md", partial(card, name)) for name in shipped.names()},
    "newcomer": ("docs/reliability.md", newcomer.table),
    "campaign": ("docs/reliability.md", campaign.chapters),
    "campaign, kinds": ("docs/reliability.md", campaign.kinds),
}
MARK = re.compile(r"(?<=<!-- table: )(.*?)( -->\n)(.*?)(?=<!-- end -->)", flags=re.DOTALL)


def sections(page: str) -> dict[str, str]:
    """The tables in a page, by name."""
    return {found[1]: found[3].rstrip("\n") for found in MARK.finditer(page)}


def filled(page: str) -> str:
    """A page with every table written anew."""
    return MARK.sub(lambda found: f"{found[1]}{found[2]}{TABLES[found[1]][1]()}\n", page)


def pictures() -> None:
    """Two figures of the Fashion-MNIST network that ships, as docs/figures.md shows them."""
    data, net = sn.data.load("embedded"), sn.pretrained("fashion-mnist/D(5)-D-R3")
    with torch.no_grad():
        _, positions = sn.trace(net, net.prepare(data.test.images))  # type: ignore[operator]
    for draw_one in (figures.flow, figures.specialization):
        drawing = to_svg(draw_one(positions, data.test.labels, data.classes))
        (ROOT / "docs" / "figures" / f"{draw_one.__name__}.svg").write_bytes(for_both_lights(drawing))


def main() -> None:
    for page in {page for page, _ in TABLES.values()}:
        path = ROOT / page
        path.write_text(filled(path.read_text()))
    folder = ROOT / "docs" / "figures"
    (folder / HISTOGRAMS).write_text(information.figure())
    for name, drawing in frontier.DRAWINGS.items():
        (folder / drawing.file).write_text(frontier.figure(name))
    for name in DRAWN:
        draw(results_of(name), folder / f"{name}.svg")
        (folder / f"{name}.svg").write_bytes(for_both_lights((folder / f"{name}.svg").read_bytes()))
    pictures()


if __name__ == "__main__":
    main()
