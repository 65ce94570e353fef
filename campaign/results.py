"""What a campaign came to: the file of results in benchmarks/results, and the tables of docs/reliability.md."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from benchmarks.timing import RESULTS, markdown

FILE = RESULTS / "campaign.json"


class Row(TypedDict):
    """The trials of one kind."""

    chapter: str
    title: str
    kind: str
    planned: int
    tried: int
    held: int
    failed: int
    seconds: float


def read_rows(path: Path = FILE) -> list[Row]:
    """The rows of a file of results."""
    return json.loads(path.read_text())["rows"]


def chapters() -> str:
    """A row for each chapter."""
    rows = read_rows()
    titles = dict.fromkeys(row["title"] for row in rows)
    return chapter_table([row for row in rows if row["title"] == title] for title in titles)


def chapter_table(chapters: Iterable[Sequence[Row]]) -> str:
    """A table with a row for each chapter."""
    body = [[rows[0]["title"], *cells(totals(rows))] for rows in chapters]
    return markdown(["chapter", "planned", "tried", "held", "failed", "minutes"], body)


def kinds() -> str:
    """A row for each kind of trial."""
    head = ["chapter", "trials", "planned", "tried", "held", "failed", "minutes"]
    return markdown(head, [[row["title"], row["kind"], *cells(row)] for row in read_rows()])


def totals(rows: Sequence[Row]) -> dict[str, float]:
    """The sums of a chapter."""
    return {name: sum(row[name] for row in rows) for name in ("planned", "tried", "held", "failed", "seconds")}


def cells(row: Mapping[str, float] | Row) -> list[str]:
    """Numbers of a row, as text."""
    counts = [f"{row[name]:,}" for name in ("planned", "tried", "held", "failed")]
    return [*counts, f"{row['seconds'] / 60:.1f}"]
