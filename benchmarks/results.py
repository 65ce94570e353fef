"""``python -m benchmarks.results``: the tables of docs/results.md and docs/decisions.md, from the result files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from benchmarks.search import PROBLEMS, RESULTS, TRIALS, file_name
from splinenets.reproduce import EXPERIMENTS, collect, read_result, table

ROOT = Path(__file__).parent.parent
SCALE = "standard"


def results() -> str:
    """A table for each experiment."""
    parts = []
    for name, experiment in EXPERIMENTS.items():
        command = f"`splinenets reproduce {name}`"
        found = collect(experiment, ROOT / "results" / name / SCALE)
        parts.append(f"### {experiment.title}\n\n{command}\n\n{table(experiment, found)}")
    return "\n\n".join(parts)


def search() -> str:
    """A table for each problem of the search: accuracy on held-out images, and how far it is from the first row."""
    return "\n\n".join("\n".join(_search_rows(problem)) for problem in PROBLEMS)


def _search_rows(problem: str) -> Iterator[str]:
    yield f"| {problem}, LeNet-16 | held-out accuracy, % | train loss |"
    yield "|---|---|---|"
    for name in TRIALS:
        file = RESULTS / problem / f"{file_name(name)}.json"
        if file.exists():
            result = read_result(file)
            yield f"| {name} | {100 * result.accuracy:.2f} | {result.epochs[-1]['train_loss']:.3f} |"


PAGES = {"results.md": ("benchmarks.results", results), "decisions.md": ("benchmarks.search", search)}


def section(page: str, marker: str) -> re.Match[str]:
    """What stands between a marker and its end in a page of the docs."""
    found = re.search(rf"(?<=<!-- {marker} -->\n).*?(?=\n<!-- end -->)", page, flags=re.DOTALL)
    if found is None:
        raise ValueError(f"there is no <!-- {marker} --> in the page")
    return found


def main() -> None:
    for page, (marker, make) in PAGES.items():
        path = ROOT / "docs" / page
        text = path.read_text()
        old = section(text, marker)
        path.write_text(text[: old.start()] + make() + text[old.end() :])


if __name__ == "__main__":
    main()
