"""One HTML file about one or more runs, without anything from the network."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..files import replacing
from ..layers import SplineLayer
from . import sections
from .counts import join_rare, layer_data
from .glossary import explained, glossary
from .observe import Observation, in_torch_and_deployed, observe
from .records import Record, read_records
from .result import Subject, comparison, result, tiles
from .style import check_matplotlib, class_colours
from .text import Markup, data_block, document, element, page_file, printable

LARGEST = 8_000_000  # bytes of a report


def write_report(folders: Sequence[Path], out: Path) -> list[str]:
    """Write the report about these runs to ``out``, whole or not at all; the notes that stand in it."""
    check_matplotlib()
    records = read_records(folders)
    if out.suffix != ".html" or out.is_dir():
        raise ValueError(f"--out is the name of an .html file, got {str(out)!r}")
    if not out.parent.is_dir():
        raise ValueError(f"--out: there is no folder {out.parent}")
    subjects = observe_all(records)
    content = build(subjects, ["splinenets", "report", *map(str, folders)]).encode()
    if len(content) > LARGEST:
        raise ValueError(
            f"the report would have {len(content) / 1e6:.1f} MB, more than the {LARGEST / 1e6:.0f} MB that a browser "
            "opens with ease: give fewer runs"
        )
    with replacing(out) as file:
        file.write(content)
    return [f"{subject.record.name}: {note}" for subject in subjects for note in subject.record.notes]


def observe_all(records: Sequence[Record]) -> list[Subject]:
    """Let every network that there is see its test images, and time it in torch and deployed."""
    times, calm = in_torch_and_deployed([r.loaded for r in records if r.loaded is not None])
    found = iter(times)
    return [Subject(r, observe(*r.loaded), *next(found), calm=calm) if r.loaded else Subject(r, None) for r in records]


def build(subjects: Sequence[Subject], command: Sequence[str]) -> str:
    """The page."""
    data = [run_data(s.seen) if s.seen is not None and s.seen.positions else None for s in subjects]
    parts: list[sections.Part] = [sections.side_by_side(subjects)]
    parts += sections.over_conditions(subjects)
    parts += sections.where_they_disagree(subjects)
    for number, subject in sorted(enumerate(subjects), key=lambda each: each[1].record.is_static):  # which have little
        parts += sections.of_run(number, subject, data[number] is not None)
    parts += [
        ("How the runs were made", [*map(sections.origin, subjects)]),
        ("What the words mean", [glossary()]),
    ]
    numbered = list(enumerate(parts, 1))
    contents = [element("li", element("a", title, href=f"#part-{i}")) for i, (title, _) in numbered]
    title = heading(subjects)
    body = [
        element(
            "header",
            element("h1", title),
            element("p", "; ".join(dict.fromkeys(s.record.about for s in subjects)), class_="small"),
            element("p", explained(result(subjects), [s.record.name for s in subjects]), class_="result"),
            *tiles(subjects),
            *_notes(subjects),
        ),
        element("nav", element("b", "Contents"), element("ol", *contents), aria_label="contents"),
        element(
            "main",
            *(part for i, (title, some) in numbered for part in (element("h2", title, id=f"part-{i}"), *some)),
            element("p", "Written by ", element("code", shlex.join(map(printable, command))), ".", class_="small"),
        ),
        data_block("data", data),
    ]
    styles = page_file("base.css") + page_file("report.css")
    script = page_file("draw.js") + page_file("report.js")
    return document(f"Report: {title}", Markup("\n".join(body)), styles, script)


def heading(subjects: Sequence[Subject]) -> str:
    """What the report is about."""
    if (found := comparison(subjects)) is not None and len(subjects) == 2:
        return f"{found.own} beside {found.twin}"
    return ", ".join(s.record.name for s in subjects)


def run_data(seen: Observation) -> dict[str, object]:
    """Everything about a run's layers that the page's own script draws."""
    labels, names = join_rare(seen.labels, seen.task.data.classes)
    modules = {name: m for name, m in seen.net.named_modules() if isinstance(m, SplineLayer)}
    layers = [
        layer_data(modules[name.partition("#")[0]], name, position.flatten(1), labels, len(names))
        for name, position in seen.positions.items()
    ]
    return {
        "classes": [printable(name, 40) for name in names],
        "colours": class_colours(len(names)),
        "layers": layers,
    }


def _notes(subjects: Sequence[Subject]) -> Iterator[Markup]:
    notes = [element("li", element("b", s.record.name), ": ", note) for s in subjects for note in s.record.notes]
    if notes:
        yield element("ul", *notes, class_="notes")
