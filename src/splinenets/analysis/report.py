"""One HTML file about one or more runs, without anything from the network."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..files import replacing
from ..layers import SplineLayer
from ..training.build import Task
from . import figures
from .counts import join_rare, layer_data, standard_error
from .gallery import of_observation, over_epochs
from .observe import CALLS, Observation, latencies, observe
from .records import Record, network_name, read_records
from .result import Subject, glossary, result, term, twins
from .style import check_matplotlib, class_colours, to_png, to_svg
from .text import Markup, data_block, document, element, escape, image, page_file, png, printable, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LARGEST = 8_000_000  # bytes of a report
LARGE = 300_000  # bytes of a drawing, from which on its pixels take less
SHOWN = 24  # pictures of test images on which two networks disagree


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
    """Let every network that there is see its test images."""
    loaded = [r.loaded for r in records if r.loaded is not None]
    images = [tuple(x.to(next(net.parameters()).device) for x in task.example(1)) for net, task in loaded]
    times = iter(latencies([net for net, _ in loaded], images))
    return [Subject(r, observe(*r.loaded), next(times)) if r.loaded else Subject(r, None, None) for r in records]


def build(subjects: Sequence[Subject], command: Sequence[str]) -> str:
    """The page."""
    names = [s.record.name for s in subjects]
    data = [run_data(s.seen) if s.seen is not None and s.seen.positions else None for s in subjects]
    parts: list[tuple[str, list[Markup]]] = [("Side by side", [_summary(subjects), *_tradeoff(subjects)])]
    parts += _over_conditions(subjects)
    parts += _disagreements(subjects)
    for number, subject in enumerate(subjects):
        if shown := list(_run(number, subject, data[number] is not None)):
            parts.append((subject.record.title, shown))
    parts += [("How the runs were made", [*map(_origin, subjects)]), ("What the words mean", [glossary()])]
    numbered = list(enumerate(parts, 1))
    contents = [element("li", element("a", title, href=f"#part-{i}")) for i, (title, _) in numbered]
    body = [
        element("h1", "SplineNets report"),
        element("p", result(subjects), class_="result"),
        *_notes(subjects),
        element("nav", element("ol", *contents), aria_label="contents"),
        *(part for i, (title, some) in numbered for part in (element("h2", title, id=f"part-{i}"), *some)),
        element("p", "Written by ", element("code", shlex.join(map(printable, command))), ".", class_="small"),
        data_block("data", data),
    ]
    styles = page_file("base.css") + page_file("report.css")
    script = page_file("draw.js") + page_file("report.js")
    return document(f"Report: {', '.join(names)}", Markup("\n".join(body)), styles, script)


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


def _summary(subjects: Sequence[Subject]) -> Markup:
    rows: list[tuple[object, Callable[[Subject], object]]] = [
        ("model", lambda s: s.record.model),
        ("network", lambda s: network_name(s.record.recipe)),
        ("data", lambda s: s.record.data),
        ("epochs", lambda s: f"{len(s.record.epochs)} of {printable(s.record.recipe.get('epochs', '?'), 20)}"),
        ("seed", lambda s: s.record.recipe.get("seed", "?")),
        ("test accuracy", _accuracy),
        ("test loss", lambda s: f"{s.record.epochs[-1].test_loss:.3f}" if s.record.epochs else "-"),
        (term("parameters"), lambda s: f"{s.seen.cost.parameters:,}" if s.seen else "-"),
        (term("read for one image", "  read for one image"), lambda s: f"{s.seen.cost.active:,}" if s.seen else "-"),
        (term("MACs"), lambda s: f"{s.seen.cost.macs:,}" if s.seen else "-"),
        (term("latency"), lambda s: f"{s.latency * 1e3:.2f} ms" if s.latency else "-"),
        ("layers with healthy positions", _healthy),
    ]
    head = ["", *(s.record.name for s in subjects)]
    shown = table(head, [[label, *(value(s) for s in subjects)] for label, value in rows], class_="numbers")
    explained = (
        "Test accuracy is that after the last epoch, with the standard error that so many test images leave. "
        f"Latency: median of {CALLS} single images, one thread, the networks taking turns."
    )
    remarks = [f" {s.record.name}: {remark}" for s in subjects for remark in s.record.remarks]
    return element("div", shown, element("p", explained, *remarks, class_="small"))


def _accuracy(subject: Subject) -> str:
    if not subject.record.epochs:
        return "-"
    accuracy = subject.record.epochs[-1].test_accuracy
    if subject.seen is None:
        return f"{accuracy:.1%}"
    return f"{accuracy:.1%} ± {100 * standard_error(accuracy, len(subject.seen.task.data.test.labels)):.1f}"


def _healthy(subject: Subject) -> str:
    if subject.seen is None or subject.seen.health is None or not subject.seen.health.layers:
        return "-"
    layers = subject.seen.health.layers
    return f"{len(layers) - len(subject.seen.health.unhealthy)} of {len(layers)}"


def _tradeoff(subjects: Sequence[Subject]) -> Iterator[Markup]:
    points = [
        figures.Point(
            name=s.record.title,
            accuracy=s.record.epochs[-1].test_accuracy,
            samples=len(s.seen.task.data.test.labels),
            macs=s.seen.cost.macs,
            parameters=s.seen.cost.parameters,
            latency=s.latency,
        )
        for s in subjects
        if s.seen and s.latency and s.record.epochs
    ]
    if points:
        yield _figure(
            figures.tradeoff(points),
            "Accuracy against what one image costs. Bars are one standard error of the accuracy.",
        )


def _over_conditions(subjects: Sequence[Subject]) -> Iterator[tuple[str, list[Markup]]]:
    """Accuracy over what images were changed by, a figure for each kind of change."""
    groups: dict[str, list[figures.Answers]] = {}
    for subject in subjects:
        seen = subject.seen
        if seen is None or seen.task.change is None or seen.task.data.test.values is None:
            continue
        told = subject.record.recipe.get("told", "nobody")
        change, values = seen.task.change, seen.task.data.test.values[: len(seen.labels)]
        answers = figures.Answers(
            name=f"{subject.record.name}, {'not told' if told == 'nobody' else f'told by {told}'}",
            between=(change.low, change.high),
            values=values,
            right=seen.logits.argmax(1) == seen.labels,
        )
        groups.setdefault(printable(change.name, 40), []).append(answers)
    for name, series in groups.items():
        caption = (
            f"Test accuracy in each stretch of the {name}, with one standard error. "
            "What to see: a network that is told should lie above one that has to guess, and be as good everywhere."
        )
        yield f"Accuracy over the {name}", [_figure(figures.accuracy_over_condition(series, name), caption)]


def _disagreements(subjects: Sequence[Subject]) -> Iterator[tuple[str, list[Markup]]]:
    pair = twins(subjects)
    if pair is not None and pair[0].seen and pair[1].seen:
        names = pair[0].record.name, pair[1].record.name
        yield f"Where {names[0]} and {names[1]} disagree", [*disagreements(names, (pair[0].seen, pair[1].seen))]


def disagreements(names: tuple[str, str], seen: tuple[Observation, Observation]) -> Iterator[Markup]:
    """How often two networks disagree and who is right, then pictures, those first of which both are most sure."""
    first, second = (s.logits.softmax(1) for s in seen)
    task, labels = seen[0].task, seen[0].labels
    says = first.argmax(1), second.argmax(1)
    apart = says[0] != says[1]
    rights = [int((apart & (said == labels)).sum()) for said in says]
    count, neither = int(apart.sum()), int((apart & (says[0] != labels) & (says[1] != labels)).sum())
    yield element(
        "p",
        f"Of {len(labels):,} test images they disagree on {count:,}: {names[0]} is right in {rights[0]:,}, {names[1]} "
        f"in {rights[1]:,}, neither in {neither:,}.",
    )
    if not count:
        return
    sure = torch.minimum(first.max(1).values, second.max(1).values)
    order = [i for i in sure.argsort(descending=True).tolist() if apart[i]][:SHOWN]
    cards = [_card(task, i, int(labels[i]), names, (first[i], second[i])) for i in order]
    classes = sorted({int(labels[i]) for i in order})
    choices = [element("option", task.data.classes[c], value=c) for c in classes]
    choice = element("select", element("option", "all", value=""), *choices, id="disagreeing")
    yield element("p", element("label", "class ", choice), " The tick marks the right answer.")
    yield element("div", *cards, class_="cards")


def _card(task: Task, index: int, label: int, names: tuple[str, str], chances: tuple[Tensor, Tensor]) -> Markup:
    classes = task.data.classes
    lines = []
    for name, chance in zip(names, chances, strict=True):
        said = int(chance.argmax())
        mark = " ✓" if said == label else ""
        answer = f"{classes[said]} {float(chance[said]):.0%}{mark}"
        lines += [element("dt", name), element("dd", answer)]
    picture = image(png(task.data.test.images[index]), "png", f"a test image of class {classes[label]}")
    caption = element("figcaption", element("b", classes[label]), element("dl", *lines))
    return element("figure", picture, caption, class_="card", data_label=label)


def _run(number: int, subject: Subject, interactive: bool) -> Iterator[Markup]:
    record, seen = subject.record, subject.seen
    drawn = list(over_epochs(record.epochs))
    if seen is not None:
        drawn += of_observation(seen)
    if seen is None and not drawn:
        return
    if interactive:
        yield element("section", element("h3", "One layer at a time"), class_="panel", data_run=number)
    for each in drawn:
        yield element("h3", each.title)
        yield _figure(each.figure, each.caption)
    if seen is not None:
        yield element("h3", "Cost by layer")
        yield table(*without_zeros(*seen.cost.rows()), class_="numbers")
        yield element("p", "Parameters, and multiply-accumulates for one image, part by part.", class_="small")
        if seen.health is not None and seen.health.layers:
            yield element("h3", "Health")
            yield element("pre", *_lines(str(seen.health)))


def without_zeros(head: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """A table without the columns in which there is nothing."""
    kept = [i for i in range(len(head)) if any(row[i] not in ("0", "") for row in rows)]
    return [head[i] for i in kept], [[row[i] for i in kept] for row in rows]


def _figure(figure: Figure, caption: str) -> Markup:
    drawing = to_svg(figure)
    if len(drawing) < LARGE:
        picture = image(drawing, "svg+xml", caption)
    else:
        picture = image(to_png(figure, dpi=180), "png", caption)
    return element("figure", picture, element("figcaption", caption))


def _origin(subject: Subject) -> Markup:
    record = subject.record
    recipe = table(["setting", "value"], list(record.recipe.items()))
    command = shlex.join(map(printable, command_line(record.command))) if record.command else "not recorded"
    versions = ", ".join(f"{printable(name, 60)} {printable(number, 80)}" for name, number in record.versions.items())
    return element(
        "section",
        element("h3", record.name),
        element("p", element("code", command)),
        element("p", f"{versions}; trained in {record.precision}", class_="small"),
        element("details", element("summary", "The whole recipe"), recipe),
    )


def command_line(recorded: Sequence[str]) -> list[str]:
    """How to type a recorded command: the path of the program becomes its name."""
    program, *words = recorded
    name = Path(program).name
    if name == "__main__.py":
        return ["python", "-m", "splinenets", *words]
    return [*(["python", program] if name.endswith(".py") else [name]), *words]


def _lines(text: str) -> Iterator[Markup]:
    for line in text.splitlines():
        yield Markup(f"{escape(line)}\n")
