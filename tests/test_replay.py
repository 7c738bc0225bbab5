"""The stage in a real browser: the replay and its clocks, what it explains of a token, and what is
kept and shared.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest
from pages import (
    DEFAULT,
    IN_A_BROWSER,
    LANES,
    NOTE_PLAYING,
    at_rest,
    draw,
    expect,
    fits,
    link_of,
    lit,
    look_at,
    only,
    open_page,
    save,
    scripts,
    settings,
    show_example,
    unfold,
)
from PIL import Image
from test_evidence import held_against_draws

from lantern_demo.decoding.methods import METHODS
from lantern_demo.settings.settings import Settings
from lantern_demo.ui import texts
from lantern_demo.ui.recorded import recorded_runs
from lantern_demo.ui.run_view import describe_run
from lantern_demo.ui.service import Service

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = IN_A_BROWSER

HOSTILE = (
    "red lanterns <img src onerror=document.title='broken'> ${document.title='broken'} {{value}}"
)
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


def clocks(page: Page) -> list[str]:
    return page.locator("#stage .passes b:first-child").all_inner_texts()


def scrub(page: Page, per_mille: int) -> None:
    page.get_by_label("Time of the replay").evaluate(
        "(bar, to) => { bar.value = to; bar.dispatchEvent(new Event('input', { bubbles: true })); }",
        per_mille,
    )


def load(page: Page, path: Path) -> None:
    unfold(page, texts.KEEP_TITLE)
    page.locator("input[type=file][accept='.json']").set_input_files(path)


def numbers(page: Page, lane: str) -> list[str]:
    """A card's passes and gain, and its seconds and gain."""
    return page.locator(f"#lane-{lane} :is(.passes, .seconds) b").all_inner_texts()


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
    grid.click(
        position={
            "x": (cell % 16 + 0.5) * box["width"] / 16,
            "y": (cell // 16 + 0.5) * box["height"] / 16,
        }
    )


def test_a_card_has_passes_and_seconds_and_the_switch_chooses_what_is_replayed(page: Page) -> None:
    """They are the record's.

    The first by the clock that is shown has the only badge, and the headline names it.
    """
    at_rest(page)
    record = recorded_runs()[0].record
    run = record["methods"]
    cards = {name: page.locator(f"#lane-{lane}") for name, lane in zip(run, LANES, strict=True)}
    ends = {
        name: (entry["steps"], entry["events"]["milliseconds"][-1]) for name, entry in run.items()
    }
    for at, clock in enumerate(("Passes", "Seconds")):
        page.get_by_role("button", name=clock, exact=True).click()
        at_rest(page)
        for name, lane in zip(run, LANES, strict=True):
            steps, took = ends[name]
            gains = (
                f"{gain:.2f}\u00d7" for gain in (ends["vanilla"][0] / steps, run[name]["speedup"])
            )
            assert numbers(page, lane) == [
                f"{steps} passes",
                next(gains),
                f"{took / 1000:.2f} s",
                next(gains),
            ]
            count = run[name]["events"]["kinds"].count("r")
            expect(cards[name].locator(".number")).to_have_text(
                "0 changed" if METHODS[name].lossless else f"{count} of 256 changed"
            )
            expect(cards[name].locator(".ran")).to_have_text(
                describe_run(run[name], Settings(**record["settings"]))
            )
        first = min(ends, key=lambda name: ends[name][at])
        for name, card in cards.items():
            expect(card.locator(".flag")).to_have_text("1st" if name == first else "")
        expect(page.locator("#stage .headline")).to_contain_text(f"{METHODS[first].label} won: ")
    scrub(page, 500)
    assert numbers(page, "vanilla")[0] != f"{ends['vanilla'][0]} passes" and "" in numbers(
        page, "vanilla"
    ), "gains come at the end"

    differ = page.get_by_role("button", name="Differences")
    scrub(page, 1000)
    differ.click()
    for name, card in cards.items():
        others = sum(
            a != b for a, b in zip(run[name]["token_ids"], run["vanilla"]["token_ids"], strict=True)
        )
        shares = run[name]["noise"] == "shared"
        told = (
            texts.WEB["otherSample"] if not shares else f"{others} of 256 differ" if others else ""
        )
        expect(card.locator(".sample")).to_have_text(told)
        expect(card.locator(".wipe")).to_be_visible(visible=shares and others > 0)
    expect(page.locator("#stage .why")).to_contain_text(
        "Later ones differ because earlier ones did."
    )


def test_the_headline_names_who_won_with_gain_and_cost_and_calls_a_slowdown_one(
    browser: Browser,
) -> None:
    def lane(name: str, steps: int, took: int) -> dict[str, Any]:
        shown = {
            "id": name,
            "label": METHODS[name].label,
            "steps": steps,
            "milliseconds": [1, took],
            "tokens": [0] * 256,
        }
        return shown | {"speedup": 2000 / took, "changed": 30 if name == "lantern++" else 0}

    vanilla, eagle1, lantern, sjd = (
        lane(*one)
        for one in (
            ("vanilla", 255, 2000),
            ("eagle1", 142, 2500),
            ("lantern++", 98, 3000),
            ("sjd", 60, 1000),
        )
    )
    cases: list[tuple[list[dict[str, Any]], str, str]] = [
        (
            [vanilla, eagle1, lantern],
            "LANTERN++ won: 2.60\u00d7 fewer passes, 30 of 256 tokens changed.",
            "Vanilla won: 2.00 s. EAGLE-1 took 1.25\u00d7 as long.",
        ),
        (
            [vanilla, lantern, sjd],
            "SJD won: 4.25\u00d7 fewer passes, no token changed.",
            "SJD won: 2.00\u00d7 vanilla's speed, no token changed.",
        ),
        (
            [vanilla],
            "Vanilla needed 255 passes, one for each token after the first.",
            "Vanilla took 2.00 s.",
        ),
        (
            [sjd | {"speedup": None}],
            "SJD needed 60 passes instead of 255, no token changed.",
            "SJD took 1.00 s.",
        ),
    ]
    with scripts(browser, "dom", "clock") as page:
        found = page.evaluate(
            "([cases, words]) => cases.map((lanes) => ['passes', 'seconds'].map((kind) => verdict(lanes, kind, words)))",
            [[lanes for lanes, _, _ in cases], texts.WEB],
        )
    for (_, passes, seconds), (by_passes, by_seconds) in zip(cases, found, strict=True):
        assert (by_passes[0], by_seconds[0]) == (passes, seconds)
    assert (
        found[0][0][1]
        == "In seconds it took 1.50\u00d7 as long as vanilla: drafting takes time too."
    )
    assert found[0][1][1] == "LANTERN++ needed 98 passes instead of 255; drafting takes time too."
    assert found[1][0][1].startswith("In seconds it was 2.00\u00d7 as fast")
    assert all(other == "" for _, other in (*found[2], *found[3])), (
        "there is nothing to compare with"
    )


def test_an_example_plays_scrubs_and_explains(page: Page) -> None:
    page.emulate_media(reduced_motion="no-preference")
    page.evaluate(NOTE_PLAYING)
    page.locator("#examples .card").nth(1).click()
    page.wait_for_function("window.played")
    expect(page.locator("#status")).to_contain_text("recorded run")
    expect(page.locator("#stage .source")).to_contain_text("A recording of")
    expect(page.get_by_label("Prompt")).to_have_value(texts.EXAMPLES[1][0])
    settings(page)
    expect(page.locator("#seed input")).to_have_value(str(texts.EXAMPLES[1][1]))
    page.keyboard.press("Escape")
    whole = page.locator("#stage .lane[data-done]")
    scrub(page, 1000)
    expect(whole).to_have_count(len(LANES))
    ends = clocks(page)
    scrub(page, 300)
    expect(whole).to_have_count(0)
    assert len(set(clocks(page))) == 1, "one clock for all"
    page.get_by_role("button", name="Play").click()
    expect(whole).to_have_count(len(LANES))
    assert clocks(page) == ends
    page.get_by_role("button", name="Replay").click()
    expect(whole).not_to_have_count(len(LANES))

    look_at(page, "LANTERN++")
    details = page.locator("#stage .look")
    expect(details.locator(".about")).to_contain_text(
        "accepted only because its neighbours count with it"
    )
    expect(details.locator(".about .rule")).to_contain_text(
        "A draft is accepted with probability min(1, p/q)"
    )
    expect(details.locator("svg.tree")).to_be_visible()
    expect(details.locator(".trial").first).to_be_hidden()
    details.locator(".record summary").click()
    expect(details.locator(".trial.relaxed").first).to_contain_text(
        "accepted only because its neighbours count with it"
    )
    page.get_by_label("Method to look at").select_option(label="EAGLE-1")
    grid = page.locator("#stage canvas.big")
    grid.focus()
    grid.press("Home")
    expect(details).to_contain_text("Token 1: row 1, column 1")
    for key, place in (
        ("ArrowRight", "row 1, column 2"),
        ("ArrowDown", "row 2, column 2"),
        ("ArrowLeft", "row 2, column 1"),
    ):
        grid.press(key)
        expect(details.locator(".spoken")).to_contain_text(place)
    assert all(lit(page, lane, 16) for lane in LANES), "the same cell in all lanes"
    assert not any(lit(page, lane, 1) for lane in LANES)
    box = grid.bounding_box()
    grid.click(position={"x": box["width"] * 0.96, "y": box["height"] * 0.96})
    expect(details).to_contain_text("Token 256: row 16, column 16")
    page.locator("#lane-vanilla canvas").click(position={"x": 60, "y": 60})
    expect(details).to_contain_text("Nothing was drafted in this step")
    for width in (390, 768, 1280):
        page.set_viewport_size({"width": width, "height": 900})
        page.wait_for_timeout(200)
        assert fits(page), f"the page is wider than {width} px"
        assert page.locator("#stage .look .about").bounding_box()["width"] > 300  # type: ignore[index]
    cards = page.locator("#stage .lanes").bounding_box()
    page.locator("#stage canvas.big").press("Escape")
    expect(grid).to_be_hidden()
    assert page.locator("#stage .lanes").bounding_box()["height"] == cards["height"], (
        "no white space comes with the look"
    )
    # by itself it begins with the method that changed most
    page.get_by_text(texts.WEB["lookTitle"], exact=True).click()
    changed = {
        name: entry["events"]["kinds"].count("r")
        for name, entry in recorded_runs()[1].record["methods"].items()
    }
    most = METHODS[max(changed, key=lambda name: changed[name])].label
    expect(page.get_by_label("Method to look at").locator("option:checked")).to_have_text(most)


def test_four_captions_show_one_run_of_the_race(page: Page) -> None:
    """At a changed token of LANTERN++; the page is as it was when they end or are skipped."""
    entry = recorded_runs()[0].record["methods"]["lantern++"]
    committed = entry["events"]["committed"]
    page.set_viewport_size({"width": 1280, "height": 600})
    began = page.evaluate("[scrollY, document.querySelector('#stage .now').textContent]")
    page.get_by_role("button", name=texts.WEB["tour"]["open"]).press("Enter")
    box = page.locator(".tour")
    expect(box).to_be_visible()
    row, column = map(
        int,
        re.findall(r"row (\d+), column (\d+)", page.locator("#stage .look .spoken").inner_text())[
            0
        ],
    )
    at = (row - 1) * 16 + column - 1
    assert entry["events"]["kinds"][at] == "r"

    def step_of(token: int) -> int:
        return next(i for i, count in enumerate(committed) if count > token)

    steps = [step_of(token) for token, kind in enumerate(entry["events"]["kinds"]) if kind == "r"]
    step = step_of(at)
    added = committed[step] - committed[step - 1]
    assert added == 3 or not any(committed[i] - committed[i - 1] == 3 for i in steps)
    drafts = len(entry["events"]["trees"][step]["tokens"]) - 1
    facts = {
        "method": "LANTERN++",
        "drafts": drafts,
        "added": added,
        "changed": entry["events"]["kinds"].count("r"),
        "of": 256,
    }
    shown = ["draft", "verify", "verify", "accept"]
    circles = page.locator("#stage svg.tree circle")
    expect(circles).to_have_count(drafts)
    expect(page.get_by_role("button", name=re.compile("^Next"))).to_have_count(1)
    for number, (caption, phase) in enumerate(
        zip(texts.WEB["tour"]["captions"], shown, strict=True), 1
    ):
        expect(box).to_contain_text(caption.format(**facts))
        expect(box).to_contain_text(f"{number} of 4")
        expect(page.locator("#stage .tree-box .tree")).to_have_attribute("data-phase", phase)
        assert page.evaluate("document.activeElement.className") == "told"
        page.keyboard.press("Tab")  # to Skip
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
    expect(box).to_have_count(0)
    expect(page.locator("#stage .look-columns")).to_be_hidden()
    assert page.evaluate("[scrollY, document.querySelector('#stage .now').textContent]") == began
    expect(page.get_by_role("button", name=texts.WEB["tour"]["open"])).to_be_focused()
    for how in ("Escape", "Skip"):
        page.get_by_role("button", name=texts.WEB["tour"]["open"]).click()
        box.wait_for()
        page.keyboard.press("Escape") if how == "Escape" else box.get_by_role(
            "button", name=how
        ).click()
        expect(box).to_have_count(0)
        expect(page.locator("#stage .look-columns")).to_be_hidden()


def test_a_race_is_painted_token_by_token_and_told_on_the_machines_clock(page: Page) -> None:
    """Cells of a token's mean colour come before any decoded picture.

    A clock that somebody picked stays for what comes.
    """
    answer = page.request.get(f"{page.url}palettes/nothing-of-this-name")
    assert answer.status == 404
    only(page, "vanilla", "eagle1")
    page.keyboard.press("Escape")
    # Decoded pictures never arrive: what is seen then is painted from the tokens alone.
    page.evaluate(
        "Object.defineProperty(HTMLImageElement.prototype, 'src', { set() {}, configurable: true })"
    )
    with page.expect_response(re.compile("/palettes/")) as fetched:
        draw(page)
    body = fetched.value.body()
    assert len(body) % 3 == 0 and len(body) // 3 >= 16
    colours = """() => {
      const canvas = document.querySelector("#lane-vanilla canvas"), g = canvas.getContext("2d");
      const cell = canvas.width / 16;
      const colour = (x, y) => g.getImageData((x + 0.2) * cell, (y + 0.2) * cell, 1, 1).data.join();
      const seen = [...Array(64).keys()].map((i) => colour(i % 16, Math.floor(i / 16)));
      return document.body.classList.contains("racing") ? new Set(seen).size : 0;
    }"""
    page.wait_for_function(f"({colours})() > 3")
    expect(page.locator("#stage .headline")).to_have_text(texts.WEB["racing"])
    expect(page.locator("#stage .source")).to_contain_text("Drawn just now")
    expect(page.get_by_role("button", name="Seconds", exact=True)).to_have_attribute(
        "aria-pressed", "true"
    )
    page.get_by_role("button", name="Passes", exact=True).click()
    draw(page)
    expect(page.locator("body.racing")).to_have_count(1)
    expect(page.locator("#stage .source")).to_contain_text("Drawn just now")
    expect(page.get_by_role("button", name="Passes", exact=True)).to_have_attribute(
        "aria-pressed", "true"
    )
    assert json.loads(page.evaluate("JSON.stringify(lanternRun.lanes.map((lane) => lane.id))")) == [
        "vanilla",
        "eagle1",
    ]


# -- the look at a token


def holds(words: dict[str, Any], case: str, facts: list[Any], told: str) -> None:
    """Check what is shown of a trial that was decided by chances: [own, counted, limit]."""
    _, counted, limit = facts
    assert (case != "refused") == (counted > limit)
    assert f"{limit:.3f}" in told if limit >= 0.001 else "e-" in told


def names(words: dict[str, Any], case: str, facts: list[Any], told: str) -> None:
    """Check what is shown of a trial that the model's own draw decided: [the token, where it
    stands].
    """
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
    cards = tab.locator("#stage .lane").evaluate_all(
        "all => all.map((one) => one.getBoundingClientRect().toJSON())"
    )
    assert len({round(card["width"]) for card in cards}) == 1
    assert [card["y"] > cards[0]["y"] for card in cards] == [at >= 5 for at in range(len(cards))], (
        "a second row of the same cards"
    )
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
            expect(look.locator("h3").first).to_have_text(f"This token: {words['headings'][kind]}")
            expect(look.locator(".about .kind")).to_have_text(texts.WEB["terms"][kind])
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
    row = tab.locator("#stage .alike .patch-row").filter(has_text=texts.WEB["patchVanilla"])
    look_at(tab, "LANTERN++")
    for cell in (differs, same):
        click_cell(tab, cell)
        expect(
            row.get_by_role("img", name=f"Token {vanilla['tokens'][cell]} at this position")
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
    expect(tab.locator("#stage .tree-box")).to_contain_text(texts.WEB["treePictures"])
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
    for meaning in texts.WEB["treeSigns"].values():
        expect(tab.locator("#stage .tree-signs")).to_contain_text(meaning)
    onward = tab.get_by_role("button", name="Next step")
    for phase in ("draft", "verify", "accept", "draft"):
        onward.click()
        expect(tree).to_have_attribute("data-phase", phase)
        expect(onward).to_be_focused()
    expect(tab.locator("#stage .tree-box")).to_contain_text(texts.WEB["treePictures"])

    drawn(tab, server, ["eagle1", "lantern++"])
    look_at(tab, "LANTERN++")
    expect(tab.locator("#stage .alike")).to_contain_text(texts.WEB["patchModel"])
    assert tab.locator("#stage .alike .patch").count() >= 5
    expect(tab.locator("#stage .alike")).not_to_contain_text(texts.WEB["patchVanilla"])


def test_a_recorded_example_says_why(page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pictures where its model, the bundled one, is not loaded.

    Methods are listed in the order of the table.
    """
    loaded = Service.loaded
    monkeypatch.setattr(
        Service,
        "loaded",
        lambda self: [pipe for pipe in loaded(self) if pipe.info.id == self.default],
    )
    show_example(page)
    look_at(page, "LANTERN++")
    expect(page.locator("#stage .look h3").first).to_have_text(
        "This token: a draft that its neighbours helped to be accepted"
    )
    page.locator("#stage .record summary").click()
    expect(page.locator("#stage .trial.relaxed").first).to_contain_text("times its own probability")
    expect(page.locator("#stage .drafted")).to_have_count(0)
    expect(page.locator("#stage .alike")).to_contain_text(
        "The model of this run is not loaded here"
    )
    expect(page.locator("#stage .tree-box")).to_contain_text(texts.WEB["treeNote"])
    expect(page.locator("#stage .tree-box")).not_to_contain_text(texts.WEB["treePictures"])
    lanes = page.evaluate(
        "lanternRun.lanes.map(({ label, milliseconds }) => [label, milliseconds.at(-1)])"
    )
    table = [METHODS[method].label for method in DEFAULT]
    assert [label for label, _ in sorted(lanes, key=lambda lane: lane[1])] != table
    assert page.get_by_label("Method to look at").locator("option").all_inner_texts() == table


def test_the_picture_of_the_look_is_sharp_and_square_on_every_screen(
    browser: Browser, server: str
) -> None:
    """On a phone the canvas is 150 wide, and with two pixels to each its width is what a canvas has
    unasked: 300 x 150.
    """
    page = browser.new_page(
        viewport={"width": 390, "height": 844}, device_scale_factor=2, reduced_motion="reduce"
    )
    open_page(page, server)
    look_at(page, "LANTERN++")
    sharp = "({ width, height, clientWidth }) => width === 2 * clientWidth && height === width && clientWidth >= 100"
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 844})
        page.wait_for_function(f"({sharp})(document.querySelector('#stage canvas.big'))")
        assert fits(page)
    page.close()


def test_tokens_are_marked_by_what_they_are(browser: Browser) -> None:
    """A dot for the model's own, a ring for a draft, a diamond for what the method changed."""
    with scripts(browser, "dom", "grid") as page:
        page.evaluate(
            "document.body.innerHTML = '<canvas style=\"width: 200px; height: 200px\"></canvas>'"
        )
        for marks in (False, True):
            pixels = page.evaluate(
                """(marks) => {
                  const image = new OffscreenCanvas(8, 8), canvas = document.querySelector("canvas");
                  Object.assign(image.getContext("2d"), { fillStyle: "#1e3cdc" }).fillRect(0, 0, 8, 8);
                  const lane = { image, tokens: [0, 0, 0, 0], kinds: [..."tere"], committed: [1, 2, 3, 4] };
                  paint(canvas, lane, 4, 2, { marks, cell: -1 });
                  const at = (x, y) => canvas.getContext("2d").getImageData(x, y, 1, 1).data.slice(0, 3).join();
                  return [at(50, 50), at(150, 50), at(50, 150), at(150, 150)];
                }""",
                marks,
            )
            plain = "30,60,220"
            assert pixels == (["255,255,255", plain, "240,165,0", plain] if marks else [plain] * 4)


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
        page.evaluate("given => { [window.lane, window.words] = given; }", [WINDOW, texts.WEB])
        found = {token: page.evaluate(f"draftsOf(lane, {token})") for token in DRAFTED}
        told = {token: page.evaluate(f"draftHistory(lane, {token}, words)") for token in DRAFTED}
        steps = page.evaluate("lane.tokens.map((_, token) => stepOf(lane, token))")
    assert {
        token: [(draft["token"], draft["passes"]) for draft in drafts]
        for token, drafts in found.items()
    } == DRAFTED
    assert told[6] == "Drafted once; the draft stood for 2 passes and was accepted."
    assert (
        told[3]
        == "Drafted 2 times (30 \u2192 13); the last draft stood for 1 pass and was accepted."
    )
    assert (
        told[7]
        == "Drafted 2 times (50 \u2192 52); the last draft stood for 1 pass and was refused: the model drew 51 itself."
    )
    assert told[0] == texts.WEB["neverDrafted"]
    assert steps == [0, 1, 2, 2, 2, 3, 4, 4]


def drafts_of(events: dict[str, Any], token: int) -> list[int]:
    """What the windows of a record held for a token, pass by pass."""
    found = []
    for before, after, tree in zip(
        events["committed"], events["committed"][1:], events["trees"][1:], strict=True
    ):
        if before <= token and token - before + 1 < len(tree["tokens"]):
            found.append(tree["tokens"][token - before + 1])
        if token < after:
            break
    return found


def test_the_replay_of_a_window_tells_how_often_a_token_was_drafted(
    page: Page, tmp_path: Path
) -> None:
    only(page, "vanilla", "sjd")
    draw(page)
    expect(page.locator("#stage .source")).to_contain_text("Drawn just now")
    expect(page.get_by_role("button", name="Replay")).to_be_visible()
    entry = json.loads(save(page, "#record", tmp_path / "run.json").read_text(encoding="utf-8"))[
        "methods"
    ]["sjd"]
    look_at(page, "SJD")
    page.locator("#stage .record summary").click()
    grid, details = page.locator("#stage canvas.big"), page.locator("#stage .look .drafted")
    grid.focus()
    grid.press("Home")
    expect(details).to_have_count(0)  # the prefill's token
    for token in range(1, 25):
        grid.press("ArrowRight")
        passes = drafts_of(entry["events"], token)
        chain = [draft for draft, _ in groupby(passes)]
        if not chain:
            expect(details).to_have_text(texts.WEB["neverDrafted"])
        elif len(chain) == 1:
            expect(details).to_contain_text("Drafted once;")
        else:
            arrow = " \u2192 "
            expect(details).to_contain_text(
                f"Drafted {len(chain)} times ({arrow.join(map(str, chain))});"
            )
        refused = f"was refused: the model drew {entry['token_ids'][token]} itself."
        if chain:
            expect(details).to_contain_text(
                refused if entry["events"]["kinds"][token] == "t" else "and was accepted."
            )

    page.get_by_label("Method to look at").select_option(label="Vanilla")
    expect(details).to_have_count(0)


# -- what is kept and shared


def test_a_link_restores_a_run_or_gets_its_sentence(tab: Page, server: str) -> None:
    open_page(
        tab,
        f"{server}?prompt=two+blue+lanterns&seed=42&methods=vanilla,lantern%2B%2B&lantern_delta=0.3&tree=small&other=1",
    )
    expect(tab.locator("#status")).to_contain_text("Filled in from the link")
    expect(tab.locator("#stage .headline")).to_have_text(texts.NOT_DRAWN_YET)
    expect(tab.locator("#stage")).not_to_contain_text("recording")
    expect(tab.get_by_label("Prompt")).to_have_value("two blue lanterns")
    settings(tab)
    expect(tab.locator("#seed input")).to_have_value("42")
    expect(tab.locator("#methods").get_by_label("LANTERN++", exact=True)).to_be_checked()
    expect(tab.locator("#methods").get_by_label("EAGLE-1", exact=True)).not_to_be_checked()
    draw(tab)
    expect(tab.locator("#status")).to_contain_text("Done, with seed 42")
    link = link_of(tab)
    expect(link).to_have_value(
        re.compile(
            re.escape(server) + r"\?.*seed=42.*lantern_delta=0\.3.*tree=0\+1\+2\+00\+01\+10\+000"
        )
    )
    open_page(tab, link.input_value())
    expect(tab.locator("#seed input")).to_have_value("42")
    for query, sentence in (
        (
            "tree=%3Cimg%20src%3Dx%20onerror%3Ddocument.title%3D1%3E",
            "Draft tree must be one of default, small, paper",
        ),
        ("prompt=" + "x" * 201, "The prompt has 201 characters, at most 200 are allowed"),
        ("seed=-1&lanternpp_lambda=100", "LANTERN++ lambda must be a number between 1 and 40"),
    ):
        tab.goto(f"{server}?{query}")
        expect(tab.get_by_role("alert")).to_contain_text(sentence)
    settings(tab)
    expect(tab.locator("#knob-lanternpp_lambda")).to_contain_text(sentence)
    expect(tab.locator("#seed")).to_contain_text("Seed must be a whole number between 0 and")
    assert tab.locator("#status img").count() == 0


def test_a_record_comes_back_and_runs_again(page: Page, tmp_path: Path) -> None:
    page.get_by_label("Prompt").fill(HOSTILE)
    only(page, "vanilla", "lantern++")
    draw(page)
    expect(page.locator("#stage .source")).to_contain_text("Drawn just now")
    kept = save(page, "#record", tmp_path / "run.json")
    with Image.open(save(page, "#sheet", tmp_path / "sheet.png")) as sheet:
        assert sheet.width > 500 and sheet.info["prompt"] == HOSTILE

    record = json.loads(kept.read_text(encoding="utf-8"))
    record["device"] = HOSTILE
    kept.write_text(json.dumps(record), encoding="utf-8")
    page.reload()
    # what comes later is shown later
    expect(page.locator("#status")).to_contain_text(texts.READY_RUN)
    load(page, kept)
    expect(page.locator("#status")).to_contain_text("The record is shown below")
    expect(page.locator("#status")).not_to_contain_text("a colour level or two")
    record["methods"]["vanilla"]["image_sha256"] = "0" * 64
    other = tmp_path / "other.json"
    other.write_text(json.dumps(record), encoding="utf-8")
    load(page, other)
    expect(page.locator("#status")).to_contain_text(
        "number format or thread count may change a colour level or two"
    )
    expect(page.locator("#status")).to_contain_text("The record is shown below")
    expect(page.locator("#stage .source")).to_contain_text(HOSTILE)
    expect(page.locator("#stage .lane")).to_have_count(2)
    unfold(page, texts.KEEP_TITLE)
    page.locator("#again").click()
    expect(page.locator("#status")).to_contain_text("LANTERN++: the same 256 tokens.")
    expect(page.locator("#status")).to_contain_text("Vanilla: the same 256 tokens.")
    assert page.locator("#stage img, #status img").count() == 0
    assert "broken" not in page.title()

    bad = tmp_path / "bad.json"
    bad.write_text(json.dumps(record | {"settings": {"seed": 1}}), encoding="utf-8")
    load(page, bad)
    expect(page.get_by_role("alert")).to_contain_text(
        "This file cannot be shown: settings: must be seed, temperature"
    )


def test_the_explorer_fills_in_points(page: Page) -> None:
    unfold(page, texts.KNOB_TITLE)
    page.get_by_role("button", name=texts.EXPLORE, exact=True).click()
    expect(page.locator("#sweep .shot").nth(1)).to_be_visible()
    expect(page.get_by_role("button", name="Draw", exact=True)).to_have_count(0)
    expect(page.locator("#sweep .shot")).to_have_count(6)  # vanilla and five values
    expect(page.locator("#explore-told")).to_contain_text("Explored five values")
    expect(page.locator("#sweep figure svg").first).to_have_attribute(
        "aria-label", re.compile("speedup")
    )
    expect(page.get_by_role("button", name="Draw", exact=True)).to_be_enabled()
