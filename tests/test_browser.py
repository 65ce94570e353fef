"""The report and the explorer in a real browser."""

import io
from base64 import b64decode
from pathlib import Path

import numpy
import pytest
from PIL import Image
from tests.helpers import subjects
from tests.helpers.browser import PATIENCE, chromium
from tests.helpers.subjects import HOSTILE

from splinenets.analysis import observe, report
from splinenets.analysis.explorer import Explorer
from splinenets.analysis.glossary import GLOSSARY
from test_explorer import file, serving, turned_explorer

# in shares of the pad
SEVEN = [[(0.25, 0.25), (0.75, 0.25), (0.45, 0.8)]]


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with chromium(tmp_path_factory.mktemp("profile")) as (page, seen):
        yield page, seen


@pytest.fixture
def fresh(browser):
    page, seen = browser
    seen.errors.clear()
    seen.requests.clear()
    yield page, seen
    page.goto("about:blank")


@pytest.fixture(scope="module")
def turned(tmp_path_factory):
    return turned_explorer(tmp_path_factory)


@pytest.fixture(scope="module")
def written(static_and_spline, tmp_path_factory):
    """The address of a report, whose networks were not exported: that takes a while and is tried elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(observe, "deployed", lambda *_: None)
        out = tmp_path_factory.mktemp("report") / "report.html"
        report.write_report(static_and_spline, out)
    return out.as_uri()


def test_the_report(fresh, written):
    page, seen = fresh
    page.goto(written)
    pictures = page.locator("figure img")
    assert pictures.count() > 10
    sizes = pictures.evaluate_all("all => all.map(i => [i.complete, i.naturalWidth, i.getBoundingClientRect().height])")
    assert all(complete and width > 10 and height > 10 for complete, width, height in sizes)

    panel = page.locator(".panel")
    draws = panel.locator("svg rect")
    before = panel.locator(".view").inner_html()
    assert draws.count() > 500
    panel.get_by_label("layer").select_option(label="dense1")
    after = panel.locator(".view").inner_html()
    assert after != before
    assert panel.locator("canvas").count() == 9
    panel.get_by_label("class").select_option(label="Sandal")
    assert panel.locator(".view").inner_html() != after
    panel.get_by_label("layer").select_option(label="conv2")
    panel.get_by_label("spline").select_option(label="all 6 together")
    assert panel.locator("canvas").count() == 0
    panel.locator("svg").hover(position={"x": 500, "y": 190})
    assert " positions here" in panel.locator(".readout").inner_text()

    cards = page.locator(".card:visible")
    everything = cards.count()
    page.get_by_label("class").first.select_option(index=1)
    assert 0 < cards.count() < everything
    assert seen.errors == []
    assert [url for url in seen.requests if not url.startswith(("file:", "data:"))] == []
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_the_report_by_keyboard_alone_in_the_dark_on_a_phone(fresh, written):
    page, seen = fresh
    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 400, "height": 800})
    page.goto(written)
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 24, 31)"
    # the first word that one reaches explains itself
    page.keyboard.press("Tab")
    word = page.evaluate("document.activeElement.textContent")
    assert page.locator("#explanation").inner_text() == GLOSSARY[word]
    box = page.locator("#explanation").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 400
    page.keyboard.press("Escape")
    assert page.locator("#explanation").count() == 0
    # everything that can be pressed can be reached
    wanted = {"a", "abbr", "select", "svg", "button", "summary"}
    for _ in range(400):
        page.keyboard.press("Tab")
        wanted.discard(page.evaluate("document.activeElement.tagName.toLowerCase()"))
        if not wanted:
            break
    assert wanted == set()
    page.locator(".panel svg").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert "Trouser, from 0.02 to 0.04: " in page.locator(".readout").inner_text()
    drawing = page.locator('figure img[src^="data:image/svg"]').first
    corner = drawing.evaluate(
        """image => {
            const canvas = document.createElement("canvas"), context = canvas.getContext("2d");
            context.drawImage(image, 0, 0);
            return [...context.getImageData(2, 2, 1, 1).data];
        }"""
    )
    assert corner == [26, 32, 41, 255]  # the drawing is dark too
    page.set_viewport_size({"width": 1250, "height": 1000})
    page.emulate_media(color_scheme="light")
    assert seen.errors == []


def test_figures_can_be_saved(fresh, written):
    page, seen = fresh
    page.goto(written)
    flow = page.locator('figure[data-name="flow-2"]')
    for kind in ("svg", "png"):
        with page.expect_download() as waiting:
            flow.get_by_label(f"save this figure as {kind.upper()}").click()
        assert waiting.value.suggested_filename == f"flow-2.{kind}"
        content = Path(waiting.value.path()).read_bytes()
        if kind == "svg":
            assert b"prefers-color-scheme" not in content
        else:
            with Image.open(io.BytesIO(content)) as picture:
                assert picture.width > 1900
    assert seen.errors == []


@pytest.mark.slow
def test_a_hostile_report(fresh, tmp_path, monkeypatch):
    page, seen = fresh
    monkeypatch.setattr(observe, "deployed", lambda *_: None)
    task = subjects.hostile_task()
    loaded = subjects.hostile_net(task), task
    records = [subjects.hostile_record(number, loaded) for number in (3, 0)]
    place = tmp_path / "report.html"
    place.write_text(report.build(report.observe_all(records), HOSTILE), encoding="utf-8")
    page.goto(place.as_uri())
    for select in page.locator(".panel select").all():
        select.select_option(index=1)
    assert page.locator("figure img").evaluate_all("all => all.every(i => i.naturalWidth > 0)")
    assert page.evaluate("window.hacked") is None
    assert seen.errors == []
    assert {url.partition(":")[0] for url in seen.requests} <= {"file", "data"}


def until(page, condition):
    """Wait for a condition; the page's own rules forbid Playwright's way of doing so."""
    for _ in range(PATIENCE // 50):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(50)
    raise AssertionError(condition)


def chances(page):
    until(page, "!asking")
    return page.locator(".chance .value").all_inner_texts()


def draw(page, strokes):
    page.locator("#pad").scroll_into_view_if_needed()
    pad = page.locator("#pad").bounding_box()
    for stroke in strokes:
        (x, y), *rest = [(pad["x"] + pad["width"] * x, pad["y"] + pad["height"] * y) for x, y in stroke]
        page.mouse.move(x, y)
        page.mouse.down()
        for x, y in rest:
            page.mouse.move(x, y, steps=4)
        page.mouse.up()


def test_the_explorer(fresh, static_and_spline, tmp_path):
    page, seen = fresh
    with serving(Explorer.of_run(static_and_spline[1])) as server:
        page.goto(server.address)
        page.locator(".chance.best").wait_for()
        first = chances(page)
        assert abs(sum(float(text.rstrip("%")) for text in first) - 100) < 1
        assert page.locator("h1").inner_text() == "A network that chooses its weights for each image"
        assert "true class: Ankle boot" in page.locator("#label").inner_text()
        page.locator("#intro summary").click()
        assert page.locator("#about").is_hidden()

        page.locator("#tests button").nth(5).click()
        until(page, "document.querySelectorAll('#tests button')[5].getAttribute('aria-pressed') === 'true'")
        assert chances(page) != first

        draw(page, SEVEN)
        own = chances(page)
        assert own != first
        until(page, "state.image.pixels !== undefined")
        seven = numpy.frombuffer(b64decode(page.evaluate("state.image.pixels")), numpy.uint8).reshape(28, 28)
        assert all(seven[int(28 * y), int(28 * x)] > 200 for x, y in [(0.3, 0.25), (0.7, 0.25), (0.47, 0.75)])
        assert all(seven[int(28 * y), int(28 * x)] < 50 for x, y in [(0.3, 0.5), (0.8, 0.7), (0.05, 0.05)])
        assert page.locator(".chance.best").count() == 1

        # drag a position, with the mouse and with keys
        track = page.locator('[data-layer="dense2"] input[type="range"]')
        box, at = track.bounding_box(), float(track.input_value())
        page.mouse.move(box["x"] + 9 + (box["width"] - 18) * at, box["y"] + box["height"] / 2)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] * (0.05 if at > 0.5 else 0.95), box["y"] + box["height"] / 2, steps=5)
        page.mouse.up()
        dragged = chances(page)
        assert dragged != own
        assert "by hand" in page.locator('[data-layer="dense2"] .value').inner_text()
        assert page.locator('#way .own[data-of="dense2"]').is_visible()
        track.focus()
        page.keyboard.press("End")
        assert "1.000" in page.locator('[data-layer="dense2"] .value', has_text="1.000").inner_text()
        page.locator("#release").click()
        until(page, "document.getElementById('release').disabled")
        assert chances(page) == own

        # all splines of a layer together, or one alone
        spread = page.locator('[data-layer="conv2"] input[type="range"]')
        spread.focus()
        page.keyboard.press("Home")
        until(page, "state.chosen.conv2 && state.chosen.conv2.every(v => v === 0)")
        assert chances(page) != own
        page.locator("#release").click()
        page.get_by_label("move the whole layer").uncheck()
        spread.focus()
        page.keyboard.press("End")
        until(page, "state.chosen.conv2 && state.chosen.conv2.filter(v => v !== null).length === 1")
        page.locator("#release").click()

        # two images side by side
        page.locator("#compare").click()
        until(page, "!asking && latest.second !== null")
        assert page.locator("#way .line").count() == 4  # into the first layer, and through all
        assert page.locator("#filters canvas").count() == 12
        assert "furthest apart in" in page.locator("#apart").inner_text()
        assert page.locator(".parting").count() == 3
        page.locator(".parting button").nth(1).click()
        until(
            page,
            "!asking && JSON.stringify(latest.answer.positions.dense1) === JSON.stringify(latest.second.own.dense1)",
        )
        said = page.locator(".parting .said").nth(1).inner_text()
        assert page.locator("#verdict").inner_text().startswith(f"It says {said}")
        page.locator("#follow").click()
        until(page, "!asking && JSON.stringify(latest.answer.positions) === JSON.stringify(latest.second.own)")
        page.locator("#compare").click()
        until(page, "!asking && latest.second === null")
        page.locator("#release").click()

        # along the curve, and out to the answer
        assert page.locator('[data-layer="conv2"] .strip canvas').count() == 9
        assert page.locator("#way .ribbon").count() >= 1
        assert page.locator(".exit").count() == 10
        before = page.evaluate("document.querySelector('[data-layer=conv2] .lens canvas').toDataURL()")
        spread.focus()
        page.keyboard.press("Home")
        until(page, "!asking && state.chosen.conv2 !== undefined")
        assert page.evaluate("document.querySelector('[data-layer=conv2] .lens canvas').toDataURL()") != before
        page.locator("#release").click()

        # uploads, good and bad
        picture = tmp_path / "grey.png"
        picture.write_bytes(file(numpy.full((60, 60, 3), 99, numpy.uint8)))
        page.locator("#file").set_input_files(picture)
        until(page, "state.image.pixels && atob(state.image.pixels).charCodeAt(0) === 99")
        assert page.locator("#message").is_hidden()
        picture.write_bytes(file(numpy.full((60, 60, 3), 250, numpy.uint8)))
        page.locator("#file").set_input_files(picture)
        page.locator("#invert").click()
        until(page, "!asking && atob(state.image.pixels).charCodeAt(0) === 5")
        assert page.locator("#unlike").is_hidden()
        (tmp_path / "text.png").write_text("no picture at all")
        page.locator("#file").set_input_files(tmp_path / "text.png")
        page.locator("#message").wait_for()
        assert "This file cannot be used: send an image" in page.locator("#message").inner_text()
        # the browser itself notes every answer that is not 200
        assert all("400 (Bad Request)" in error for error in seen.errors)
        (tmp_path / "large.png").write_bytes(bytes(5_000_001))
        page.locator("#file").set_input_files(tmp_path / "large.png")
        page.locator("#message", has_text="5 MB at most").wait_for()
        assert page.locator("#neighbours img").count() == 8
        assert page.locator("#filters canvas").count() == 6
        until(page, "document.documentElement.scrollWidth <= window.innerWidth")  # drawn anew
        own_addresses = (server.address, "data:")
        assert [url for url in seen.requests if not url.startswith(own_addresses)] == []


def test_the_tour_by_keyboard_alone(fresh, static_and_spline):
    page, seen = fresh
    page.emulate_media(reduced_motion="reduce", color_scheme="dark")
    with serving(Explorer.of_run(static_and_spline[1])) as server:
        page.goto(server.address)
        page.locator(".chance.best").wait_for()
        page.keyboard.press("t")
        for number in range(1, 5):
            until(page, f"document.getElementById('tour-text').textContent.startsWith('{number} of 4')")
            until(page, "!asking")
            if number == 3:  # the drag says what came of it
                until(page, "/now it is|keeps its answer/.test(document.getElementById('tour-text').textContent)")
            assert page.locator(".toured").count() == 1
            page.keyboard.press("Enter")
        assert page.locator("#tour").is_hidden()
        until(page, "!asking && state.other !== null")
        page.keyboard.press("t")
        page.keyboard.press("Escape")
        assert page.locator("#tour").is_hidden()
        page.keyboard.press("c")
        page.keyboard.press("n")
        until(page, "!asking && state.other === null && state.image.test === 1")
        page.set_viewport_size({"width": 400, "height": 800})
        until(page, "document.documentElement.scrollWidth <= window.innerWidth")  # drawn anew
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(35, 42, 52)"
        # everything that can be pressed can be reached, and the pad can be drawn on
        page.evaluate("document.activeElement.blur()")
        wanted = {"tour-start", "compare", "whole", "more", "pad", "clear", "file", "source"}
        for _ in range(120):
            page.keyboard.press("Tab")
            wanted.discard(page.evaluate("document.activeElement.id || document.activeElement.className"))
            if not wanted:
                break
        assert wanted == set()
        page.locator("#pad").focus()
        for key in (" ", "ArrowDown", "ArrowDown", "ArrowRight", " "):
            page.keyboard.press(key)
        until(page, "!asking && state.image.pixels !== undefined")
        assert page.evaluate("atob(state.image.pixels).split('').some(c => c.charCodeAt(0) > 200)")
        assert page.locator("#label").inner_text() == "your image"
        page.set_viewport_size({"width": 1250, "height": 1000})
        page.emulate_media(color_scheme="light")
        assert seen.errors == []


@pytest.mark.slow
def test_a_dial_turns_the_picture(fresh, turned):
    page, seen = fresh
    with serving(turned) as server:
        page.goto(server.address)
        page.locator(".chance.best").wait_for()
        assert page.locator("h1").inner_text() == "A network that changes its weights with the angle"
        upright = chances(page), page.evaluate("latest.answer.pixels")
        dial = page.locator(".dial").first.bounding_box()
        page.mouse.move(dial["x"] + 56, dial["y"] + 8)
        page.mouse.down()
        page.mouse.move(dial["x"] + 8, dial["y"] + 56, steps=4)
        page.mouse.up()
        until(page, "!asking && Math.abs(state.done - 90) < 2")
        turned_by = chances(page), page.evaluate("latest.answer.pixels")
        assert turned_by[1] != upright[1]
        assert page.evaluate("Math.abs(latest.answer.positions['net.conv2'][0] - 0.25) < 0.01")
        page.get_by_label("tell it something else").check()
        page.locator("#told").focus()
        page.keyboard.press("Home")
        page.keyboard.press("ArrowDown")  # beyond the end it begins again
        until(page, "!asking && state.told === 360")
        assert chances(page) != turned_by[0]
        assert page.evaluate("latest.answer.pixels") == turned_by[1]
        assert seen.errors == []


@pytest.mark.slow
def test_a_hostile_explorer(fresh):
    page, seen = fresh
    task = subjects.hostile_task()
    explorer = Explorer(subjects.hostile_net(task), task, name=HOSTILE[0], model=HOSTILE[1])
    with serving(explorer) as server:
        page.goto(server.address)
        page.locator(".chance.best").wait_for()
        assert page.locator(".chance").count() == 12
        assert page.evaluate("window.hacked") is None
        assert seen.errors == []
        # a page of another origin hears nothing
        page.goto("about:blank")
        heard = page.evaluate(
            "address => fetch(address + 'state').then(() => 'heard', () => 'refused')", server.address
        )
        assert heard == "refused"
