"""Faults: whatever ends or hinders a process that writes, what is there afterwards is old or new."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.helpers.runs import count_calls, die_after, files, fork, outcome, recipe, train
from tests.helpers.trouble import Trouble

from campaign import jobs
from campaign.harness import Kind, Trial, or_a_sentence
from campaign.jobs import JOBS
from splinenets.training import Stopped, Watcher

TITLE = "faults"
ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EFBIG)
REMOVALS = ("os.remove", "os.rmdir")
SAVES = ("checkpoint", "run.json", "saved network", "download", "data set", "kernels")
EXPORTS = ("native export", "pt2 export", "onnx export", "report", "figures")  # which take seconds


def prepare(shared: Path) -> None:
    """Runs to compare with, and how many operations on a disk each job has."""
    jobs.prepare(shared)
    calls = count_calls(lambda: train(recipe(), shared / "counted"))
    began = time.perf_counter()
    assert outcome(fork(lambda: train(recipe(), shared / "timed"))) == 0
    seconds = time.perf_counter() - began
    counts = {name: count_operations(shared, name) for name in JOBS}
    found = {"calls": calls, "seconds": seconds, "operations": counts}
    (shared / "counts.json").write_text(json.dumps(found))


def count_operations(shared: Path, name: str) -> int:
    """How often a job touches the disk."""
    folder, job = shared / f"count {name}", JOBS[name]
    folder.mkdir()
    job.before(folder)
    with Trouble() as trouble:
        job.work(folder, shared)
    return trouble.met


def counted(trial: Trial) -> dict[str, Any]:
    """What ``prepare`` counted."""
    return json.loads((trial.shared / "counts.json").read_text())


def chosen(trial: Trial, names: Sequence[str]) -> tuple[str, jobs.Job, int]:
    """The job of a trial, and the operation at which it goes wrong: all of them in turn."""
    turn, place = divmod(trial.number, len(names))
    name = names[place]
    return name, JOBS[name], turn % counted(trial)["operations"][name] + 1


def die() -> None:
    """End at once."""
    os.kill(os.getpid(), signal.SIGKILL)


# Jobs that are broken off


def killed(names: Sequence[str], trial: Trial) -> None:
    """Killed at an operation: old or new; done again, it succeeds and leaves nothing else behind."""
    _, job, at = chosen(trial, names)
    job.before(trial.folder)

    def work() -> None:
        with Trouble(at, die):
            job.work(trial.folder, trial.shared)

    assert outcome(fork(work)) in (0, -signal.SIGKILL)
    settles(job, trial)


def settles(job: jobs.Job, trial: Trial) -> None:
    """What is there is whole; the job succeeds the next time and leaves nothing else behind."""
    job.whole(trial.folder)
    assert outcome(fork(lambda: job.work(trial.folder, trial.shared))) == 0, "fails the next time"
    job.whole(trial.folder)
    left = {path.name for path in trial.folder.iterdir()}
    assert left == job.left, f"left behind: {sorted(left ^ job.left)}"


def hindered(names: Sequence[str], trial: Trial) -> None:
    """An error of the disk at an operation: one sentence that names the place, old or new, and no litter."""
    (_, job, at), number = chosen(trial, names), trial.dice.choice(ERRORS)
    job.before(trial.folder)

    def fail() -> None:
        raise OSError(number, os.strerror(number))

    with Trouble(at, fail) as trouble, or_a_sentence(trial.folder):
        job.work(trial.folder, trial.shared)
    job.whole(trial.folder)
    litter = [path.name for path in trial.folder.rglob("*.tmp")]
    assert not litter or trouble.last in REMOVALS, f"left behind after {trouble.last}: {litter}"
    settles(job, trial)


def terminated(names: Sequence[str], trial: Trial) -> None:
    """SIGTERM at a random moment of a job."""
    _, job, _ = chosen(trial, names)
    job.before(trial.folder)
    moment = trial.dice.uniform(0, 1.0)
    child = fork(lambda: job.work(trial.folder, trial.shared))
    time.sleep(moment)
    os.kill(child, signal.SIGTERM)
    assert outcome(child) in (0, -signal.SIGTERM)
    settles(job, trial)


def crowded(names: Sequence[str], trial: Trial) -> None:
    """Three processes do the same job at the same time: each succeeds or says why not, and the result is whole."""
    _, job, _ = chosen(trial, names)
    job.before(trial.folder)

    def work() -> None:
        with or_a_sentence():
            job.work(trial.folder, trial.shared)

    children = [fork(work) for _ in range(3)]
    assert [outcome(child) for child in children] == [0, 0, 0]
    settles(job, trial)


def filled(names: Sequence[str], trial: Trial) -> None:
    """No file may grow beyond a few bytes, as on a disk that is full: one sentence, old or new."""
    (name, job, _), most = chosen(trial, names), trial.dice.choice((0, 10, 100, 1000, 10_000))
    job.before(trial.folder)

    def work() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        with or_a_sentence("" if name == "kernels" else trial.folder):  # a compiler has words of its own
            job.work(trial.folder, trial.shared)

    assert outcome(fork(work)) == 0
    settles(job, trial)


# Trainings that are broken off


def goes_on(trial: Trial) -> None:
    """Resumed, a run ends with the same bits as one that was left alone.

    One that was stopped by a signal just before its end keeps the checkpoint of that step in place of an earlier one.
    """
    assert outcome(fork(lambda: train(recipe(), trial.folder / "run", resume=True))) == 0, "cannot go on"
    found, expected = files(trial.folder / "run"), files(trial.shared / "undisturbed")
    last = max(name for name in expected if name.endswith(".safetensors"))
    assert {last, last.replace(".safetensors", ".json"), "metrics.jsonl"} <= found.keys(), sorted(found)
    assert all(found[name] == expected[name] for name in found.keys() & expected.keys()), "other bits"
    assert len(found) == len(expected), f"left behind: {sorted(found.keys() ^ expected.keys())}"


def training_killed(trial: Trial) -> None:
    """SIGKILL between two calls of Python functions, any at all."""
    moment = trial.dice.randrange(1, counted(trial)["calls"])

    def work() -> None:
        die_after(moment)
        train(recipe(), trial.folder / "run")

    assert outcome(fork(work)) in (0, -signal.SIGKILL)
    goes_on(trial)


def training_signalled(number: int, trial: Trial) -> None:
    """A signal at a random moment, inside torch too, again and again until the run is done."""
    for _ in range(trial.dice.randrange(1, 4)):
        child = fork(stoppable(trial))
        time.sleep(trial.dice.uniform(0, counted(trial)["seconds"] / 2))
        os.kill(child, number)
        assert outcome(child) in (0, 128 + number, -number)
    goes_on(trial)


def stoppable(trial: Trial) -> Callable[[], None]:
    """A training that ends as the command line would."""

    def work() -> None:
        try:
            train(recipe(), trial.folder / "run", resume=True)
        except Stopped as stopped:
            os._exit(stopped.exit_code)

    return work


def training_at_operations(trial: Trial) -> None:
    """Killed at an operation on the disk, of which a training has about two hundred."""
    at = trial.dice.randrange(1, 250)

    def work() -> None:
        with Trouble(at, die):
            train(recipe(), trial.folder / "run")

    assert outcome(fork(work)) in (0, -signal.SIGKILL)
    goes_on(trial)


def training_hindered(trial: Trial) -> None:
    """An error of the disk while training: one sentence that names the place, and the run goes on later."""
    number = trial.dice.choice(ERRORS)

    def fail() -> None:
        raise OSError(number, os.strerror(number))

    with Trouble(trial.dice.randrange(1, 250), fail), or_a_sentence(trial.folder):
        train(recipe(), trial.folder / "run", resume=True)
    goes_on(trial)


def training_twice(trial: Trial) -> None:
    """Two processes train in one folder: one of them says that the other is there."""

    def work() -> None:
        with or_a_sentence("another process trains in"):
            train(recipe(), trial.folder / "run", resume=True)

    children = []
    for _ in range(2):
        children.append(fork(work))
        time.sleep(trial.dice.uniform(0, counted(trial)["seconds"] / 3))
    assert [outcome(child) for child in children] == [0, 0]
    goes_on(trial)


class Vanishing(Watcher):
    """Takes the folder away after a step."""

    def __init__(self, folder: Path, step: int) -> None:
        self.folder, self.at = folder, step

    def step(self, step: int, loss: float, accuracy: float) -> None:
        """Remove everything, now."""
        if step == self.at:
            shutil.rmtree(self.folder)


def training_vanished(trial: Trial) -> None:
    """The folder is gone: an error of the disk or of the run, in one sentence, or a run that is whole."""
    run = trial.folder / "run"
    with or_a_sentence(run):
        train(recipe(), run, watcher=Vanishing(run, trial.dice.randrange(1, 13)))
    if (run / "run.json").exists():
        goes_on(trial)


def training_in_the_past(trial: Trial) -> None:
    """The clock is set back while a run trains, and files are from the future: nothing depends on it."""
    run, now = trial.folder / "run", time.time
    assert outcome(fork(partial(stop_at, trial.dice.randrange(1, 12), run))) in (0, 128 + signal.SIGTERM)
    for path in run.rglob("*"):
        os.utime(path, (now() + trial.dice.uniform(-1e9, 1e9),) * 2)
    time.time = lambda: now() - trial.dice.uniform(0, 1e9)
    goes_on(trial)


def stop_at(step: int, run: Path) -> None:
    """Train up to a step."""

    class Stops(Watcher):
        def step(self, at: int, loss: float, accuracy: float) -> None:
            if at == step:
                os.kill(os.getpid(), signal.SIGTERM)

    try:
        train(recipe(), run, watcher=Stops())
    except Stopped as stopped:
        os._exit(stopped.exit_code)


def of_both(title: str, run: Callable[[Sequence[str], Trial], None], saves: int, exports: int) -> dict[str, Kind]:
    """Trials with jobs that are quick, and with jobs that take seconds."""
    return {
        f"{title}: saves and downloads": Kind(run=partial(run, SAVES), trials=saves),
        f"{title}: exports and reports": Kind(run=partial(run, EXPORTS), trials=exports, seconds=240),
    }


KINDS = {
    "killed at a random call: training": Kind(run=training_killed, trials=100, seconds=180),
    "killed at a random time: training": Kind(run=partial(training_signalled, signal.SIGKILL), trials=50, seconds=240),
    "SIGTERM at a random time: training": Kind(run=partial(training_signalled, signal.SIGTERM), trials=50, seconds=240),
    "killed at an operation: training": Kind(run=training_at_operations, trials=100, seconds=180),
    "disk error: training": Kind(run=training_hindered, trials=100, seconds=180),
    "two writers: training": Kind(run=training_twice, trials=20, seconds=240),
    "vanished folder: training": Kind(run=training_vanished, trials=20, seconds=180),
    "clock set back: training": Kind(run=training_in_the_past, trials=10, seconds=240),
    **of_both("killed at every operation", killed, 150, 60),
    **of_both("disk error at every operation", hindered, 150, 60),
    **of_both("full disk", filled, 50, 25),
    **of_both("three writers", crowded, 50, 25),
    **of_both("SIGTERM", terminated, 50, 25),
}
