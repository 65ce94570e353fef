"""Trials: seeded, each in a process of its own that may neither hang nor eat the machine, and resumable."""

from __future__ import annotations

import gc
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import IO, Any, Protocol

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis.strategies import SearchStrategy
from tests.helpers.commands import call
from tests.helpers.runs import fork

from splinenets.kernels.build import library

GIGABYTE = 1 << 30
CHUNK = 50  # cases that are generated together: trial 250 is the same whether 300 or 3,000 are asked for
LONGEST = 400  # letters of a reason
LONGEST_NAP = 1.0  # seconds between two looks at a child; if there are more, this process was stopped itself
# what torch and this package import when they are first asked for something, hundreds of modules: once, and not in each
# trial
LATE = (
    "splinenets.interface",
    "torch._dynamo",
    "torch.distributed.fsdp",
    "torch.utils.data",
    "sympy",
    "encodings.idna",
)


class Skipped(Exception):
    """A trial that cannot be made here, for want of a compiler, say."""


@dataclass(frozen=True)
class Trial:
    """One attempt. Its dice fall the same way every time."""

    number: int  # among those of its kind
    dice: random.Random
    folder: Path  # its own, and empty
    shared: Path  # what the chapter made beforehand; to be read only
    case: Any = None  # what the kind's grammar generated


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Trials of one kind; one that returns has held, one that raises, hangs, crashes or wants too much has failed.

    trials   how many a whole campaign makes
    seconds  after which a trial hangs
    memory   bytes that it may take beyond what is there when it begins
    cases    a grammar, one of whose words each trial gets
    long     whether one trial takes longer than a whole cut of the campaign
    """

    run: Callable[[Trial], None]
    trials: int
    seconds: float = 60
    memory: int = 3 * GIGABYTE
    cases: SearchStrategy[Any] | None = None
    long: bool = False


class Chapter(Protocol):
    """The module of a chapter."""

    TITLE: str
    KINDS: Mapping[str, Kind]

    def prepare(self, shared: Path) -> None:
        """Make, once, what the chapter's trials look at."""


@dataclass(frozen=True)
class Result:
    """What became of a trial; ``held`` is None where it could not be made."""

    chapter: str
    kind: str
    number: int
    seed: int
    held: bool | None
    seconds: float
    why: str = ""

    @property
    def key(self) -> tuple[str, str, int, int]:
        """Which trial it was."""
        return self.chapter, self.kind, self.number, self.seed


# One trial


def attempt(
    chapter: str, kind: str, chosen: Kind, number: int, seed: int, shared: Path, patience: float = 1.0
) -> Result:
    """Make one trial in a process of its own; on a busy machine with ``patience`` times the time."""
    folder = Path(tempfile.mkdtemp(prefix="trial-"))
    trial, began = trial_of(chapter, kind, chosen, number, seed, folder, shared), time.perf_counter()
    limits = (patience * chosen.seconds, chosen.memory)
    try:
        why = bounded(lambda: chosen.run(trial), *limits, trial.dice.randrange(2**31), folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    skipped = why.startswith(f"{Skipped.__name__}: ")
    if why and not skipped and trial.case is not None:
        why = f"{why} <- {trial.case!r}"[: 3 * LONGEST]
    held = None if skipped else not why
    return Result(chapter, kind, number, seed, held, round(time.perf_counter() - began, 3), why)


def trial_of(chapter: str, kind: str, chosen: Kind, number: int, seed: int, folder: Path, shared: Path) -> Trial:
    """A trial by its number: dice and case depend on nothing else."""
    name = f"{seed}/{chapter}/{kind}"
    case = None if chosen.cases is None else case_of(chosen.cases, number, name)
    return Trial(number, random.Random(f"{name}/{number}"), folder, shared, case)


def bounded(work: Callable[[], None], seconds: float, memory: int, seed: int, folder: Path) -> str:
    """Do ``work`` in a child that must end in time and within memory; why it failed, or nothing."""
    with tempfile.TemporaryFile() as told, tempfile.TemporaryFile() as printed:

        def within_limits() -> None:
            os.setsid()  # what it starts ends with it
            listen_to(printed)
            limit_memory(memory)
            os.chdir(folder)
            torch.manual_seed(seed)
            os.write(told.fileno(), reason(work).encode())

        ended = wait(fork(within_limits), seconds)
        why = read_end(told)
        if ended is None:
            why = f"hangs: not done after {seconds:g} s"
        elif ended:
            why = f"ended by {describe(ended)}"
        return f"{why} | {read_end(printed)}" if why else ""


def limit_memory(more: int) -> None:
    """Let this process have so many bytes more than it has."""
    limit = virtual_memory() + more
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def listen_to(printed: IO[bytes]) -> None:
    """Whatever is printed from now on, by libraries too, goes into a file."""
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for stream in (1, 2):
        os.dup2(printed.fileno(), stream)


def read_end(file: IO[bytes]) -> str:
    """The end of a file, in one line."""
    file.seek(0)
    return " ".join(file.read().decode(errors="replace").split())[-LONGEST:]


def reason(work: Callable[[], None]) -> str:
    """Why ``work`` fails, in one line with the place; nothing if it does not."""
    try:
        work()
    except BaseException as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        text = " ".join(str(error).split())[:LONGEST]
        return f"{type(error).__name__}: {text} ({Path(place.filename).name}:{place.lineno})"
    return ""


def wait(child: int, seconds: float) -> int | None:
    """The exit code of a child, negative if a signal ended it; None if it took too long. What it started ends too."""
    now, pause, waiting = time.monotonic(), 0.002, os.WEXITED | os.WNOHANG | os.WNOWAIT
    while not (ended := os.waitid(os.P_PID, child, waiting)) and seconds > 0:
        time.sleep(pause)
        before, now = now, time.monotonic()
        seconds -= min(now - before, LONGEST_NAP)  # while both were stopped, nothing was hanging
        pause = min(2 * pause, 0.05)
    with suppress(ProcessLookupError):  # it is still there, if dead, so its group cannot be anybody else's
        os.killpg(child, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code if ended else None


def describe(code: int) -> str:
    """An exit code in words."""
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def virtual_memory() -> int:
    """Bytes of address space that this process has."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()


@contextmanager
def or_a_sentence(about: object = "", kinds: tuple[type[Exception], ...] = (ValueError, OSError)) -> Iterator[None]:
    """What is done inside works, or raises one of these errors, in one line that names ``about``."""
    try:
        yield
    except kinds as error:
        check_sentence(str(error), str(about))


def check_sentence(text: str, about: str) -> None:
    """One line, and it names what it is about."""
    assert text.strip(), "an error without a word"
    assert len(text.splitlines()) == 1, f"more than one sentence: {text}"
    assert about in text, f"does not name {about}: {text}"


# Cases of a grammar


def case_of(cases: SearchStrategy[Any], number: int, name: str) -> Any:
    """The word of a grammar that belongs to a trial."""
    words = generate(cases, f"{name}/{number // CHUNK}")
    return words[number % CHUNK % len(words)]


@lru_cache(maxsize=16)
def generate(cases: SearchStrategy[Any], name: str) -> Sequence[Any]:
    """Up to ``CHUNK`` words of a grammar, the same for the same name."""
    words: list[Any] = []

    @seeded(random.Random(name).randrange(2**32))
    @settings(
        max_examples=CHUNK,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases)
    def collect(word: Any) -> None:
        words.append(word)

    collect()
    return words


# Many trials


def plan(kinds: Mapping[str, Kind], trials: int | None) -> list[tuple[str, int]]:
    """Kinds and numbers in the order of their trials: all kinds advance alike, however far a campaign gets."""
    total = sum(kind.trials for kind in kinds.values())
    share = 1.0 if trials is None else trials / total
    counts = {name: max(1, round(kind.trials * share)) for name, kind in kinds.items()}
    places = [((number + 0.5) / count, name, number) for name, count in counts.items() for number in range(count)]
    return [(name, number) for _, name, number in sorted(places)]


def warm_up() -> None:
    """Do once, in the process that trials are forked from, what each of them would do first."""
    for name in LATE:
        import_module(name)
    library()  # compiled now and not within the time of a trial
    for words in (["train", "demo", "--show"], ["train", "nowhere"]):  # the command line imports what it needs late
        call(*words)
    gc.collect()
    gc.freeze()  # or every child would copy the memory that its collector looks at


def run_chapter(
    name: str, chapter: Chapter, todo: Sequence[tuple[str, int]], seed: int, patience: float = 1.0
) -> Iterator[Result]:
    """Trials of a chapter, one after the other."""
    if not todo:
        return
    with tempfile.TemporaryDirectory(prefix=f"campaign-{name}-") as folder:
        shared = Path(folder)
        warm_up()
        if why := bounded(lambda: chapter.prepare(shared), patience * 900, 8 * GIGABYTE, seed, shared):
            raise RuntimeError(f"the chapter {name} could not be prepared: {why}")
        for kind, number in todo:
            yield attempt(name, kind, chapter.KINDS[kind], number, seed, shared, patience)


# Results on disk: a line for each trial, the last one about a trial counts


def read_results(path: Path) -> dict[tuple[str, str, int, int], Result]:
    """What was found so far; a trial whose line was cut off is made again."""
    lines = path.read_text().splitlines() if path.exists() else []
    results = []
    for line in lines:
        with suppress(ValueError, TypeError):
            results.append(Result(**json.loads(line)))
    return {result.key: result for result in results}


def add_result(path: Path, result: Result) -> None:
    """One more line, behind one that may have been cut off."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        file.seek(max(0, file.tell() - 1))
        start = b"\n" if file.read(1) not in (b"", b"\n") else b""
        file.write(start + json.dumps(asdict(result)).encode() + b"\n")


def say(result: Result) -> None:
    """How a trial went: failures as a line, everything else as one that is written over."""
    name = f"{result.chapter}, {result.kind}, trial {result.number}"
    if result.held is False:
        print(f"\r\033[K{name}: FAILED: {result.why}", flush=True)
    elif sys.stdout.isatty():
        print(f"\r\033[K{name}: {'skipped' if result.held is None else 'held'}", end="", flush=True)
