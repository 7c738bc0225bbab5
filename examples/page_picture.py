"""Take the README's picture of the page: start app.py, then python examples/page_picture.py --url http://127.0.0.1:7860

Needs playwright (pip install playwright) and a Chromium.
"""

from __future__ import annotations

import argparse
import io
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

ARGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WIDTH, HEIGHT = 1280, 2240  # of the part that is kept
SHOWN = 960  # pixels wide in the README


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:7860")
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("page.png"))
    args = parser.parse_args()
    with sync_playwright() as p:
        browser = p.chromium.launch(executable_path=args.chromium, args=list(ARGS))
        page = browser.new_page(viewport={"width": WIDTH, "height": 900})
        page.goto(args.url)
        page.get_by_text("Recorded run").wait_for()
        page.wait_for_timeout(3000)  # pictures come after words
        whole = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB")
        browser.close()
    part = whole.crop((0, 0, WIDTH, min(HEIGHT, whole.height)))
    small = part.resize((SHOWN, part.height * SHOWN // WIDTH), Image.Resampling.LANCZOS)
    small.quantize(128).save(args.out, optimize=True)
    print(f"wrote {args.out}")


if __name__ == "__main__":
    main()
