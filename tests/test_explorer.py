"""The explorer: its answers, whom it serves, and what it refuses."""

import base64
import http.client
import io
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import zlib
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace

import numpy
import pytest
import torch
from PIL import Image
from tests.helpers import subjects
from tests.helpers.commands import refused
from tests.helpers.subjects import HOSTILE

import splinenets as sn
from splinenets.analysis.explorer import Explorer
from splinenets.analysis.server import LARGEST, Server
from splinenets.data import augmentation


@contextmanager
def serving(explorer):
    with Server(explorer) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def explorer(static_and_spline):
    return Explorer.of_run(static_and_spline[1])


@pytest.fixture(scope="module")
def server(explorer):
    with serving(explorer) as server:
        yield server


def ask(server, path, body=None, **headers):
    """Status, and the answer: JSON as a value, everything else as bytes."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=120)
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request("GET" if body is None else "POST", path, body, given)
    response = connection.getresponse()
    content = response.read()
    connection.close()
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert "default-src 'none'" in response.headers["Content-Security-Policy"]
    return response.status, json.loads(content) if "json" in response.headers["Content-Type"] else content


def question(**changes):
    return json.dumps({"image": {"test": 0}, "chosen": {}, "look": "conv2"} | changes)


def file(pixels, kind="PNG"):
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, kind)
    return content.getvalue()


def test_an_answer_is_the_networks(explorer, server):
    status, answer = ask(server, "/answer", question())
    assert status == 200
    image = explorer.task.augment.evaluate(explorer.task.data.test.images[:1])
    with torch.no_grad():
        logits, positions = sn.trace(explorer.net, image)
    torch.testing.assert_close(torch.tensor(answer["chances"]), logits[0].softmax(0), rtol=0, atol=1e-5)
    for name, position in positions.items():
        torch.testing.assert_close(torch.tensor(answer["positions"][name]), position[0], rtol=0, atol=1e-5)
    assert answer["own"] == answer["positions"]
    assert len(answer["neighbours"]) == 8
    distances = [near["distance"] for near in answer["neighbours"]]
    assert distances == sorted(distances)
    assert len(answer["filters"]) == 6
    assert all(-100 <= v <= 100 for picture in answer["filters"] for v in picture["values"])


def test_the_nearest_neighbour_of_a_training_image_is_itself(explorer):
    answer = explorer.answer(explorer.train.images[7], {}, "conv2")
    assert answer["neighbours"][0]["index"] == 7
    assert answer["neighbours"][0]["distance"] < 1e-4


def test_positions_chosen_by_hand(server):
    _, free = ask(server, "/answer", question())
    status, steered = ask(server, "/answer", question(chosen={"conv2": [1.0, None, None, None, None, 0]}))
    assert status == 200
    assert steered["positions"]["conv2"] == [1.0, *free["positions"]["conv2"][1:5], 0.0]
    assert steered["own"] == free["own"]
    assert steered["own_chances"] == free["chances"]
    assert steered["chances"] != free["chances"]
    assert ask(server, "/answer", question())[1]["chances"] == free["chances"]  # the next one is free again


def test_what_lies_along_a_spline_and_what_the_image_gets_of_it(explorer, server):
    """The picture at a dot is the one of the strip where the dot is."""
    status, strip = ask(server, "/strip", json.dumps({"layer": "conv2", "spline": 4}))
    assert status == 200
    assert len(strip) == 9
    assert strip != ask(server, "/strip", json.dumps({"layer": "conv2", "spline": 3}))[1]
    for place in (0, 2, 8):
        asked = question(chosen={"conv2": [place / 8] * 6}, picked={"conv2": 4})
        answer = ask(server, "/answer", asked)[1]
        assert answer["fronts"]["conv2"] == strip[place]
        assert answer["filters"][0]["values"] == strip[place]["values"]
    first = explorer.describe()["layers"][0]
    assert first["strip"] == ask(server, "/strip", json.dumps({"layer": "conv2", "spline": first["first"]}))[1]
    for wrong in ({"layer": "conv9", "spline": 0}, {"layer": "conv2", "spline": 6}, {"layer": "conv2"}, []):
        status, answer = ask(server, "/strip", json.dumps(wrong))
        assert status == 400
        assert answer["error"]


def test_why_two_images_part(server):
    """What a layer alone would change is what steering that layer alone changes."""
    asked = {"image": {"test": 0}, "other": {"test": 5}}
    status, layers = ask(server, "/parting", json.dumps(asked))
    assert status == 200
    assert [layer["name"] for layer in layers] == ["conv2", "dense1", "dense2"]
    mine, theirs = (ask(server, "/answer", question(image={"test": n}))[1] for n in (0, 5))
    for layer in layers:
        name = layer["name"]
        apart = [abs(a - b) for a, b in zip(mine["own"][name], theirs["own"][name], strict=True)]
        assert layer["apart"] == pytest.approx(sum(apart) / len(apart), abs=1e-3)
        alone = ask(server, "/answer", question(chosen={name: theirs["own"][name]}))[1]
        assert layer["chances"] == pytest.approx(alone["chances"], abs=1e-3)
    same = ask(server, "/parting", json.dumps(asked | {"other": {"test": 0}}))[1]
    assert {layer["apart"] for layer in same} == {0}
    for wrong in ({"image": {"test": 0}}, asked | {"other": {"test": 10**9}}, asked | {"other": 3}):
        assert ask(server, "/parting", json.dumps(wrong))[0] == 400


def test_ways_that_no_training_image_takes(explorer):
    """Few test images are called unusual, an image sent to the ends of all splines is."""
    found = [explorer.answer(image, {}, "conv2")["unusual"] for image in explorer.tests.images[:50]]
    assert sum(found) <= 5
    far = {name: [float(i % 2) for i in range(layer.coordinates)] for name, layer in explorer.layers.items()}
    assert explorer.answer(explorer.tests.images[0], far, "conv2")["unusual"]


def test_an_answer_costs_one_image_a_way(explorer):
    """Quick by what it computes: one image once, and once more if it is steered; training images were seen before."""
    seen = []
    hook = explorer.net.register_forward_pre_hook(lambda _, given: seen.append(len(given[0])))
    try:
        for chosen, passes in (({}, [1]), ({"dense1": [0.5]}, [1, 1])):
            answer = explorer.answer(explorer.task.data.test.images[0], chosen, "conv2")
            assert seen == passes
            assert answer["milliseconds"] > 0
            seen.clear()
    finally:
        hook.remove()


def test_the_page_and_its_images(explorer, server):
    _, front = ask(server, "/")
    parts = re.findall(r'(?:src|href)="(\w+\.(?:js|css))"', front.decode())
    assert len(parts) == 9
    for path in ("/", *(f"/{part}" for part in parts)):
        status, content = ask(server, path)
        assert status == 200
        assert content
    status, about = ask(server, "/state")
    assert status == 200
    assert about["classes"] == list(explorer.task.data.classes)
    assert [layer["name"] for layer in about["layers"]] == ["conv2", "dense1", "dense2"]
    assert {sum(counts) for counts in about["layers"][0]["counts"]} == {2000}
    status, content = ask(server, "/images/test/3.png")
    assert status == 200
    with Image.open(io.BytesIO(content)) as image:
        assert torch.equal(torch.from_numpy(numpy.array(image)), explorer.task.data.test.images[3, 0])


@pytest.mark.parametrize(
    "path",
    ["/images/test/1000.png", "/images/test/-1.png", "/images/other/1.png", "/../pyproject.toml", "/%2e%2e/run.json", "/explore.html"],
)  # fmt: skip
def test_there_is_nothing_else(server, path):
    assert ask(server, path)[0] == 404
    assert ask(server, path, b"{}")[0] == 404


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": "evil.example:{port}"},
        {"Host": ""},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "https://127.0.0.1:{port}"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "http://localhost.evil.example:{port}"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
def test_others_are_refused(server, headers):
    given = {name: value.replace("{port}", str(server.server_port)) for name, value in headers.items()}
    for path, body in (("/state", None), ("/images/test/0.png", None), ("/answer", question()), ("/upload", b"x")):
        status, answer = ask(server, path, body, **given)
        assert status == 403
        assert "own page" in answer["error"]


def test_ones_own_page_is_served(server):
    own = f"127.0.0.1:{server.server_port}"
    assert ask(server, "/answer", question(), Origin=f"http://{own}", Sec_Fetch_Site="same-origin")[0] == 200
    local = f"localhost:{server.server_port}"
    assert ask(server, "/answer", question(), Host=local, Origin=f"http://{local}")[0] == 200


def test_only_this_machine_is_listened_to(server):
    assert server.server_address[0] == "127.0.0.1"
    with pytest.raises(ValueError, match="choose another with --port"):
        Server(server.explorer, server.server_port)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "BMP", "WEBP"])
@pytest.mark.parametrize("shape", [(28, 28), (50, 40, 3), (1, 1), (20, 300)])
def test_images_of_all_kinds_can_be_uploaded(server, kind, shape):
    status, answer = ask(server, "/upload", file(numpy.full(shape, 200, numpy.uint8), kind))
    assert status == 200
    pixels = base64.b64decode(answer["pixels"])
    assert len(pixels) == 28 * 28
    assert all(190 <= value <= 210 for value in pixels)
    status, answer = ask(server, "/answer", question(image={"pixels": answer["pixels"]}))
    assert status == 200
    assert abs(sum(answer["chances"]) - 1) < 1e-3


def bomb():
    """A small PNG that says it has 30,000 x 30,000 pixels."""
    head = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 0, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"IDAT", zlib.compress(bytes(1000))), (b"IEND", b"")]
    body = b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize(
    "content",
    [
        b"", b"hello", b"<svg xmlns='http://www.w3.org/2000/svg'/>", b"GIF89a", b"\x89PNG\r\n\x1a\n", b"%!PS-Adobe-3.0 EPSF-3.0\n",
        b"%PDF-1.4", bytes(100_000), file(numpy.zeros((9, 9), numpy.uint8))[:-30], file(numpy.zeros((9, 9), numpy.uint8), "TIFF"), bomb(),
    ],
)  # fmt: skip
def test_what_is_no_image_gets_a_friendly_message(server, content):
    status, answer = ask(server, "/upload", content)
    assert status == 400
    assert answer["error"].startswith("This file cannot be used: send an image (PNG, JPEG")
    assert "0x" not in answer["error"]


def test_large_uploads_are_refused(server):
    for length in (LARGEST + 1, 20_000_000):
        status, answer = ask(server, "/upload", bytes(length))
        assert status == 413
        assert "5 MB" in answer["error"]
    assert (
        ask(server, "/upload", file(numpy.random.default_rng(0).integers(0, 256, (1200, 1200, 3), numpy.uint8)))[0]
        == 200
    )


def test_lengths_that_are_none(server):
    for head in (b"Content-Length: -5", b"Content-Length: many", b"Transfer-Encoding: chunked"):
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=120) as connection:
            connection.sendall(b"POST /upload HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 411")


@pytest.mark.parametrize(
    "body",
    [
        "", "{", "[]", "3", "null", "[" * 100_000,
        question(image=3), question(image={}), question(image={"test": -1}), question(image={"test": 1000}), question(image={"test": "x"}),
        question(image={"pixels": "x"}), question(image={"pixels": "eA=="}), question(image={"pixels": 3}), question(image={"test": 10**400}),
        question(look="conv9"), question(look=None), question(picked={"conv2": 6}), question(picked={"conv2": -1}), question(picked={"conv9": 0}), question(picked=3),
        question(chosen=3), question(chosen={"conv9": [0.5]}), question(chosen={"conv2": [0.5]}), question(chosen={"dense1": [1.5]}),
        question(chosen={"dense1": ["x"]}), question(chosen={"dense1": 3}), question(chosen={"dense1": [float("nan")]}),
        question(chosen={"dense1": [float("inf")]}),
    ],
    ids=range(29),
)  # fmt: skip
def test_questions_that_make_no_sense(server, body):
    status, answer = ask(server, "/answer", body.encode())
    assert status == 400
    assert answer["error"]
    assert ask(server, "/answer", question())[0] == 200


def test_many_at_once(server):
    """Each thread gets its own answer, steered or not."""
    expected = {
        n: ask(server, "/answer", question(image={"test": n}, chosen=chosen(n)))[1]["chances"] for n in range(8)
    }
    found = {}

    def work(number):
        found[number] = [
            ask(server, "/answer", question(image={"test": number}, chosen=chosen(number)))[1]["chances"]
            for _ in range(3)
        ]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: [chances] * 3 for number, chances in expected.items()}


def chosen(number):
    return {"dense1": [number / 8]} if number % 2 else {}


AUDITED = """
import atexit, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background of a shell ignores it
written = []
def audit(event, args):
    if event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+"):
        written.append(args[:2])
    if event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate"):
        written.append((event, *args))
sys.addaudithook(audit)
atexit.register(lambda: print([w for w in written if "__pycache__" not in str(w)]))
from splinenets.cli import main
main(["explore", sys.argv[1], "--port", "0"])
"""


def test_nothing_is_written(static_and_spline, tmp_path):
    """The command opens no file for writing, makes, renames or removes none, and Ctrl-C ends it."""
    run = static_and_spline[1]
    before = {p: p.stat().st_mtime_ns for p in run.rglob("*")}
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path), "HOME": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", AUDITED, run], stdout=subprocess.PIPE, text=True, cwd=tmp_path, env=environment
    ) as child:
        try:
            port = int(re.match(r"http://127\.0\.0\.1:(\d+)/ shows spline", child.stdout.readline())[1])
            server = SimpleNamespace(server_port=port)
            assert ask(server, "/")[0] == 200
            assert ask(server, "/images/train/1.png")[0] == 200
            assert ask(server, "/upload", b"GIF89a")[0] == 400
            assert ask(server, "/upload", file(numpy.zeros((30, 30), numpy.uint8)))[0] == 200
            assert ask(server, "/answer", question(chosen={"dense1": [0.1]}))[0] == 200
        finally:
            child.send_signal(signal.SIGINT)
            rest, _ = child.communicate(timeout=600)
    assert rest.splitlines() == ["stopped", "[]"]
    assert child.returncode == 0
    assert {p: p.stat().st_mtime_ns for p in run.rglob("*")} == before
    assert list(tmp_path.iterdir()) == []


def test_the_end_waits_for_an_answer():
    """A thread that Python ends inside torch takes the whole process with it."""
    began, closing, may_end, events = threading.Event(), threading.Event(), threading.Event(), []

    def answer(**asked):
        began.set()
        assert may_end.wait(60)
        events.append("answered")
        return {}

    explorer = SimpleNamespace(answer=answer, split=lambda name: SimpleNamespace(images=torch.zeros(1, 1, 4, 4)))
    with serving(explorer) as server:
        asking = threading.Thread(target=lambda: ask(server, "/answer", question()))
        asking.start()
        assert began.wait(60)
        server.shutdown()
        listening = server.socket
        server.socket = SimpleNamespace(close=lambda: (listening.close(), closing.set()))
        ending = threading.Thread(target=lambda: (server.server_close(), events.append("closed")))
        ending.start()
        assert closing.wait(60)
        assert events == []
        may_end.set()
        ending.join(60)
        asking.join(60)
    assert events == ["answered", "closed"]


def turned_explorer(folders):
    """Of a network that is told by which angle images are turned."""
    changes = {"condition": "angle", "told": "curves", "epochs": 1}
    return Explorer.of_run(subjects.train_small(folders.mktemp("turned") / "run", "D(5)-X-R4 closed", **changes))


@pytest.fixture(scope="module")
def turned(tmp_path_factory):
    explorer = turned_explorer(tmp_path_factory)
    with serving(explorer) as server:
        yield explorer, server


def told_question(**changes):
    return question(**({"look": "net.conv2", "done": 30.0, "told": 30.0} | changes))


def test_a_condition_changes_the_picture_and_is_told(turned):
    explorer, server = turned
    assert ask(server, "/state")[1]["condition"] == {
        "name": "angle", "low": 0, "high": 360, "still": 0, "closed": True, "told": True, "changes": True, "values": None,
    }  # fmt: skip
    status, answer = ask(server, "/answer", told_question())
    assert status == 200
    change, original = explorer.task.change, sn.data.load().test.images[:1]
    seen = change(original, torch.tensor([30.0]), torch.Generator())
    assert base64.b64decode(answer["pixels"]) == seen.numpy().tobytes()
    with torch.no_grad():
        logits = explorer.net(explorer.task.augment.evaluate(seen), torch.tensor([30.0]))
    torch.testing.assert_close(torch.tensor(answer["chances"]), logits[0].softmax(0), rtol=0, atol=1e-5)
    assert {tuple(position) for position in answer["positions"].values()} == {(round(30 / 360, 5),)}
    assert answer["neighbours"] == []  # nobody chose these positions


def test_a_network_can_be_told_something_else(turned):
    _, server = turned
    _, honest = ask(server, "/answer", told_question())
    _, lie = ask(server, "/answer", told_question(told=210.0))
    assert lie["pixels"] == honest["pixels"]
    assert lie["own_chances"] == honest["chances"] != lie["chances"]
    assert lie["positions"]["net.conv2"] == [round(210 / 360, 5)]
    _, once_round = ask(server, "/answer", told_question(done=360.0, told=0.0))
    assert once_round["chances"] == pytest.approx(once_round["own_chances"], abs=1e-4)


def test_thumbnails_are_not_turned(turned):
    _, server = turned
    with Image.open(io.BytesIO(ask(server, "/images/test/3.png")[1])) as image:
        assert torch.equal(torch.from_numpy(numpy.array(image)), sn.data.load().test.images[3, 0])


@pytest.mark.parametrize(
    "changes",
    [{"done": 361.0}, {"done": -1}, {"done": "x"}, {"told": 400.0}, {"told": []}, {"done": None, "told": None}],
)
def test_conditions_that_make_no_sense(turned, changes):
    status, answer = ask(turned[1], "/answer", told_question(**changes))
    assert status == 400
    assert answer["error"]


@pytest.mark.parametrize("told", ["channels", "scales"])
def test_static_networks_that_are_told_have_nothing_to_explore(tmp_path, told):
    run = subjects.train_small(tmp_path / "run", "static", condition="blur", told=told, images=600, epochs=1)
    with pytest.raises(ValueError, match="static network without positions"):
        Explorer.of_run(run)


def test_a_network_that_is_not_told_sees_changed_pictures(tmp_path):
    run = subjects.train_small(tmp_path / "run", "D(5)-D-R3", condition="noise", images=600, epochs=1)
    explorer = Explorer.of_run(run)
    still, noisy = (explorer.answer(explorer.tests.images[0], {}, "conv2", done=done) for done in (0.0, 60.0))
    assert still["pixels"] != noisy["pixels"]
    assert still["chances"] != noisy["chances"]
    assert noisy["pixels"] == explorer.answer(explorer.tests.images[0], {}, "conv2", done=60.0)["pixels"]
    assert explorer.condition()["told"] is False


def test_the_drag_of_the_tour_changes_answers():
    """With the network that ships, for at least 40 of 60 images."""
    net = sn.pretrained("fashion-mnist/D(5)-D-R3")
    whole = sn.data.load()
    known = subjects.task_of(whole.test.images[:60], whole.test.labels[:60])
    task = replace(known, augment=augmentation("none", mean=net.card["mean"], std=net.card["std"]))
    explorer = Explorer(net, task, name="shipped", model=net.card["model"])
    moved = 0
    for image in task.data.test.images:
        chosen = explorer.turning(image)
        answer = explorer.answer(image, chosen, "conv2")
        own, now = (answer[key].index(max(answer[key])) for key in ("own_chances", "chances"))
        assert (own != now) == bool(chosen)
        moved += own != now
    assert moved >= 40


def test_uploads_that_are_dark_on_light(server):
    shape = numpy.full((28, 28), 240, numpy.uint8)
    shape[8:20, 8:20] = 10
    assert ask(server, "/upload", file(shape))[1]["unlike"] is True
    assert ask(server, "/upload", file(255 - shape))[1]["unlike"] is False


def test_hostile_names_are_told_as_plain_text():
    task = subjects.hostile_task()
    explorer = Explorer(subjects.hostile_net(task), task, name=HOSTILE[1], model=HOSTILE[2])
    about = json.loads(json.dumps(explorer.describe()))
    assert all(name.isprintable() for name in about["classes"])
    assert about["name"].isprintable()
    assert len(explorer.answer(task.data.test.images[0], {}, "conv1")["chances"]) == 100


def test_colour_and_surfaces():
    """Three channels, a grey upload, and two positions a spline."""
    images = torch.randint(0, 256, (40, 3, 16, 16), dtype=torch.uint8)
    task = subjects.task_of(images)
    net = sn.convert(sn.models.resnet(8), "H(4)-C-R3 dims=2", example=task.example(), spread=1.0).eval()
    explorer = Explorer(net, task, name="colour", model="surface")
    pixels = explorer.read(file(numpy.full((9, 9), 7, numpy.uint8)))
    assert pixels.shape == (3, 16, 16)
    layer = explorer.describe()["layers"][1]
    assert layer["splines"][3] == "spline 2, dimension 2"
    values = [None] * len(layer["splines"])
    values[3] = 0.25
    answer = explorer.answer(pixels, {layer["name"]: values}, layer["name"], {layer["name"]: 3})
    assert answer["positions"][layer["name"]][3] == 0.25


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["explore"], "Missing argument"),
        (["explore", "nowhere"], "is not a run"),
        (["explore", "{static}"], "static network without positions"),
        (["explore", "{newer}"], "has format 2"),
        (["explore", "{spline}", "--port", "99999"], "--port"),
        (["explore", "{spline}", "--port", "x"], "--port"),
    ],
)
def test_bad_command_lines(static_and_spline, tmp_path, words, complaint):
    newer = subjects.changed(static_and_spline[1], tmp_path / "newer", format=2)
    refused(words, complaint, static=static_and_spline[0], spline=static_and_spline[1], newer=newer)
