"""Server and pages: whoever asks, and however, the explorer answers its own page alone and writes nothing."""

from __future__ import annotations

import http.client
import io
import json
import random
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy
import torch
from hypothesis import strategies as st
from PIL import Image
from tests.helpers import subjects

import splinenets as sn
from campaign.damage import DAMAGES
from campaign.harness import Kind, Trial
from splinenets.analysis.explorer import Explorer
from splinenets.analysis.server import HEADERS, LARGEST, Server
from splinenets.data import load
from splinenets.web import OWN_NAMES

TITLE = "server and pages"
CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate")
SIZE = 28


def prepare(shared: Path) -> None:
    """Nothing is needed."""


def explorer() -> Explorer:
    """A small network and a few images."""
    task = subjects.task_of(load("embedded").test.images[:60])
    net = sn.convert(sn.models.lenet(2), "H(4)-D-R3", example=task.example(), spread=1.0).eval()
    return Explorer(net, task, name="small", model="H(4)-D-R3")


@contextmanager
def serving() -> Iterator[Server]:
    """A server in a thread; whatever opens a file for writing, or changes a folder, is an error at the end."""
    written: list[object] = []

    def audit(event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+"):
            written.append(args[:2])
        if event in CHANGES:
            written.append((event, *args))

    with Server(explorer()) as server:
        sys.addaudithook(audit)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
    assert not written, f"written: {written[:3]}"


def ask(server: Server, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, bytes]:
    """Status and content of an answer, which has the headers that keep a page to itself."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=20)
    try:
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        content = response.read()
    finally:
        connection.close()
    if response.status != http.client.NOT_IMPLEMENTED:  # which Python's own server says of other methods
        assert {name: response.headers[name] for name in HEADERS} == HEADERS
    return response.status, content


# Who asks


hosts = st.sampled_from(
    [
        "127.0.0.1",
        "localhost",
        "127.0.0.1:{port}",
        "localhost:{port}",
        "evil.example",
        "127.0.0.1.evil.example",
        "",
        "[::1]",
        "0.0.0.0",
        "LOCALHOST",
        "localhost.",
        "127.1",
        "evil.example:{port}",
        "localhost@evil.example",
    ]
)
origins = st.sampled_from(
    [
        None,
        "http://127.0.0.1:{port}",
        "http://localhost:{port}",
        "null",
        "http://evil.example",
        "file://",
        "",
        "https://127.0.0.1:{port}",
        "http://127.0.0.1:1",
        "http://localhost.evil.example:{port}",
        "http://127.0.0.1",
    ]
)
sites = st.sampled_from([None, "none", "same-origin", "same-site", "cross-site", "x"])
paths = st.sampled_from(
    ["/", "/state", "/images/test/0.png", "/images/train/59.png", "/answer", "/upload", "/turning", "/draw.js"]
)
strange = st.sampled_from(
    [
        "/../pyproject.toml",
        "/%2e%2e/run.json",
        "//etc/passwd",
        "/images/test/60.png",
        "/images/test/-1.png",
        "/" * 99,
        "/images/test/999999999.png",
        "/images/x/1.png",
        "/state/",
        "/STATE",
        "/?/state",
        "*",
        "/explore.html",
    ]
) | st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=30).map("/{}".format)
asking = st.tuples(st.sampled_from(["GET", "POST"]), st.one_of(paths, strange), hosts, origins, sites)


def strangers(trial: Trial) -> None:
    """Requests are served if host, origin and site are the page's own, and refused otherwise."""
    with serving() as server:
        for method, path, host, origin, site in trial.case:
            headers = {"Host": host, "Origin": origin, "Sec-Fetch-Site": site}
            given = {k: v.replace("{port}", str(server.server_port)) for k, v in headers.items() if v is not None}
            status, _ = ask(server, method, path, b"{}" if method == "POST" else None, given)
            own = is_own(given)
            assert status in ((200, 400, 404) if own else (403,)), f"{status} for {method} {path} {given}"


def is_own(headers: dict[str, str]) -> bool:
    """Whether the page itself would ask so."""
    host = headers["Host"]
    allowed = host.partition(":")[0] in OWN_NAMES and headers.get("Origin", f"http://{host}") == f"http://{host}"
    return allowed and headers.get("Sec-Fetch-Site", "none") in ("none", "same-origin")


# What is asked


scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5))
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner)
)
layers = st.sampled_from(["conv1", "conv2", "dense1", "dense2", "x", ""])
questions = st.fixed_dictionaries(
    {},
    optional={
        "image": st.fixed_dictionaries({"test": st.integers(-5, 70) | scalars}) | anything,
        "chosen": st.dictionaries(layers, st.lists(st.floats(0, 1) | scalars, max_size=6), max_size=2) | anything,
        "look": layers | anything,
        "spline": st.integers(-2, 6) | anything,
    },
)
bodies = st.one_of(questions.map(lambda value: json.dumps(value).encode()), st.binary(max_size=60))


def broken_bodies(trial: Trial) -> None:
    """A question is answered or refused in words; the next one is answered as if nothing had been."""
    with serving() as server:
        right = json.dumps({"image": {"test": 0}, "chosen": {}, "look": "dense1", "spline": 0}).encode()
        _, first = ask(server, "POST", "/answer", right, {})
        for body in trial.case:
            status, content = ask(server, "POST", "/answer", body, {})
            assert status in (200, 400), f"{status} for {body!r}"
            assert status == 200 or json.loads(content)["error"]
        _, last = ask(server, "POST", "/answer", right, {})
        assert json.loads(first)["chances"] == json.loads(last)["chances"]


def uploads(trial: Trial) -> None:
    """Damaged pictures, and files that are none."""
    with serving() as server:
        for _ in range(10):
            content = picture(trial.dice)
            status, answer = ask(server, "POST", "/upload", trial.dice.choice(DAMAGES)(content, trial.dice), {})
            assert status in (200, 400), status
            assert json.loads(answer).keys() <= {"pixels", "unlike", "error"}


def picture(dice: random.Random) -> bytes:
    """A small picture of some kind."""
    content = io.BytesIO()
    noise = torch.randint(0, 256, (dice.randrange(1, 40), dice.randrange(1, 40), 3), dtype=torch.uint8)
    Image.fromarray(numpy.asarray(noise)).save(content, dice.choice(("PNG", "JPEG", "GIF", "BMP", "WEBP")))
    return content.getvalue()


# How it is asked


def raw_requests(trial: Trial) -> None:
    """Bytes that are no HTTP, lengths that are none, heads that never end: the server goes on serving."""
    with serving() as server:
        for content in trial.case:
            with socket.create_connection(("127.0.0.1", server.server_port), timeout=20) as connection:
                connection.sendall(content)
                connection.shutdown(socket.SHUT_WR)
                read_all(connection)
        assert ask(server, "GET", "/state", None, {})[0] == 200


def read_all(connection: socket.socket) -> bytes:
    """Everything until the other side hangs up."""
    parts = []
    try:
        while part := connection.recv(65536):
            parts.append(part)
    except ConnectionError:
        pass
    return b"".join(parts)


HEAD = b"POST /upload HTTP/1.1\r\nHost: localhost\r\n"
raw = st.one_of(
    st.binary(max_size=200),
    st.sampled_from(
        [b"Content-Length: -5", b"Content-Length: many", b"Transfer-Encoding: chunked", b"X: " + b"y" * 9999]
    ).map(lambda line: HEAD + line + b"\r\n\r\n"),
    st.sampled_from([LARGEST + 1, 10**30, 5]).map(lambda size: HEAD + b"Content-Length: %d\r\n\r\nshort" % size),
    st.sampled_from([b"GET / HTTP/9.9\r\n\r\n", b"GET /", b"\r\n" * 50, b"GET  HTTP/1.1\r\n\r\n", b"X: y\r\n" * 300]),
)


def slow_clients(trial: Trial) -> None:
    """While some send a byte now and then or nothing at all, others are served."""
    with serving() as server:
        lazy = [socket.create_connection(("127.0.0.1", server.server_port)) for _ in range(trial.dice.randrange(1, 30))]
        try:
            for connection in lazy:
                connection.sendall(HEAD[: trial.dice.randrange(len(HEAD))])
            for _ in range(5):
                assert ask(server, "GET", "/state", None, {})[0] == 200
        finally:
            for connection in lazy:
                connection.close()


def crowd(trial: Trial) -> None:
    """Many at once, each with positions of its own: everybody gets the answer that one alone would get."""
    with serving() as server:
        asked = [question(trial.dice) for _ in range(6)]
        expected = [chances(server, each) for each in asked]
        found: dict[int, list[Any]] = {}
        threads = [threading.Thread(target=repeat(server, asked[n], found, n)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [found.get(n) for n in range(6)] == [[each] * 3 for each in expected]


def question(dice: random.Random) -> bytes:
    """A question that makes sense."""
    chosen = {"dense1": [dice.random()]} if dice.random() < 0.5 else {}
    return json.dumps({"image": {"test": dice.randrange(60)}, "chosen": chosen, "look": "dense1", "spline": 0}).encode()


def chances(server: Server, body: bytes) -> Any:
    """The answer to a question."""
    status, content = ask(server, "POST", "/answer", body, {})
    assert status == 200
    return json.loads(content)["chances"]


def repeat(server: Server, body: bytes, found: dict[int, list[Any]], number: int) -> Callable[[], None]:
    """Ask three times, in a thread."""
    return lambda: found.update({number: [chances(server, body) for _ in range(3)]})


def loopback_only(trial: Trial) -> None:
    """The port listens on 127.0.0.1 and nowhere else, by what the kernel says."""
    with serving() as server:
        port = f":{server.server_port:04X}"
        lines = [
            line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()
        ]
        listening = [line[1] for line in lines if line[1].endswith(port) and line[3] == "0A"]
        assert listening == [f"0100007F{port}"]


KINDS = {
    "hosts and origins": Kind(run=strangers, trials=300, cases=st.lists(asking, min_size=5, max_size=15)),
    "questions": Kind(run=broken_bodies, trials=300, cases=st.lists(bodies, min_size=5, max_size=15)),
    "uploads": Kind(run=uploads, trials=100),
    "bytes that are no HTTP": Kind(run=raw_requests, trials=200, cases=st.lists(raw, min_size=1, max_size=8)),
    "slow clients": Kind(run=slow_clients, trials=50),
    "many at once": Kind(run=crowd, trials=50),
    "loopback only": Kind(run=loopback_only, trials=5),
}
