"""Input: generated command lines, recipes, specs and calls: they work, or one sentence says what is wrong."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
import typer.main
from hypothesis import strategies as st
from tests.helpers import subjects
from tests.helpers.commands import call
from tests.helpers.grammars import KEYS, junk, numbers, specs, toml, words

import splinenets as sn
from campaign import calls
from campaign.harness import Kind, Trial, or_a_sentence
from splinenets.cli import app

TITLE = "input"
CODES = (0, 2, 3)  # done; wrong input; a loss that is not finite
# commands that would train for hours, serve for ever or ask the network are asked for what they must refuse
REFUSED = {
    "demo": ["--set", "epochs=0"],
    "reproduce": ["--scale", "nonsense"],
    "data get": ["nowhere"],
    "explore": ["--port", "-1"],
}
SHOWN = {"train": ["--show"]}
PLACES = ("{run}", "{run}/run.json", "{run}/checkpoints", "nowhere", "", ".", "/", "/dev/null", "a/b/c", "x" * 300)
OUTS = ("out", "out.html", "out.onnx", "nowhere/out.html", "/dev/null/x", "/proc/x", "{run}/run.json", "")


def commands(command: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """All commands below this one, by their words; typer does not say of which type they are."""
    inner: Mapping[str, Any] = getattr(command, "commands", {})
    if not inner:
        yield name, command
    for word, each in inner.items():
        yield from commands(each, f"{name} {word}".strip())


COMMANDS = dict(commands(typer.main.get_command(app)))
settings = st.builds("{}={}".format, st.sampled_from(KEYS), st.one_of(junk, numbers, words, specs))
anything = st.one_of(junk, numbers, words, specs, settings, st.sampled_from(PLACES))


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    """A command, and options that it has, mostly, with values of all kinds."""
    name = draw(st.sampled_from(sorted(COMMANDS)))
    options = [option for parameter in COMMANDS[name].params for option in parameter.opts if option.startswith("-")]
    line = name.split()
    line += draw(st.lists(st.sampled_from(PLACES) | anything, max_size=2))
    for option in draw(st.lists(st.sampled_from(options or ["--help"]), max_size=4)):
        value = {"--set": settings, "--model": specs, "--out": st.sampled_from(OUTS)}.get(option, anything)
        line += [option, draw(value)] if draw(st.integers(0, 9)) else [option]
    return line + REFUSED.get(name, SHOWN.get(name, []))


def prepare(shared: Path) -> None:
    """A run for commands that want one."""
    subjects.train_small(shared / "run", "D(3)-D-R3", width=2, batch=100, images=600)


def start(*words: str) -> tuple[int, str, str]:
    """Exit code, standard output and error of a command line in a process of its own, as a shell starts it."""
    done = subprocess.run([sys.executable, "-m", "splinenets", *words], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def command_line(call: Callable[..., tuple[int, str, str]], trial: Trial) -> None:
    """Exit code 0, or 2 and a sentence."""
    line = [word.replace("{run}", str(trial.shared / "run")) for word in trial.case]
    code, _, err = call(*line)
    assert code in CODES, f"exit code {code}: {err}"
    assert "Traceback" not in err
    assert code == 0 or err.strip()


def recipe_file(trial: Trial) -> None:
    """A file of one's own, read and shown."""
    (trial.folder / "mine.toml").write_text(trial.case, encoding="utf-8")
    code, _, err = call("train", trial.folder / "mine.toml", "--show")
    assert code in (0, 2)
    assert "Traceback" not in err
    assert code == 0 or len(err.splitlines()) == 1, err


nested = st.builds(
    lambda depth, pair: f"a = {pair[0] * depth}1{pair[1] * depth}",
    st.sampled_from([10, 500, 5_000, 100_000]),
    st.sampled_from(["[]", ("{a=", "}"), ("[", "")]),
)
quick = st.fixed_dictionaries(
    {
        "model": specs,
        "learning_rate": st.sampled_from(["0", "0.1", "1000", "1e-30"]),
        "momentum": st.sampled_from(["0", "0.9", "0.9999"]),
        "clip": st.sampled_from(["0", "1", "1e-30"]),
        "bins": st.sampled_from(["2", "50", "1000", "10000"]),
        "bin_slope": st.sampled_from(["1.5", "100", "1e30"]),
        "batch": st.sampled_from(["1", "7", "1000000"]),
        "spread": st.sampled_from(["0", "0.1", "100"]),
        "precision": st.sampled_from(["float32", "bf16", "float64"]),
        "anneal": st.sampled_from(["steps", "one-cycle"]),
    }
)


def training(trial: Trial) -> None:
    """A few steps with settings that are odd, each within what a recipe allows."""
    chosen = trial.case | {"width": 2, "images": 20, "epochs": 1, "data": "embedded", "augment": "none"}
    line = ["train", "demo", "--out", trial.folder / "run"]
    for key, value in chosen.items():
        line += ["--set", f"{key}={value}"]
    code, _, err = call(*line)
    assert code in CODES, f"exit code {code}: {err}"
    assert "Traceback" not in err


def spec(trial: Trial) -> None:
    """What can be read can be built, computes finite numbers, and is written as it was read."""
    with or_a_sentence():
        found = sn.SplineSpec.parse(trial.case)
        assert sn.SplineSpec.parse(str(found)) == found
        for make in (conv, linear):
            with or_a_sentence():
                computes(*make(found))


def computes(layer: sn.SplineLayer, x: torch.Tensor) -> None:
    """Outputs and gradients are finite."""
    y = layer(x)
    y.sum().backward()
    assert y.isfinite().all(), "not finite"
    assert all(p.grad is None or p.grad.isfinite().all() for p in layer.parameters()), "gradients not finite"


def conv(spec: sn.SplineSpec) -> tuple[sn.SplineLayer, torch.Tensor]:
    """A small convolution and images for it."""
    return sn.SplineConv2d(3, 4, 3, padding=1, spec=spec, input_size=(5, 5)), torch.randn(2, 3, 5, 5)


def linear(spec: sn.SplineSpec) -> tuple[sn.SplineLayer, torch.Tensor]:
    """A small linear layer and features for it."""
    return sn.SplineLinear(6, 4, spec=spec), torch.randn(2, 6)


def called(function: Callable[..., Any], twin: Callable[..., Any] | None) -> Callable[[Trial], None]:
    """A call works, or raises as torch's own function does, or says in one sentence what is wrong."""

    def run(trial: Trial) -> None:
        given = {name: calls.made(value) for name, value in trial.case.items()}
        try:
            with or_a_sentence(kinds=(ValueError, TypeError)):
                function(**given)
        except (RuntimeError, IndexError, OverflowError):
            if twin is None or not calls.raises(twin, given):
                raise

    return run


KINDS = {
    "command lines": Kind(run=partial(command_line, call), trials=1500, seconds=60, cases=command_lines()),
    "command lines, started": Kind(run=partial(command_line, start), trials=50, seconds=120, cases=command_lines()),
    "recipe files": Kind(run=recipe_file, trials=800, seconds=20, cases=toml | nested.map(str)),
    "trainings": Kind(run=training, trials=200, seconds=60, cases=quick),
    "specs": Kind(run=spec, trials=1000, seconds=20, memory=2 << 30, cases=specs),
    **{
        f"calls of {name}": Kind(
            run=called(each.function, each.twin), trials=each.trials, seconds=20, memory=2 << 30, cases=each.cases
        )
        for name, each in calls.CALLS.items()
    },
}
