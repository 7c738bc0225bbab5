"""The stage in a real browser: the replay and its clocks, and what it explains of a step and of a
piece.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest
from pages import (
    DEFAULT,
    IN_A_BROWSER,
    LANES,
    draw,
    expect,
    faults_of,
    fits,
    lit,
    look_at,
    new_tab,
    open_page,
    scripts,
)
from pages import drawn as wait_for_lanes
from test_evidence import held_against_draws

from lantern_demo.decoding.methods import METHODS
from lantern_demo.ui import texts
from lantern_demo.ui.recorded import recorded_runs

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = IN_A_BROWSER

# Bounds so wide that every method that may accept more does, and trees so small that they are drawn
# with pictures.
ASKED = {
    "seed": 3,
    "tree": "small",
    "window": 4,
    "lantern_k": 10,
    "lantern_delta": 0.5,
    "lanternpp_lambda": 5.5,
}
HEADLINE = "#headline h1"


@pytest.fixture(scope="module")
def shown(browser: Browser, server: str) -> Iterator[Page]:
    """The page with the first recorded run, at its end. A test leaves it so."""
    with new_tab(browser) as page:
        open_page(page, server)
        yield page


def scrub(page: Page, per_mille: int) -> None:
    page.get_by_label(texts.WEB["scrub"]).evaluate(
        """(bar, to) => {
          bar.value = to;
          bar.dispatchEvent(new Event("input", { bubbles: true }));
        }""",
        per_mille,
    )


def drawn(page: Page, server: str, methods: list[str], **asked: Any) -> list[dict[str, Any]]:
    """The lanes of a run of these methods."""
    open_page(page, f"{server}?{urlencode(ASKED | asked | {'methods': ','.join(methods)})}")
    expect(page.locator("#status")).to_contain_text(texts.READY_LINK)
    draw(page)
    wait_for_lanes(page, len(methods))
    lanes = page.evaluate("lanternRun.lanes.map(({ image, picture, ...told }) => told)")
    assert [lane["id"] for lane in lanes] == methods
    return lanes


# The trials that are shown: the text, the classes and the figures of each.
TRIALS = """[...document.querySelectorAll("#stage .look .trial")].map((trial) => {
  const figures = [...trial.querySelectorAll("dd")].map((one) => one.innerText);
  return [trial.innerText, [...trial.classList], figures];
})"""


def click_cell(page: Page, cell: int) -> None:
    grid = page.locator("#stage canvas.big")
    box = grid.bounding_box()
    grid.click(
        position={
            "x": (cell % 16 + 0.5) * box["width"] / 16,
            "y": (cell // 16 + 0.5) * box["height"] / 16,
        }
    )


# -- the race


def test_races_are_timed_in_a_browser(
    browser: Browser, server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One race, as `examples/page_picture.py` times ten of them."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "examples")
    program = import_module("page_picture")
    monkeypatch.setattr(program, "RACES", 1)
    program.races(browser, server, tmp_path / "page.json")
    told = json.loads((tmp_path / "page.json").read_text(encoding="utf-8"))
    rows = told["rows"]
    assert list(rows) == DEFAULT and len(told["races"]) == 1
    assert rows["vanilla"]["speedup"] == 1 and rows["eagle1"]["speedup"] > 0
    assert rows["vanilla"]["steps"] > rows["lantern++"]["steps"]


# -- the replay


def test_a_replay_counts_in_the_headline_and_ends_with_the_result(tab: Page, server: str) -> None:
    """The recorded run plays by itself once."""
    tab.emulate_media(reduced_motion="no-preference")
    tab.add_init_script("""addEventListener("DOMContentLoaded", () => {
      window.headlines = new Set();
      const note = () => {
        const told = document.querySelector("#headline h1")?.textContent;
        if (told) window.headlines.add(told);
      };
      const seen = { subtree: true, childList: true, characterData: true };
      new MutationObserver(note).observe(document, seen);
    })""")
    open_page(tab, server)
    run = recorded_runs()[0].record["methods"]
    steps = {name: entry["steps"] for name, entry in run.items()}
    result = f"The same prompt in {min(steps.values())} steps instead of {steps['vanilla']}."
    expect(tab.locator("#stage .lane[data-done]")).to_have_count(len(DEFAULT))
    expect(tab.locator(HEADLINE)).to_have_text(result)
    leads = r".+ leads: (\d+) of 256 pieces\."
    told = [re.fullmatch(leads, one) for one in tab.evaluate("[...headlines]")]
    counted = [int(found[1]) for found in told if found is not None]
    assert len(counted) > 2 and counted == sorted(counted)
    expect(tab.get_by_role("button", name=texts.WEB["play"])).to_be_enabled()


def test_the_numbers_are_those_of_the_record(shown: Page) -> None:
    """The headline, each lane's steps and seconds, and its place; and half-way its pieces."""
    run = recorded_runs()[0].record["methods"]
    steps = {name: entry["steps"] for name, entry in run.items()}
    told = f"The same prompt in {min(steps.values())} steps instead of {steps['vanilla']}."
    expect(shown.locator(HEADLINE)).to_have_text(told)
    order = sorted(steps.values())
    for name, lane in zip(run, LANES, strict=True):
        card = shown.locator(f"#lane-{lane}")
        expect(card.locator(".big")).to_have_text(f"{steps[name]} steps")
        places = ["1st", "2nd", "3rd", "4th", "5th"]
        expect(card.locator(".place")).to_have_text(places[order.index(steps[name])])
        gain, took = run[name]["speedup"], run[name]["decode_seconds"]
        fast = f"{gain:.2f}\u00d7 faster" if gain >= 0.995 else f"{1 / gain:.2f}\u00d7 slower"
        facts = f"{took:.2f} s" if name == "vanilla" else f"{fast}, {took:.2f} s"
        expect(card.locator(".small")).to_have_text(facts)
    pill = shown.locator("#lane-vanilla .pill")
    expect(pill).to_be_visible()
    scrub(shown, 500)
    expect(pill).to_be_hidden()
    expect(shown.locator("#lane-vanilla .big")).to_have_text("128 pieces")
    expect(shown.locator(HEADLINE)).to_contain_text(". Vanilla: 128 of 256.")
    scrub(shown, 1000)


def test_what_is_slower_than_vanilla_is_said_in_words(browser: Browser) -> None:
    """In the headline, in a lane's number, and in the reason below the lanes."""

    def lane(name: str, steps: int, took: float, spent: float) -> dict[str, Any]:
        parts = {"draft": spent / 4, "check": spent / 2, "keep": spent / 4}
        shown = {"id": name, "label": METHODS[name].label, "steps": steps, "spent": parts}
        return shown | {"committed": [0] * (steps + 1), "milliseconds": [1, took]}

    vanilla = lane("vanilla", 255, 2000, 8)
    slow, quick = lane("lantern++", 98, 3000, 30), lane("eagle1", 142, 1000, 7)
    with scripts(browser, "dom", "clock") as page:
        page.evaluate("words => { window.WORDS = words; }", texts.WEB)

        def asked(call: str, *lanes: dict[str, Any]) -> Any:
            return page.evaluate(f"lanes => {call}", list(lanes))

        assert asked("ratio(speedup(lanes[1], lanes[0]))", vanilla, slow) == "1.50\u00d7 slower"
        headline = "headlineOf(lanes).join('')"
        assert asked(headline, vanilla, slow) == "The same prompt in 98 steps instead of 255."
        assert asked(headline, vanilla, slow | {"steps": 300}) == "Vanilla was fastest: 255 steps."
        assert asked(headline, quick) == "EAGLE-1 took 142 steps."
        why = asked("reason(lanes)", vanilla, slow, quick)
        assert why.startswith(
            "LANTERN++ takes 98 steps instead of 255. Each of them takes 3.8 times"
        )
        assert why.endswith("so it is 1.50\u00d7 slower.")
        assert asked("reason(lanes)", vanilla, quick).endswith("it is 2.00\u00d7 faster.")
        assert asked("reason(lanes)", vanilla) == ""
        disturbed = asked("reason(lanes)", vanilla, quick | {"disturbed": True})
        assert disturbed.endswith(f"faster. {texts.WEB['disturbed']}"), "ratios stay"


def test_how_it_works_is_told_on_the_lanes_own_picture(shown: Page) -> None:
    """Bubble by bubble to the last, and Escape ends it at once; the page is as it was before."""
    before = shown.locator(HEADLINE).inner_text()
    opener = shown.get_by_role("button", name=texts.WEB["explain"]["open"])
    bubble = shown.locator("#stage .lane .bubble")
    opener.press("Enter")
    expect(bubble).to_contain_text("1. Guess.")
    assert shown.locator(".explaining").evaluate(
        """layer => {
          const [a, b] = [layer, layer.previousElementSibling.querySelector("canvas")]
            .map((one) => one.getBoundingClientRect());
          return Math.abs(a.x - b.x) < 2 && Math.abs(a.y - b.y) < 2;
        }"""
    ), "it lies on the picture"
    picture, words = (
        shown.locator(one).bounding_box() for one in (".explaining", ".explaining .bubble")
    )
    assert words["y"] >= picture["y"] + picture["height"], "and its words below the picture"
    faults_of(shown, "a bubble")
    for begins in ("2. Check.", "3. Keep.", "Orange: a look-alike."):
        assert shown.evaluate("document.activeElement.closest('.bubble') !== null")
        shown.keyboard.press("Enter")
        expect(bubble).to_contain_text(begins)
    shown.keyboard.press("Enter")
    expect(bubble).to_have_count(0)
    expect(opener).to_be_focused()
    opener.press("Enter")
    bubble.wait_for()
    shown.keyboard.press("Escape")
    expect(bubble).to_have_count(0)
    expect(opener).to_be_focused()
    expect(shown.locator(HEADLINE)).to_have_text(before)


def test_how_it_works_shows_its_pieces_on_a_phone(tab: Page, server: str) -> None:
    """The small picture of a lane becomes as wide as the page meanwhile."""
    tab.set_viewport_size({"width": 390, "height": 844})
    open_page(tab, server)
    picture = tab.locator("#lane-lanternpp .picture")
    assert picture.bounding_box()["width"] < 80  # type: ignore[index]
    tab.get_by_role("button", name=texts.WEB["explain"]["open"]).click()
    expect(tab.locator("#lane-lanternpp .piece").first).to_be_visible()
    assert picture.bounding_box()["width"] > 300  # type: ignore[index]
    tab.keyboard.press("Escape")
    expect(tab.locator(".explaining")).to_have_count(0)
    assert picture.bounding_box()["width"] < 80  # type: ignore[index]


def test_how_it_works_says_that_a_model_guesses_for_itself(tab: Page, server: str) -> None:
    """SJD has no drafter: its guesses are those of the model's own step before."""
    (lane,) = drawn(tab, server, ["sjd"])
    tab.get_by_role("button", name=texts.WEB["explain"]["open"]).click()
    guesses = len(lane["trees"][1]["tokens"]) - 1
    own = texts.WEB["explain"]["guessOwn"].format(guesses=guesses)
    expect(tab.locator("#lane-sjd .bubble")).to_contain_text(own)


# -- the look at a piece


def test_one_piece_is_looked_at_in_all_lanes(shown: Page) -> None:
    """By keys and by clicks, on a screen and a phone. It begins with what changed most."""
    run = recorded_runs()[0].record["methods"]
    changed = {name: entry["events"]["kinds"].count("r") for name, entry in run.items()}
    most = METHODS[max(changed, key=lambda name: changed[name])].label
    shown.get_by_text(texts.WEB["lookTitle"], exact=True).click()
    chosen = shown.get_by_label(texts.LOOK["pick"]).locator("option:checked")
    expect(chosen).to_have_text(most)
    details, grid = shown.locator("#stage .look"), shown.locator("#stage canvas.big")
    expect(details.locator(".about .kind")).to_have_text(texts.WEB["kinds"]["r"])
    shown.get_by_label(texts.LOOK["pick"]).select_option(label="EAGLE-1")
    grid.focus()
    grid.press("Home")
    for key, place in (
        ("ArrowRight", "row 1, column 2"),
        ("ArrowDown", "row 2, column 2"),
        ("ArrowLeft", "row 2, column 1"),
    ):
        grid.press(key)
        expect(details.locator(".spoken")).to_contain_text(place)
    assert all(lit(shown, lane, 16) for lane in LANES), "the same piece in all lanes"
    assert not any(lit(shown, lane, 1) for lane in LANES)
    click_cell(shown, 255)
    expect(details.locator(".spoken")).to_contain_text("row 16, column 16")
    for width in (390, 1280):
        shown.set_viewport_size({"width": width, "height": 900})
        shown.wait_for_timeout(200)
        assert fits(shown), f"the page is wider than {width} px"
        faults_of(shown, f"the look, {width} px wide")
    grid.press("Escape")
    expect(grid).to_be_hidden()


def holds(words: dict[str, Any], case: str, facts: list[Any], told: str) -> None:
    """Check what is shown of a trial that was decided by chances: [own, counted, limit]."""
    _, counted, limit = facts
    assert (case != "refused") == (counted > limit)
    assert f"{limit:.3f}" in told if limit >= 0.001 else "e-" in told


def names(words: dict[str, Any], case: str, facts: list[Any], told: str) -> None:
    """Check what is shown of a trial that the model's own draw decided: [the token]."""
    said = words["cases"][case]["said"]
    assert said.format(*facts) in told
    assert (f"drew {facts[0]}" in told) == ("drew {0}" in said) and (
        "drew {0}" in said or case != "refused"
    )


@pytest.mark.parametrize("noise", ["independent", "shared"])
def test_tokens_of_every_kind_say_why_for_every_method(tab: Page, server: str, noise: str) -> None:
    """Also for a method that is added to the table: a rule says in Python what is printed here."""
    sharing = {
        name
        for name, method in METHODS.items()
        if not method.alone and held_against_draws(method, "shared", "sampled")
    }
    # Those that do not share say with the same noise what they say with their own.
    lanes = drawn(
        tab,
        server,
        [name for name in METHODS if noise == "independent" or name in sharing],
        noise=noise,
    )
    compared = {name for name in METHODS if held_against_draws(METHODS[name], noise, "sampled")}
    look = tab.locator("#stage .look")
    for lane in lanes:
        method, words = METHODS[lane["id"]], lane["evidence"]
        assert method.lossless or method.alone or "r" in lane["kinds"], method.id
        check, bars = (names, 0) if method.id in compared else (holds, 1)
        look_at(tab, method.label)
        if not look.locator(".trials, .record .note").first.is_visible():
            look.locator(".record summary").click()
        for kind in sorted(set(lane["kinds"])):
            cell = max(cell for cell, other in enumerate(lane["kinds"]) if other == kind)
            click_cell(tab, cell)
            expect(look.locator("h3").first).to_have_text(
                f"This piece (token): {words['headings'][kind]}"
            )
            expect(look.locator(".about .kind")).to_have_text(texts.WEB["kinds"][kind])
            why = look.locator(".about p").nth(1).inner_text()
            assert why in words["because"].values()
            rows = lane["trials"][bisect_right(lane["committed"], cell)]
            expect(look.locator(".trial")).to_have_count(len(rows))
            assert len(rows) > 0 or kind == "t"
            expect(look.locator(".trial .balance")).to_have_count(bars * len(rows))
            for (_, case, *facts), (told, classes, values) in zip(
                rows, tab.evaluate(TRIALS), strict=True
            ):
                assert words["cases"][case]["said"].format(*facts) in told
                assert case in classes
                check(words, case, facts, told)
                assert "NaN" not in told and "undefined" not in told and "{" not in told
                assert all(
                    float(value) <= 1 for value in values if value[0].isdigit() and " " not in value
                )


def test_tokens_are_shown_beside_each_other_and_in_the_tree(tab: Page, server: str) -> None:
    """What vanilla drew stands beside what a method drew, and the tree shows what its drafts look
    like, step by step.
    """
    vanilla, other = drawn(tab, server, ["vanilla", "lantern++"])
    differs = next(
        at
        for at, (a, b) in enumerate(zip(vanilla["tokens"], other["tokens"], strict=True))
        if a != b
    )
    same = next(at for at in range(256) if vanilla["tokens"][at] == other["tokens"][at])
    row = tab.locator("#stage .alike .patch-row").filter(has_text=texts.LOOK["patchVanilla"])
    look_at(tab, "LANTERN++")
    for cell in (differs, same):
        click_cell(tab, cell)
        expect(
            row.get_by_role("img", name=f"Piece {vanilla['tokens'][cell]} in this place")
        ).to_be_visible()
        expect(row.locator(".patch")).to_have_count(1)
        expect(row.locator(".patch.kept")).to_have_count(int(cell == same))
        style = row.locator(".patch span").get_attribute("style") or ""
        assert "data:image/webp" in style and "background-position: -" not in style, (
            "its token is in the strip"
        )
    tab.get_by_label("Method to look at").select_option("Vanilla")
    expect(tab.locator("#stage .alike .patch").first).to_be_visible()
    expect(row).to_have_count(0)

    look_at(tab, "LANTERN++")
    tree = tab.locator("#stage .tree-box > svg.tree")
    expect(tab.locator("#stage .tree-box")).to_contain_text(texts.LOOK["treePictures"])
    nodes = tree.locator(".node")
    assert nodes.count() >= 8, "the tree's eight nodes, and the model's own token"
    fills = nodes.evaluate_all("all => all.map((node) => node.querySelector('.shape').style.fill)")
    assert all("#tree-square-" in one for one in fills) and tree.locator("text").count() == 0
    assert tree.locator("pattern").count() == len(set(fills))
    squares = tab.evaluate("""async () => {
      const image = new Image();
      image.src = document.querySelector("#tree-strip").getAttribute("href");
      await image.decode();
      return image.width / image.height;
    }""")
    used = [int(one.split("#tree-square-")[1].split('"')[0].rstrip(")")) for one in fills]
    assert max(used) == squares - 1, "they come in the strip of the look-alikes, behind them"
    for meaning in texts.LOOK["treeSigns"].values():
        expect(tab.locator("#stage .tree-signs")).to_contain_text(meaning)
    onward, before = tab.locator("#stage .next"), tab.locator(HEADLINE).inner_text()
    for phase in ("draft", "verify", "accept", "draft"):
        expect(onward).to_have_text(texts.LOOK["next"][phase])
        onward.click()
        expect(tree).to_have_attribute("data-phase", phase)
        expect(onward).to_be_focused()
    expect(tab.locator("#stage .tree-box")).to_contain_text(texts.LOOK["treePictures"])
    expect(tab.locator(HEADLINE)).not_to_have_text(before)
    tab.locator("#stage canvas.big").press("Escape")
    expect(tab.locator(HEADLINE)).to_have_text(before)

    drawn(tab, server, ["eagle1", "lantern++"])
    look_at(tab, "LANTERN++")
    expect(tab.locator("#stage .alike")).to_contain_text(texts.LOOK["patchModel"])
    assert tab.locator("#stage .alike .patch").count() >= 5
    expect(tab.locator("#stage .alike")).not_to_contain_text(texts.LOOK["patchVanilla"])


def test_the_bars_of_a_step_have_one_scale(browser: Browser) -> None:
    """Which ends at 1, where a limit is larger."""
    lane = {
        "trees": [{"tokens": [5, 6, 7]}],
        "trials": [[[1, "exact", 0.2, 0.2, 0.1], [2, "refused", 0.05, 0.05, 0.4]]],
        "evidence": {
            "cases": {
                case: {"said": "", "numbers": [["own", "{own}"]]} for case in ("exact", "refused")
            }
        },
    }
    widths = """lane => {
      const list = trialsOf(lane, 0, -1);
      const parts = (row) => [row.querySelector(".own"), row.querySelector(".height")];
      const [[a, low], [b, high]] = [...list.children].map(parts);
      return [a.style.width, b.style.width, low.style.left, high.style.left].map(parseFloat);
    }"""
    with scripts(browser, "dom", "grid", "cells") as page:
        page.evaluate("words => { window.WORDS = words; }", texts.LOOK)
        found = page.evaluate(widths, lane)
        assert [width / found[0] for width in found] == pytest.approx([1, 1 / 4, 1 / 2, 2], 1e-4)
        lane["trials"][0][1][-1] = 900
        found = page.evaluate(widths, lane)
        assert [width / found[0] for width in found] == pytest.approx([1, 1 / 4, 1 / 2, 5], 1e-4)


# A window of three drafts. Places 0 to 7; 99 lies behind the picture.
WINDOW = {
    "window": True,
    "tokens": [1, 11, 12, 13, 21, 31, 41, 51],
    "committed": [1, 2, 5, 6, 8],
    "kinds": "tteettet",
    "trees": [
        {"tokens": []},
        {"tokens": [1, 10, 20, 30]},  # places 1 to 3; 10 is refused, 11 drawn
        # places 2 to 4; 12 and 13 are accepted, 20 is refused, 21 drawn
        {"tokens": [11, 12, 13, 20]},
        {"tokens": [21, 30, 41, 50]},  # places 5 to 7; 30 is refused, 31 drawn
        {"tokens": [31, 41, 52, 99]},  # places 6 to 8; 41 is accepted, 52 refused, 51 drawn
    ],
}
DRAFTED = {
    0: [],
    1: [(10, 1)],
    2: [(20, 1), (12, 1)],
    3: [(30, 1), (13, 1)],
    4: [(20, 1)],
    5: [(30, 1)],
    6: [(41, 2)],
    7: [(50, 1), (52, 1)],
}


def test_how_often_a_token_was_drafted(browser: Browser) -> None:
    """By hand for a short run."""
    with scripts(browser, "dom", "grid", "cells") as page:
        page.evaluate("given => { [window.lane, window.WORDS] = given; }", [WINDOW, texts.LOOK])
        found = {token: page.evaluate(f"draftsOf(lane, {token})") for token in DRAFTED}
        told = {token: page.evaluate(f"draftHistory(lane, {token})") for token in DRAFTED}
        steps = page.evaluate("lane.tokens.map((_, token) => stepOf(lane, token))")
    assert {
        token: [(draft["token"], draft["passes"]) for draft in drafts]
        for token, drafts in found.items()
    } == DRAFTED
    assert told[6] == "Guessed once; the guess stood for 2 steps and was accepted."
    assert (
        told[3]
        == "Guessed 2 times (30 \u2192 13); the last guess stood for 1 step and was accepted."
    )
    assert (
        told[7] == "Guessed 2 times (50 \u2192 52); the last guess stood for 1 step "
        "and was refused: the model drew 51 itself."
    )
    assert told[0] == texts.LOOK["neverDrafted"]
    assert steps == [0, 1, 2, 2, 2, 3, 4, 4]
