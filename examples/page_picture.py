"""Take the pictures of the page that README and docs/api.md show: start app.py, then

python examples/page_picture.py http://127.0.0.1:7860

Needs playwright (pip install playwright) and a Chromium.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

ARGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WIDTH, HEIGHT = 1280, 1240  # of the part that is kept
SHOWN = 960  # pixels wide
FOLDS = ("Turn the knob", "All numbers")  # the pictures of a phone beside the race and the look at a token


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:7860", help="where the demo runs")
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder for page.png and phone.png")
    args = parser.parse_args()
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=args.chromium, args=list(ARGS))
        save(wide(browser, args.url), args.out / "page.png")
        save(phone(browser, args.url), args.out / "phone.png")
        browser.close()


def wide(browser: Browser, url: str) -> Image.Image:
    page = opened(browser, url, WIDTH, 900)
    whole = picture(page.screenshot(full_page=True))
    part = whole.crop((0, 0, WIDTH, min(HEIGHT, whole.height)))
    return part.resize((SHOWN, part.height * SHOWN // WIDTH), Image.Resampling.LANCZOS)


def phone(browser: Browser, url: str) -> Image.Image:
    """Four looks at the page on a phone at night, side by side."""
    page = opened(browser, f"{url}?__theme=dark", 390, 844)
    sheet = Image.new("RGB", (4 * 406 - 16, 844), "white")
    sheet.paste(picture(page.screenshot()), (0, 0))
    page.get_by_role("button", name="LANTERN++: look at its tokens").click()
    page.locator("#stage .patch").first.wait_for()
    page.wait_for_timeout(500)
    sheet.paste(picture(page.screenshot()), (406, 0))
    page.locator("#stage canvas.big").press("Escape")
    for place, title in enumerate(FOLDS, 2):
        fold = page.locator("#results .label-wrap", has=page.get_by_text(title, exact=True))
        fold.click()
        page.wait_for_timeout(1500)  # what is folded comes when it is opened
        fold.evaluate("fold => scrollTo({ top: fold.getBoundingClientRect().top + scrollY - 12, behavior: 'instant' })")
        sheet.paste(picture(page.screenshot()), (place * 406, 0))
    return sheet.resize((SHOWN, sheet.height * SHOWN // sheet.width), Image.Resampling.LANCZOS)


def opened(browser: Browser, url: str, width: int, height: int) -> Page:
    page = browser.new_page(viewport={"width": width, "height": height})
    page.goto(url)
    page.get_by_text("A recording of").wait_for()
    page.wait_for_timeout(3000)  # pictures come after words
    return page


def picture(png: bytes) -> Image.Image:
    return Image.open(io.BytesIO(png)).convert("RGB")


def save(image: Image.Image, path: Path) -> None:
    image.save(path, optimize=True)  # all colours: with a palette the small lanterns turned grey
    print(f"wrote {path}")


if __name__ == "__main__":
    main()
