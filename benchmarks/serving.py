"""``splinenets serve`` under load: several callers at once, each with one picture after another.

python -m benchmarks.serving [--clients 8] [--seconds 60]

The network that ships for Fashion-MNIST, for throughput, in our runtime and in ONNX Runtime: each is served by a
process of its own, one after the other. Leaves benchmarks/results/serving.json.
"""

from __future__ import annotations

import argparse
import http.client
import io
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
from PIL import Image

import splinenets as sn
from benchmarks.timing import RESULTS, about, markdown, write

NETWORK = "fashion-mnist/D(5)-D-R3"
FILE = RESULTS / "serving.json"
FORMATS = ("native", "onnx")
COLUMNS = ("median", "p95", "p99", "max")


def exported(folder: Path, to: str) -> Path:
    """The network as a file."""
    net: Any = sn.pretrained(NETWORK)
    pixels = sn.data.load("embedded").test.images[:100]
    preparation = {"kind": "normalise", **{name: net.card[name] for name in ("mean", "std")}}
    metadata = {"classes": list(net.classes), "preparation": preparation}
    sn.export(net, net.prepare(pixels), folder / f"net.{to}", purpose="throughput", metadata=metadata)
    return folder / f"net.{to}"


@contextmanager
def served(file: Path) -> Iterator[tuple[str, int]]:
    """The address of a server in a process of its own."""
    command = [sys.executable, "-m", "splinenets", "serve", str(file), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = urlsplit(process.stdout.readline().split()[0])
        try:
            yield str(address.hostname), int(address.port or 0)
        finally:
            process.terminate()


def pictures(shape: Sequence[int], count: int = 16) -> list[bytes]:
    """Noise as PNG files of this size."""
    random, found = np.random.default_rng(0), []
    for _ in range(count):
        pixels = random.integers(256, size=(*shape[1:], shape[0]), dtype=np.uint8).squeeze()
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
        found.append(file.getvalue())
    return found


def call(host: str, port: int, until: float, bodies: list[bytes], seconds: list[float], errors: list[str]) -> None:
    """One caller: the next picture as soon as the last is answered."""
    connection = http.client.HTTPConnection(host, port, timeout=30)
    number = 0
    while (began := time.perf_counter()) < until:
        try:
            connection.request("POST", "/classify", bodies[number % len(bodies)])
            response = connection.getresponse()
            answer = response.read()
            if response.status != 200:
                errors.append(answer.decode())
        except (OSError, http.client.HTTPException) as error:
            errors.append(repr(error))
            connection.close()
        seconds.append(time.perf_counter() - began)
        number += 1
    connection.close()


def ask(host: str, port: int, path: str) -> Any:
    """What a GET is answered with."""
    connection = http.client.HTTPConnection(host, port, timeout=30)
    connection.request("GET", path)
    return json.loads(connection.getresponse().read())


def measure(file: Path, clients: int, duration: float) -> dict[str, Any]:
    """One file under load."""
    with served(file) as (host, port):
        bodies = pictures(ask(host, port, "/")["input"])
        call(host, port, time.perf_counter() + min(2, duration), bodies, [], [])  # warm
        seconds: list[float] = []
        errors: list[str] = []
        until = time.perf_counter() + duration
        threads = [
            threading.Thread(target=call, args=(host, port, until, bodies, seconds, errors)) for _ in range(clients)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return summary(file.name, seconds, errors, duration)


def summary(name: str, seconds: Sequence[float], errors: Sequence[str], duration: float) -> dict[str, Any]:
    """Milliseconds of an answer, and how many there were."""
    values = (*np.percentile(seconds, (50, 95, 99)), max(seconds))
    times = {column: round(float(value) * 1e3, 2) for column, value in zip(COLUMNS, values, strict=True)}
    return {
        "file": name,
        "requests": len(seconds),
        "a_second": round(len(seconds) / duration, 1),
        "errors": len(errors),
        "milliseconds": times,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print a table, and keep the numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--out", type=Path, default=FILE)
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        files = [exported(Path(folder), to) for to in FORMATS]
        rows = [measure(file, chosen.clients, chosen.seconds) for file in files]
    command = f"python -m benchmarks.serving --clients {chosen.clients} --seconds {chosen.seconds:g}"
    write(chosen.out, {"about": about(command, network=NETWORK), "rows": rows})
    print(table(chosen.out))


def table(file: Path = FILE) -> str:
    """What a run left, for a page of the docs."""
    head = ["file", "answers", "a second", "errors", *(f"{column}, ms" for column in COLUMNS), "p99 over median"]
    return markdown(head, [_cells(row) for row in json.loads(file.read_bytes())["rows"]])


def _cells(row: dict[str, Any]) -> list[str]:
    times = [str(value) for value in row["milliseconds"].values()]
    ratio = row["milliseconds"]["p99"] / row["milliseconds"]["median"]
    return [row["file"], f"{row['requests']:,}", str(row["a_second"]), str(row["errors"]), *times, f"{ratio:.1f}"]


if __name__ == "__main__":
    main()
