"""The package as a whole: what it imports, what its README promises, its examples and command line."""

import ast
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import typer.main
from tests.helpers.commands import call, refused
from tests.helpers.marks import slow_where
from typer.testing import CliRunner

import splinenets as sn
from splinenets import cli, commands
from splinenets.data import dataset

ROOT = Path(__file__).parent.parent
# who may import whom: only what stands further up. docs/architecture.md shows the same list
ORDER = [
    "tables", "files", "web", "spec", "basis", "kernels", "operators", "functional", "collectives", "repeats", "path", "projection",
    "layers", "tracing", "conditions", "storage", "structure", "calibration", "conversion", "folding", "deployment",
    "costs", "histograms", "regularizer", "health_check", "muon", "loops", "constructors", "models", "data",
    "saving", "hub", "shipped", "exporting", "interface", "serving", "training", "analysis", "reproduce", "commands",
    "cli",
]  # fmt: skip


def test_all_names_exist():
    assert sorted(sn.__all__) == sn.__all__
    assert all(hasattr(sn, name) for name in sn.__all__)


PACKAGE = (ROOT / "src/splinenets").resolve()


def test_every_room_has_its_place():
    rooms = {p.stem for p in PACKAGE.iterdir() if p.suffix == ".py" or (p / "__init__.py").exists()}
    assert rooms - {"__init__", "__main__"} == set(ORDER)


def imported(file):
    """The rooms of the package that a file imports, wherever in it."""
    depth = len(file.relative_to(PACKAGE).parts)
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == depth:
            yield from [node.module.split(".")[0]] if node.module else [a.name for a in node.names]
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            assert not [n for n in names if n.split(".")[0] == "splinenets"], f"{file} imports its own package by name"


@pytest.mark.parametrize("file", sorted(PACKAGE.rglob("*.py")), ids=lambda f: str(f.relative_to(PACKAGE)))
def test_imports_point_one_way(file):
    own = file.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if own in ("__init__", "__main__"):
        return
    for name in imported(file):
        if name not in (own, "__version__"):
            assert ORDER.index(name) < ORDER.index(own), f"{own} imports {name}"


def test_the_page_on_architecture_has_the_same_order():
    page = (ROOT / "docs/architecture.md").read_text()
    listed = re.findall(r"^\| `(\w+)(?:\.py|/)` \|", page, flags=re.MULTILINE)
    assert listed == ORDER


def test_no_public_function_hides_a_module():
    hidden = [name for name in sn.__all__ if name in ORDER and not isinstance(getattr(sn, name), ModuleType)]
    assert hidden == []


EXAMPLES = sorted((ROOT / "examples").glob("0*.py"))
QUICK = ("01",)  # what the others show is run by tests of their own


@pytest.mark.parametrize("file", slow_where(lambda f: f.name[:2] not in QUICK, EXAMPLES), ids=lambda f: f.stem)
def test_examples_run(file):
    found = subprocess.run(
        [sys.executable, "-W", "error", file, "--quick"], capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout


def test_profile():
    code, out, _ = call("profile", "lenet8", "--model", "D(3)-C-R3", "--image", "1x28x28", "--layers")
    assert code == 0
    assert "dense2" in out
    assert "lenet128" in out


def test_profile_as_json():
    result = CliRunner().invoke(cli.app, ["profile", "resnet8", "--json"])
    assert result.exit_code == 0
    assert '"resnet110 static"' in result.output


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["profile", "vgg16"], "vgg16"),
        (["profile", "resnet33"], "33"),
        (["profile", "resnet32", "--model", "Z"], "'Z'"),
        (["profile", "resnet32", "--image", "3x32"], "'3x32'"),
        (["profile", "resnet32", "--image", "0x32x32"], "0x32x32"),
        (["profile", "lenet32", "--image", "3x2x2"], "image_size"),
        (["profile"], "Missing argument"),
        (["fly"], "fly"),
    ],
)
def test_bad_command_lines(words, complaint):
    refused(words, complaint)


def test_help_comes_before_torch():
    """Whoever asks for help, a version or a completion does not wait for torch."""
    for words in (["--help"], ["train", "--help"], ["data", "get", "--help"], ["--version"]):
        code = f"import sys\nfrom splinenets.cli import app\napp({words}, standalone_mode=False)"
        found = subprocess.run(
            [sys.executable, "-c", f"{code}\nassert not sys.modules.keys() & {{'torch', 'numpy', 'accelerate'}}"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert found.returncode == 0, found.stderr
        assert found.stdout


def test_names_that_help_lists():
    """Help has them as words, because the lists themselves need torch."""
    assert ", ".join(dataset.KNOWN) == commands.data.NAMES


def test_a_process_of_its_own_says_its_version():
    command = [sys.executable, "-c", "from splinenets.cli import main; main()", "--version"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout.strip(), found.stderr) == (0, sn.__version__, "")


def test_help():
    assert "profile" in call("--help")[1]
    shown = " ".join(call("train", "--help")[1].replace("│", " ").split())
    assert "Train the static twin too, and compare them (default: with --from)." in shown


def every_command(group=None, words=()):
    for name, command in (group or typer.main.get_command(cli.app)).commands.items():
        if not command.hidden:
            yield (*words, name)
            yield from every_command(command, (*words, name)) if hasattr(command, "commands") else ()


@pytest.mark.parametrize("words", list(every_command()), ids=" ".join)
def test_help_has_examples_that_can_be_copied(words, monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    shown = [line.strip() for line in call(*words, "--help")[1].splitlines()]
    (start,) = (number for number, line in enumerate(shown) if line in ("Example:", "Examples:"))
    lines = [line for line in shown[start + 1 :] if line]
    assert lines
    assert all(line.startswith(("splinenets ", "torchrun ", "curl ")) for line in lines)
