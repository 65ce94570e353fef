"""What a reader pastes from README and docs runs: page by page, from top to bottom, in one folder and one Python."""

import ast
import doctest
import importlib
import re
import shlex
from pathlib import Path

import pytest
import torch
import typer.main
from accelerate.commands.launch import launch_command_parser
from PIL import Image
from tests.helpers.commands import call
from tests.helpers.marks import slow_where
from tests.helpers.pages import PAGES, ROOT, SPAN, command_lines, pieces, prose, table_rows
from torch.distributed.run import get_args_parser as torchrun_parser

import splinenets as sn
from splinenets.cli import app
from splinenets.reproduce import EXPERIMENTS
from splinenets.training import load_recipe

SOURCE = ROOT / "src/splinenets"

# Trainings are made small; everything else runs as it is printed.
SMALL = [
    word
    for setting in ("data=embedded", "images=400", "batch=100", "width=3", "epochs=1")
    for word in ("--set", setting)
]
TRAININGS = ("train", "demo")
EPOCHS = re.compile(r"(?<=for epoch in range\()\d+(?=\))")  # of a loop that a page shows; one of them is run
# How command lines start of which only the options are checked, and why.
NOT_RUN = {
    "data get": "downloads",
    "explore": "serves a page until it is stopped",
    "serve": "answers until it is stopped",
    "reproduce": "trains for hours",
    "bench": "measures for minutes",
}
# How Python blocks start that are compiled and not run, and why.
ABSENT = "not among the packages that tests have"
NOT_EXECUTED = {"import openvino": ABSENT, "import timm": ABSENT, "import torchvision": ABSENT}
# What takes seconds and is run on another page too; the slow test runs it here as well.
LATER = {
    "README.md": ["report"],
    "training.md": ["demo"],
    "figures.md": ["figures"],
    "deployment.md": ["package = torch._inductor"],
}
FOREIGN = ("pip", "source", "export", "tensorboard", "git", "cd")  # other programs in shell blocks


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An empty folder to be in, but for some pictures, as docs/data.md speaks of them."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SPLINENETS_DATA", str(tmp_path / "data"))
    for number, name in enumerate(("train/cat", "train/dog", "test/cat", "test/dog")):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        Image.new("RGB", (70, 60), (60 * number, 100, 0)).save(tmp_path / "pictures" / name / "1.png")
    return tmp_path


LONG = ("figures.md", "index.md", *(f"tutorials/{name}.md" for name in ("deploy", "images", "slider", "upgrade")))


@pytest.mark.parametrize("name", slow_where(lambda name: name in LONG, sorted(set(PAGES) - {"deployment.md"})))
def test_pages_run(name, folder):
    Reader(PAGES[name], later=LATER.get(name, ())).read()


@pytest.mark.slow
def test_served_networks_give_the_same_answers(folder, capsys):
    Reader(PAGES["deployment.md"], later=LATER["deployment.md"]).read()
    onnx, native, pt2 = (ast.literal_eval(line) for line in capsys.readouterr().out.splitlines())
    assert onnx == pt2
    assert len(native) == len(onnx) == 4  # the native file has knots in bf16, so other answers would not be wrong


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # torch's compiler warns of torch
@pytest.mark.parametrize("name", LATER)
def test_pages_run_to_the_last_line(name, folder):
    Reader(PAGES[name]).read()


EXAMPLES = sorted(file for file in SOURCE.rglob("*.py") if ">>> " in file.read_text())


@pytest.mark.parametrize("file", slow_where(lambda file: file.stem == "checked", EXAMPLES), ids=lambda file: file.stem)
def test_examples_of_docstrings_run(file, folder):
    """They take ``torch`` and ``sn`` as imported."""
    module = importlib.import_module(".".join(file.relative_to(SOURCE.parent).with_suffix("").parts))
    found = doctest.DocTestFinder().find(module, globs={"torch": torch, "sn": sn})
    wrong = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS)
    for example in found:
        torch.manual_seed(0)
        runner.run(example, out=wrong.append)
    assert runner.tries == file.read_text().count(">>> ")
    assert not wrong, "".join(wrong)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("```python\nimport torch\n```\n\n```python\nimages\n```", "'images' is not defined"),
        ("```python\n1 +\n```", "invalid syntax"),
        ("```sh\nsplinenets fly\n```", "page.md:2: there is no command fly"),
        ("```sh\nsplinenets profile \\\n  lenet8 --wings 2\n```", "No such option: --wings"),
        ("```sh\nsplinenets --wings\n```", "page.md:2"),
        ("```sh\nsplinenets evaluate runs/nowhere\n```", "page.md:2: splinenets: .*nowhere"),
        ("```sh\ntorchrun --nproc-per-node 2 -m splinenets train --wings\n```", "No such option: --wings"),
        ("```sh\nfly away\n```", "page.md:2: who can run fly"),
        ("```\nsplinenets data list\n```", "page.md:2: commands stand in"),
        ("```toml\n# mine.toml\nwings = 2\n```", "unknown key 'wings'"),
        ("In prose, `splinenets reproduce everything` and\n", "page.md:1"),
        ("In prose, `make fly`", "page.md:1"),
    ],
)
def test_a_page_that_is_wrong_is_noticed(text, complaint, folder):
    (folder / "page.md").write_text(text)
    with pytest.raises(Exception, match=complaint):
        Reader(folder / "page.md").read()


class Reader:
    """Somebody who does what a page says, from top to bottom."""

    def __init__(self, page, later=()):
        self.page = page
        self.not_executed = (*NOT_EXECUTED, *later)
        self.not_run = (*NOT_RUN, *later)
        self.namespace = {"__name__": "__main__"}
        self.programs = {"splinenets": self.run, "make": self.make, "torchrun": self.torchrun}
        self.programs["accelerate"] = self.accelerate

    def read(self):
        for piece in pieces(self.page):
            if piece.language == "python":
                self.execute(piece)
            elif piece.language == "toml":
                keep_recipe(piece)
            elif piece.language in ("sh", "span"):
                for number, line in command_lines(piece):
                    self.do(line, f"{self.page.name}:{number}", piece.language)
            elif piece.language != "output":
                assert piece.language == "", f"{self.page.name}:{piece.line}: who can run {piece.language}?"
                command = re.search(r"^\s*splinenets ", piece.text, re.MULTILINE)
                assert not command, f"{self.page.name}:{piece.line}: commands stand in ```sh"

    def execute(self, piece):
        code = compile("\n" * (piece.line - 1) + EPOCHS.sub("1", piece.text), str(self.page), "exec")
        if not piece.text.startswith(self.not_executed):
            exec(code, self.namespace)

    def do(self, line, where, language):
        """Run a command line, or check it if it cannot be run here. In prose, parts of one may stand alone."""
        program, _, rest = re.sub(r"^([A-Z_]+=\S+ )+", "", line).partition(" ")
        if program not in self.programs:
            assert language == "span" or program in FOREIGN, f"{where}: who can run {program}?"
        elif language == "sh" or (rest and "..." not in rest and rest != "launch --cpu"):
            self.programs[program](shlex.split(rest), where)

    def run(self, words, where):
        placeholder = any(re.fullmatch(r"[A-Z]{3,}", word) for word in words)  # NAME: the reader fills it in
        if parse(words, where) and not placeholder and not " ".join(words).startswith(self.not_run):
            added = SMALL if words[0] in TRAININGS and "--show" not in words else []
            code, _, err = call(*words, *added)
            assert code == 0, f"{where}: {err}"

    def make(self, words, where):
        assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), where
        if words == ["demo"] and not Path("runs/demo").exists():
            self.run(words, where)

    def torchrun(self, words, where):
        launch(torchrun_parser().parse_args(words), where)

    def accelerate(self, words, where):
        assert words[0] == "launch", where
        launch(launch_command_parser().parse_args(words[1:]), where)


def launch(launched, where):
    """What a launcher's own parser has left is a command line of ours."""
    assert launched.module, where
    assert launched.training_script == "splinenets", where
    parse(launched.training_script_args, where)


def parse(words, where):
    """Give the words to the command's parser; False if they only name a command."""
    command, rest = typer.main.get_command(app), list(words)
    while hasattr(command, "commands") and rest:
        if rest[0].startswith("--"):
            assert rest[0] in ["--help", *(name for option in command.params for name in option.opts)], where
            return False
        if rest[0] == "COMMAND":
            return False
        assert rest[0] in command.commands, f"{where}: there is no command {rest[0]}"
        command = command.commands[rest.pop(0)]
    if not rest:
        return words[0] in TRAININGS
    command.make_context(command.name, list(rest))
    if command.name == "reproduce" and rest[0].islower():
        assert rest[0] in EXPERIMENTS, where
    return True


def keep_recipe(piece):
    """A recipe says in its first line what its file is called; lines below use it."""
    file = Path(re.match(r"# (\w+\.toml)", piece.text)[1])
    file.write_text(piece.text)
    assert load_recipe(str(file)).name == file.stem


NAMES = sorted(
    {
        (page, name.replace("sn.", "splinenets.", 1) if name.startswith("sn.") else name)
        for page, path in PAGES.items()
        for piece in pieces(path)
        if piece.language == "span"
        for name in re.findall(r"(?<!ops\.)\b(?:sn|splinenets)\.[A-Za-z_][\w.]*\w", piece.text)
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


@pytest.mark.parametrize("row", table_rows("paper_map.md", columns=3), ids=lambda row: row[1])
def test_the_paper_map_leads_to_the_code(row):
    """Every word of five letters or more that is set as code stands in one of the files that are named beside it."""
    files = [SOURCE / name for name in row[2].split(", ") if name != "everywhere"]
    text = "".join(f.read_text() for file in files for f in (file.rglob("*.py") if file.is_dir() else [file]))
    for word in re.findall(r"[A-Za-z_]{5,}", " ".join(SPAN.findall(row[1])).replace("models.", "")):
        assert not files or re.search(rf"\b{word}\b", text), f"{row[2]} has no {word}"


@pytest.mark.parametrize("row", table_rows("figures.md", columns=3), ids=lambda row: row[1])
def test_figures_are_drawn_where_the_table_says(row):
    module, function = row[1].strip("`").split(".")
    assert callable(getattr(importlib.import_module(f"splinenets.analysis.{module}"), function))


@pytest.mark.parametrize("page", PAGES)
def test_lines_of_prose_are_short(page):
    assert [f"{page}:{number}" for number, line in prose(PAGES[page]) if len(line) > 120] == []
