"""The report: whole, self-contained, inert, and honest about runs that are not."""

import base64
import json
import re
import shutil
import tempfile
from html.parser import HTMLParser
from types import SimpleNamespace

import pytest
from tests.helpers import subjects
from tests.helpers.commands import call, refused
from tests.helpers.marks import slow
from tests.helpers.subjects import HOSTILE

import splinenets as sn
from splinenets.analysis import observe, records, report, result, sections
from splinenets.analysis.glossary import GLOSSARY, explained
from splinenets.analysis.text import data_block, element, escape, printable
from splinenets.data import load
from splinenets.files import read_sealed, write_sealed

SMALL = b'<svg xmlns="http://www.w3.org/2000/svg"><defs></defs></svg>'


class Parsed(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes, self.text = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]

    def handle_data(self, data):
        self.text.append(data)


@pytest.fixture
def deployed():
    """For tests that export networks and draw figures as a report does; others are quicker without."""


@pytest.fixture(autouse=True)
def quick(request, monkeypatch):
    if "deployed" not in request.fixturenames:
        monkeypatch.setattr(observe, "deployed", lambda *_: None)
        monkeypatch.setattr(sections, "to_svg", lambda _: SMALL)  # one test draws, and the browser's do


def write(out, *runs):
    code, _, err = call("report", *runs, "--out", out)
    assert code == 0, err
    assert "Traceback" not in err
    return out.read_text(encoding="utf-8"), err


def assert_inert(page):
    """Nothing from elsewhere, no handlers, no scripts but ours."""
    parsed = Parsed(page)
    assert parsed.tags.count("script") == 2  # the data and the code
    assert parsed.tags.count("style") == 1
    assert not {"iframe", "object", "embed", "link", "base", "form", "svg", "b onload"} & set(parsed.tags)
    for tag, name, value in parsed.attributes:
        assert not name.startswith("on"), (tag, name)
        if name == "href" and value.startswith("#part-"):
            continue
        if name in ("src", "href"):
            assert value.startswith("data:image/"), (tag, value[:40])
    policy = next(value for _, name, value in parsed.attributes if name == "content" and "default-src" in value)
    assert policy.startswith("default-src 'none'; img-src data:;")
    assert "unsafe" not in policy
    return parsed


def test_a_report_of_two_runs(static_and_spline, tmp_path, deployed):
    page, err = write(tmp_path / "report.html", *static_and_spline)
    assert len(page.encode()) < 8_000_000
    parsed = assert_inert(page)
    text = " ".join(parsed.text)
    for heading in (
        "Side by side", "Where static and spline disagree", "One layer at a time", "Positions over time",
        "How evenly splines are used", "Which class is where", "Flow from layer to layer", "Filters along a spline",
        "Health over epochs", "What each layer costs", "Health of positions", "How the runs were made",
    ):  # fmt: skip
        assert heading in text
    assert "has no positions" in text
    assert err == ""  # which is nothing to worry about
    assert 'class="notes"' not in page
    first = re.search(r"(spline is [^.]*\.\d points .*?)Contents", "".join(parsed.text), flags=re.DOTALL)[1]
    assert re.match(
        r"spline is \d+\.\d points (more|less) accurate than static, with .* MACs, .* latency when deployed, "
        r".* latency in torch and .* parameters\.",
        first,
    )
    assert "test accuracy" in first
    assert "standard error of " in first
    for figure in re.findall(r"<p class=\"see\">(.*?)</p>\s*<figure", page):
        assert figure  # says what to see
    assert page.count("<figure data-name=") == len(re.findall(r"<p class=\"see\">[^\n]*?</p>\s*<figure", page)) > 8
    assert "prefers-color-scheme: dark" in base64.b64decode(re.search(r"svg\+xml;base64,([^\"]+)", page)[1]).decode()
    targets = {value for tag, name, value in parsed.attributes if name == "id"}
    links = [value for tag, name, value in parsed.attributes if tag == "a"]
    assert len(links) > 5
    assert {link.removeprefix("#") for link in links} <= targets
    assert len([1 for tag, name, value in parsed.attributes if tag == "abbr" and name == "tabindex"]) > 20
    described = {value for tag, name, value in parsed.attributes if name == "aria-describedby"}
    assert described <= targets
    assert GLOSSARY["MACs"] in text
    line = json.loads((static_and_spline[1] / "metrics.jsonl").read_text().splitlines()[-1])
    assert f"{line['test_accuracy']:.1%}" in text
    assert re.search(r"torch.*?2\.\d+", text)
    assert page.count('class="card"') > 0
    data = json.loads(re.search(r'id="data">(.*?)</script>', page)[1])
    assert data[0] is None
    assert [layer["name"] for layer in data[1]["layers"]] == ["conv2", "dense1", "dense2"]
    assert_no_empty_columns(page)
    assert len(data[1]["layers"][0]["splines"]) == 7  # each of the 6, and all together


def test_runs_that_are_told(tmp_path):
    """Positions from outside are drawn and not judged; accuracy is shown over the condition."""
    changes = {"condition": "angle", "images": 1200, "epochs": 1}
    told = subjects.train_small(tmp_path / "told", "D(5)-X-R4 closed", told="curves", **changes)
    blind = subjects.train_small(tmp_path / "blind", "static", **changes)
    page, err = write(tmp_path / "report.html", told, blind)
    text = " ".join(assert_inert(page).text)
    assert err == ""
    for words in (
        "Accuracy over the angle",
        "told its positions",
        "How evenly splines are used",
        "One layer at a time",
    ):
        assert words in text
    for words in ("Which class is where", "Health over epochs", "deciding\n", "Health of positions"):
        assert words not in text


def assert_no_empty_columns(page):
    """Of no table, and no zeros where there is nothing."""
    for table in re.findall(r"<table.*?</table>", page):
        rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", table)[1:]]
        for column in zip(*rows, strict=True):
            assert any(cell not in ("", "0", "-") for cell in column), table[:200]


def test_words_explain_themselves_once():
    text = explained("MACs, splines, spline <b>, MACs; standard error")
    assert text.count("<abbr") == 3
    assert ">splines</abbr>, spline &lt;b&gt;, MACs" in text
    assert explained("static and spline", ["my static net"]).count("<abbr") == 1


def test_a_busy_machine_is_named(monkeypatch):
    """Latencies that were measured beside other work say so."""
    subject = SimpleNamespace(calm=False)
    monkeypatch.setattr(result, "comparison", lambda _: COMPARED)
    assert "The machine was busy" in "".join(result.tiles([subject]))
    subject.calm = True
    assert "The machine was busy" not in "".join(result.tiles([subject]))


COMPARED = result.Comparison(
    own="a", twin="b", accuracies=(0.91, 0.90), samples=1000, costs=[("MACs", 115, 100, ""), ("latency", 28, 10, " ms")]
)


def test_no_room_for_temporary_files(tmp_path, monkeypatch):
    """Then a report says nothing of latency in the native runtime; it is written all the same."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "nowhere"))
    task = subjects.task_of(load("embedded").test.images[:10])
    assert observe.deployed(sn.convert(sn.models.lenet(2), "D(3)-D-R3", example=task.example()), task) is None


def test_the_result_in_words_and_numbers(monkeypatch):
    monkeypatch.setattr(result, "comparison", lambda _: COMPARED)
    assert result.result([]) == "a is 1.0 points more accurate than b, with 15% more MACs and 2.8 times the latency."
    text = "".join(result.tiles([]))
    for number in ("+1.0 points", "+15%", "2.8 times", "28 ms and 10 ms", "less than its"):
        assert number in re.sub(r"<abbr[^>]*>|</abbr>", "", text)


def test_the_default_place_is_the_first_run(static_and_spline, tmp_path):
    run = shutil.copytree(static_and_spline[0], tmp_path / "static")
    code, out, _ = call("report", run)
    assert code == 0
    assert str(run / "report.html") in out
    assert (run / "report.html").is_file()


@pytest.mark.slow  # which the campaign and docs/figures.md draw too
def test_figures_as_files(static_and_spline, tmp_path):
    code, out, _ = call("figures", static_and_spline[1], "--out", tmp_path / "all")
    assert code == 0
    assert {p.stem for p in (tmp_path / "all").glob("*.png")} == {p.stem for p in (tmp_path / "all").glob("*.svg")}
    names = ["filters-1", "filters-2", "filters-3", "flow", "health", "positions", "specialization", "utilization"]
    assert sorted(p.stem for p in (tmp_path / "all").glob("*.svg")) == names
    assert len(out.splitlines()) == 2 * len(names)
    code, _, _ = call("figures", static_and_spline[1], "--out", tmp_path, "--only", "health", "--format", "png")
    assert code == 0
    assert (tmp_path / "health.png").read_bytes().startswith(b"\x89PNG")
    for words, complaint in (
        (["--only", "fly"], "choose from positions"),
        (["--format", "gif"], "choose from svg, png"),
    ):
        code, _, err = call("figures", static_and_spline[1], "--out", tmp_path / "none", *words)
        assert code == 2
        assert complaint in err
    code, _, err = call("figures", static_and_spline[0], "--out", tmp_path / "none")
    assert code == 2
    assert "static network has no positions" in err
    assert not (tmp_path / "none").exists()


def test_a_run_that_is_named_after_its_model_is_called_by_it(tmp_path):
    for folder, model in (("D5-D-R3", "D(5)-D-R3"), ("mine", "D(5)-D-R3"), ("static", "static")):
        content = {"recipe": {"model": model}}
        assert records._name(tmp_path / folder, content) == ("mine" if folder == "mine" else model)
    assert records._name(tmp_path / "broken", {"recipe": 3}) == "broken"


def test_one_run_twice_has_two_names(static_and_spline, tmp_path):
    page, _ = write(tmp_path / "report.html", static_and_spline[0], static_and_spline[0])
    assert "static (2)" in page


@pytest.mark.parametrize(
    ("change", "says", "shows"),
    [
        ({"format": 2}, "format 2", "Positions over time"),
        slow({"format": None}, "format None", "Positions over time"),
        slow({"recipe": {"epochs": 50}}, "not finished: 2 of 50 epochs", "Flow from layer"),
        ({"recipe": {"data": "folder:/nowhere"}}, "/nowhere", "Health over epochs"),
        slow({"recipe": {"new key": 1}}, "new key", "Health over epochs"),
        ({"recipe": {"width": 8}}, "another network", "Health over epochs"),
        ({"format": 2, "recipe": {"model": ["a"], "epochs": "many"}, "versions": 3, "command": None}, "format 2", "Side by side"),
    ],
)  # fmt: skip
def test_runs_that_cannot_be_read_whole(static_and_spline, tmp_path, change, says, shows):
    run = subjects.changed(static_and_spline[1], tmp_path / "run", **change)
    page, err = write(tmp_path / "report.html", static_and_spline[0], run)
    assert_inert(page)
    assert says in err
    assert says in page
    assert shows in page


def test_a_run_without_checkpoints_and_metrics(static_and_spline, tmp_path):
    run = shutil.copytree(static_and_spline[1], tmp_path / "run")
    shutil.rmtree(run / "checkpoints")
    page, err = write(tmp_path / "a.html", run)
    assert "no checkpoint yet" in err
    assert "Positions over time" in page
    (run / "metrics.jsonl").unlink()
    page, err = write(tmp_path / "b.html", run)
    assert "0 of 2 epochs" in err
    assert "How the runs were made" in page


def test_metrics_of_all_kinds(static_and_spline, tmp_path):
    """Broken lines are counted; strange numbers are shown as they are; nothing stops the report."""
    run = shutil.copytree(static_and_spline[1], tmp_path / "run")
    shutil.rmtree(run / "checkpoints")
    lines = (run / "metrics.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    strange = [
        "{", "[]", "3", '{"kind": "epoch"}', "\0", "[" * 100_000,
        json.dumps(last | {"layers": 3}),
        json.dumps(last | {"layers": [{"layer": "a"}]}),
        json.dumps(last | {"test_accuracy": "x"}),
        json.dumps(last | {"test_accuracy": float("nan"), "epoch": 10**30}),
        json.dumps(last | {"layers": [row | {"histogram": [10**40, -5] * 25, "entropy": float("inf")} for row in last["layers"]]}),
    ]  # fmt: skip
    (run / "metrics.jsonl").write_text("\n".join([*lines, *strange]))
    page, err = write(tmp_path / "report.html", run)
    assert "9 of its lines of metrics" in err
    assert_inert(page)
    assert "Positions over time" in page
    # a run of before histograms were kept
    for row in last["layers"]:
        del row["histogram"]
    (run / "metrics.jsonl").write_text(json.dumps(last))
    page, err = write(tmp_path / "report.html", run)
    assert "no histograms" in err
    assert "Health over epochs" in page
    assert "Positions over time" not in page


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["report"], "Missing argument"),
        (["report", "nowhere"], "nowhere is not a run"),
        (["report", "{tmp}"], "is not a run"),
        (["report", "{run}", "nowhere"], "nowhere is not a run"),
        (["report", "{run}", "--out", "{tmp}/report.txt"], "an .html file"),
        (["report", "{run}", "--out", "{tmp}/folder.html"], "an .html file"),
        (["report", "{run}", "--out", "{tmp}/no/report.html"], "there is no folder"),
        (["report", "{damaged}", "--out", "{tmp}/report.html"], "damaged"),
    ],
)
def test_bad_command_lines(static_and_spline, tmp_path, words, complaint):
    (tmp_path / "folder.html").mkdir()
    damaged = shutil.copytree(static_and_spline[0], tmp_path / "damaged")
    (damaged / "run.json").write_text("{}")
    refused(words, complaint, tmp=tmp_path, run=static_and_spline[0], damaged=damaged)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["damaged", "folder.html"]


def test_no_half_written_file(static_and_spline, tmp_path, monkeypatch):
    out = tmp_path / "report.html"
    out.write_text("the old one")
    monkeypatch.setattr(report, "LARGEST", 1000)
    code, _, err = call("report", static_and_spline[0], "--out", out)
    assert code == 2
    assert "give fewer runs" in err

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(report, "LARGEST", 10**9)
    monkeypatch.setattr("splinenets.files.rename_durably", full)
    code, _, err = call("report", static_and_spline[0], "--out", out)
    assert code == 2
    assert "no space left on device" in err
    assert [p.name for p in tmp_path.iterdir()] == ["report.html"]
    assert out.read_text() == "the old one"


def test_hostile_names_are_inert():
    task = subjects.hostile_task()
    loaded = subjects.hostile_net(task), task
    records = [subjects.hostile_record(number, loaded) for number in (3, 0)]
    parsed = assert_inert(report.build(report.observe_all(records), HOSTILE))
    text = "".join(parsed.text)
    for name in HOSTILE:
        assert printable(name) in text


@pytest.mark.parametrize("text", HOSTILE)
def test_every_hostile_text_is_shown_as_it_is(text):
    parsed = Parsed(element("p", text, class_=text))
    assert parsed.tags == ["p"]
    assert "".join(parsed.text) == printable(text)
    assert parsed.attributes == [("p", "class", printable(text))]
    block = data_block("data", {text: [text]})
    assert Parsed(block).tags == ["script"]
    content = re.fullmatch(r"<script [^>]*>([^<>&]*)</script>", block)[1]
    assert json.loads(content) == {text: [text]}
    assert escape(escape(text)) == escape(text)


def test_a_run_in_a_folder_with_a_hostile_name(static_and_spline, tmp_path):
    run = shutil.copytree(static_and_spline[1], tmp_path / "<img src=x onerror=alert(1)> \udc80 $x$")
    content = read_sealed(run / "run.json")
    content["command"] = ["splinenets", *HOSTILE]
    write_sealed(run / "run.json", content)
    page, _ = write(tmp_path / "report.html", run)
    assert_inert(page)
    assert "&lt;img src=x onerror=alert(1)&gt;" in page
