"""What the docs say is what the commands print."""

import re
from pathlib import Path

import pytest
from benchmarks import costs, engine_tables, information_tables, search, tables
from tests.helpers import zoo

import splinenets as sn
from splinenets.reproduce import EXPERIMENTS, record, trials

DOCS = Path(__file__).parent.parent / "docs"


def test_the_cost_tables_are_up_to_date():
    text = (DOCS / "results.md").read_text()
    printed = re.search(r"<!-- benchmarks.costs -->\n(.*?)<!-- end -->", text, flags=re.DOTALL)[1].strip()
    assert printed == costs.tables()


def test_links_lead_somewhere():
    for page in (*DOCS.glob("*.md"), DOCS.parent / "README.md", DOCS.parent / "CONTRIBUTING.md"):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_table_of_converted_networks_is_up_to_date():
    rows = re.findall(r"^\| (\w+) \| (\d+) \| (\d+) \|$", (DOCS / "conversion.md").read_text(), flags=re.MULTILINE)
    assert [name for name, _, _ in rows] == list(zoo.CONFIGS)
    for name, converted, left in rows:
        model, images = zoo.build(name)
        conversion = sn.convert(model, "D(3)-C-R3", example=images).conversion
        assert (len(conversion.converted), len(conversion.left)) == (int(converted), int(left)), name


@pytest.mark.parametrize(("page", "marker", "table"), tables.TABLES)
def test_tables_are_what_the_result_files_say(page, marker, table):
    assert tables.section((tables.ROOT / page).read_text(), marker)[0] == table()


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_result_files_have_the_recipes_of_their_rows(name, tmp_path):
    """``record`` takes a file for an error if it is of another recipe."""
    folder = tables.REPRODUCED / name / tables.SCALE
    recipes = {folder / f"{trial.name}.json": trial.recipe for trial in trials(name, tables.SCALE, seeds=9)}
    for file in folder.iterdir():
        record(recipes[file], tmp_path / "run", file, "")


def test_trials_of_the_search_have_their_recipes(tmp_path):
    recipes = {
        search.RESULTS / f"{search.file_of(where, trial, seed)}.json": search.recipe_of(where, trial, seed)
        for where in search.SEARCHES
        for trial, seed in search.trainings(where)
    }
    for file in search.RESULTS.glob("*/*.json"):
        record(recipes[file], tmp_path / "run", file, "")


def test_the_tables_of_speed_are_up_to_date():
    text = (DOCS / "performance.md").read_text()
    assert engine_tables.filled(text) == text


def test_the_regulariser_tables_and_figure_are_up_to_date():
    text = (DOCS / "regularizer.md").read_text()
    assert information_tables.filled(text) == text
    assert (DOCS / "figures" / "position_histograms.svg").read_text() == information_tables.figure()
