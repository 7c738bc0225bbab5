"""The contact sheet: all pictures of a run with their names and numbers."""

from __future__ import annotations

import io
import json
from textwrap import wrap
from typing import Any

from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

from lantern_demo.runs.record import drawn_with
from lantern_demo.settings.settings import Settings
from lantern_demo.ui import texts
from lantern_demo.ui.run_view import COLOURS, LABELS, describe_run

TILE, GAP, MARGIN = 256, 20, 36
INK, SOFT, PAPER = "#f1f5f9", "#a3b1c6", "#141a2b"
LINES = 3  # of a long prompt


def contact_sheet(record: dict[str, Any], pictures: dict[str, Image.Image]) -> bytes:
    """Draw a PNG with the available pictures, in the record's order.

    Its text chunks hold prompt, seed and settings.
    """
    names = [name for name in record["methods"] if name in pictures]
    settings = Settings(**record["settings"])
    width = 2 * MARGIN + max(len(names), 3) * (TILE + GAP) - GAP
    title, body, small = (ImageFont.load_default(size) for size in (30, 20, 16))
    letters = int((width - 2 * MARGIN) / title.getlength("m"))  # in a line
    prompt = wrap(record["prompt"], letters, max_lines=LINES, placeholder=" \u2026")
    top = MARGIN + len(prompt) * 40 + 44
    sheet = Image.new("RGB", (width, top + TILE + 198), PAPER)
    draw = ImageDraw.Draw(sheet)
    for i, line in enumerate(prompt):
        draw.text((MARGIN, MARGIN + 40 * i), line, INK, title)
    draw.text((MARGIN, top - 38), texts.of_run(texts.SHEET_FACTS, record), SOFT, small)
    for i, name in enumerate(names):
        x = MARGIN + i * (TILE + GAP)
        entry = record["methods"][name]
        sheet.paste(pictures[name].resize((TILE, TILE), Image.Resampling.LANCZOS), (x, top))
        draw.rectangle((x, top + TILE, x + TILE - 1, top + TILE + 5), COLOURS[name])
        draw.text((x, top + TILE + 16), LABELS[name], INK, body)
        lines = texts.sheet_lines(entry)
        ran = describe_run(entry, settings)
        lines += wrap(ran, int(TILE / small.getlength("a")), max_lines=2, placeholder=" \u2026")
        for row, line in enumerate(lines):
            draw.text((x, top + TILE + 46 + 24 * row), line, SOFT, small)
    buffer = io.BytesIO()
    sheet.save(buffer, "PNG", pnginfo=text_chunks(record))
    return buffer.getvalue()


def text_chunks(record: dict[str, Any], method: str | None = None) -> PngInfo:
    """Return the text chunks of a PNG: prompt, seed, method, model, settings and version.

    The settings have the draft trees that ran.
    """
    settings = drawn_with(record)
    facts = {
        "Software": f"lantern-demo {record['lantern_demo']}",
        "prompt": record["prompt"],
        "seed": str(settings["seed"]),
        "model": record["model"]["id"],
        "settings": json.dumps(settings),
        "version": record["lantern_demo"],
    }
    info = PngInfo()
    for key, value in (facts if method is None else facts | {"method": method}).items():
        info.add_text(key, value)
    return info
