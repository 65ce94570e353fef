"""Whatever happens while a checkpoint is written, the old or the new one can be read; damage is never silent."""

import errno
import os
import signal

import pytest
import torch
from tests.helpers.runs import fork, outcome
from tests.helpers.tiny import damaged
from tests.helpers.trouble import Trouble
from torch import nn

from splinenets.files import DamagedError, read_sealed, write_sealed
from splinenets.training import checkpoint
from splinenets.training.checkpoint import Checkpoint
from splinenets.training.run import Lines


def example(step):
    generator = torch.Generator().manual_seed(step)
    tensors = {"model.weight": torch.randn(5, 3, generator=generator), "momentum.weight": torch.randn(5, 3)}
    state = {"totals": [0.1 * step, 3.0, 1.0, 2.0], "best": None, "warned": ["conv"], "metrics_length": 7}
    return Checkpoint(step, tensors, state)


def equal(left, right):
    return (
        left.step == right.step
        and left.state == right.state
        and left.tensors.keys() == right.tensors.keys()
        and all(torch.equal(left.tensors[key], right.tensors[key]) for key in left.tensors)
    )


def silent(text):
    raise AssertionError(text)


@pytest.fixture
def folder(tmp_path):
    checkpoint.write(tmp_path / "checkpoints", example(10), keep=2)
    return tmp_path / "checkpoints"


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def test_killed_at_every_operation_of_a_save(folder):
    """The old one or the new one, never neither."""
    checkpoint.write(folder, example(20), keep=2)
    for at in range(1, 100):

        def die(at=at):
            with Trouble(at, kill):
                checkpoint.write(folder, example(30), keep=1)

        code = outcome(fork(die))
        found = checkpoint.read_last(folder, silent)
        assert found.step in (20, 30)
        assert equal(Checkpoint(found.step, {"model.weight": found.tensors["model.weight"]}, found.state),
                     Checkpoint(found.step, {"model.weight": example(found.step).tensors["model.weight"]}, example(found.step).state))  # fmt: skip
        if code == 0:
            break
        assert code == -signal.SIGKILL
        for path in folder.glob("*30*"):  # again from the old one
            path.unlink()
        if not checkpoint.steps(folder):
            checkpoint.write(folder, example(20), keep=2)
    assert code == 0
    assert at > 8
    assert checkpoint.steps(folder) == [30]
    assert sorted(path.name for path in folder.iterdir()) == ["00000030.json", "00000030.safetensors"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_disk_errors_leave_the_old_checkpoint_and_nothing_else(folder, number):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    failures = 0
    for at in range(1, 100):

        def fail():
            raise OSError(number, os.strerror(number))

        with Trouble(at, fail) as trouble:
            try:
                checkpoint.write(folder, example(30), keep=2)
            except OSError as error:
                failures += 1
                assert error.errno == number
                assert number == errno.EACCES or str(folder) in str(error)
        done = trouble.met < at
        assert checkpoint.read_last(folder, silent).step in (10, 30)
        if checkpoint.steps(folder) == [10]:
            assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
        for path in folder.glob("*30*"):
            path.unlink()
        if done:
            break
    assert done
    assert failures >= 6


def test_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        checkpoint.write(tmp_path / "file/checkpoints", example(1))


def test_300_damaged_files(folder):
    """Every flipped bit and every cut is noticed: a loud fall-back, or an error if there is nothing to fall back to."""
    checkpoint.write(folder, example(20), keep=2)
    count = 0
    for name in ("00000020.safetensors", "00000020.json"):
        whole = (folder / name).read_bytes()
        for content in damaged(whole, 150):
            count += content != whole
            (folder / name).write_bytes(content)
            notes = []
            found = checkpoint.read_last(folder, notes.append)
            if found.step == 20:  # a bit of white space between JSON's words
                assert name.endswith(".json")
                assert equal(found, checkpoint.Checkpoint(20, found.tensors, example(20).state))
                assert torch.equal(found.tensors["model.weight"], example(20).tensors["model.weight"])
                continue
            assert found.step == 10
            assert "WARNING" in notes[0]
            assert name in notes[0]
            assert "fell back to the last good checkpoint, of step 10" in notes[-1]
        (folder / name).write_bytes(whole)
    assert count == 300


def test_nothing_to_fall_back_to(folder):
    (folder / "00000010.safetensors").write_bytes(b"")
    with pytest.raises(DamagedError, match="no checkpoint that is whole"):
        checkpoint.read_last(folder, lambda text: None)
    (folder / "00000010.safetensors").unlink()
    with pytest.raises(DamagedError, match="missing"):
        checkpoint.read_last(folder, lambda text: None)


def test_damaged_checkpoint_of_the_same_step_is_replaced(folder):
    (folder / "00000010.safetensors").write_bytes(b"")
    checkpoint.write(folder, example(10), keep=2)
    assert checkpoint.read_last(folder, silent).step == 10


def test_keep_policy(tmp_path):
    for step in range(1, 8):
        checkpoint.write(tmp_path, example(step), keep=2, also=3 if step >= 3 else None)
    assert checkpoint.steps(tmp_path) == [3, 6, 7]


def test_empty_folder_has_no_checkpoint(tmp_path):
    assert checkpoint.read_last(tmp_path, silent) is None


def test_other_formats_are_refused(folder, monkeypatch):
    monkeypatch.setattr(checkpoint, "FORMAT", 2)
    with pytest.raises(ValueError, match="has format 1, this version of splinenets reads 2"):
        checkpoint.read_last(folder, silent)


def test_pack_and_unpack():
    assert equal(checkpoint.unpack(checkpoint.pack(saved := example(4))), saved)


def test_lines_go_back(tmp_path):
    lines = Lines(tmp_path / "metrics.jsonl", 0)
    lines.add({"step": 1})
    length, digest = lines.settle()
    lines.add({"step": 2})
    lines.close()
    again = Lines(tmp_path / "metrics.jsonl", length, digest)
    again.add({"step": 3})
    again.close()
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1}\n{"step": 3}\n'
    with pytest.raises(ValueError, match="should hold 1000 bytes or more, but holds 24: lines were lost"):
        Lines(tmp_path / "metrics.jsonl", 1000)


def test_lines_that_changed_are_noticed(tmp_path):
    path = tmp_path / "metrics.jsonl"
    lines = Lines(path, 0)
    lines.add({"step": 1})
    written = lines.settle()
    lines.add({"step": 2})
    lines.close()
    whole = path.read_bytes()
    for place in range(written[0]):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(DamagedError, match="put back a copy of it, or start again with another --out"):
            Lines(path, *written)
        assert len(path.read_bytes()) == len(whole)  # and left as they are
    path.write_bytes(whole[:-3] + b"x\n")
    Lines(path, *written).close()  # what came later does not matter
    assert path.read_bytes() == whole[: written[0]]


RESEALED = [
    ({"state": None}, "its state is null"),
    ({"state": []}, r"its state is \[\]"),
    ({"state": {}}, "its state has no 'best'"),
    ({"tensors": 5}, "its tensors is 5"),
    ({"step": "10"}, 'its step is "10"'),
    ({"step": True}, "its step is true"),
]
STATES = [
    ({"totals": "many"}, 'its totals is "many"'),
    ({"totals": [1, 2, "3", 4]}, 'its totals is "3"'),
    ({"totals": [1.0]}, "its state is that of no run"),
    ({"best": {"step": 3}}, "its best is"),
    ({"best": 3}, "its best is 3"),
    ({"warned": None}, "its warned is null"),
    ({"metrics_length": 1.5}, "its metrics_length is 1.5"),
    ({"metrics_length": -1}, "its state is that of no run"),
    ({"metrics_sha256": 1}, "its metrics_sha256 is 1"),
]


@pytest.mark.parametrize(("change", "complaint"), [*RESEALED, *(({"state": c}, m) for c, m in STATES)])
def test_files_that_were_sealed_anew(folder, change, complaint):
    """An edit with its digest made anew, or a file of another version: one sentence, and the one before it serves."""
    checkpoint.write(folder, example(20), keep=2)
    path = folder / "00000020.json"
    content = read_sealed(path)
    if isinstance(change.get("state"), dict) and change["state"]:
        change = {"state": content["state"] | change["state"]}
    write_sealed(path, content | change)
    with pytest.raises(DamagedError, match=complaint) as error:
        checkpoint.read(folder, 20)
    assert "\n" not in str(error.value)
    assert checkpoint.read_last(folder, lambda note: None).step == 10


@pytest.mark.parametrize("missing", ["step", "tensors", "state"])
def test_files_that_lack_something(folder, missing):
    content = read_sealed(folder / "00000010.json")
    del content[missing]
    write_sealed(folder / "00000010.json", content)
    with pytest.raises(DamagedError, match=f"its content has no '{missing}'"):
        checkpoint.read(folder, 10)


@pytest.mark.parametrize(
    ("tensors", "complaint"),
    [
        ({"model.weight": torch.zeros(3, 2)}, "size mismatch"),
        ({"model.weight": torch.zeros(2, 3, dtype=torch.int8)}, "weight is torch.int8"),
        ({"model.other": torch.zeros(2)}, "Unexpected key"),
        ({"momentum.weight": torch.zeros(1)}, r"momentum.weight has shape \(1,\)"),
        ({"quantiles.soon.layer": torch.zeros(1)}, "'quantiles.soon.layer'"),
        ({"quantiles.999999999999.layer": torch.zeros(1)}, "'quantiles.999999999999.layer'"),
    ],
)
def test_tensors_of_another_network(tensors, complaint):
    net = nn.Linear(3, 2)
    state = checkpoint.State(net, torch.optim.SGD(net.parameters(), momentum=0.9))
    saved = state.checkpoint(0, "")
    wrong = Checkpoint(0, {**saved.tensors, **tensors}, saved.state)
    with pytest.raises(ValueError, match=f"is that of another network: .*{complaint}"):
        state.restore(wrong)


def test_versions_of_modules_are_told_when_weights_are_restored():
    class Versioned(nn.Linear):
        _version = 2

        def _load_from_state_dict(self, state, prefix, metadata, *rest):
            assert metadata["version"] == 2
            super()._load_from_state_dict(state, prefix, metadata, *rest)

    net = Versioned(3, 2)
    saved = checkpoint.State(net, torch.optim.SGD(net.parameters())).checkpoint(0, "")
    checkpoint.restore_weights(Versioned(3, 2), saved)
