"""Where files are kept, and how they are read and written."""

import errno
import io
import os
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess

import pytest
import torch
from safetensors.torch import save
from tests.helpers.runs import fork, outcome

from splinenets.data.store import data_root
from splinenets.files import (
    DamagedError,
    cache_folder,
    exclusive,
    lock,
    read_bytes,
    read_metadata,
    read_sealed,
    rename_durably,
    replacing,
    write_sealed,
)
from splinenets.kernels import build


@pytest.mark.parametrize(
    ("given", "expected"), [("/cache", "/cache"), ("~/mine", "~/mine"), ("", "~/.cache"), (None, "~/.cache")]
)
def test_one_cache_folder_for_everything(given, expected, tmp_path, monkeypatch):
    monkeypatch.delenv("SPLINENETS_DATA", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    if given is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", given)
    assert cache_folder() == data_root() == Path(expected).expanduser() / "splinenets"


def test_compiled_code_is_kept_there(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(build.SWITCH, raising=False)
    monkeypatch.setenv("CXX", "true")  # a program that does nothing, and does it well

    def compile_to(target, source, compiler, flags):
        made.append(target)
        raise OSError("the disk is full")

    made = []
    monkeypatch.setattr(build, "compile_to", compile_to)
    with pytest.raises(build.Unavailable, match=str(tmp_path / "splinenets/native")):
        build.load(build.SOURCE, build.FLAGS)
    assert [path.parent for path in made] == [cache_folder() / "native"]


def test_damaged_code_is_compiled_anew(tmp_path, monkeypatch):
    """Loading it would end the process, or compute something else."""
    target, made = tmp_path / "kernels-0.so", []

    def compiler(command, **_):
        made.append(command)
        Path(command[-1]).write_bytes(b"code")
        return CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(build.subprocess, "run", compiler)
    assert build.compiled(target) is None
    kept = build.compile_to(target, build.SOURCE, "c++", ())
    assert build.compiled(target) == kept
    for damage in (b"cod", b"code\0", b"cOde", b""):
        kept.write_bytes(damage)
        assert build.compiled(target) is None
    assert build.compile_to(target, build.SOURCE, "c++", ()) == kept
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"code"]


def test_a_process_that_was_forked_off_keeps_no_lock(tmp_path):
    """A run that was killed can go on at once, whatever processes it has left behind."""
    (hear, say), (wait, end) = os.pipe(), os.pipe()

    def live():
        os.write(say, b"x")
        os.read(wait, 1)

    with (tmp_path / "lock").open("wb") as mine:
        assert lock(mine)
        child = fork(live)
        os.read(hear, 1)  # it lives
    with (tmp_path / "lock").open("wb") as other:
        assert lock(other)
    os.write(end, b"x")
    assert outcome(child) == 0
    for pipe in (hear, say, wait, end):
        os.close(pipe)


def test_one_holds_a_lock_at_a_time(tmp_path):
    with (tmp_path / "lock").open("wb") as mine, (tmp_path / "lock").open("wb") as other:
        assert lock(mine)
        assert not lock(other)
    notes = []
    with exclusive(tmp_path / "lock", notes.append), (tmp_path / "lock").open("wb") as other:
        assert not lock(other)
    with (tmp_path / "lock").open("wb") as mine:
        assert lock(mine)
    assert notes == []


def test_several_writers_of_one_file(tmp_path):
    """Whoever looks sees what one of them wrote, and nobody fails."""
    path = tmp_path / "file"
    contents = [bytes([number]) * (1 + number) * 50_000 for number in range(3)]
    path.write_bytes(contents[0])

    def write(content):
        for _ in range(20):
            with replacing(path) as file:
                file.write(content[: len(content) // 2])
                file.write(content[len(content) // 2 :])
            assert path.read_bytes() in contents

    writers = [fork(partial(write, content)) for content in contents]
    assert [outcome(writer) for writer in writers] == [0, 0, 0]
    assert path.read_bytes() in contents
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_sealed_json(tmp_path):
    path, content = tmp_path / "file.json", {"text": "ä", "numbers": [1, 2.5, None], "nested": {"a": True}}
    write_sealed(path, content)
    assert read_sealed(path) == content
    assert [p.name for p in tmp_path.iterdir()] == ["file.json"]
    path.write_text(path.read_text().replace("2.5", "2.6"))
    with pytest.raises(DamagedError, match=r"file\.json is damaged: its content does not have the SHA-256"):
        read_sealed(path)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "1", "{}", '{"content": {}}', '{"content": 1, "sha256": ""}', "[" * 99_999]
)
def test_what_is_not_sealed_is_damaged(content, tmp_path):
    (tmp_path / "file.json").write_text(content)
    with pytest.raises(DamagedError, match=r"file\.json is damaged: it") as raised:
        read_sealed(tmp_path / "file.json")
    assert "Error" not in str(raised.value)


def test_metadata_of_a_file_of_tensors():
    packed = save({"weight": torch.ones(3)}, metadata={"origin": "web"})
    assert read_metadata(io.BytesIO(packed)) == {"origin": "web"}
    with pytest.raises(KeyError):
        read_metadata(io.BytesIO(save({"weight": torch.ones(3)})))
    with pytest.raises(ValueError):
        read_metadata(io.BytesIO(b"\xff" * 50))


def test_a_file_that_is_too_large_is_not_read_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setattr("splinenets.files.LARGEST", 10)
    (tmp_path / "file").write_bytes(bytes(11))
    with pytest.raises(ValueError, match="holds more than 10 bytes"):
        read_bytes(tmp_path, "file")
    (tmp_path / "file").write_bytes(bytes(10))
    assert read_bytes(tmp_path, "file") == bytes(10)


def test_a_disk_that_fails_at_the_last_moment_is_named(tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "part").write_bytes(b"whole")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: .*final"):
        rename_durably(tmp_path / "part", tmp_path / "final")
