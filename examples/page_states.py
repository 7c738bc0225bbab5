"""Take pictures of the page in each of its states, at three widths, light and dark.

python examples/page_states.py --out states

It serves the bundled model itself, with room for one visitor in the queue. It needs playwright
(pip install playwright) and a Chromium.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gradio_client import Client
from playwright.sync_api import Browser, Locator, Page, sync_playwright
from soak import FLAGS, chromium

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import spaces  # isort: skip  # noqa: F401  # as in app.py

from lantern_demo.decoding.methods import Method
from lantern_demo.paths import user_path
from lantern_demo.runs.pipeline import Pipeline
from lantern_demo.ui import page as served
from lantern_demo.ui import texts

WIDTHS, THEMES = (390, 768, 1280), ("light", "dark")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=user_path, required=True, help="folder for the pictures")
    parser.add_argument("--chromium", default=chromium(), help="a browser (default: %(default)s)")
    parser.add_argument("--widths", type=int, nargs="+", default=WIDTHS)
    parser.add_argument("--themes", nargs="+", default=THEMES)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    served.WAITING = 1  # type: ignore[attr-defined]
    demo = served.build()
    served.wait_for_model(demo)
    _, url, _ = served.launch(demo, server_name="127.0.0.1", prevent_thread_lock=True, quiet=True)
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=args.chromium, args=FLAGS)
        for width in args.widths:
            for theme in args.themes:
                for state, page in states(browser, url, width, theme):
                    page.wait_for_timeout(300)  # for fading transitions
                    page.screenshot(path=args.out / f"{state}-{width}-{theme}.png", full_page=True)
                    print(f"{state}-{width}-{theme}", flush=True)
        browser.close()
    demo.close(verbose=False)


def states(browser: Browser, url: str, width: int, theme: str) -> Iterator[tuple[str, Page]]:
    """Yield the name of each state with the page in it."""
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.set_default_timeout(120_000)  # ms
    page.goto(f"{url}?__theme={theme}", wait_until="commit")
    page.locator("#headline h1").wait_for()
    yield "coming", page
    all_done(page)
    yield "first", page

    button(page, "How it works").click()
    page.locator(".explaining .bubble").wait_for()
    for number in range(1, 5):
        yield f"explained-{number}", page
        page.locator(".explaining .bubble button").click()
    page.locator("#runs button").nth(1).click()
    page.get_by_text(texts.READY_EXAMPLE).wait_for()
    page.get_by_label(texts.WEB["scrub"]).evaluate(
        "bar => { bar.value = 520; bar.dispatchEvent(new Event('input', { bubbles: true })); }"
    )
    yield "replay", page
    button(page, "Seconds here").click()
    page.get_by_role("button", name="LANTERN++: look at its pieces").click()
    page.locator("#stage .patch").first.wait_for()
    yield "look", page
    button(page, "Next step").click()
    button(page, "Next step").click()
    page.locator("#stage .record summary").click()
    yield "next-step", page
    page.locator("#stage canvas.big").press("Escape")

    button(page, texts.TYPE).click()
    prompt = page.get_by_label(texts.PROMPT_LABEL, exact=True)
    prompt.fill("")
    prompt.press("Enter")
    page.get_by_role("alert").first.wait_for()
    yield "error", page

    prompt.fill("two green zebra lanterns over a lake at dusk")
    prompt.press("Enter")
    page.locator('#lane-eagle2[data-phase="drawing"]').wait_for()
    page.wait_for_timeout(500)
    yield "running", page
    drawn(page)
    yield "done", page
    prompt.press("Enter")
    page.locator('#lane-eagle1[data-phase="drawing"]').wait_for()
    button(page, texts.STOP).press("Enter")
    page.locator('#stage [data-phase="stopped"]').first.wait_for()
    yield "stopped", page

    with failing("lantern"):
        prompt.press("Enter")
        page.get_by_text(texts.SOME_FAILED).wait_for()
        page.locator("#stop:disabled").wait_for(state="attached")
    yield "fault", page

    page.get_by_text(texts.TIMING_TITLE, exact=True).click()
    yield "numbers", page
    for tab, start, told in (
        (texts.TWIN_TAB, texts.TWIN, "Its exact twin took"),
        (texts.KNOB_TAB, texts.EXPLORE, "Five values drawn"),
    ):
        open_tab(page, tab)
        button(page, start).click()
        page.get_by_text(told).wait_for()
        yield tab.lower().replace(" ", "-"), page
    for tab in (texts.OTHERS_TAB, texts.SHARE_TAB):
        open_tab(page, tab)
        yield tab.lower().replace(" ", "-"), page
    button(page, texts.SETTINGS).click()
    page.locator(".sidebar.open").wait_for()
    yield "settings", page

    page.goto(f"{url}?__theme={theme}")
    all_done(page)
    with busy(url):
        button(page, texts.DRAW).click()
        page.get_by_text(texts.NOT_STARTED).first.wait_for()
        yield "full", page
    page.close()

    calm = browser.new_page(viewport={"width": width, "height": 900}, reduced_motion="reduce")
    calm.goto(
        f"{url}?__theme={theme}&run=gone&prompt=two+red+lanterns&methods=vanilla,lantern&seed=5"
    )
    calm.get_by_text(texts.READY_LINK).wait_for()
    calm.locator('#stage .lane[data-phase="asked"]').first.wait_for()
    yield "link-calm", calm
    calm.goto(f"{url}?__theme={theme}&temperature=9")
    calm.get_by_text("The link asks for what is not allowed").wait_for()
    yield "bad-link", calm
    calm.close()


def button(page: Page, name: str) -> Locator:
    return page.get_by_role("button", name=name, exact=name in (texts.DRAW, texts.TYPE))


def open_tab(page: Page, name: str) -> None:
    """Open a tab, which a narrow page has in a menu."""
    tab = page.get_by_role("tab", name=name)
    if not tab.count():
        page.get_by_role("button", name="More tabs").click()
        tab = page.locator(".overflow-dropdown").get_by_role("button", name=name)
    tab.click()


def all_done(page: Page) -> None:
    """Wait until the replay of a recorded run is over."""
    page.wait_for_function("document.querySelectorAll('#stage .lane[data-done]').length === 5")


def drawn(page: Page) -> None:
    """Wait until a run is over, and may be followed by the next."""
    page.locator('#stage .source[data-kind="live"]').wait_for(state="attached")
    page.locator("#stop:disabled").wait_for(state="attached")


@contextmanager
def failing(method: str) -> Iterator[None]:
    """Make one method fail in the middle of its run."""
    run = Pipeline.run

    def broken(self: Pipeline, asked: Method, *arguments: Any, **more: Any) -> Iterator[Any]:
        for number, event in enumerate(run(self, asked, *arguments, **more)):
            if asked.id == method and number > 20:
                raise RuntimeError("a fault made for this picture")
            yield event

    Pipeline.run = broken  # type: ignore[assignment, method-assign]
    try:
        yield
    finally:
        Pipeline.run = run  # type: ignore[method-assign]


@contextmanager
def busy(url: str) -> Iterator[None]:
    """Keep the device busy with another visitor's request, and queue one more."""
    client = Client(url, verbose=False)
    jobs = [client.submit("a red lantern", tree="paper", api_name="/compare")]
    next(iter(jobs[0]))
    jobs.append(client.submit("a red lantern", methods=["vanilla"], api_name="/compare"))
    try:
        yield
    finally:
        for job in reversed(jobs):
            job.cancel()


if __name__ == "__main__":
    main()
