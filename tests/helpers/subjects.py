"""Runs and networks to look at, and names that try to get out of a page."""

import shutil

import torch

import splinenets as sn
from splinenets.analysis.records import Record
from splinenets.data import Dataset, Split, augmentation, load
from splinenets.files import read_sealed, write_sealed
from splinenets.training import load_recipe, train
from splinenets.training.build import Task

PAYLOADS = [
    "<script>window.hacked = 1</script>",
    '"><img src=x onerror="window.hacked=1">',
    "</script><script>window.hacked=1</script>",
    "'-window.hacked=1-'",
    "${window.hacked=1}{{window.hacked=1}}",
    "<!--<script>",
    "]]></style><svg onload=window.hacked=1>",
    "$\\frac{1}{0}$ & $",
    "javascript:window.hacked=1//",
    "\u202eright to left\x00\x1b[31m\udc80\ud800\n\t\u2028",
]
WRAPPINGS = [
    "{}", " {} ", "a{}", "{}b", "<b>{}</b>", '"{}"', "&lt;{}", "\\u003c{}", "{} 日本語 🙂", "{}" + "x" * 300,
]  # fmt: skip
HOSTILE = [f"{wrapping.replace('{}', payload)}" for payload in PAYLOADS for wrapping in WRAPPINGS]
assert len(set(HOSTILE)) == 100


def train_small(folder, model, **changes):
    settings = {"width": 3, "epochs": 2, "batch": 600, "precision": "float32"} | changes
    train(load_recipe("demo", overrides=[f"{k}={v}" for k, v in settings.items()], model=model), folder)
    return folder


def changed(run, to, **changes):
    """A copy of a run with another description; ``recipe`` changes its recipe."""
    shutil.copytree(run, to)
    content = read_sealed(to / "run.json")
    content["recipe"] |= changes.pop("recipe", {})
    write_sealed(to / "run.json", content | changes)
    return to


def hostile_task(count=200):
    """A data set of 100 classes with names that nobody should have."""
    whole = load("embedded")
    labels = torch.arange(count) % len(HOSTILE)
    return task_of(whole.test.images[:count], labels, HOSTILE)


def task_of(images, labels=None, classes=tuple("0123456789")):
    split = Split(images, torch.arange(len(images)) % len(classes) if labels is None else labels)
    data = Dataset(name=classes[0], train=split, test=split, classes=tuple(classes))
    return Task(data=data, augment=augmentation("none"), dtype=torch.float32)


def hostile_net(task):
    twin = sn.models.lenet(2, classes=len(HOSTILE))
    return sn.convert(twin, "H(4)-D-R3", example=task.example(), spread=1.0).eval()


def hostile_record(number, loaded):
    name = HOSTILE[number]
    return Record(
        name=name,
        recipe={"model": name, "data": "same", "epochs": name, **{text: text for text in HOSTILE}},
        precision=name,
        versions=dict.fromkeys(HOSTILE, name),
        command=["splinenets", *HOSTILE],
        epochs=[],
        notes=[name],
        loaded=loaded,
    )
