"""The prompt in parts, what is said of it before it is drawn, and the seed of a run, in a real browser."""

from __future__ import annotations

import json
import random
import re
from typing import TYPE_CHECKING, Any

import pytest
from test_browser import browser, draw, expect, fits, only, page, pytestmark, settings, tab

from lantern_demo.models.registry import REGISTRY
from lantern_demo.scenes import caption, sample_scenes
from lantern_demo.ui import texts
from lantern_demo.ui.components import SCRIPTS
from lantern_demo.ui.prompt_words import phrasebook

__all__ = ["browser", "page", "pytestmark", "tab"]  # the fixtures and marks of the browser's tests
if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

BOOK = phrasebook(REGISTRY["lantern-scenes"])
assert BOOK is not None
FIRST = texts.EXAMPLES[0][0]


def prompt(page: Page) -> Locator:
    return page.get_by_label("Prompt")


def chip(page: Page, name: str) -> Locator:
    return page.locator("#builder").get_by_label(name, exact=True)


def chips(page: Page) -> list[str]:
    return page.locator("#builder select").evaluate_all("all => all.map((one) => one.value)")


def told(page: Page) -> Locator:
    return page.locator("#builder .told")


def test_the_script_reads_and_writes_as_the_server_does(browser: Browser) -> None:
    scenes, rng = sample_scenes(150, 7), random.Random(2)
    words = sorted(BOOK.words - {"<pad>", "<unk>", "</s>"})
    prompts = [caption(scenes, row, rng, omit=0.4) for row in range(150)]
    prompts += [" ".join(rng.choices([*words, "cat", "Lanterns", "!"], k=rng.randrange(9))) for _ in range(300)]
    prompts += [
        "\u7ea2\u706f\u7b3c",
        "\u0642\u0637\u0629",
        "two\u00a0blue,LANTERNS",
        "\u00e0 la lanterne",
        "one | red_lantern",
        "\U0001f3ee lanterns at night",
    ]
    page = browser.new_page()
    for script in ("dom", "phrases"):
        page.add_script_tag(path=SCRIPTS / f"{script}.js")
    found: list[dict[str, Any]] = page.evaluate(
        """([book, prompts]) => prompts.map((prompt) => {
          const reading = readPrompt(book, prompt);
          return { ...reading, drawable: drawable(reading, book), sure: sure(reading, book), nearest: nearest(prompt, book) };
        })""",
        [BOOK.view(), prompts],
    )
    for text, one in zip(prompts, found, strict=True):
        reading = BOOK.read(text)
        expected = {
            "named": reading.named,
            "said": dict(reading.said),
            "drawable": reading.drawable,
            "sure": reading.sure,
            "nearest": BOOK.nearest(text),
        }
        assert one == expected, text
    unknown = page.evaluate(
        (
            "book => ['A Red\\u00a0cat, with a HAT. (lanterns) cat', '\\u7ea2\\u706f\\u7b3c \\u{1f3ee} !', 'two red "
            "lanterns'].map((one) => unknownWords(one, book))"
        ),
        BOOK.view(),
    )
    assert unknown == [["cat", "hat"], ["\u7ea2\u706f\u7b3c", "\U0001f3ee"], []]
    page.close()


def test_the_parts_follow_the_prompt_and_change_it(page: Page) -> None:
    assert chips(page) == ["three", "red", "round", "over a lake", "at dusk", ""], "of the prompt that is there at first"
    chip(page, "Colour").select_option("blue")
    expect(prompt(page)).to_have_value("three blue round lanterns over a lake at dusk")
    expect(page.locator('#examples [aria-pressed="true"]')).to_have_count(0)
    chip(page, "Moon").select_option("with a full moon")
    chip(page, "Place").select_option("")
    chip(page, "Number").select_option("one")
    expect(prompt(page)).to_have_value("one blue round lantern at dusk with a full moon")
    prompt(page).fill("A cat, four GOLDEN lanterns near the mountains")
    expect(chip(page, "Colour")).to_have_value("yellow")
    assert chips(page) == ["four", "yellow", "", "over the hills", "", ""]
    chip(page, "Time").select_option("at night")
    expect(prompt(page)).to_have_value("four golden lanterns in the mountains at night")
    page.locator("#examples .card").nth(2).click()
    expect(chip(page, "Number")).to_have_value("two")
    assert chips(page) == ["two", "blue", "box", "over a lake", "at dawn", ""]


def test_surprise_me_asks_for_everything_in_known_words(page: Page) -> None:
    seen = set()
    for _ in range(8):
        page.get_by_role("button", name="Surprise me").click()
        seen.add(prompt(page).input_value())
        assert "" not in chips(page)
    assert len(seen) > 4 and all(BOOK.read(one).sure and set(one.split()) <= BOOK.words for one in seen)
    expect(told(page)).to_be_empty()
    only(page, "vanilla")
    draw(page)
    expect(page.locator("#stage .source")).to_contain_text("Drawn just now on")
    with page.expect_download() as download:
        page.locator("#record").click()
    record = json.loads(download.value.path().read_text())
    assert record["prompt"] == prompt(page).input_value() and record["unknown_words"] == []


def test_unknown_words_are_told_while_one_types(page: Page) -> None:
    expect(told(page)).to_be_empty()
    assert "This model draws" in page.locator("#builder").inner_text(), "before anything is drawn"
    prompt(page).fill("")
    prompt(page).press_sequentially("two red lanterns and a cat")
    expect(told(page)).to_contain_text("Not known: cat.")
    expect(told(page).locator("button")).to_have_text("two red lanterns")
    told(page).locator("button").click()
    expect(prompt(page)).to_have_value("two red lanterns")
    expect(told(page)).to_be_empty()
    prompt(page).fill("a red lantern")
    expect(told(page)).to_contain_text("One lantern alone is often left out.")
    prompt(page).fill("<img src=x onerror=document.title='broken'> lanterns at dawn")
    expect(told(page)).to_contain_text("onerror")
    assert told(page).locator("img").count() == 0 and "broken" not in page.title()
    prompt(page).fill("zebra " * 800 + "yak")
    expect(told(page)).to_contain_text("Not known: zebra, yak.")
    prompt(page).fill("")
    expect(told(page)).to_be_empty()


@pytest.mark.parametrize("asked", ["a cat", "lanterns"], ids=["unknown words", "too few"])
def test_what_cannot_be_drawn_is_answered_with_what_can(page: Page, asked: str) -> None:
    only(page, "vanilla")
    prompt(page).fill(asked)
    expect(told(page).locator("button")).to_have_text(FIRST)
    draw(page)
    refusal = page.get_by_role("alert")
    expect(refusal).to_contain_text("Not drawn")
    expect(told(page)).to_be_empty()  # it is said once
    assert page.locator("#stage .source").inner_text().startswith("A recording"), "nothing was raced"
    refusal.get_by_role("button", name=FIRST).click()
    expect(prompt(page)).to_have_value(FIRST)
    expect(page.locator("#stage .source")).to_contain_text("Drawn just now on")


def test_a_run_without_a_word_offers_one_of_known_words(page: Page) -> None:
    only(page, "vanilla")
    prompt(page).fill("two blue zebra lanterns at night")
    draw(page)
    expect(page.locator("#status")).to_contain_text('Drawn without "zebra": this small model knows only lanterns. Try:')
    page.locator("#status .offer").click()
    expect(page.locator("#status")).to_contain_text("Done, with seed")
    expect(page.locator("#status")).not_to_contain_text("zebra")
    expect(prompt(page)).to_have_value("two blue lanterns at night")


def test_draw_once_more_is_another_picture_unless_the_seed_is_locked(page: Page) -> None:
    def seed_of_a_run() -> int:
        draw(page)
        expect(page.locator("#status")).not_to_contain_text("Done, with seed")
        expect(page.locator("#status")).to_contain_text("Done, with seed")
        told = re.search(r"Done, with seed (\d+)", page.locator("#status").inner_text())
        assert told is not None
        expect(page.locator("#seed input")).to_have_value(told[1])
        return int(told[1])

    only(page, "vanilla")
    assert seed_of_a_run() == texts.EXAMPLES[0][1], "of the example that the page came with"
    second = seed_of_a_run()
    assert second != texts.EXAMPLES[0][1]
    settings(page)
    page.get_by_label("Lock the seed").check()
    page.keyboard.press("Escape")
    assert seed_of_a_run() == second
    settings(page)
    page.get_by_label("Lock the seed").uncheck()
    page.keyboard.press("Escape")
    chip(page, "Time").select_option("at night")
    assert seed_of_a_run() == second, "the prompt is another"
    page.locator("#examples .card").first.click()
    expect(page.locator("#seed input")).to_have_value(str(texts.EXAMPLES[0][1]))


def test_a_model_that_reads_any_text_has_no_parts(page: Page) -> None:
    settings(page)
    page.locator("#model input").click()
    page.get_by_role("option", name="LlamaGen").first.click()
    expect(page.locator("#builder select")).to_have_count(0)
    expect(page.locator("#builder")).to_be_hidden()
    prompt(page).fill("a cat")
    page.wait_for_timeout(800)
    expect(page.locator("#builder .told")).to_have_count(0)
    settings(page)
    page.locator("#model input").click()
    page.get_by_role("option", name="lantern-scenes").click()
    expect(page.locator("#builder")).to_be_visible()
    expect(chip(page, "Number")).to_have_value("three")


def test_the_parts_take_one_line(page: Page) -> None:
    last = chip(page, "Moon")
    for width in (360, 390, 768, 1280):
        page.set_viewport_size({"width": width, "height": 844})
        prompt(page).focus()
        page.locator("#builder").evaluate("parts => parts.querySelectorAll('*').forEach((part) => part.scrollTo(0, 0))")
        box = page.locator("#builder").bounding_box()
        assert box is not None and box["height"] <= 44 and fits(page), width
        last.focus()
        seen = last.bounding_box()
        assert seen is not None and seen["x"] >= 0 and seen["x"] + seen["width"] <= width, "the keyboard brings it into view"
