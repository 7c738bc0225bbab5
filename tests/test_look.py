"""The look at one token, in a real browser: what it says of every method's, its pictures, and the picture that it points into."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest
from test_browser import DEFAULT, browser, draw, expect, fits, open_page, page, pytestmark, show_example, tab
from test_replay import look_at

from lantern_demo.decoding.methods import METHODS
from lantern_demo.settings.settings import Settings
from lantern_demo.ui import texts
from lantern_demo.ui.components import SCRIPTS
from lantern_demo.ui.service import Service

__all__ = ["browser", "page", "pytestmark", "tab"]  # the fixtures and marks of the browser's tests
if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

# Bounds so wide that every method that may accept more does, and trees so small that they are drawn with pictures.
ASKED = {
    "seed": 3,
    "tree": "small",
    "window": 4,
    "zipar_window": 4,
    "lantern_k": 10,
    "lantern_delta": 0.5,
    "lanternpp_lambda": 5.5,
}


def drawn(page: Page, server: str, methods: list[str], **asked: Any) -> list[dict[str, Any]]:
    """The lanes of a run of these methods."""
    open_page(page, f"{server}?{urlencode(ASKED | asked | {'methods': ','.join(methods)})}")
    draw(page)
    expect(page.locator("#stage .source")).to_contain_text("Drawn just now")
    lanes = page.evaluate("lanternRun.lanes.map(({ image, picture, ...told }) => told)")
    assert [lane["id"] for lane in lanes] == methods
    return lanes


# The trials that are shown: the text, the classes and the figures of each.
TRIALS = """[...document.querySelectorAll("#stage .look .trial")].map((trial) => (
  [trial.innerText, [...trial.classList], [...trial.querySelectorAll("dd")].map((one) => one.innerText)]
))"""


def click_cell(page: Page, cell: int) -> None:
    grid = page.locator("#stage canvas.big")
    box = grid.bounding_box()
    assert box is not None
    grid.click(position={"x": (cell % 16 + 0.5) * box["width"] / 16, "y": (cell // 16 + 0.5) * box["height"] / 16})


def holds(words: dict[str, Any], case: str, facts: list[Any], told: str) -> None:
    """Check what is shown of a trial that was decided by chances: [own, counted, limit]."""
    _, counted, limit = facts
    assert (case != "refused") == (counted > limit)
    assert f"{limit:.3f}" in told if limit >= 0.001 else "e-" in told


def names(words: dict[str, Any], case: str, facts: list[Any], told: str) -> None:
    """Check what is shown of a trial that the model's own draw decided: [the token, where it stands]."""
    said = words["cases"][case]["said"]
    assert said.format(*facts) in told
    assert (f"drew {facts[0]}" in told) == ("drew {0}" in said) and ("drew {0}" in said or case != "refused")


@pytest.mark.parametrize("dice", ["own", "same"])
def test_tokens_of_every_kind_say_why_for_every_method(tab: Page, server: str, dice: str) -> None:
    """Also for a method that is added to the table: a rule says in Python what is printed here."""
    sharing = {name for name, method in METHODS.items() if method.guesses and Settings().rule(method).shares}
    # Those that do not share say with the same dice what they say with their own.
    lanes = drawn(tab, server, [name for name in METHODS if dice == "own" or name in sharing], dice=dice)
    compared = sharing if dice == "same" else set()
    look = tab.locator("#stage .look")
    for lane in lanes:
        method, words = METHODS[lane["id"]], lane["evidence"]
        assert method.lossless or not method.guesses or "r" in lane["kinds"], method.id
        check, bars = (names, 0) if method.id in compared else (holds, 1)
        look_at(tab, method.label)
        if not look.locator(".trials, .record .note").first.is_visible():
            look.locator(".record summary").click()
        for kind in sorted(set(lane["kinds"])):
            cell = max(cell for cell, other in enumerate(lane["kinds"]) if other == kind)
            click_cell(tab, cell)
            expect(look.locator("h2")).to_have_text(f"This piece: {words['headings'][kind]}")
            expect(look.locator(".about .kind")).to_have_text(texts.WEB["terms"][kind])
            why = look.locator(".about p").nth(1).inner_text()
            assert why in words["because"].values() or (method.drafts.side_by_side and "side by side" in why)
            rows = lane["trials"][bisect_right(lane["committed"], lane["rank"][cell])]
            expect(look.locator(".trial")).to_have_count(len(rows))
            assert len(rows) > 0 or kind == "t"
            expect(look.locator(".trial .balance")).to_have_count(bars * len(rows))
            for (_, case, *facts), (told, classes, values) in zip(rows, tab.evaluate(TRIALS), strict=True):
                assert words["cases"][case]["said"].format(*facts) in told
                assert case in classes
                check(words, case, facts, told)
                assert "NaN" not in told and "undefined" not in told and "{" not in told
                assert all(float(value) <= 1 for value in values if value[0].isdigit() and " " not in value)


def test_what_vanilla_drew_stands_beside_what_a_method_drew(tab: Page, server: str) -> None:
    vanilla, other = drawn(tab, server, ["vanilla", "lantern++"])
    differs = next(at for at, (a, b) in enumerate(zip(vanilla["tokens"], other["tokens"], strict=True)) if a != b)
    same = next(at for at in range(256) if vanilla["tokens"][at] == other["tokens"][at])
    row = tab.locator("#stage .alike .patch-row").filter(has_text=texts.WEB["patchVanilla"])
    look_at(tab, "LANTERN++")
    for cell in (differs, same):
        click_cell(tab, cell)
        expect(row.get_by_role("img", name=f"Token {vanilla['tokens'][cell]} in this place")).to_be_visible()
        expect(row.locator(".patch")).to_have_count(1)
        expect(row.locator(".patch.kept")).to_have_count(int(cell == same))
        style = row.locator(".patch span").get_attribute("style") or ""
        assert "data:image/webp" in style and "background-position: -" not in style, "its token is in the strip"
    tab.get_by_label("Method to look at").select_option("Vanilla")
    expect(tab.locator("#stage .alike .patch").first).to_be_visible()
    expect(row).to_have_count(0)


def test_without_vanilla_nothing_is_said_of_it(tab: Page, server: str) -> None:
    drawn(tab, server, ["eagle1", "lantern++"])
    look_at(tab, "LANTERN++")
    expect(tab.locator("#stage .alike .patch").first).to_be_visible()
    expect(tab.locator("#stage .alike")).not_to_contain_text(texts.WEB["patchVanilla"])


def test_a_recorded_example_says_why(page: Page) -> None:
    show_example(page)
    look_at(page, "LANTERN++")
    expect(page.locator("#stage .look h2")).to_have_text("This piece: a guess kept because it looks right")
    page.locator("#stage .record summary").click()
    expect(page.locator("#stage .trial.relaxed").first).to_contain_text("of the guess's")


def test_the_methods_to_look_at_are_listed_in_the_order_of_the_table(page: Page) -> None:
    """And not by who was first, as in the recorded run."""
    show_example(page)
    look_at(page, "EAGLE-2")
    lanes = page.evaluate("lanternRun.lanes.map(({ label, milliseconds }) => [label, milliseconds.at(-1)])")
    table = [METHODS[method].label for method in DEFAULT]
    assert [label for label, _ in sorted(lanes, key=lambda lane: lane[1])] != table
    assert page.get_by_label("Method to look at").locator("option").all_inner_texts() == table


@pytest.mark.parametrize("width", [390, 1280])
def test_the_picture_of_the_look_is_sharp_and_square_on_every_screen(browser: Browser, server: str, width: int) -> None:
    """On a phone the canvas is 150 wide, and with two pixels to each its width is what a canvas has unasked: 300 x 150."""
    page = browser.new_page(viewport={"width": width, "height": 844}, device_scale_factor=2)
    open_page(page, server)
    show_example(page)
    look_at(page, "LANTERN++")
    page.wait_for_function(
        "document.querySelector('#stage canvas.big').width === document.querySelector('#stage canvas.big').height"
    )
    seen = page.locator("#stage canvas.big").evaluate(
        "canvas => [canvas.width, canvas.height, canvas.clientWidth, canvas.clientHeight]"
    )
    assert seen == [2 * seen[2], 2 * seen[2], seen[2], seen[2]] and seen[2] >= 100
    assert fits(page)
    page.close()


def test_the_tree_shows_what_its_guesses_look_like(tab: Page, server: str) -> None:
    drawn(tab, server, ["vanilla", "lantern++"])
    look_at(tab, "LANTERN++")
    tree = tab.locator("#stage .tree-box > svg.tree")
    expect(tab.locator("#stage .tree-box")).to_contain_text(texts.WEB["treePictures"])
    nodes = tree.locator(".node")
    assert nodes.count() >= 8, "the tree's eight nodes, and the model's own token"
    fills = nodes.evaluate_all("all => all.map((node) => node.querySelector('.shape').style.fill)")
    assert all("#tree-piece-" in one for one in fills) and tree.locator("text").count() == 0
    assert tree.locator("pattern").count() == len(set(fills))
    squares = tab.evaluate("""async () => {
      const image = new Image();
      image.src = document.querySelector("#tree-strip").getAttribute("href");
      await image.decode();
      return image.width / image.height;
    }""")
    used = [int(one.split("#tree-piece-")[1].split('"')[0].rstrip(")")) for one in fills]
    assert max(used) == squares - 1, "they come in the strip of the look-alikes, behind them"
    for meaning in texts.WEB["treeSigns"].values():
        expect(tab.locator("#stage .tree-signs")).to_contain_text(meaning)
    tab.get_by_role("button", name="Next step").click()
    expect(tree).to_have_attribute("data-phase", "draft")
    expect(tab.locator("#stage .tree-box")).to_contain_text(texts.WEB["treePictures"])


def test_the_tree_shows_tokens_where_nothing_is_decoded(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """The examples are of the bundled model, and the server of the tests has begun with another."""
    loaded = Service.loaded
    monkeypatch.setattr(Service, "loaded", lambda self: [pipe for pipe in loaded(self) if pipe.info.id == self.default])
    show_example(page)
    look_at(page, "LANTERN++")
    expect(page.locator("#stage .alike")).to_contain_text("The model of this run is not loaded here")
    tree = page.locator("#stage .tree-box > svg.tree")
    assert tree.locator(".node text").count() == tree.locator(".node").count() > 1
    expect(page.locator("#stage .tree-box")).to_contain_text(texts.WEB["treeTokens"])


def test_what_changed_is_marked_and_nothing_else(browser: Browser) -> None:
    page = browser.new_page(viewport={"width": 400, "height": 400})
    page.set_content('<canvas style="width: 200px; height: 200px"></canvas>')
    for script in ("dom", "grid"):
        page.add_script_tag(path=SCRIPTS / f"{script}.js")
    for changed in (False, True):
        pixels = page.evaluate(
            """(changed) => {
              const image = new OffscreenCanvas(8, 8), canvas = document.querySelector("canvas");
              Object.assign(image.getContext("2d"), { fillStyle: "#1e3cdc" }).fillRect(0, 0, 8, 8);
              const lane = { image, tokens: [0, 0, 0, 0], kinds: "tere", committed: [1, 2, 3, 4] };
              ranked(lane);
              paint(canvas, lane, 4, 2, { changed, cell: -1 });
              const at = (x, y) => canvas.getContext("2d").getImageData(x, y, 1, 1).data.slice(0, 3).join();
              return [at(50, 50), at(150, 50), at(50, 150), at(150, 150)];
            }""",
            changed,
        )
        assert pixels == ["30,60,220", "30,60,220", "240,165,0" if changed else "30,60,220", "30,60,220"]
    page.close()
