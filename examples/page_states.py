"""Take pictures of the page in each of its states, at three widths, light and dark: python
examples/page_states.py --out states

Serves the bundled model itself, with room for one visitor in the queue. Needs playwright (pip
install playwright) and a Chromium.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gradio_client import Client
from playwright.sync_api import Browser, Page, sync_playwright
from soak import FLAGS

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import spaces  # isort: skip  # noqa: F401  # as in app.py

from lantern_demo.decoding.methods import Method
from lantern_demo.paths import user_path
from lantern_demo.runs.pipeline import Pipeline
from lantern_demo.ui import page as served

WIDTHS, THEMES = (390, 768, 1280), ("light", "dark")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=user_path, required=True, help="folder for the pictures")
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    parser.add_argument("--widths", type=int, nargs="+", default=WIDTHS)
    parser.add_argument("--themes", nargs="+", default=THEMES)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    served.WAITING = 1
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
    page.set_default_timeout(120_000)
    page.goto(f"{url}?__theme={theme}", wait_until="commit")
    page.locator("#prompt textarea").wait_for()
    yield "coming", page
    page.locator("#stage .source.recorded").wait_for()
    page.get_by_role("button", name="Replay").wait_for()  # once it has played
    yield "first", page

    page.locator("#examples .card").nth(1).click()
    page.get_by_text("the example's recorded run").wait_for()
    page.get_by_label("Time of the replay").evaluate(
        "bar => { bar.value = 520; bar.dispatchEvent(new Event('input', { bubbles: true })); }"
    )
    yield "replay", page
    page.get_by_role("button", name="Differences").click()
    yield "differences", page
    page.get_by_role("button", name="Differences").click()
    page.get_by_role("button", name="LANTERN++: look at its tokens").click()
    page.locator("#stage .patch").first.wait_for()
    yield "look", page
    page.get_by_role("button", name="Next step").click()
    page.get_by_role("button", name="Next step").click()
    page.locator("#stage .record summary").click()
    yield "next-step", page
    page.locator("#stage canvas.big").press("Escape")

    page.get_by_label("Prompt").fill("")
    page.get_by_role("button", name="Draw", exact=True).click()
    page.get_by_role("alert").wait_for()
    yield "error", page

    page.get_by_label("Prompt").fill("two green zebra lanterns over a lake at dusk")
    page.get_by_role("button", name="Draw", exact=True).click()
    page.locator('#lane-eagle2[data-phase="drawing"]').wait_for()
    page.wait_for_timeout(500)
    yield "running", page
    page.get_by_text("Drawn just now").wait_for()
    page.get_by_role("button", name="Replay").wait_for()
    yield "done", page
    page.get_by_role("button", name="Draw", exact=True).click()
    page.locator('#lane-eagle1[data-phase="drawing"]').wait_for()
    page.get_by_role("button", name="Stop", exact=True).click()
    page.locator('#stage [data-phase="stopped"]').first.wait_for()
    yield "stopped", page

    with failing("lantern"):
        page.get_by_role("button", name="Draw", exact=True).click()
        page.get_by_text("Some methods failed").wait_for()
    yield "fault", page

    for title in (
        "Change lambda, delta or k",
        "All numbers",
        "Record and link",
        "How timings are taken",
    ):
        page.locator("#results .label-wrap", has=page.get_by_text(title, exact=True)).click()
    page.get_by_role("button", name="Measure here", exact=True).click()
    page.get_by_text("Explored five values").wait_for()
    page.get_by_role("button", name="Settings", exact=True).first.click()
    yield "open", page
    page.keyboard.press("Escape")  # the drawer lies over its button

    with busy(url):
        page.get_by_role("button", name="Draw", exact=True).click()
        page.get_by_text("Nothing was started").first.wait_for()
        yield "full", page
    page.close()

    calm = browser.new_page(viewport={"width": width, "height": 900}, reduced_motion="reduce")
    calm.goto(
        f"{url}?__theme={theme}&run=gone&prompt=two+red+lanterns&methods=vanilla,lantern&seed=5"
    )
    calm.get_by_text("Filled in from the link").wait_for()
    calm.locator('#stage .lane[data-phase="asked"]').first.wait_for()
    yield "link-calm", calm
    calm.goto(f"{url}?__theme={theme}&temperature=9")
    calm.get_by_text("The link asks for what is not allowed").wait_for()
    yield "bad-link", calm
    calm.close()


@contextmanager
def failing(method: str) -> Iterator[None]:
    """Make one method fail in the middle of its run."""
    run = Pipeline.run

    def broken(self: Pipeline, asked: Method, *arguments: Any, **more: Any) -> Iterator[Any]:
        for number, event in enumerate(run(self, asked, *arguments, **more)):
            if asked.id == method and number > 20:
                raise RuntimeError("a fault made for this picture")
            yield event

    Pipeline.run = broken  # type: ignore[method-assign]
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
