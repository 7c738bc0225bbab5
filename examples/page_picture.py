"""Take the screenshots and the film of the page that README shows, and time races.

Start app.py, then run

python examples/page_picture.py http://127.0.0.1:7860

It writes page.png, phone.png, race.webp and page.json. page.json has the seconds from Draw to the
last number and the speedups that the page shows, over ten races. It needs playwright (pip install
playwright) and a Chromium: that of $CHROMIUM, or an installed one.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import time
from pathlib import Path
from statistics import median
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

WIDTH, HEIGHT = 1280, 940  # of the saved part
SHOWN = 960  # pixels wide
FRAMES, FRAME, REST = 64, 90, 2500  # of the film; ms of a frame, and of the last
FILM_WIDTH = 800  # pixels
RACES = 10  # timed ones
# of a finished race: each method's steps, and the seconds to its last piece
LANES = """lanternRun.lanes.map(({ id, steps, milliseconds }) =>
  ({ id, steps, seconds: milliseconds.at(-1) / 1000 }))"""
BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
TABS = ("Numbers", "Settings")  # shown on the phone after the race and a step in detail


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "url", nargs="?", default="http://127.0.0.1:7860", help="where the demo runs"
    )
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent, help="folder for what it writes"
    )
    args = parser.parse_args()
    args.out = args.out.expanduser()
    args.out.mkdir(parents=True, exist_ok=True)
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=found, args=FLAGS)
        save(wide(browser, args.url), args.out / "page.png")
        save(phone(browser, args.url), args.out / "phone.png")
        film(browser, args.url, args.out / "race.webp")
        races(browser, args.url, args.out / "page.json")
        browser.close()


def wide(browser: Browser, url: str) -> Image.Image:
    page = opened(browser, url, WIDTH, 900)
    whole = picture(page.screenshot(full_page=True))
    part = whole.crop((0, 0, WIDTH, min(HEIGHT, whole.height)))
    return part.resize((SHOWN, part.height * SHOWN // WIDTH), Image.Resampling.LANCZOS)


def phone(browser: Browser, url: str) -> Image.Image:
    """Return four screenshots of the page on a phone in dark mode, side by side."""
    page = opened(browser, f"{url}?__theme=dark", 390, 844)
    sheet = Image.new("RGB", (4 * 406 - 16, 844), "white")
    sheet.paste(picture(page.screenshot()), (0, 0))
    page.get_by_role("button", name="Explain a step").click()
    page.locator(".panel li").first.wait_for()
    for _ in ("check", "keep"):
        page.keyboard.press("ArrowRight")
    page.wait_for_timeout(3000)  # until the guesses are decoded
    sheet.paste(picture(page.screenshot()), (406, 0))
    for place, title in enumerate(TABS, 2):
        page.get_by_role("tab", name=title).click()
        page.wait_for_timeout(1500)  # a tab's content loads when it is opened
        page.locator("#tabs").evaluate(
            "tabs => scrollTo({ top: tabs.getBoundingClientRect().top + scrollY - 12, "
            "behavior: 'instant' })"
        )
        sheet.paste(picture(page.screenshot()), (place * 406, 0))
    return sheet.resize((SHOWN, sheet.height * SHOWN // sheet.width), Image.Resampling.LANCZOS)


def film(browser: Browser, url: str, path: Path) -> None:
    """Film the recorded race, the same time of every method in a frame."""
    page = opened(browser, url, WIDTH, 900)
    bar = page.get_by_label("Time of the replay")
    box = page.locator("#stage .why").bounding_box()
    assert box is not None
    clip: Any = {"x": 0, "y": 0, "width": WIDTH, "height": box["y"] + box["height"] + 12}
    frames = []
    for number in range(FRAMES):
        bar.evaluate(
            "(bar, at) => { bar.value = at; bar.dispatchEvent(new Event('input')); }",
            1000 * number / (FRAMES - 1),
        )
        page.wait_for_timeout(60)  # until the canvases are painted
        frame = picture(page.screenshot(clip=clip))
        height = frame.height * FILM_WIDTH // frame.width
        frames.append(frame.resize((FILM_WIDTH, height), Image.Resampling.LANCZOS))
    times = [FRAME] * (FRAMES - 1) + [REST]
    frames[0].save(
        path, save_all=True, append_images=frames[1:], duration=times, quality=60, method=4
    )
    print(f"wrote {path}: {len(frames)} frames, {path.stat().st_size >> 10} KB")


def races(browser: Browser, url: str, path: Path) -> None:
    """Measure the seconds from Draw to the last number in the browser, and read the speedups."""
    page, seconds = opened(browser, url, WIDTH, 900), list[float]()
    lanes = list[dict[str, Any]]()  # of all timed races
    draw = page.get_by_role("button", name="Draw", exact=True)
    for number in range(RACES + 1):  # the first one warms up
        shown, began = page.evaluate("lanternRun.run"), time.monotonic()
        draw.click()
        page.locator("#stop:enabled").wait_for()
        page.locator("#stop:disabled").wait_for(state="attached")
        seconds.append(time.monotonic() - began)
        page.wait_for_function("run => lanternRun.run !== run", arg=shown)
        if number:
            raced = page.evaluate(LANES)
            alone = next(lane["seconds"] for lane in raced if lane["id"] == "vanilla")
            lanes += [{**lane, "speedup": alone / lane["seconds"]} for lane in raced]
    names = dict.fromkeys(lane["id"] for lane in lanes)
    rows = {name: spread([lane for lane in lanes if lane["id"] == name]) for name in names}
    told = {"race_seconds": median(seconds[1:]), "races": seconds[1:], "rows": rows}
    path.write_text(json.dumps(told) + "\n", encoding="utf-8")
    print(f"wrote {path}")


def spread(lanes: list[dict[str, Any]]) -> dict[str, float]:
    """Return the median steps and speedup of a method's lanes, and the range of its speedups."""
    gains = [lane["speedup"] for lane in lanes]
    ends = {"lowest_speedup": min(gains), "highest_speedup": max(gains)}
    steps = round(median(lane["steps"] for lane in lanes))
    return {"steps": steps, "speedup": median(gains), **ends}


def opened(browser: Browser, url: str, width: int, height: int) -> Page:
    page = browser.new_page(viewport={"width": width, "height": height})
    page.set_default_timeout(180_000)  # ms
    page.goto(url)
    page.wait_for_function("document.querySelectorAll('#stage .lane[data-done]').length === 5")
    page.wait_for_timeout(3000)  # pictures load after the text
    return page


def picture(png: bytes) -> Image.Image:
    return Image.open(io.BytesIO(png)).convert("RGB")


def save(image: Image.Image, path: Path) -> None:
    image.save(path, optimize=True)  # all colours: with a palette the small lanterns turned grey
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
