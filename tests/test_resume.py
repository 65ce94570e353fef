"""A run that is killed and resumed ends with the same bits as one that is not."""

import errno
import itertools
import json
import os
import random
import re
import signal
from types import SimpleNamespace

import pytest
from tests.helpers.runs import count_calls, die_after, files, fork, outcome, recipe, train

from splinenets.files import read_sealed, write_sealed
from splinenets.training import Run, Stopped, Watcher, checkpoint, load_run
from splinenets.training.loop import DivergedError


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed") / "run"
    train(recipe(epochs=1), folder.with_name("warm"))  # what is imported late is imported here, not in the children
    calls = count_calls(lambda: train(recipe(), folder))
    return files(folder), calls


def survives(moment, folder, expected):
    def die():
        die_after(moment)
        train(recipe(), folder)

    assert outcome(fork(die)) == -signal.SIGKILL
    assert outcome(fork(lambda: train(recipe(), folder, resume=True))) == 0
    assert files(folder) == expected


def moments(calls, count, seed):
    return random.Random(seed).sample(range(1, calls * 9 // 10), count)  # the count varies a little from run to run


def test_resume_is_bit_exact_after_sigkill(undisturbed, tmp_path):
    expected, calls = undisturbed
    for number, moment in enumerate(moments(calls, 3, 0)):
        survives(moment, tmp_path / f"{number}", expected)


@pytest.mark.slow
def test_resume_is_bit_exact_after_sigkill_at_30_moments(undisturbed, tmp_path):
    expected, calls = undisturbed
    for number, moment in enumerate(moments(calls, 30, 1)):
        survives(moment, tmp_path / f"{number}", expected)


def test_killed_before_the_last_checkpoint_takes_the_place_of_another(undisturbed, tmp_path, monkeypatch):
    """The run is done then: nothing would be written again, and what is no longer wanted goes all the same."""
    expected, folder = undisturbed[0], tmp_path / "run"
    last = max(int(name[:8]) for name in expected if name.endswith(".json"))
    prune = checkpoint.prune

    def die(folder, step, *more):
        os.kill(os.getpid(), signal.SIGKILL) if step == last else prune(folder, step, *more)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "prune", die)
        assert outcome(fork(lambda: train(recipe(), folder))) == -signal.SIGKILL
    assert files(folder).keys() > expected.keys()
    assert outcome(fork(lambda: train(recipe(), folder, resume=True))) == 0
    assert files(folder) == expected


def test_killed_again_and_again(undisturbed, tmp_path):
    expected, calls = undisturbed
    code, folder = -signal.SIGKILL, tmp_path / "run"
    for _ in range(30):

        def die():
            die_after(int(calls * 0.4))
            train(recipe(), folder, resume=True)

        code = outcome(fork(die))
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert code == 0
    assert files(folder) == expected


class Sends(Watcher):
    """Sends this process a signal after a step."""

    def __init__(self, step, number):
        self.at, self.number = step, number

    def step(self, step, loss, accuracy):
        if step == self.at:
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_save_and_stop(number, code, undisturbed, tmp_path):
    before = signal.getsignal(number)
    with pytest.raises(Stopped, match="stopped at step 6 of 12, and saved it") as stopped:
        train(recipe(), tmp_path / "run", watcher=Sends(5, number))
    assert stopped.value.exit_code == code
    assert signal.getsignal(number) is before
    train(recipe(), tmp_path / "run", resume=True)
    assert files(tmp_path / "run") == undisturbed[0]


def test_metrics_say_what_happened(undisturbed):
    lines = [json.loads(line) for line in undisturbed[0]["metrics.jsonl"].splitlines()]
    assert [line["step"] for line in lines if line["kind"] == "step"] == list(range(1, 13))
    epochs = [line for line in lines if line["kind"] == "epoch"]
    assert [line["epoch"] for line in epochs] == [1, 2, 3]
    assert {layer["layer"] for layer in epochs[0]["layers"]} == {"conv1", "conv2", "dense1", "dense2"}
    assert epochs[1]["layers"][0]["drift"] is not None


def test_resuming_what_is_complete_changes_nothing(tmp_path):
    train(recipe(epochs=1), tmp_path / "run")
    before = files(tmp_path / "run")
    train(recipe(epochs=1), tmp_path / "run", resume=True)
    assert files(tmp_path / "run") == before


def test_folder_in_use_is_left_alone(tmp_path):
    train(recipe(epochs=1), tmp_path / "run")
    before = files(tmp_path / "run")
    with pytest.raises(ValueError, match="already holds a run: continue it with --resume"):
        train(recipe(epochs=1), tmp_path / "run")
    with pytest.raises(ValueError, match=r"begun with dropout=0\.5, now dropout is 0\.1: resume with the same recipe"):
        train(recipe(epochs=1, dropout=0.1), tmp_path / "run", resume=True)
    assert files(tmp_path / "run") == before
    (tmp_path / "other").mkdir()
    (tmp_path / "other/letter.txt").write_text("dear")
    for resume in (False, True):
        with pytest.raises(ValueError, match="in use by something that is not a run"):
            train(recipe(), tmp_path / "other", resume=resume)
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["letter.txt"]


def test_a_run_that_is_older_than_a_field_goes_on(tmp_path):
    chosen = recipe(epochs=1, calibrate=0)
    train(chosen, tmp_path / "run")
    before = files(tmp_path / "run")
    description = tmp_path / "run/run.json"
    content = read_sealed(description)
    del content["recipe"]["calibrate"]
    write_sealed(description, content)
    train(chosen, tmp_path / "run", resume=True)
    assert files(tmp_path / "run") == before
    with pytest.raises(ValueError, match="begun with calibrate=0, now calibrate is 50"):
        train(recipe(epochs=1, calibrate=50), tmp_path / "run", resume=True)


class Notes(Watcher):
    """What a run says."""

    def __init__(self):
        self.notes = []

    def note(self, text):
        self.notes.append(text)


@pytest.mark.parametrize("pattern", ["*", "*.json"])
def test_a_run_that_has_lost_its_checkpoints_does_not_begin_anew_in_silence(tmp_path, pattern):
    train(recipe(epochs=2), tmp_path / "run")
    for path in (tmp_path / "run/checkpoints").glob(pattern):
        path.unlink()
    before = files(tmp_path / "run")
    with pytest.raises(ValueError, match=r"has metrics and no checkpoint .* put them back to continue, or start again"):
        train(recipe(epochs=2), tmp_path / "run", resume=True)
    assert files(tmp_path / "run") == before


def test_a_run_that_was_stopped_before_its_first_checkpoint_says_so(tmp_path):
    train(recipe(epochs=1), tmp_path / "run")
    before = files(tmp_path / "run")
    for path in (tmp_path / "run/checkpoints").iterdir():
        path.unlink()
    heard = Notes()
    train(recipe(epochs=1), tmp_path / "run", resume=True, watcher=heard)
    assert [note for note in heard.notes if "starts again at step 0" in note]
    assert files(tmp_path / "run") == before
    new = Notes()
    train(recipe(epochs=1), tmp_path / "other", resume=True, watcher=new)
    assert not [note for note in new.notes if "anew" in note]


def test_metrics_that_changed_are_noticed(tmp_path):
    train(recipe(epochs=1), tmp_path / "run")
    path = tmp_path / "run/metrics.jsonl"
    assert Run(tmp_path / "run").metrics_are_whole()
    path.write_text(path.read_text().replace("1", "7", 1))
    assert not Run(tmp_path / "run").metrics_are_whole()
    with pytest.raises(ValueError, match=r"metrics.jsonl is damaged: .* SHA-256 of the checkpoint"):
        train(recipe(epochs=1), tmp_path / "run", resume=True)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda c: c.pop("recipe"), "its content has no 'recipe'"),
        (lambda c: c.pop("precision"), "its content has no 'precision'"),
        (lambda c: c.update(recipe=[]), r"its recipe is \[\]"),
        (lambda c: c.update(precision=32), "its precision is 32"),
        (lambda c: c.update(precision="wide" * 9), "its precision is 'widewide"),
        (lambda c: c["recipe"].pop("name"), "name is missing"),
        (lambda c: c["recipe"].update(epochs="many"), "epochs must be a whole number"),
        (lambda c: c.update(format="new"), "has format new"),
    ],
)
def test_descriptions_that_were_sealed_anew(tmp_path, change, complaint):
    """An edit of run.json with its digest made anew: one sentence, wherever it is read."""
    (tmp_path / "run").mkdir()
    run = Run(tmp_path / "run")
    run.open(recipe(), "float32", resume=False)
    run.close()
    content = read_sealed(run.description)
    change(content)
    write_sealed(run.description, content)
    for read in (lambda: train(recipe(), tmp_path / "run", resume=True), lambda: load_run(tmp_path / "run")):
        with pytest.raises(ValueError, match=complaint) as error:
            read()
        assert "\n" not in str(error.value)


def test_a_run_that_is_killed_remembers_how_long_it_took(tmp_path, monkeypatch):
    clock = itertools.count()  # a second between any two looks at it
    monkeypatch.setattr("splinenets.training.loop.time", SimpleNamespace(perf_counter=lambda: float(next(clock))))

    class Kills(Watcher):
        def epoch(self, line, seconds):
            os.kill(os.getpid(), signal.SIGKILL)

    assert outcome(fork(lambda: train(recipe(), tmp_path / "run", watcher=Kills()))) == -signal.SIGKILL
    (line,) = (tmp_path / "run/timings.jsonl").read_text().splitlines()
    found = json.loads(line)
    assert (found["epoch"], found["samples"]) == (1, 103)
    assert found["waited_for_data"] == 4  # of 4 batches
    assert found["seconds"] == 4 * 2 + 1  # looked at before and after each batch, and at the end


def test_one_process_at_a_time(tmp_path):
    tried = []

    class Starts(Watcher):
        def begin(self, step, steps, batch):
            tried.append(step)
            with pytest.raises(ValueError, match="another process trains in"):
                train(recipe(epochs=1), tmp_path / "run", resume=True)

    train(recipe(epochs=1), tmp_path / "run", watcher=Starts())
    assert tried == [0]
    train(recipe(epochs=1), tmp_path / "run", resume=True)  # the folder is free again


def test_loss_that_is_not_finite_names_layer_and_checkpoint(tmp_path):
    wild = recipe(learning_rate=1000.0, model="static", weight_decay=10.0, epochs=9, warmup=0, anneal="steps")
    words = r"(the loss is (nan|inf)|weights are not finite) at step \d+, epoch \d+: first bad are .*'\w+'"
    with pytest.raises(DivergedError, match=words) as e:
        train(wild, tmp_path / "run")
    assert "the last good checkpoint is" in str(e.value)
    assert re.search(r"try clip=1, .* a smaller learning_rate$", str(e.value))
    assert e.value.exit_code == 3
    last = checkpoint.read_last(tmp_path / "run/checkpoints", print)
    assert all(tensor.isfinite().all() for name, tensor in last.tensors.items() if name.startswith("model."))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS])
def test_full_disk_keeps_the_last_checkpoint(number, tmp_path, monkeypatch):
    """One sentence that names the place; what was saved stays, and nothing half-written."""
    done, sync = [], os.fsync

    def full(file):
        if checkpoint.steps(tmp_path / "run/checkpoints"):
            raise OSError(number, os.strerror(number))
        done.append(sync(file))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match=str(tmp_path / "run")):
            train(recipe(), tmp_path / "run")
    assert done
    assert sorted(p.name for p in (tmp_path / "run/checkpoints").iterdir()) == ["00000002.json", "00000002.safetensors"]
    train(recipe(), tmp_path / "run", resume=True)
