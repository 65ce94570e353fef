"""The time of one image through the paper's networks and their static twins, in every runtime there is.

python -m benchmarks.latency [--network 'ResNet*'] [--runtime native] [--threads 1] [--rounds 15] [--keep exports]

All networks, measured side by side, leave benchmarks/results/latency.json, those of one kind latency-resnet.json for
example, unless --out names a file: latency-avx512.json and latency-avx2.json are the tables of docs/deployment.md.
Networks that are told something (X) have two columns: told the same again, and ("told anew") another value in every
call. With --batch 64, exports for throughput take so many images at once.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from importlib import import_module, metadata
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

import splinenets as sn
from benchmarks.timing import RESULTS, about, write
from splinenets.kernels import Unavailable
from splinenets.tables import text_table

TOLD = "D(12)-X-R4 closed"
NETWORKS: dict[str, tuple[str, str | None]] = {
    "ResNet-32": ("resnet32", None),
    "ResNet-110": ("resnet110", None),
    **{
        f"ResNet-32 {spec}": ("resnet32", spec)
        for spec in ("D(5)-C-R4", "D(5)-C-R3", "D(5)-D-R4", "H(5)-D-R4", "D(5)-D-R3", "H(5)-D-R3", TOLD)
    },
    **{f"LeNet-{width}": (f"lenet{width}", None) for width in (4, 32, 64, 128)},
    **{f"LeNet-32 {kind}({k})-D-R3": ("lenet32", f"{kind}({k})-D-R3") for kind in "DH" for k in (2, 3, 4, 5)},
    f"LeNet-4 {TOLD}": ("lenet4", TOLD),
    "MobileNetV2": ("mobilenetv2", None),  # 0.5x, 96 x 96 pixels
    "MobileNetV2 D(5)-C-R4": ("mobilenetv2", "D(5)-C-R4"),
}
WITH_AVX512, WITHOUT_AVX512 = "avx512", "avx2"  # one run each
NEWER = "zen5"  # AVX-512 at full width
BATCHES = "avx2-batch64"
# what is divided by what, and what the quotient should be: the best runtime of each in float32, or one that is named
RATIOS = {
    ("ResNet-32 D(5)-C-R4", "ResNet-32"): "<= 1.08",
    ("ResNet-32 D(5)-C-R3", "ResNet-32"): "<= 1.18",
    ("ResNet-32 D(5)-C-R4 in onnxruntime", "ResNet-32 in onnxruntime"): "",
    ("ResNet-32 D(5)-C-R3 in onnxruntime", "ResNet-32 in onnxruntime"): "",
    ("ResNet-32 D(5)-C-R4 in onnxruntime, blocked", "ResNet-32 in onnxruntime"): "<= 1.6",
    ("ResNet-32 D(5)-C-R3 in onnxruntime, blocked", "ResNet-32 in onnxruntime"): "<= 1.9",
    ("ResNet-110", "ResNet-32 D(5)-C-R4"): ">= 2.7",
    ("ResNet-110", "ResNet-32 H(5)-D-R4"): ">= 2",
    ("ResNet-110", "ResNet-32 D(5)-D-R3"): "",
    ("ResNet-110", "ResNet-32 H(5)-D-R3"): "",
    ("ResNet-110", "ResNet-32 H(5)-D-R3 in native int8"): ">= 1.5",
    (f"ResNet-32 {TOLD} in native", "ResNet-32 in native"): "<= 1.05",
    (f"ResNet-32 {TOLD} in native, told anew", "ResNet-32 in native"): "",
    (f"LeNet-4 {TOLD} in native", "LeNet-4 in native"): "<= 1.05",
    (f"LeNet-4 {TOLD} in native, told anew", "LeNet-4 in native"): "",
    ("LeNet-128", "LeNet-32 D(2)-D-R3"): ">= 8",
    ("LeNet-128", "LeNet-32 H(2)-D-R3"): "",
    ("MobileNetV2 D(5)-C-R4", "MobileNetV2"): "<= 1.15",
    ("MobileNetV2 D(5)-C-R4 in native bf16", "MobileNetV2"): "",
    ("MobileNetV2 in native", "MobileNetV2 in onnxruntime"): "<= 1.1",
    ("ResNet-32 in onnxruntime", "ResNet-32 D(5)-C-R3 in native"): "",
}
PACKAGES = ("torch", "numpy", "onnxruntime", "openvino")
PAUSE = 0.02  # seconds in which the threads of the runtime before fall asleep
WARM, TIMED = 3, 10  # calls in a turn

Call: TypeAlias = Callable[[], object]
Maker: TypeAlias = Callable[["Subject", int], Call]


@dataclass(frozen=True)
class Subject:
    """A network to measure, and where its exports may be written."""

    net: nn.Module
    images: Tensor
    folder: Path
    told: Tensor | None = None  # what the network is told with each image, (N, 1)
    batch: int = 1

    @property
    def image(self) -> Tensor:
        """The one image, or the batch."""
        return self._some(self.images)

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        """The image, and what the network is told with it."""
        return self.image, *(() if self.told is None else (self._some(self.told),))

    def _some(self, values: Tensor) -> Tensor:
        return values.repeat(-(-self.batch // len(values)), *[1] * (values.dim() - 1))[: self.batch].clone()

    def file(self, to: str, knots: str = "float32") -> Path:
        """An export, written when it is first asked for."""
        purpose = "latency" if self.batch == 1 else "throughput"
        path = self.folder / (f"{knots}.{to}" if self.batch == 1 else f"{knots}-{purpose}.{to}")
        if not path.exists():
            example = self.images if self.told is None else (self.images, self.told)
            sn.export(self.net, example, path, purpose=purpose, to=to, knots=knots)
        return path


def run_eager(subject: Subject, threads: int) -> Call:
    """Torch, operation by operation."""

    def call() -> Tensor:
        with torch.inference_mode():
            return subject.net(*inputs)

    inputs = subject.inputs
    return call


def run_exported(to: str, knots: str = "float32") -> Maker:
    """Our own export."""

    def make(subject: Subject, threads: int) -> Call:
        exported, inputs = sn.load_export(subject.file(to, knots), threads=threads), subject.inputs
        return lambda: exported.forward(*inputs)

    return make


def run_told_anew(subject: Subject, threads: int) -> Call:
    """The native export, told another value in every call."""
    assert subject.told is not None
    exported, image = sn.load_export(subject.file("native"), threads=threads), subject.image
    values = cycle(subject.told.split(1))
    return lambda: exported.forward(image, next(values))


def run_openvino(subject: Subject, threads: int) -> Call:
    """The ONNX export in OpenVINO, in float32 like all others."""
    core = import_module("openvino").Core()
    options = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    request = core.compile_model(str(subject.file("onnx")), "CPU", options).create_infer_request()
    inputs = dict(enumerate(each.numpy() for each in subject.inputs))
    return lambda: request.infer(inputs)


def run_inductor(subject: Subject, threads: int) -> Call:
    """The pt2 export, compiled by AOTInductor: a minute or more for a network."""
    from torch._inductor import aoti_compile_and_package, aoti_load_package

    torch.set_num_threads(threads)
    path = subject.folder / "compiled.pt2"
    if not path.exists():
        aoti_compile_and_package(torch.export.load(subject.file("pt2")), package_path=str(path))
    compiled, inputs = aoti_load_package(str(path)), subject.inputs

    def call() -> Tensor:
        with torch.inference_mode():
            return compiled(*inputs)

    return call


RUNTIMES: dict[str, Maker] = {
    "torch": run_eager,
    "onnxruntime": run_exported("onnx"),
    "onnxruntime, blocked": run_exported("onnxruntime"),
    "openvino": run_openvino,
    "aotinductor": run_inductor,
    "native": run_exported("native"),
    "native bf16": run_exported("native", "bf16"),
    "native int8": run_exported("native", "int8"),
    "native, told anew": run_told_anew,
}
USUAL = tuple(name for name in RUNTIMES if name != "aotinductor")  # that one compiles for minutes
ROUNDED = ("native bf16", "native int8")
ANEW = "native, told anew"
APART = (*ROUNDED, ANEW)  # not compared with networks in float32, or that do less


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Seconds of one image: the median and the 95th percentile of many calls."""

    network: str
    runtime: str
    threads: int
    median: float
    p95: float
    calls: int


def measure(
    networks: Iterable[str],
    runtimes: Iterable[str],
    threads: Iterable[int],
    *,
    rounds: int,
    folder: Path,
    note: Callable[[str], None],
    batch: int = 1,
) -> list[Timing]:
    """Prepare everything, then measure in turns: each has some calls, then the next one, round after round.

    Exports that ``folder`` holds already are used again.
    """
    calls = {
        (network, runtime, count): call
        for network in networks
        for runtime, count, call in _prepare(network, runtimes, tuple(threads), folder, note, batch)
    }
    seconds: dict[tuple[str, str, int], list[float]] = {key: [] for key in calls}
    for _ in range(rounds):
        for key, call in calls.items():
            seconds[key] += _turn(call, key[2])
    return [
        Timing(
            network=network,
            runtime=runtime,
            threads=count,
            median=float(np.median(times)),
            p95=float(np.percentile(times, 95)),
            calls=len(times),
        )
        for (network, runtime, count), times in seconds.items()
        if times
    ]


def _turn(call: Call, threads: int) -> list[float]:
    torch.set_num_threads(threads)
    time.sleep(PAUSE)
    times = []
    for _ in range(WARM + TIMED):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return times[WARM:]


def _prepare(
    network: str,
    runtimes: Iterable[str],
    threads: tuple[int, ...],
    folder: Path,
    note: Callable[[str], None],
    batch: int,
) -> Iterator[tuple[str, int, Call]]:
    note(f"preparing {network}")
    place = folder / network
    place.mkdir(parents=True, exist_ok=True)
    net, images = _build(network)
    subject = Subject(net, images, place, torch.rand(len(images), 1) if _is_told(network) else None, batch)
    for runtime in runtimes:
        if (runtime in ROUNDED and NETWORKS[network][1] is None) or (runtime == ANEW and subject.told is None):
            continue
        try:
            for count in threads:
                yield runtime, count, RUNTIMES[runtime](subject, count)
        except (ImportError, Unavailable) as error:
            note(f"without {runtime}: {error}")


def _build(network: str) -> tuple[nn.Module, Tensor]:
    """A network with random weights and sane batch norms; how long it takes does not depend on what it knows."""
    torch.manual_seed(0)
    name, spec = NETWORKS[network]
    mobile = name == "mobilenetv2"
    net, images = (
        mobilenet() if mobile else sn.models.build(name),
        torch.randn(16, 3, *(96, 96) if mobile else (32, 32)),
    )
    with torch.no_grad():
        for _ in range(20):
            net(images)
    if spec is not None:
        told = _is_told(network)
        net = sn.convert(net, spec, example=None if told else images, spread=0.1)
        net = sn.condition(net) if told else net
    return net.eval(), images


def _is_told(network: str) -> bool:
    return NETWORKS[network][1] == TOLD


def mobilenet() -> nn.Module:
    """MobileNetV2 of half the width, as the transformers package has it."""
    transformers = import_module("transformers")
    config = transformers.MobileNetV2Config(depth_multiplier=0.5, image_size=96, num_labels=10, tf_padding=False)
    net: nn.Module = transformers.MobileNetV2ForImageClassification(config)
    for module in net.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            nn.init.kaiming_normal_(module.weight)
    return Logits(net)


class Logits(nn.Module):
    """A network of transformers that gives its logits alone."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, images: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, classes)."""
        logits: Tensor = self.net(images).logits
        return logits


def macs(network: str) -> int:
    """What a network's time would be if only multiply-accumulates took any."""
    net, images = _build(network)
    return sn.cost(net, (images[:1], torch.rand(1, 1)) if _is_told(network) else images[:1]).macs


def fastest(timings: Iterable[Timing], threads: int) -> dict[str, Timing]:
    """The best runtime of each network, all in float32."""
    best: dict[str, Timing] = {}
    for timing in timings:
        if timing.threads == threads and timing.runtime not in APART:
            best[timing.network] = min(timing, best.get(timing.network, timing), key=lambda t: t.median)
    return best


def compared(timings: Sequence[Timing], threads: int) -> dict[str, Timing]:
    """The best of each network by its name, and every one by "network in runtime"."""
    named = {f"{t.network} in {t.runtime}": t for t in timings if t.threads == threads}
    return {**named, **fastest(timings, threads)}


def quotients(timings: list[Timing]) -> list[tuple[str, int, float, str, str]]:
    """What is divided by what, threads, the quotient of medians, the target, and the runtimes: the best of each."""
    rows = []
    for threads in sorted({t.threads for t in timings}):
        best = compared(timings, threads)
        for (upper, lower), target in RATIOS.items():
            if upper in best and lower in best:
                runtimes = f"{best[upper].runtime} / {best[lower].runtime}"
                quotient = best[upper].median / best[lower].median
                rows.append((f"{upper} over {lower}", threads, quotient, target, runtimes))
    return rows


def in_milliseconds(timings: Iterable[Timing]) -> tuple[list[str], list[tuple[str, int, list[str]]]]:
    """Runtimes; and for each network and number of threads, the median and the 95th percentile in each of them."""
    found = {(t.network, t.threads, t.runtime): t for t in timings}
    runtimes = list(dict.fromkeys(runtime for _, _, runtime in found))
    rows = []
    for network, threads in dict.fromkeys((network, threads) for network, threads, _ in found):
        cells = [found.get((network, threads, runtime)) for runtime in runtimes]
        texts = [f"{t.median * 1e3:.2f} ({t.p95 * 1e3:.2f})" if t else "" for t in cells]
        rows.append((network, threads, texts))
    return runtimes, rows


def report(timings: list[Timing]) -> str:
    """Ratios first, then milliseconds."""
    ratios = [(name, str(n), f"{q:.2f}", target, best) for name, n, q, target, best in quotients(timings)]
    runtimes, rows = in_milliseconds(timings)
    body = [[network, str(threads), *texts] for network, threads, texts in rows]
    tables = [text_table(["one image, ms: median (95%)", "threads", *runtimes], body)]
    if ratios:
        tables.insert(0, text_table(["best runtime of each", "threads", "ratio", "target", "runtimes"], ratios))
    return "\n\n".join(tables)


@dataclass(frozen=True)
class Measured:
    """One run of the benchmark."""

    macs: dict[str, int]
    timings: list[Timing]
    processor: str = ""


def read(name: str) -> Measured:
    """Networks that were measured side by side."""
    content = json.loads((RESULTS / f"latency-{name}.json").read_bytes())
    timings = [Timing(**timing) for timing in content["timings"]]
    return Measured(content["macs"], timings, content["about"].get("processor", ""))


def met(quotient: float, target: str) -> str:
    """A target, and whether one thread reaches it."""
    if not target:
        return ""
    relation, bound = target.split()
    reached = quotient <= float(bound) if relation == "<=" else quotient >= float(bound)
    return f"{target}, {'met' if reached else 'missed'}"


def ratios(file: str = WITH_AVX512) -> str:
    """The best runtime of each network, one by the other, as a table."""
    measured = read(file)
    head = f"ratio of medians, {measured.processor}"
    lines = [f"| {head} | one thread | two threads | by MACs | target for one thread |", "|---|---|---|---|---|"]
    each = [compared(measured.timings, threads) for threads in (1, 2)]
    for (upper, lower), target in RATIOS.items():
        times = [best[upper].median / best[lower].median for best in each if upper in best and lower in best]
        if times:
            by_macs = measured.macs[upper.partition(" in ")[0]] / measured.macs[lower.partition(" in ")[0]]
            cells = [*(f"{ratio:.2f}" for ratio in times), *[""] * (2 - len(times)), f"{by_macs:.2f}"]
            lines.append(f"| {_spline(upper)} over {_spline(lower)} | {' | '.join(cells)} | {met(times[0], target)} |")
    return "\n".join(lines)


def throughput(file: str = BATCHES) -> str:
    """Images a second of a batch on two threads, as a table."""
    measured, (_, _, batch) = read(file), file.rpartition("batch")
    found = {f"{t.network} in {t.runtime}": int(batch) / t.median for t in measured.timings if t.threads == 2}
    plain = found["ResNet-32 in onnxruntime"]
    lines = [
        f"| batch {batch}, two threads, {measured.processor} | images a second | over the first |",
        "|---|---|---|",
    ]
    lines += [f"| {_spline(name)} | {speed:,.0f} | {speed / plain:.2f} |" for name, speed in found.items()]
    return "\n".join(lines)


def milliseconds(file: str = WITH_AVX512) -> str:
    """Every network in every runtime, as a table."""
    runtimes, rows = in_milliseconds(read(file).timings)
    lines = [f"| ms, median (95%) | {' | '.join(runtimes)} |", "|---" * (len(runtimes) + 1) + "|"]
    for network, threads, texts in rows:
        lines.append(f"| {network}, {threads} thread{'s' if threads > 1 else ''} | {' | '.join(texts)} |")
    return "\n".join(lines)


def _spline(network: str) -> str:
    return f"Spline-{network}" if " " in network.partition(" in ")[0] else network


def chosen_networks(patterns: Sequence[str]) -> list[str]:
    """Those that fit one of the patterns."""
    networks = [name for name in NETWORKS if any(fnmatchcase(name, pattern) for pattern in patterns)]
    if not networks:
        raise ValueError(f"no network fits {', '.join(patterns)}; there are {', '.join(NETWORKS)}")
    return networks


def result_file(networks: Iterable[str]) -> Path:
    """Where results of these networks are kept: a file for each kind, as only those are compared with each other."""
    kinds = {name.partition(" ")[0].partition("-")[0].lower() for name in networks}
    return RESULTS / ("latency.json" if len(kinds) > 1 else f"latency-{kinds.pop()}.json")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line; a wrong one ends with one sentence and exit code 2."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", action="append", help="pattern of names; may be given several times")
    parser.add_argument("--runtime", action="append", choices=RUNTIMES, help="default: all but aotinductor")
    parser.add_argument("--threads", action="append", type=int, help="default: 1 and 2")
    parser.add_argument("--batch", type=int, default=1, help="images at a time")
    parser.add_argument("--rounds", type=int, default=15, help="turns of ten calls that each has; 0 only prepares")
    parser.add_argument("--keep", type=Path, help="folder in which exports are kept and found again")
    parser.add_argument("--out", type=Path, help="file (default: in benchmarks/results of this clone)")
    options = parser.parse_args(arguments)
    options.threads = options.threads or [1, 2]
    for name, least in (("threads", min(options.threads)), ("batch", options.batch)):
        if least < 1:
            parser.error(f"{name} must be 1 or more, got {least}")
    try:
        options.networks = chosen_networks(options.network or ["*"])
    except ValueError as error:
        parser.error(str(error))
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print the tables and keep the numbers."""
    options = parse(arguments)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        timings = measure(
            options.networks,
            options.runtime or USUAL,
            options.threads,
            rounds=options.rounds,
            batch=options.batch,
            folder=options.keep or Path(folder),
            note=lambda text: print(text, file=sys.stderr, flush=True),
        )
    if not timings:
        return
    versions = {name: metadata.version(name) for name in PACKAGES if find_spec(name)}
    spent = round(time.perf_counter() - began, 1)
    command = " ".join(["python -m benchmarks.latency", *(sys.argv[1:] if arguments is None else arguments)])
    content = {
        "about": about(command, **versions, calls_a_turn=TIMED, seconds=spent),
        "macs": {name: macs(name) for name in options.networks},
        "timings": [asdict(timing) for timing in timings],
    }
    out = options.out or result_file(options.networks)
    write(out, content)
    print(report(timings))
    print(f"\nwritten to {out}", file=sys.stderr)


if __name__ == "__main__":
    main()
