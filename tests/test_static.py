"""The edition without a server, behind a plain file server: none of our code answers there."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from test_browser import AXE, browser, check_for_axe, expect, fits, pytestmark, tab

from lantern_demo.ui import static, texts
from lantern_demo.ui.recorded import recorded_runs
from lantern_demo.ui.run_view import results_view

__all__ = ["browser", "pytestmark", "tab"]  # the fixtures and marks of the browser's tests
if TYPE_CHECKING:
    from playwright.sync_api import Page

CELLS = 2


class Files(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def edition(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two races, with look-alikes at two cells of each."""
    out = tmp_path_factory.mktemp("static") / "edition"
    static.write(out, CELLS, recorded_runs()[:2])
    return out


@pytest.fixture(scope="module")
def host(edition: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Files, directory=str(edition)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()


def opened(page: Page, host: str) -> None:
    """Open the edition. What the console calls an error fails the test, as a request to another host does."""
    page.on("console", lambda message: (_ for _ in ()).throw(AssertionError(message.text)) if message.type == "error" else None)
    page.goto(host)
    expect(page.locator("#stage .lane[data-done]")).to_have_count(5)


def test_it_shows_what_the_served_page_shows(tab: Page, host: str) -> None:
    opened(tab, host)
    steps = {name: entry["steps"] for name, entry in recorded_runs()[0].record["methods"].items()}
    expect(tab.locator("#stage .headline")).to_have_text(
        f"LANTERN++ asked the model {steps['lantern++']} times instead of {steps['vanilla']}."
    )
    expect(tab.locator("#lane-vanilla .big-number")).to_have_text(f"{steps['vanilla']} passes")
    tab.get_by_role("button", name="Seconds", exact=True).click()
    expect(tab.locator("#lane-vanilla .big-number")).to_contain_text(" s")
    tab.locator("#stage .cost-marks button").nth(1).click()
    expect(tab.locator("#lane-lanternpp .big-number")).to_contain_text("like")
    tab.locator("#examples .card").nth(1).click()
    expect(tab.locator("#stage .source")).to_contain_text(recorded_runs()[1].record["prompt"])
    tab.locator(".turns").scroll_into_view_if_needed()
    expect(tab.locator(".turned img").first).to_be_visible()


def test_every_cell_that_can_be_pressed_has_its_look_alikes(tab: Page, host: str) -> None:
    """In every lane, by the mouse and by arrow keys: what the page asks for is what was decoded."""
    wrapped = (
        "run(document.getElementById(id), props, (_, { index }) => race(index), (_, told) => watchers.push(told), { look: "
        "(asked) => { (window.askedFor ??= []).push(asked); return look(asked); } });"
    )
    page = (Path(static.SCRIPTS) / "static" / "page.js").read_text()
    original = next(line.strip() for line in page.splitlines() if line.strip().startswith("run(document"))
    tab.route(host, lambda route: route.fulfill(response=(got := route.fetch()), body=got.text().replace(original, wrapped)))
    opened(tab, host)
    run = recorded_runs()[0]
    view = results_view(run.record, run.pictures, run.source)
    view["pressable"] = static.pressable(view, CELLS)
    tab.locator("#lane-lanternpp .picture").click(position={"x": 5, "y": 5})
    grid = tab.locator("#stage canvas.big")
    for place, lane in enumerate(view["lanes"]):
        tab.get_by_label("Method to look at").select_option(str(place))
        for cell in view["pressable"]:
            box = grid.bounding_box()
            assert box is not None
            grid.click(position={"x": (cell % 16 + 0.5) * box["width"] / 16, "y": (cell // 16 + 0.5) * box["height"] / 16})
            expect(tab.locator("#stage .look .spoken")).to_contain_text(f"row {cell // 16 + 1}, column {cell % 16 + 1}")
            expect(tab.locator("#stage .alike .patch").first).to_be_visible()
            wanted = static.asked(view, lane, cell)
            known = {name: value for name, value in wanted.items() if name != "tree"}
            same = "known => Object.entries(known).every(([name, value]) => `${askedFor.at(-1)[name]}` === `${value}`)"
            tab.wait_for_function(same, arg=known)
            asked = tab.evaluate("askedFor.at(-1)")
            assert {**asked, "tree": None} == {**wanted, "tree": None}
            assert asked["tree"] in (None, wanted["tree"]), "what is there already is not asked for again"
    seen = tab.locator("#stage .look .spoken").inner_text()
    for key in ("ArrowUp", "ArrowDown", "ArrowLeft", "ArrowRight"):
        grid.press(key)
        expect(tab.locator("#stage .alike .patch").first).to_be_visible()
        seen += tab.locator("#stage .look .spoken").inner_text()
    assert all(f"row {cell // 16 + 1}, column {cell % 16 + 1}" in seen for cell in view["pressable"]), "keys reach all of them"


def test_the_quiz_the_film_and_the_captions_are_there(tab: Page, host: str) -> None:
    opened(tab, host)
    tab.get_by_role("button", name=texts.WEB["tour"]).click()
    expect(tab.locator(".tour")).to_contain_text("guesses ahead")
    expect(tab.locator("#stage .alike .patch").first).to_be_visible()
    tab.keyboard.press("Escape")
    tab.get_by_role("button", name=texts.WEB["quiz"]).click()
    expect(tab.locator("dialog .pair img")).to_have_count(2)
    tab.keyboard.press("Escape")
    tab.get_by_role("button", name=texts.WEB["clip"]).click()
    expect(tab.locator("dialog canvas")).to_be_visible()


def test_it_fits_and_can_be_read(tab: Page, host: str) -> None:
    brightness = (
        "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).reduce((sum, x) => sum + Number(x), 0)"
    )
    tab.emulate_media(color_scheme="dark")
    opened(tab, host)
    assert tab.evaluate(brightness) < 80
    tab.emulate_media(color_scheme="light")
    opened(tab, host)
    assert tab.evaluate(brightness) > 200
    for width in (1280, 768, 390):
        tab.set_viewport_size({"width": width, "height": 844})
        tab.wait_for_timeout(200)
        assert fits(tab), f"the page is wider than {width} px"
    if AXE.exists():
        check_for_axe(tab, "the edition")


def test_it_is_light(edition: Path) -> None:
    """Of two races with two cells: all eight with the usual number of cells come to less than what is allowed."""
    size = {path.relative_to(edition).as_posix(): path.stat().st_size for path in edition.rglob("*") if path.is_file()}
    by_race = sum(n for name, n in size.items() if name.startswith(("races/", "recorded/"))) / 2
    by_cell = sum(n for name, n in size.items() if name.startswith("looks/")) / (2 * CELLS)
    rest = sum(n for name, n in size.items() if not name.startswith(("races/", "recorded/", "looks/")))
    races = len(recorded_runs())
    assert rest + races * (by_race + static.CELLS * by_cell) < 0.9 * static.MOST_BYTES
    looks = json.loads(gzip.decompress((edition / "looks" / "01.json.gz").read_bytes()))
    assert all(len(cells) == CELLS and not any("error" in found for found in cells.values()) for cells in looks.values())


def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="cells must be at least 1, got 0"):
        static.write(tmp_path / "new", 0)
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(ValueError, match="out must be a new or an empty folder, got"):
        static.write(tmp_path, 1)
    monkeypatch.setattr(static, "MOST_BYTES", 100_000)
    monkeypatch.setattr(static, "looks", lambda alikes, view: {})
    with pytest.raises(
        ValueError, match=r"cells is 3: the edition weighs \d+,\d+ bytes, at most 100,000 are allowed; ask for fewer"
    ):
        static.write(tmp_path / "heavy", 3, recorded_runs()[:1])


def test_no_text_becomes_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    evil = "</script><img src=x onerror=alert(1)>"
    monkeypatch.setattr(static, "cards", lambda: {"cards": [{"prompt": evil, "picture": None}], "picked": 0})
    run = recorded_runs()[0]
    changed = type(run)({**run.record, "prompt": evil}, run.pictures, run.sweeps, run.name)
    assert "<img" not in static.index([changed]) and "\\u003cimg" in static.index([changed])
