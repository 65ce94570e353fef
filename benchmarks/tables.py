"""``python -m benchmarks.tables``: writes the tables of trainings in docs/ anew, from benchmarks/results."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from benchmarks.search import PROBLEMS, RESULTS, TRIALS, file_name
from splinenets.reproduce import EXPERIMENTS, collect, read_result, table

ROOT = Path(__file__).parent.parent
REPRODUCED = ROOT / "benchmarks" / "results" / "reproduce"
SCALE = "standard"


def reproduced() -> str:
    """A table for each experiment of the paper."""
    return "\n\n".join(
        f"### {experiment.title}\n\n`splinenets reproduce {name}`\n\n"
        + table(experiment, collect(experiment, REPRODUCED / name / SCALE))
        for name, experiment in EXPERIMENTS.items()
    )


def searched() -> str:
    """A table for each problem of the search."""
    return "\n\n".join("\n".join(_trials(problem)) for problem in PROBLEMS)


def _trials(problem: str) -> Iterator[str]:
    yield f"| {problem} | held-out accuracy, % | train loss |"
    yield "|---|---|---|"
    for name in TRIALS:
        file = RESULTS / problem / f"{file_name(name)}.json"
        if not file.exists():
            yield f"| {name} | not run yet | |"
            continue
        result = read_result(file)
        yield f"| {name} | {100 * result.accuracy:.2f} | {result.epochs[-1]['train_loss']:.3f} |"


PAGES = {"results.md": ("splinenets reproduce", reproduced), "decisions.md": ("benchmarks.search", searched)}


def section(page: str, marker: str) -> re.Match[str]:
    """What stands between ``<!-- marker -->`` and ``<!-- end -->`` in a page."""
    found = re.search(rf"(?<=<!-- {re.escape(marker)} -->\n).*?(?=\n<!-- end -->)", page, flags=re.DOTALL)
    if found is None:
        raise ValueError(f"the page has no <!-- {marker} --> with an <!-- end -->")
    return found


def main() -> None:
    for name, (marker, tables) in PAGES.items():
        path = ROOT / "docs" / name
        text = path.read_text()
        old = section(text, marker)
        path.write_text(text[: old.start()] + tables() + text[old.end() :])


if __name__ == "__main__":
    main()
