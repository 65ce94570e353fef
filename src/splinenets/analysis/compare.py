"""Two networks on the same test images: where they give different answers."""

from __future__ import annotations

import io
from collections.abc import Iterator

import torch
from torch import Tensor

from ..training.build import Task
from .html import Markup, element, image
from .observe import Observation

SHOWN = 24  # pictures


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


def png(pixels: Tensor) -> bytes:
    """An image of bytes, (C, H, W), as PNG."""
    from PIL import Image

    array = pixels.squeeze(0).numpy() if len(pixels) == 1 else pixels.permute(1, 2, 0).contiguous().numpy()
    file = io.BytesIO()
    Image.fromarray(array).save(file, "PNG")
    return file.getvalue()
