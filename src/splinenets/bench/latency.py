"""The time of one image through the paper's networks, in every runtime there is."""

from __future__ import annotations

import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .. import models
from ..conversion import convert
from ..costs import cost
from ..exporting import export, load_export
from ..kernels import Unavailable
from ..tables import text_table

NETWORKS: dict[str, tuple[str, str | None]] = {
    "ResNet-32": ("resnet32", None),
    "ResNet-110": ("resnet110", None),
    **{
        f"ResNet-32 {spec}": ("resnet32", spec)
        for spec in ("D(5)-C-R4", "D(5)-C-R3", "D(5)-D-R4", "H(5)-D-R4", "D(5)-D-R3", "H(5)-D-R3")
    },
    **{f"LeNet-{width}": (f"lenet{width}", None) for width in (32, 64, 128)},
    **{f"LeNet-32 {kind}({k})-D-R3": ("lenet32", f"{kind}({k})-D-R3") for kind in "DH" for k in (2, 3, 4, 5)},
}
# what is divided by what, and what the quotient should be
RATIOS = {
    ("ResNet-32 D(5)-C-R4", "ResNet-32"): "<= 1.4",
    ("ResNet-32 D(5)-C-R3", "ResNet-32"): "<= 1.7",
    ("ResNet-110", "ResNet-32 D(5)-C-R4"): ">= 2.7",
    ("ResNet-110", "ResNet-32 H(5)-D-R4"): ">= 2",
    ("ResNet-110", "ResNet-32 D(5)-D-R3"): "",
    ("ResNet-110", "ResNet-32 H(5)-D-R3"): "",
    ("LeNet-128", "LeNet-32 D(2)-D-R3"): ">= 8",
    ("LeNet-128", "LeNet-32 H(2)-D-R3"): "",
}
PACKAGES = ("torch", "numpy", "onnxruntime", "openvino")
PAUSE = 0.02  # seconds in which the threads of the runtime before fall asleep
WARM, TIMED = 3, 10  # calls in a turn

Call = Callable[[], Any]
Maker = Callable[["Subject", int], Call]


@dataclass(frozen=True)
class Subject:
    """A network to measure, and where its exports may be written."""

    net: nn.Module
    images: Tensor
    folder: Path

    @property
    def image(self) -> Tensor:
        """The one image."""
        return self.images[:1].clone()

    def file(self, to: str, knots: str = "float32") -> Path:
        """An export, written when it is first asked for."""
        path = self.folder / f"{knots}.{to}"
        if not path.exists():
            export(self.net, self.images, path, to=to, knots=knots)
        return path


def run_eager(subject: Subject, threads: int) -> Call:
    """Torch, operation by operation."""

    def call() -> Tensor:
        with torch.inference_mode():
            return subject.net(image)

    image = subject.image
    return call


def run_exported(to: str, knots: str = "float32") -> Maker:
    """Our own export."""

    def make(subject: Subject, threads: int) -> Call:
        exported, image = load_export(subject.file(to, knots), threads=threads), subject.image
        return lambda: exported.forward(image)

    return make


def run_openvino(subject: Subject, threads: int) -> Call:
    """The ONNX export in OpenVINO, in float32 like all others."""
    core = import_module("openvino").Core()
    options = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    request = core.compile_model(str(subject.file("onnx")), "CPU", options).create_infer_request()
    image = subject.image.numpy()
    return lambda: request.infer({0: image})


def run_inductor(subject: Subject, threads: int) -> Call:
    """The pt2 export, compiled by AOTInductor: a minute or more for a network."""
    from torch._inductor import aoti_compile_and_package, aoti_load_package

    torch.set_num_threads(threads)
    path = subject.folder / "compiled.pt2"
    if not path.exists():
        aoti_compile_and_package(torch.export.load(subject.file("pt2")), package_path=str(path))
    compiled, image = aoti_load_package(str(path)), subject.image

    def call() -> Tensor:
        with torch.inference_mode():
            return compiled(image)

    return call


RUNTIMES: dict[str, Maker] = {
    "torch": run_eager,
    "onnxruntime": run_exported("onnx"),
    "openvino": run_openvino,
    "aotinductor": run_inductor,
    "native": run_exported("native"),
    "native bf16": run_exported("native", "bf16"),
    "native int8": run_exported("native", "int8"),
}
USUAL = tuple(name for name in RUNTIMES if name != "aotinductor")  # that one compiles for minutes
ROUNDED = ("native bf16", "native int8")  # not compared with networks in float32


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
) -> list[Timing]:
    """Prepare everything, then measure in turns: each has some calls, then the next one, round after round.

    Exports that ``folder`` holds already are used again.
    """
    calls = {
        (network, runtime, count): call
        for network in networks
        for runtime, count, call in _prepare(network, runtimes, tuple(threads), folder, note)
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
    network: str, runtimes: Iterable[str], threads: tuple[int, ...], folder: Path, note: Callable[[str], None]
) -> Iterator[tuple[str, int, Call]]:
    note(f"preparing {network}")
    place = folder / network
    place.mkdir(parents=True, exist_ok=True)
    subject = Subject(*_build(network), place)
    for runtime in runtimes:
        if runtime in ROUNDED and NETWORKS[network][1] is None:
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
    net, images = models.build(name), torch.randn(16, 3, 32, 32)
    with torch.no_grad():
        for _ in range(20):
            net(images)
    return (net if spec is None else convert(net, spec, example=images, spread=0.1)).eval(), images


def macs(network: str) -> int:
    """What a network's time would be if only multiply-accumulates took any."""
    net, images = _build(network)
    return cost(net, images[:1]).macs


def fastest(timings: Iterable[Timing], threads: int) -> dict[str, Timing]:
    """The best runtime of each network, all in float32."""
    best: dict[str, Timing] = {}
    for timing in timings:
        if timing.threads == threads and timing.runtime not in ROUNDED:
            best[timing.network] = min(timing, best.get(timing.network, timing), key=lambda t: t.median)
    return best


def quotients(timings: list[Timing]) -> list[tuple[str, int, float, str, str]]:
    """What is divided by what, threads, the quotient of medians, the target, and the runtimes: the best of each."""
    rows = []
    for threads in sorted({t.threads for t in timings}):
        best = fastest(timings, threads)
        for (upper, lower), target in RATIOS.items():
            if upper in best and lower in best:
                runtimes = f"{best[upper].runtime} / {best[lower].runtime}"
                quotient = best[upper].median / best[lower].median
                rows.append((f"{upper} over {lower}", threads, quotient, target, runtimes))
    return rows


def report(timings: list[Timing]) -> str:
    """Ratios first, then milliseconds."""
    ratios = [(name, str(n), f"{q:.2f}", target, best) for name, n, q, target, best in quotients(timings)]
    runtimes = list(dict.fromkeys(t.runtime for t in timings))
    found = {(t.network, t.threads, t.runtime): t for t in timings}
    body = []
    for network, threads in dict.fromkeys((t.network, t.threads) for t in timings):
        cells = [found.get((network, threads, runtime)) for runtime in runtimes]
        texts = [f"{t.median * 1e3:.2f} ({t.p95 * 1e3:.2f})" if t else "-" for t in cells]
        body.append([network, str(threads), *texts])
    tables = [text_table(["one image, ms: median (95%)", "threads", *runtimes], body)]
    if ratios:
        tables.insert(0, text_table(["best runtime of each", "threads", "ratio", "target", "runtimes"], ratios))
    return "\n\n".join(tables)


def about(seconds: float) -> dict[str, Any]:
    """What a result must carry to be repeated."""
    return {
        "command": " ".join(["splinenets", *sys.argv[1:]]),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "processor": _processor(),
        **{name: metadata.version(name) for name in PACKAGES if find_spec(name)},
        "calls a turn": TIMED,
        "seconds": round(seconds, 1),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor()
    )
