"""The contact sheet: all pictures of a run with their names and numbers."""

from __future__ import annotations

import io
from typing import Any

from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

from lantern_demo.ui import texts
from lantern_demo.ui.run_view import COLOURS, LABELS

TILE, GAP, MARGIN = 256, 20, 36
INK, SOFT, PAPER = "#f1f5f9", "#a3b1c6", "#141a2b"
LINES = 3  # of a long prompt


def contact_sheet(record: dict[str, Any], pictures: dict[str, Image.Image]) -> bytes:
    """A PNG with the pictures that there are, in the record's order; its text chunks hold prompt, seed and settings."""
    names = [name for name in record["methods"] if name in pictures]
    width = 2 * MARGIN + max(len(names), 3) * (TILE + GAP) - GAP
    title, body, small = (_font(size) for size in (30, 20, 16))
    prompt = _lines(record["prompt"], title, width - 2 * MARGIN)
    top = MARGIN + len(prompt) * 40 + 44
    sheet = Image.new("RGB", (width, top + TILE + 150), PAPER)
    draw = ImageDraw.Draw(sheet)
    for i, line in enumerate(prompt):
        draw.text((MARGIN, MARGIN + 40 * i), line, INK, title)
    draw.text((MARGIN, top - 38), texts.sheet_facts(record), SOFT, small)
    for i, name in enumerate(names):
        x = MARGIN + i * (TILE + GAP)
        entry = record["methods"][name]
        sheet.paste(pictures[name].resize((TILE, TILE), Image.Resampling.LANCZOS), (x, top))
        draw.rectangle((x, top + TILE, x + TILE - 1, top + TILE + 5), COLOURS[name])
        draw.text((x, top + TILE + 16), LABELS[name], INK, body)
        for row, line in enumerate(texts.sheet_lines(entry)):
            draw.text((x, top + TILE + 46 + 24 * row), line, SOFT, small)
    buffer = io.BytesIO()
    sheet.save(buffer, "PNG", pnginfo=text_chunks(record))
    return buffer.getvalue()


def text_chunks(record: dict[str, Any], method: str | None = None) -> PngInfo:
    """What a PNG says of itself: prompt, seed, method, model, settings and the program's version."""
    info = PngInfo()
    for key, value in texts.picture_facts(record, method).items():
        info.add_text(key, value)
    return info


def _font(size: int) -> Any:
    return ImageFont.load_default(size)


def _lines(text: str, font: Any, width: int) -> list[str]:
    """The text in lines that fit, cut with an ellipsis after the last."""
    lines = _wrapped(text, font, width)
    kept = lines[:LINES]
    if len(lines) > LINES:
        kept[-1] += " \u2026"
    return [_cut(line, font, width) for line in kept]


def _wrapped(text: str, font: Any, width: int) -> list[str]:
    """The text in lines of whole words, as many as it takes; a word that is too long stands alone."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if font.getlength(longer) <= width or not lines[-1]:
            lines[-1] = longer
        else:
            lines.append(word)
    return lines


def _cut(line: str, font: Any, width: int) -> str:
    if font.getlength(line) <= width:
        return line
    while line and font.getlength(line + "\u2026") > width:
        line = line[:-1]
    return line + "\u2026"
