"""Attack this package until something breaks, and count.

Examples:
  python -m campaign                                         everything, which takes hours
  python -m campaign --chapter faults --chapter damage       two chapters
  python -m campaign --trials 50 --seed 7                    a small campaign with dice of its own
  python -m campaign --minutes 30                            what can be done in half an hour
  python -m campaign --chapter input --only "specs" 17       one trial again, with its traceback
  python -m campaign --table                                 the table of what was done so far

What was done is kept, a line for each trial, and not done again; a campaign that was stopped goes on where it was.

"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import cast

os.environ.setdefault("OMP_NUM_THREADS", "1")  # of children too; two trials must not disturb each other

import torch
from benchmarks.timing import about, write

from campaign import harness, results
from campaign.harness import Chapter, Result
from splinenets.tables import text_table
from splinenets.training.run import versions

CHAPTERS = ("faults", "damage", "input", "numbers", "composition", "time", "pages")
PLACE = Path(__file__).resolve().parent.parent / "runs" / "campaign"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a campaign; 1 if a trial failed."""
    options = parse(arguments)
    torch.set_num_threads(1)
    everything = {name: cast(Chapter, import_module(f"campaign.{name}")) for name in CHAPTERS}
    chapters = {name: everything[name] for name in options.chapter or CHAPTERS}
    if options.only:
        return again(chapters, options.only[0], int(options.only[1]), options.seed)
    file = options.out or PLACE / f"seed{options.seed}.jsonl"
    found = harness.read_results(file)
    if options.again:
        found = {key: result for key, result in found.items() if result.held is not False}
    if not options.table:
        print(f"seed {options.seed}, results in {file}", flush=True)
        carry_out(chapters, found, options, file)
    rows = summarize(chapters, list(found.values()), options.seed)
    print(f"\n{table(rows)}")
    if options.record:
        record(summarize(everything, list(found.values()), options.seed), list(found.values()), options.seed)
    return int(any(row["failed"] for row in rows))


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m campaign", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--chapter", action="append", choices=CHAPTERS, help="may be given several times; default: all")
    parser.add_argument("--trials", type=positive, help="of each chapter; default: as many as are planned")
    parser.add_argument("--minutes", type=float, help="of each chapter; then the next one begins")
    parser.add_argument("--patience", type=float, default=1.0, help="times as long before a trial hangs; default: 1")
    parser.add_argument("--cut", action="store_true", help="without what takes longer than minutes for one trial")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="file of results; default: runs/campaign/seedSEED.jsonl")
    parser.add_argument("--again", action="store_true", help="try again what failed before")
    parser.add_argument("--only", nargs=2, metavar=("KIND", "NUMBER"), help="this trial alone, with its traceback")
    parser.add_argument("--table", action="store_true", help="run nothing, print the table")
    parser.add_argument("--record", action="store_true", help=f"write {results.FILE.name} for the docs, too")
    return parser.parse_args(arguments)


def positive(text: str) -> int:
    """A whole number above 0."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"wants a number of 1 or more, got {text!r}")
    return int(text)


def carry_out(
    chapters: dict[str, Chapter],
    found: dict[tuple[str, str, int, int], Result],
    options: argparse.Namespace,
    file: Path,
) -> None:
    """Make the trials that are left, and keep what becomes of each."""
    for name, chapter in chapters.items():
        end = time.monotonic() + 60 * options.minutes if options.minutes else float("inf")
        kinds = {kind: chosen for kind, chosen in chapter.KINDS.items() if not (options.cut and chosen.long)}
        planned = harness.plan(kinds, options.trials)
        todo = [(kind, number) for kind, number in planned if (name, kind, number, options.seed) not in found]
        for result in harness.run_chapter(name, chapter, todo, options.seed, options.patience):
            harness.add_result(file, result)
            harness.say(result)
            found[result.key] = result
            if time.monotonic() > end:
                break


def again(chapters: dict[str, Chapter], kind: str, number: int, seed: int) -> int:
    """One trial, whose errors are shown."""
    name, chapter = next((item for item in chapters.items() if kind in item[1].KINDS), (None, None))
    if name is None or chapter is None:
        known = ", ".join(repr(each) for chapter in chapters.values() for each in chapter.KINDS)
        print(f"there are no trials of the kind {kind!r}, choose from {known}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as shared, tempfile.TemporaryDirectory() as folder:
        harness.bounded(lambda: chapter.prepare(Path(shared)), 900, 8 * harness.GIGABYTE, seed, Path(shared))
        trial = harness.trial_of(name, kind, chapter.KINDS[kind], number, seed, Path(folder), Path(shared))
        print(f"{kind} {number}: {trial.case!r}")
        os.chdir(folder)
        torch.manual_seed(trial.dice.randrange(2**31))
        chapter.KINDS[kind].run(trial)
    return 0


def summarize(chapters: dict[str, Chapter], found: Sequence[Result], seed: int) -> list[results.Row]:
    """A row for each kind."""
    rows = []
    for name, chapter in chapters.items():
        for kind, chosen in chapter.KINDS.items():
            own = [r for r in found if (r.chapter, r.kind, r.seed) == (name, kind, seed) and r.held is not None]
            held = sum(bool(result.held) for result in own)
            rows.append(
                results.Row(
                    chapter=name,
                    title=chapter.TITLE,
                    kind=kind,
                    planned=chosen.trials,
                    tried=len(own),
                    held=held,
                    failed=len(own) - held,
                    seconds=round(sum(result.seconds for result in own), 1),
                )
            )
    return rows


def table(rows: Sequence[results.Row]) -> str:
    """What a terminal shows."""
    body = [[row["title"], row["kind"], *results.cells(row)] for row in rows]
    return text_table(["chapter", "trials", "planned", "tried", "held", "failed", "minutes"], body)


def record(rows: list[results.Row], found: Sequence[Result], seed: int) -> None:
    """Write the file that the tables of the docs are made of; kinds that were not tried stay as they were recorded."""
    before = {row["kind"]: row for row in results.read_rows(results.FILE)} if results.FILE.exists() else {}
    rows = [row if row["tried"] else before.get(row["kind"], row) for row in rows]
    command = f"python -m campaign --seed {seed}, chapter by chapter with --minutes"
    failures = [asdict(result) for result in found if result.held is False]
    setting = about(command, seed=seed, versions=versions())
    write(results.FILE, {"about": setting, "rows": [dict(row) for row in rows], "failures": failures})


if __name__ == "__main__":
    sys.exit(main())
