"""What a reader pastes from README and docs runs: page by page, from top to bottom, in one folder and one Python."""

import importlib
import importlib.util
import re
import shlex
from pathlib import Path

import pytest
import typer.main
from accelerate.commands.launch import launch_command_parser
from PIL import Image
from tests.helpers.commands import call
from tests.helpers.pages import PAGES, ROOT, command_lines, pieces, prose
from torch.distributed.run import get_args_parser as torchrun_parser

from splinenets.cli import app
from splinenets.reproduce import EXPERIMENTS
from splinenets.training import load_recipe

# Trainings are made small; everything else runs as it is printed.
SMALL = "--set data=embedded --set images=400 --set batch=100 --set width=3 --set epochs=1".split()
TRAININGS = ("train", "demo")
# Command lines of which only the options are checked, and why.
NOT_RUN = {
    "data get": "downloads",
    "explore": "serves a page until it is stopped",
    "reproduce": "trains for hours",
    "bench": "measures for minutes",
}
# Python blocks that are compiled and not run, by their first line, and why.
NOT_EXECUTED = {
    "import openvino": "not among the packages that tests have",
    "package = torch._inductor": "compiles for half a minute: see the slow test",
}
FOREIGN = ("pip", "source", "export", "tensorboard")  # other programs in shell blocks
LONG_LINES = {"decisions.md", "results.md"}  # pages that are still to be reflowed


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder to be in, with some pictures in it, as docs/data.md wants them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPLINENETS_DATA", str(tmp_path / "data"))
    for number, name in enumerate(("train/cat", "train/dog", "test/cat", "test/dog")):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        Image.new("RGB", (70, 60), (60 * number, 100, 0)).save(tmp_path / "pictures" / name / "1.png")
    return tmp_path


@pytest.mark.parametrize("name", PAGES)
def test_pages_run(name, folder):
    read_aloud(PAGES[name], NOT_EXECUTED)


@pytest.mark.slow
def test_the_compiled_package_serves(folder):
    read_aloud(PAGES["deployment.md"], ("import openvino",))


def read_aloud(page, not_executed):
    """Do what a page says, from top to bottom."""
    namespace = {"__name__": "__main__"}
    for piece in pieces(page):
        if piece.language == "python":
            code = compile("\n" * (piece.line - 1) + piece.text, str(page), "exec")
            if not piece.text.startswith(tuple(not_executed)):
                exec(code, namespace)
        elif piece.language == "toml":
            keep_recipe(piece)
        elif piece.language in ("sh", "span"):
            for number, line in command_lines(piece):
                do(line, f"{page.name}:{number}", piece.language)
        else:
            assert piece.language == "", f"{page.name}:{piece.line}: nobody knows how to run {piece.language}"
            assert "splinenets " not in piece.text, f"{page.name}:{piece.line}: a block of commands is ```sh"


def keep_recipe(piece):
    """A recipe says in its first line what its file is called; lines below use it."""
    file = Path(re.match(r"# (\w+\.toml)", piece.text)[1])
    file.write_text(piece.text)
    assert load_recipe(str(file)).name == file.stem


def do(line, where, language):
    """Run a command line, or check it if it cannot be run here."""
    program, _, rest = re.sub(r"^([A-Z_]+=\S+ )+", "", line).partition(" ")
    if program not in PROGRAMS:
        assert language == "span" or program in FOREIGN, f"{where}: nobody knows how to run {program}"
    elif language == "sh" or (rest and "..." not in rest and rest != "launch --cpu"):
        PROGRAMS[program](shlex.split(rest), where)


def run(words, where):
    """Run what the line says, unless there is a reason not to."""
    if parse(words, where) and not reason_not_to(words):
        added = SMALL if words[0] in TRAININGS and "--show" not in words else []
        code, _, err = call(*words, *added)
        assert code == 0, f"{where}: {err}"


def make(words, where):
    assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), where
    if words == ["demo"] and not Path("runs/demo").exists():
        run(words, where)


def launch(words, where, parser):
    """Check the options of a launcher, and those of what it launches."""
    launched = parser.parse_args(words)
    assert launched.training_script == "splinenets", where
    parse(launched.training_script_args, where)


PROGRAMS = {
    "splinenets": run,
    "make": make,
    "torchrun": lambda words, where: launch(words, where, torchrun_parser()),
    "accelerate": lambda words, where: launch(words[1:], where, launch_command_parser()),
}


def parse(words, where):
    """Give the words to the command's parser; False if they only name the command."""
    command, rest = typer.main.get_command(app), list(words)
    while hasattr(command, "commands") and rest:
        assert rest[0] in command.commands, f"{where}: there is no command {rest[0]}"
        command = command.commands[rest.pop(0)]
    if not rest:
        return words[0] in TRAININGS
    command.make_context(command.name, list(rest))
    if command.name == "reproduce" and rest[0].islower():
        assert rest[0] in EXPERIMENTS, where
    return True


def reason_not_to(words):
    """Why a command line is only parsed; words in capitals stand for something that the reader fills in."""
    text = " ".join(words)
    placeholder = any(re.fullmatch(r"[A-Z]{3,}", word) for word in words)
    return placeholder or any(text.startswith(start) for start in NOT_RUN)


NAMES = sorted(
    {
        (page, name.replace("sn.", "splinenets.", 1) if name.startswith("sn.") else name)
        for page, path in PAGES.items()
        for piece in pieces(path)
        if piece.language == "span"
        for name in re.findall(r"\b(?:sn|splinenets)\.[A-Za-z_][\w.]*\w", piece.text)
    }
)


@pytest.mark.parametrize(("page", "name"), NAMES)
def test_names_in_prose_exist(page, name):
    parts = name.split(".")
    thing = importlib.import_module(parts[0])
    for depth, part in enumerate(parts[1:], 2):
        if not hasattr(thing, part):
            importlib.import_module(".".join(parts[:depth]))
        thing = getattr(thing, part)


@pytest.mark.parametrize("page", PAGES)
def test_files_in_prose_exist(page):
    for piece in pieces(PAGES[page]):
        if piece.language == "span":
            for path in re.findall(r"\b(?:src|tests|benchmarks|examples|docs)/[\w/.]+\.\w+", piece.text):
                assert (ROOT / path).exists(), f"{page}:{piece.line}: {path}"


@pytest.mark.parametrize("page", sorted(set(PAGES) - LONG_LINES))
def test_lines_of_prose_are_short(page):
    assert [f"{page}:{number}" for number, line in prose(PAGES[page]) if len(line) > 120] == []
