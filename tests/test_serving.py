"""A network behind HTTP: its answers, its batches, and what it refuses."""

import base64
import http.client
import io
import json
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import torch
from PIL import Image
from tests.helpers.commands import call

import splinenets as sn
from splinenets import web
from splinenets.exporting import Exported
from splinenets.serving import Server
from splinenets.serving import server as serving_server

PREPARATION = {"kind": "normalise", "mean": [0.5], "std": [0.25]}
ANGLE = {"angle": {"low": 0, "high": 360, "size": 1}}
METADATA = {"purpose": "throughput", "input": [1, 8, 8], "preparation": PREPARATION, "classes": ["a", "b", "c"]}


def linear(images, *conditions):
    """A network: three weighted sums of an image, and what it was told."""
    weight = torch.linspace(-1, 1, 3 * 64).view(3, 64)
    return images.flatten(1) @ weight.T + sum(conditions, torch.zeros(1))


@contextmanager
def serving(forward=linear, **metadata):
    with Server(Exported({**METADATA, **metadata}, forward), "net.onnx") as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def picture(seed, size=(8, 8), kind="PNG"):
    pixels = torch.randint(256, size, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels.numpy()).save(file, kind)
    return file.getvalue(), pixels


def ask(server, path, body=None, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request("GET" if body is None else "POST", path, body, given)
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response.status, json.loads(content) if "json" in response.headers["Content-Type"] else content.decode()


def chances(*seeds, told=0.0):
    images = torch.stack([picture(seed)[1] for seed in seeds]).unsqueeze(1)
    return (linear(sn.data.prepare(images, PREPARATION)) + told).softmax(1)


def assert_answers(answers, expected):
    assert len(answers) == len(expected)
    for answer, row in zip(answers, expected, strict=True):
        assert list(answer["chances"]) == ["a", "b", "c"]
        assert list(answer["chances"].values()) == pytest.approx(row.tolist(), abs=1e-5)
        assert answer["number"] == int(row.argmax())
        assert answer["class"] == "abc"[answer["number"]]


def several(*seeds, **more):
    return json.dumps({"images": [base64.b64encode(picture(s)[0]).decode() for s in seeds], **more})


def test_answers_are_the_networks():
    with serving() as server:
        status, answer = ask(server, "/classify", picture(3)[0])
        assert status == 200
        assert_answers(answer["answers"], chances(3))
        status, answer = ask(server, "/classify", several(1, 2, 3), Content_Type="application/json")
        assert status == 200
        assert_answers(answer["answers"], chances(1, 2, 3))
        status, answer = ask(server, "/classify", picture(3, size=(30, 20), kind="JPEG")[0])
        assert status == 200  # scaled and cut
        assert ask(server, "/")[1] == {
            "file": "net.onnx", "classes": ["a", "b", "c"], "input": [1, 8, 8], "conditions": {}
        }  # fmt: skip


def test_conditions():
    def told(images, angle):
        return linear(images) + torch.cat([angle / 100, angle * 0, angle * 0], 1)

    turned = torch.tensor([0.9, 0, 0])
    with serving(told, conditions=ANGLE) as server:
        assert ask(server, "/")[1]["conditions"] == ANGLE
        assert_answers(ask(server, "/classify?angle=90", picture(3)[0])[1]["answers"], chances(3, told=turned))
        both = ask(server, "/classify?angle=90", several(1, 2), Content_Type="application/json")[1]["answers"]
        assert_answers(both, chances(1, 2, told=turned))
        each = several(1, 2, conditions={"angle": [90, 0]})
        one, other = ask(server, "/classify", each, Content_Type="application/json")[1]["answers"]
        assert_answers([one], chances(1, told=turned))
        assert_answers([other], chances(2))
        for query, complaint in (
            ("", "the condition 'angle' is missing"),
            ("?angle=361", "lies between 0 and 360, got 361"),
            ("?angle=north", "conditions are numbers such as ?angle=30, got 'angle=north'"),
            ("?angle=nan", "conditions are numbers"),
            ("?angle=", "conditions are numbers"),
            ("?angle=1,2", "has shape (1,) for this batch, got (1, 2)"),
            ("?angel=1", "unknown condition 'angel', choose from angle"),
        ):
            status, answer = ask(server, f"/classify{query}", picture(3)[0])
            assert status == 400
            assert complaint in answer["error"]
    with serving() as server:
        status, answer = ask(server, "/classify?angle=3", picture(3)[0])
        assert (status, answer["error"]) == (400, "unknown condition 'angle', this network takes images alone")


def test_what_comes_while_the_network_is_busy_is_one_batch():
    busy, free, sizes = threading.Event(), threading.Event(), []

    def slow(images):
        sizes.append(len(images))
        busy.set()
        assert free.wait(60)
        return linear(images)

    with serving(slow) as server, ThreadPoolExecutor(9) as pool:
        first = pool.submit(ask, server, "/classify", picture(0)[0])
        assert busy.wait(60)
        others = [pool.submit(ask, server, "/classify", picture(seed)[0]) for seed in range(1, 9)]
        with server.batcher.changed:
            assert server.batcher.changed.wait_for(lambda: server.batcher.queued == 8, 60)
        free.set()
        for seed, answer in enumerate([first, *others]):
            assert_answers(answer.result()[1]["answers"], chances(seed))
    assert sizes == [1, 8]


def test_a_full_queue_and_a_network_that_fails():
    def failing(images):
        raise RuntimeError("out of order\nand more")

    with serving(failing) as server:
        assert ask(server, "/classify", picture(0)[0]) == (500, {"error": "the network failed: out of order"})
        server.batcher.waiting = 2
        status, answer = ask(server, "/classify", several(1, 2, 3), Content_Type="application/json")
        assert (status, answer["error"]) == (503, "0 images are waiting already: try again later")
        assert ask(server, "/health")[0] == 200


def test_health_and_metrics():
    with serving() as server:
        assert ask(server, "/health")[1]["status"] == "ok"
        ask(server, "/classify", several(1, 2, 3), Content_Type="application/json")
        ask(server, "/classify", b"no picture")
        ask(server, "/nowhere")
        status, text = ask(server, "/metrics")
    assert status == 200
    numbers = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert numbers['splinenets_requests_total{status="200"}'] == "2"
    assert numbers['splinenets_requests_total{status="400"}'] == "1"
    assert numbers['splinenets_requests_total{status="404"}'] == "1"
    assert numbers["splinenets_images_total"] == "3"
    assert numbers["splinenets_batches_total"] == "1"
    assert numbers["splinenets_waiting_images"] == "0"
    assert numbers['splinenets_answer_seconds_bucket{le="+Inf"}'] == numbers["splinenets_answer_seconds_count"] == "1"


BOMB = "[" * 100_000


@pytest.mark.parametrize(
    ("body", "headers", "status", "complaint"),
    ids=range(15),
    argvalues=[
        (b"", {}, 400, "send an image"),
        (b"\x89PNG\r\n\x1a\n" + bytes(50), {}, 400, "send an image"),
        (b"no JSON", {"Content_Type": "application/json"}, 400, "Expecting value"),
        (b"\xff", {"Content_Type": "application/json"}, 400, "decode"),
        (b"[1]", {"Content_Type": "application/json"}, 400, 'send {"images"'),
        (b'{"images": 3}', {"Content_Type": "application/json"}, 400, 'send {"images"'),
        (b'{"images": []}', {"Content_Type": "application/json"}, 400, "a request has 1 to 64 images, got 0"),
        (b'{"images": ["***"]}', {"Content_Type": "application/json"}, 400, "not base64"),
        (b'{"images": ["AAAA"], "conditions": {"a": [NaN]}}', {"Content_Type": "application/json"}, 400, "NaN"),
        (b'{"images": ["AAAA"], "conditions": {"a": ["b"]}}', {"Content_Type": "application/json"}, 400, ""),
        (BOMB, {"Content_Type": "application/json"}, 400, "nested too deeply"),
        (bytes(100), {"Content_Length": "99999999999"}, 413, "at most"),
        (bytes(100), {"Content_Length": "many"}, 411, "how long"),
        (bytes(100), {"Host": "elsewhere.example"}, 403, "its own page only"),
        (bytes(100), {"Origin": "http://elsewhere.example"}, 403, "its own page only"),
    ],
)
def test_bad_requests(body, headers, status, complaint, monkeypatch):
    monkeypatch.setattr(serving_server.Handler, "largest", 200_000)
    with serving() as server:
        found = ask(server, "/classify", body, **headers)
        assert found[0] == status
        assert complaint in found[1]["error"]
        assert "\n" not in found[1]["error"]
        assert ask(server, "/classify", picture(0)[0])[0] == 200


HEAD = b"POST /classify HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"


@pytest.mark.parametrize("sent", [b"", HEAD[:20], HEAD + b"half"], ids=["nothing", "half a head", "half a body"])
def test_slow_callers_are_let_go(sent, monkeypatch):
    monkeypatch.setattr(web.Handler, "timeout", 0.2)
    with serving() as server, socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as caller:
        caller.sendall(sent)
        assert caller.recv(1) == b""


def test_more_callers_than_there_is_room_for(monkeypatch):
    monkeypatch.setattr(web.Server, "connections", 1)
    with serving() as server, socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as first:
        first.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert first.recv(12) == b"HTTP/1.1 200"
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as second:
            assert second.recv(1) == b""


def test_files_that_cannot_be_served(tmp_path):
    with pytest.raises(ValueError, match="does not say how pictures become what the network sees"):
        Server(Exported({"purpose": "latency", "input": [1, 8, 8]}, linear), "net.onnx")
    (tmp_path / "net.onnx").write_bytes(b"something else")
    code, _, err = call("serve", tmp_path / "net.onnx")
    assert code == 2
    assert "is damaged or not an export" in err
    for missing in ("gone.onnx", "gone.native"):
        code, _, err = call("serve", tmp_path / missing)
        assert (code, err) == (2, f"splinenets: there is no file {tmp_path / missing}\n")
    with serving() as server, pytest.raises(ValueError, match=r"port \d+ cannot be used .* choose another with --port"):
        Server(Exported(METADATA, linear), "net.onnx", port=server.server_port)
