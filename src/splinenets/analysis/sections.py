"""The parts of a report: runs side by side, where they disagree, and what is in each."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..health_check import Health
from ..training.build import Task
from . import figures
from .counts import standard_error
from .gallery import of_observation, over_epochs
from .glossary import GLOSSARY, explained, term
from .observe import CALLS, Observation
from .records import network_name
from .result import Subject, twins
from .style import for_both_lights, to_png, to_svg
from .text import Markup, element, image, png, printable, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LARGE = 300_000  # bytes of a drawing, from which on its pixels take less
SHARP = 180  # dots an inch of those pixels
SHOWN = 24  # pictures of test images on which two networks disagree
Part = tuple[str, list[Markup]]  # a heading, and what follows it
COSTS = {
    "active": "read for one image",
    "projection": "deciding",
    "weights": "mixing",
    "operator": "applying",
}


def side_by_side(subjects: Sequence[Subject]) -> Part:
    """Numbers of all runs in one table, and accuracy against cost."""
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
        (term("deployed", "latency when deployed"), lambda s: _milliseconds(s.deployed)),
        (term("latency", "latency in torch"), lambda s: _milliseconds(s.latency)),
        (term("healthy", "layers with healthy positions"), _healthy),
    ]
    lines = [[label, *(value(s) for s in subjects)] for label, value in rows]
    shown = table(
        ["", *(s.record.name for s in subjects)],
        [line for line in lines if any(cell != "-" for cell in line[1:])],
        class_="numbers",
    )
    text = (
        "Test accuracy is measured after the last epoch, with its standard error for this number of test images. "
        f"Latency: median of {CALLS} single images, one thread, the networks taking turns."
    )
    remarks = [f" {s.record.name}: {remark}" for s in subjects for remark in s.record.remarks]
    return "Side by side", [shown, element("p", explained(text), *remarks, class_="small"), *_tradeoff(subjects)]


def _milliseconds(seconds: float | None) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds else "-"


def _accuracy(subject: Subject) -> str:
    if subject.accuracy is None:
        return "-"
    if subject.seen is None:
        return f"{subject.accuracy:.1%}"
    error = standard_error(subject.accuracy, len(subject.seen.task.data.test.labels))
    return f"{subject.accuracy:.1%} ± {100 * error:.1f}"


def _healthy(subject: Subject) -> str:
    if subject.health is None or not subject.health.layers:
        return "-"
    verdicts = [layer.verdict for layer in subject.health.layers]
    return f"{verdicts.count('healthy')} of {len(verdicts)}"


def _tradeoff(subjects: Sequence[Subject]) -> Iterator[Markup]:
    points = [
        figures.Point(
            name=s.record.title,
            accuracy=s.accuracy,
            samples=len(s.seen.task.data.test.labels),
            macs=s.seen.cost.macs,
            parameters=s.seen.cost.parameters,
            latency=s.latency,
            deployed=s.deployed,
        )
        for s in subjects
        if s.seen and s.accuracy is not None
    ]
    if len(points) > 1:
        yield from _figure(
            figures.tradeoff(points),
            "tradeoff",
            "Higher is more accurate, further left is cheaper. Where bars overlap, one run of each cannot tell "
            "which network is better.",
            "Accuracy against what one image costs. Bars are one standard error of the accuracy.",
        )


def over_conditions(subjects: Sequence[Subject]) -> Iterator[Part]:
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
    for number, (name, series) in enumerate(groups.items(), 1):
        see = "A network that is told should be better than one that has to guess, and equally good everywhere."
        caption = f"Test accuracy in each stretch of the {name}, with one standard error."
        drawn = figures.accuracy_over_condition(series, name)
        yield f"Accuracy over the {name}", [*_figure(drawn, f"condition-{number}", see, caption)]


def where_they_disagree(subjects: Sequence[Subject]) -> Iterator[Part]:
    """Test images to which a SplineNet and its twin give different answers."""
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


def of_run(number: int, subject: Subject, interactive: bool) -> Iterator[Part]:
    """What is in a run: its layers, figures, costs and health; nothing if there is nothing to show."""
    seen = subject.seen
    drawn = [*(of_observation(seen) if seen is not None else ()), *over_epochs(subject.record.epochs)]
    shown: list[Markup] = []
    if interactive:
        guide = "Choose a layer, one of its splines and a class to see where its images lie, and the weights there."
        shown.append(
            element(
                "section",
                element("h3", "One layer at a time"),
                element("p", explained(guide), class_="see"),
                class_="panel",
                data_run=number,
            )
        )
    for each in drawn:
        picture = _figure(each.figure, f"{each.name}-{number + 1}", each.see, each.caption)
        shown += [element("h3", each.title), *picture]
    if seen is not None:
        shown += [element("h3", "What each layer costs"), *_costs(seen)]
        if subject.health is not None and subject.health.layers:
            shown += [element("h3", "Health of positions"), *_health(subject.health)]
    if shown:
        yield subject.record.title, shown


def _costs(seen: Observation) -> Iterator[Markup]:
    """A table of the layers that multiply, without columns of nothing, and bars of their work."""
    head, rows = seen.cost.rows()
    working = [number for number, layer in enumerate(seen.cost.layers) if layer.amounts.macs]
    shown = [rows[number] for number in [*working, -1]]
    kept = [i for i, name in enumerate(head) if name != "other" and any(row[i] not in ("0", "") for row in shown)]
    macs = [*(seen.cost.layers[number].amounts.macs for number in working), seen.cost.macs]
    lines = [
        [*("" if row[i] == "0" else row[i] for i in kept), _share(count / max(seen.cost.macs, 1))]
        for row, count in zip(shown, macs, strict=True)
    ]
    names = [COSTS.get(head[i], head[i]) for i in kept]
    text = "The bars show where the MACs of one image go."
    if seen.cost.other:
        text += f" Norms, activations and pooling add {seen.cost.other:,} operations of other kinds."
    yield element("p", explained(text), class_="see")
    yield table([*(term(name) if name in GLOSSARY else name for name in names), "of the MACs"], lines, class_="numbers")


def _share(share: float) -> Markup:
    return element("progress", max=1, value=f"{share:.3f}", aria_label=f"{share:.0%}")


def _health(health: Health) -> Iterator[Markup]:
    verdicts = [layer.verdict for layer in health.layers]
    yield element("p", explained(f"{verdicts.count('healthy')} of {len(verdicts)} layers are healthy."), class_="see")
    head = ["layer", "splines", term("entropy"), term("deviation"), term("saturated"), term("bits"), "verdict"]
    rows = [
        [
            layer.layer,
            layer.coordinates,
            f"{layer.entropy:.0%}",
            f"{layer.deviation:.2f}",
            f"{layer.saturated:.0%}",
            "" if layer.information is None else f"{layer.information:.2f}",
            element("span", layer.verdict, class_="good" if layer.verdict == "healthy" else "bad"),
        ]
        for layer in health.layers
    ]
    yield table(head, rows, class_="numbers")
    for advice in dict.fromkeys(layer.advice for layer in health.layers if layer.verdict != "healthy"):
        yield element("p", advice, class_="small")


def _figure(figure: Figure, name: str, see: str, caption: str) -> Iterator[Markup]:
    """What to see, then the figure, then what is drawn; ``name`` is that of a file to save it in."""
    drawing = to_svg(figure)
    if len(drawing) < LARGE:
        picture = image(for_both_lights(drawing), "svg+xml", caption)
    else:
        picture = image(to_png(figure, dpi=SHARP), "png", caption)
    yield element("p", explained(see), class_="see")
    yield element(
        "figure", element("div", picture, class_="scroll"), element("figcaption", explained(caption)), data_name=name
    )


def origin(subject: Subject) -> Markup:
    """How a run was made."""
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
