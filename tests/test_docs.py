"""What the docs say is what the commands print."""

import re
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import pytest
from benchmarks import animations, claims, frontier, information, labels, search, tables, timing

from splinenets.reproduce import EXPERIMENTS, record, trials

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = (*DOCS.rglob("*.md"), DOCS.parent / "README.md", DOCS.parent / "CONTRIBUTING.md")


def test_links_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_summary_of_speed_is_that_of_its_tables():
    """How many times as much time and memory our kernels take for large batches, as the page says in its first lines."""
    page = (DOCS / "performance.md").read_text()
    rows = {
        name: [re.split(r" *\| *", row) for row in text.splitlines()] for name, text in tables.sections(page).items()
    }
    training = [float(row[2]) for row in rows["training"][2:]]
    training += [float(row[5]) for row in rows["training, small batches"][2:] if row[2] == "ours"]
    ours = [row for row in rows["inference"][2:] if row[2] == "ours"]
    inference = [float(row[3]) for row in ours if "`H(" not in row[1]] + [float(row[6]) for row in ours]
    memory = [float(row[2]) for row in rows["memory"][2:]]
    [hierarchical] = [float(row[3]) for row in ours if "`H(" in row[1]]
    assert f"takes {1 / max(training):.1f} to {1 / min(training):.1f} times as long with large batches" in page
    assert f"takes {1 / max(inference):.1f} to {1 / min(inference):.1f} times as long with large batches" in page
    assert f"(H) in bf16 {1 / hierarchical:.1f}\n  times" in page
    assert f"is {min(memory):.1f} to {max(memory):.1f} times that of the plain network" in page


@pytest.mark.parametrize("name", tables.TABLES)
def test_tables_are_what_the_result_files_say(name):
    page, table = tables.TABLES[name]
    assert tables.sections((tables.ROOT / page).read_text())[name] == table()


def test_every_table_of_every_page_is_registered():
    """And every mark is one of a table's: a mistyped one would never be written again."""
    found = {}
    for page in PAGES:
        text = page.read_text()
        own = tables.sections(text)
        assert text.count("<!--") == 2 * len(own), page
        found |= dict.fromkeys(own, str(page.relative_to(tables.ROOT)))
    assert found == {name: page for name, (page, _) in tables.TABLES.items()}


def test_a_table_that_is_not_registered_is_not_written():
    assert tables.filled("no table") == "no table"
    with pytest.raises(KeyError):
        tables.filled("<!-- table: of nothing -->\n|\n<!-- end -->")


def test_the_drawn_histograms_are_up_to_date():
    assert (DOCS / "figures" / tables.HISTOGRAMS).read_text() == information.figure()


@pytest.mark.parametrize("file", sorted((DOCS / "figures").glob("*.svg")), ids=lambda file: file.stem)
def test_drawings_follow_the_light(file):
    """In the dark no page of the site shows a white box."""
    assert file.stem == "favicon" or "prefers-color-scheme" in file.read_text()


def test_plain_networks_of_the_same_cost():
    """Halfway between two costs, counted in doublings; networks that others beat for less do not count."""
    plain = [(4.0, 80.0), (1.0, 70.0), (2.0, 76.0), (3.0, 75.0)]
    assert frontier.at_cost(plain, 2.0**1.5) == pytest.approx(78.0)
    assert frontier.at_cost(plain, 1.0) == 70.0
    assert frontier.at_cost(plain, 4.0) == 80.0
    assert frontier.at_cost(plain, 0.9) is None
    assert frontier.at_cost(plain, 4.1) is None


def test_the_readme_has_one_network_of_each_kind():
    lines = frontier.gains(frontier.IN_SHORT).splitlines()[2:]
    assert len(lines) == len(frontier.IN_SHORT)


@pytest.mark.parametrize("name", frontier.DRAWINGS)
def test_pictures_of_frontiers_are_up_to_date(name):
    assert (DOCS / "figures" / frontier.DRAWINGS[name].file).read_text() == frontier.figure(name)


def test_labels_keep_out_of_the_way_of_dots_lines_and_each_other():
    dots = [(50.0, 50.0), (60.0, 52.0), (140.0, 50.0)]
    sheet, line = labels.Box(0, 0, 200, 100), (dots[0], dots[2])
    boxes = labels.place(dots, [(50.0, 16.0)] * 3, [line], sheet)
    assert all(box.overlap(sheet) == 50 * 16 for box in boxes)
    assert not any(a.overlap(b) for a, b in combinations(boxes, 2))
    assert not any(box.overlap(labels.Box(x - 5, y - 5, 10, 10)) for box in boxes for x, y in dots)
    assert not any(box.overlap(part) for box in boxes for part in labels.along(*line))


@pytest.mark.parametrize("name", animations.PICTURES)
def test_moving_pictures_are_small_and_whole(name):
    """Those that nothing is trained for are what their script draws."""
    file = animations.path_of(name)
    assert file.stat().st_size < 200_000
    assert ElementTree.parse(file).findall(".//{http://www.w3.org/2000/svg}animate")
    if name in ("curve", "knots", "decision"):
        assert file.read_text() == animations.PICTURES[name]()


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_result_files_have_the_recipes_of_their_rows(name, tmp_path):
    """``record`` takes a file for an error if it is of another recipe."""
    folder = claims.REPRODUCED / name / claims.SCALE
    recipes = {folder / f"{trial.name}.json": trial.recipe for trial in trials(name, claims.SCALE, seeds=9)}
    for file in folder.glob("*"):
        record(recipes[file], tmp_path / "run", file, "")


def test_no_result_file_is_the_copy_of_another():
    contents = [file.read_bytes() for file in timing.RESULTS.rglob("*.json")]
    assert len(contents) > 100
    assert len(set(contents)) == len(contents)


def test_trials_of_the_search_have_their_recipes(tmp_path):
    recipes = {
        search.RESULTS / f"{search.file_of(where, trial, seed)}.json": search.recipe_of(where, trial, seed)
        for where in search.SEARCHES
        for trial, seed in search.trainings(where)
    }
    for file in search.RESULTS.glob("*/*.json"):
        record(recipes[file], tmp_path / "run", file, "")
