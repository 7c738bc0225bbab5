"""Write the link preview picture of the first recorded run: python examples/link_card.py [--out
FILE]
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lantern_demo.paths import user_path
from lantern_demo.ui.contact_sheet import INK, PAPER, SOFT, text_chunks
from lantern_demo.ui.recorded import recorded_runs
from lantern_demo.ui.run_view import COLOURS, LABELS, picture_of
from lantern_demo.ui.texts import TITLE

SIZE = (1200, 630)  # pixels; previews of links show this shape whole
TILE, MARGIN, GAP, TOP = 352, 56, 24, 148
SHOWN = ("vanilla", "lantern++")
GLOW = "#fbbf24"


def card() -> Image.Image:
    """Draw the number of forward passes of the two methods, and their pictures."""
    run = recorded_runs()[0]
    record, steps = run.record, {name: run.record["methods"][name]["steps"] for name in SHOWN}
    image = Image.new("RGB", SIZE, PAPER)
    draw = ImageDraw.Draw(image)
    huge, title, body, small = (ImageFont.load_default(size) for size in (70, 34, 26, 22))
    first, rest = f"{steps['lantern++']} ", f"passes instead of {steps['vanilla']}"
    draw.text((MARGIN, 104), first, GLOW, huge, "ls", stroke_width=1)
    draw.text((MARGIN + huge.getlength(first), 104), rest, INK, huge, "ls")
    for i, name in enumerate(SHOWN):
        x, below = MARGIN + i * (TILE + GAP), TOP + TILE
        image.paste(
            picture_of(run.pictures[name]).resize((TILE, TILE), Image.Resampling.LANCZOS), (x, TOP)
        )
        draw.rectangle((x, below, x + TILE - 1, below + 5), COLOURS[name])
        draw.text((x, below + 38), LABELS[name], INK, body, "ls", stroke_width=0.4)
        draw.text((x + TILE, below + 38), f"{steps[name]} passes", SOFT, body, "rs")
    x = MARGIN + 2 * (TILE + GAP) + GAP
    draw.text((x, TOP + 26), textwrap.fill(TITLE, 17), INK, title, "ls", spacing=10)
    draw.text(
        (x, TOP + 150),
        textwrap.fill(f"\u201c{record['prompt']}\u201d", 24),
        INK,
        body,
        "ls",
        spacing=10,
    )
    facts = (
        f"A recorded run: {record['model']['id']} on {record['device']}, {record['created'][:10]}"
    )
    draw.text(
        (MARGIN, SIZE[1] - 34), f"{facts}, seed {record['settings']['seed']}", SOFT, small, "ls"
    )
    return image


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out",
        type=user_path,
        default=Path(__file__).with_name("link_card.png"),
        help="file for the picture",
    )
    out = parser.parse_args().out
    card().save(out, optimize=True, pnginfo=text_chunks(recorded_runs()[0].record))
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
