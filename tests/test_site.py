"""The site of the docs: it is complete, builds without a warning, and asks nothing of the network."""

import re
import shutil
import subprocess
import sys
from importlib import import_module
from itertools import pairwise

import pytest
import typer.main
import yaml
from benchmarks import newcomer, outputs
from tests.helpers.browser import chromium
from tests.helpers.pages import DOCS, PAGES, ROOT

import splinenets as sn
from splinenets.cli import app

API = (DOCS / "reference/api.md").read_text()


def pages_of(nav):
    for entry in nav:
        for value in [entry] if isinstance(entry, str) else entry.values():
            yield from [value] if isinstance(value, str) else pages_of(value)


def test_every_page_has_its_place():
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    assert sorted(pages_of(nav)) == sorted(set(PAGES) - {"README.md"})


@pytest.mark.parametrize("page", sorted(set(PAGES) - {"README.md"}))
def test_links_stay_inside_the_site(page):
    """What is not a page of the site is named as code."""
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", PAGES[page].read_text()):
        assert target.startswith("http") or (PAGES[page].parent / target).resolve().is_relative_to(DOCS), target


def test_the_reference_has_every_name():
    named = {name.rpartition(".")[2] for name in re.findall(r"^::: (\S+)$", API, re.MULTILINE)}
    assert set(sn.__all__) - named == {"Tree", "data", "models"}  # Tree is a part of a spec


@pytest.mark.parametrize("name", re.findall(r"^::: splinenets\.(\S+)$", API, re.MULTILINE))
def test_the_reference_names_what_is_there(name):
    module, _, thing = name.rpartition(".")
    assert getattr(import_module(f"splinenets.{module}"), thing).__doc__


def test_the_page_of_commands_has_them_all():
    listed = re.findall(r"^\| `([a-z]+)` \| [a-z]", (DOCS / "reference/cli.md").read_text(), re.MULTILINE)
    commands = typer.main.get_command(app).commands
    assert sorted(listed) == sorted(name for name, command in commands.items() if not command.hidden)


def test_outputs_stand_below_what_prints_them():
    for name, page in PAGES.items():
        languages = re.findall(r"^```(\w*)\n.*?^```$", page.read_text(), re.MULTILINE | re.DOTALL)
        above = [before for before, shown in pairwise(languages) if shown == "output"]
        assert set(above) <= {"python", "sh"}, name
        assert "```output\n```" not in page.read_text(), f"{name}: python -m benchmarks.outputs writes what is printed"


def test_outputs_are_written_below_what_prints_them():
    page = "Add:\n\n```python\nx = 20 + 3\nprint(x)\n```\n\n```output\nold\n```\n\n```sh\nsplinenets --version\n```\n"
    assert outputs.refreshed(page) == page.replace("old", "23")
    with pytest.raises(RuntimeError, match="splinenets fly"):
        outputs.refreshed("```sh\nsplinenets fly\n```\n")


def test_what_a_newcomer_does():
    readme = PAGES["README.md"]
    lines = newcomer.shell_lines(readme, installed=False)
    assert lines[0] == "make demo"
    assert newcomer.shell_lines(readme, installed=True) == []
    compile(newcomer.python_of(readme), "README.md", "exec")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site. A warning, such as a link that leads nowhere, is an error."""
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [
            sys.executable,
            "-m",
            "mkdocs",
            "build",
            "--strict",
            "--quiet",
            "--site-dir",
            folder,
            "-f",
            ROOT / "mkdocs.yml",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    yield folder
    shutil.rmtree(folder)


@pytest.mark.slow
def test_nothing_comes_from_elsewhere(site):
    """No page or script names another host, but for links that a reader may follow and names of formats."""
    for file in site.rglob("*.html"):
        loaded = re.findall(r'<(?:script|img|link|iframe)[^>]*(?:src|href)="(https?:[^"]+)"', file.read_text())
        assert loaded == [], file


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "width"), [("light", 1400), ("dark", 400)])
def test_every_page_in_a_browser(site, scheme, width, tmp_path):
    with chromium(tmp_path / "profile") as (page, seen):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size({"width": width, "height": 900})
        for file in sorted(set(site.rglob("*.html")) - {site / "404.html"}):  # that one is for servers
            page.goto(file.as_uri())
            page.wait_for_selector("body[data-md-color-scheme]")
            assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), file
            wanted = "slate" if scheme == "dark" else "default"
            assert page.evaluate("document.body.getAttribute('data-md-color-scheme')") == wanted
            pictures = page.evaluate("[...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)")
            assert pictures == [], file
        assert seen.errors == []
        assert [url for url in seen.requests if not url.startswith(("file:", "data:", "blob:", "about:"))] == []


@pytest.mark.slow
def test_the_light_follows_the_system_day_after_day(site, tmp_path):
    """What the browser remembers of a visit by day is not in the way of one by night."""
    with chromium(tmp_path / "profile") as (page, seen):
        for scheme, wanted in (("light", "default"), ("dark", "slate"), ("light", "default")):
            page.emulate_media(color_scheme=scheme)
            page.goto((site / "concepts.html").as_uri())
            page.wait_for_selector(f"body[data-md-color-scheme={wanted}]")
        assert seen.errors == []


@pytest.mark.slow
def test_search_works_from_disk_and_by_keyboard(site, tmp_path):
    with chromium(tmp_path / "profile") as (page, seen):
        page.goto((site / "index.html").as_uri())
        page.keyboard.press("/")
        page.keyboard.type("calibrate")
        page.wait_for_selector(".md-search-result__item")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        page.wait_for_url(lambda url: "index.html" not in url)
        assert "calibrate" in page.inner_text("body").lower()
        assert seen.errors == []


@pytest.mark.parametrize(
    ("text", "first", "code", "kind"),
    [
        ("LeNet-4", True, False, "unbroken"),
        ("+5.19 ± 0.14", False, False, "number"),
        ("0.671 -> 0.543", False, False, "number"),
        ("yes", False, False, None),
        ("--model static --set told=nobody", False, True, "sentence"),
        ("The largest gains that we have, and nothing to decide", False, False, "sentence"),
    ],
)
def test_cells_of_tables(monkeypatch, text, first, code, kind):
    """Numbers stay in one line, sentences get some width."""
    monkeypatch.syspath_prepend(DOCS)
    found = import_module("unbroken")._kind(text, first=first, code=code)
    assert found == (f' class="{kind}"' if kind else "")
