"""A finished race as a film: an animated WebP of its pictures and bars, with numbers and address.

It is made from the server's record of the run. Of the visitor's request it has only the name of the
host, as letters in the picture.
"""

from __future__ import annotations

import io
from bisect import bisect_right
from math import isqrt
from pathlib import Path
from textwrap import wrap

from PIL import Image, ImageDraw, ImageFont

from lantern_demo.decoding.methods import METHODS
from lantern_demo.runs.record import Entry, Record, kept_of
from lantern_demo.ui.files import INK, PAPER, SOFT, facts, write
from lantern_demo.ui.run_view import colour

FRAMES, FRAME, REST = 40, 110, 3000  # ms of a frame, and of the last one
TILE, GAP, MARGIN = 176, 14, 20  # pixels
TOP = MARGIN + 64  # of the pictures
COVER, PARTS = "#263149", ("#94a3b8", "#e2e8f0", "#2dd4bf")  # guess, check and keep of a bar
BAR = 10
QUALITY = 72


def write_film(folder: Path, record: Record, pictures: dict[str, Image.Image], link: str) -> str:
    """Write the race of a record: all methods at the same time of each one's clock.

    `link` is the address of the run, which is printed.
    """
    ended = max(entry["events"]["milliseconds"][-1] for entry in record["methods"].values())
    still = _ground(record, link)
    tiles = {name: picture.resize((TILE, TILE)) for name, picture in pictures.items()}
    frames = [
        _frame(still.copy(), record, tiles, ended * (number / (FRAMES - 1)), ended)
        for number in range(FRAMES)
    ]
    buffer = io.BytesIO()
    frames[0].save(
        buffer,
        "WEBP",
        save_all=True,
        append_images=frames[1:],
        duration=[FRAME] * (FRAMES - 1) + [REST],
        loop=0,
        quality=QUALITY,
        method=2,
    )
    return write(folder / "lantern-demo-race.webp", buffer.getvalue())


def _ground(record: Record, link: str) -> Image.Image:
    """Return the still parts: the prompt, the names, and below the facts and the address."""
    title, body, small = (ImageFont.load_default(size) for size in (24, 17, 13))
    names = list(record["methods"])
    width = 2 * MARGIN + max(len(names), 3) * (TILE + GAP) - GAP
    wide = int((width - 2 * MARGIN) / title.getlength("n"))
    prompt = wrap(record["prompt"], wide, max_lines=1, placeholder=" \u2026")
    lines = facts(record, link, small, width - 2 * MARGIN)
    ground = Image.new("RGB", (width, TOP + TILE + 88 + 18 * len(lines) + MARGIN), PAPER)
    draw = ImageDraw.Draw(ground)
    draw.text((MARGIN, MARGIN - 4), " ".join(prompt), INK, title)
    for i, name in enumerate(names):
        draw.text((_left(i), TOP - 24), METHODS[name].label, INK, body)
    for row, line in enumerate(lines):
        draw.text((MARGIN, TOP + TILE + 88 + 18 * row), line, SOFT, small)
    return ground


def _left(index: int) -> int:
    return MARGIN + index * (TILE + GAP)


def _frame(
    image: Image.Image, record: Record, tiles: dict[str, Image.Image], now: float, ended: float
) -> Image.Image:
    """Draw the lanes at a time in milliseconds; at the end bars are seconds on one scale."""
    draw = ImageDraw.Draw(image)
    body, small = (ImageFont.load_default(size) for size in (17, 13))
    below, over = TOP + TILE, now >= ended
    first = min(entry["decode_seconds"] for entry in record["methods"].values())
    for i, (name, entry) in enumerate(record["methods"].items()):
        events, x = entry["events"], _left(i)
        step = bisect_right(events["milliseconds"], now) - 1
        kept = len(kept_of(entry))
        count = events["committed"][step] if step >= 0 else kept
        if name in tiles:
            image.paste(tiles[name], (x, TOP))
        _cover(draw, x, count, isqrt(entry["tokens"]))
        share = (count - kept) / (entry["tokens"] - kept)
        parts = _seconds(entry, ended) if over else [share]
        at = float(x)
        for part, fill in zip(parts, PARTS if over else [colour(name)], strict=True):
            draw.rectangle((at, below + 8, at + TILE * part, below + 8 + BAR), fill)
            at += TILE * part
        done = share == 1
        told = f"{entry['decode_seconds']:.2f} s" if done else f"{count - kept} pieces"
        won = done and len(tiles) > 1 and entry["decode_seconds"] == first
        draw.text((x, below + 24), told, "#fb923c" if won else INK, body)
        gain = f", {entry['speedup']:.2f}x" if "speedup" in entry and name != "vanilla" else ""
        each = 1000 * entry["decode_seconds"] / entry["steps"]
        made = f"{entry['steps']} steps x {each:.1f} ms{gain}"
        draw.text((x, below + 48), made if done else f"{max(0, step)} steps", SOFT, small)
    return image


def _cover(draw: ImageDraw.ImageDraw, x: int, count: int, grid: int) -> None:
    """Cover the pieces of a picture that are not drawn yet."""
    for row in range(grid):
        known = max(0, min(grid, count - row * grid))
        if known < grid:
            top, size = TOP + row * TILE // grid, TILE / grid
            box = (x + known * size, top, x + TILE - 1, TOP + (row + 1) * TILE // grid - 1)
            draw.rectangle(box, COVER)


def _seconds(entry: Entry, ended: float) -> list[float]:
    """Return a method's guess, check and keep as shares of the slowest one's milliseconds.

    The pass that reads the prompt is a check.
    """
    guess, keep = entry["draft_seconds"], entry["commit_seconds"]
    check = max(0.0, entry["decode_seconds"] - guess - keep)
    return [1000 * part / ended for part in (guess, check, keep)]
