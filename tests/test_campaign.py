"""The campaign's harness tells what holds from what does not; and, slowly, a cut of the campaign itself."""

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from campaign import __main__ as command
from campaign import harness, results
from campaign.harness import Kind, Result, Skipped, attempt, or_a_sentence
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parent.parent


def tried(run, tmp_path, number=0, **limits):
    return attempt("chapter", "kind", Kind(run=run, trials=1, **limits), number, 0, tmp_path)


def wrong(trial):
    raise KeyError("no such thing")


def greedy(trial):
    bytearray(1 << 30)


def deadly(trial):
    os.kill(os.getpid(), signal.SIGKILL)


def endless(trial):
    while True:
        time.sleep(0.01)


def chatty(trial):
    os.write(2, b"said by a library\n")
    raise AssertionError("so it goes")


def unfit(trial):
    raise Skipped("no compiler")


@pytest.mark.parametrize(
    ("run", "held", "why"),
    [
        (lambda trial: None, True, ""),
        (wrong, False, "KeyError: 'no such thing'"),
        (greedy, False, "MemoryError"),
        (deadly, False, "ended by signal SIGKILL"),
        (endless, False, "hangs: not done after 0.5 s"),
        (chatty, False, "said by a library"),
        (unfit, None, "Skipped: no compiler"),
    ],
)
def test_a_trial_holds_or_says_why_not(run, held, why, tmp_path):
    found = tried(run, tmp_path, seconds=0.5 if run is endless else 60, memory=1 << 28)
    assert found.held is held
    assert why in found.why


def test_time_in_which_a_campaign_was_stopped_itself_is_not_counted(tmp_path, monkeypatch):
    clock = itertools.count(step=1000)  # as after a pause between any two looks at it
    monkeypatch.setattr(harness.time, "monotonic", lambda: next(clock))
    assert tried(lambda trial: None, tmp_path, seconds=600).held


def test_what_a_trial_leaves_running_is_ended(tmp_path):
    """And its folder is gone."""

    def run(trial):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
        (trial.shared / "child").write_text(f"{child.pid} {trial.folder}")

    assert tried(run, tmp_path).held
    child, folder = (tmp_path / "child").read_text().split()
    assert not Path(folder).exists()
    while is_running(child):  # until the kernel has done what it was told
        time.sleep(0.01)


def is_running(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().split()[2] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_dice_fall_the_same_way_every_time(tmp_path):
    def run(trial):
        (trial.shared / f"{len(list(trial.shared.iterdir()))}").write_text(f"{trial.dice.random()} {trial.case}")

    for number in (3, 3, 4, 250):
        assert tried(run, tmp_path, number, cases=st.integers()).held
    first, again, other, later = (path.read_text() for path in sorted(tmp_path.iterdir()))
    assert first == again
    assert len({first, other, later}) == 3


def test_all_kinds_advance_alike():
    kinds = {"often": Kind(run=wrong, trials=300), "rarely": Kind(run=wrong, trials=3)}
    whole, part = harness.plan(kinds, None), harness.plan(kinds, 30)
    assert len(whole) == len(set(whole)) == 303
    assert [kind for kind, _ in whole[:151]].count("rarely") == 1
    assert [kind for kind, _ in part].count("rarely") == 1  # never none
    assert set(part) <= set(whole)


def test_what_was_done_is_not_done_again(tmp_path, capsys, monkeypatch):
    """A line that was cut off is; what failed, only if it is asked for."""
    odd = Kind(run=lambda trial: None if trial.number % 2 else wrong(trial), trials=4)
    chapter = SimpleNamespace(TITLE="small", KINDS={"odd": odd}, prepare=lambda shared: None)
    monkeypatch.setitem(sys.modules, "campaign.faults", chapter)
    monkeypatch.setattr(command, "CHAPTERS", ("faults",))
    out = tmp_path / "results.jsonl"
    assert command.main(["--out", str(out)]) == 1
    assert "odd, trial 0: FAILED: KeyError: 'no such thing'" in capsys.readouterr().out
    lines = out.read_text().splitlines()
    assert len(lines) == 4
    out.write_text("\n".join(lines)[:-9])
    command.main(["--out", str(out)])
    assert len(harness.read_results(out)) == 4
    command.main(["--out", str(out), "--again"])
    assert len(out.read_text().splitlines()) == 4 + 1 + 2
    assert "small    odd           4      4     2       2" in capsys.readouterr().out


def test_an_error_is_a_sentence_about_something():
    for error, about, complaint in (
        (ValueError(""), "", "without a word"),
        (ValueError("a\nb"), "", "more than one sentence"),
        (OSError("no space"), "/folder", "does not name /folder"),
    ):
        with pytest.raises(AssertionError, match=complaint), or_a_sentence(about):
            raise error
    with or_a_sentence("/folder"):
        raise ValueError("there is no space in /folder")
    with pytest.raises(KeyError), or_a_sentence():
        raise KeyError("a")


def test_rows_count_what_was_tried():
    chapters = {"a": SimpleNamespace(TITLE="title", KINDS={"kind": Kind(run=wrong, trials=9)})}
    found = [Result("a", "kind", n, 0, held, 2.0) for n, held in enumerate((True, True, False, None))]
    found.append(Result("a", "kind", 0, 1, False, 2.0))  # of another seed
    (row,) = command.summarize(chapters, found, 0)
    assert (row["planned"], row["tried"], row["held"], row["failed"], row["seconds"]) == (9, 3, 2, 1, 6.0)
    assert results.chapter_table([[row]]).splitlines()[-1] == "| title | 9 | 3 | 2 | 1 | 0.1 |"


@pytest.mark.parametrize(
    ("words", "complaint"), [(["--chapter", "x"], "invalid choice"), (["--trials", "0"], "1 or more")]
)
def test_wrong_options(words, complaint, capsys):
    with pytest.raises(SystemExit) as stopped:
        command.main(words)
    assert stopped.value.code == 2
    assert complaint in capsys.readouterr().err


def test_help_has_examples(capsys):
    with pytest.raises(SystemExit):
        command.main(["--help"])
    assert "python -m campaign --chapter faults" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("chapter", command.CHAPTERS)
def test_a_cut_of_the_campaign_holds(chapter, tmp_path):
    """About a minute of each chapter."""
    line = [sys.executable, "-m", "campaign", "--chapter", chapter, "--cut", "--minutes", "1", "--seed", "1"]
    found = subprocess.run(
        [*line, "--out", tmp_path / "results.jsonl"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stdout + found.stderr


def test_what_was_not_tried_again_stays_as_it_was_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "FILE", tmp_path / "campaign.json")

    def row(kind, tried, failed=0):
        counts = {"planned": 9, "tried": tried, "held": tried - failed, "failed": failed, "seconds": 1.0}
        return results.Row(chapter="damage", title="damage", kind=kind, **counts)

    command.record([row("PNG", 5), row("JPEG", 0)], [], 0)
    command.record([row("PNG", 0), row("JPEG", 3), row("recipe", 0)], [], 0)
    assert [(each["kind"], each["tried"]) for each in results.read_rows(results.FILE)] == [
        ("PNG", 5),
        ("JPEG", 3),
        ("recipe", 0),
    ]
