"""Pictures to post: the contact sheet, which is all pictures of a run with their names and numbers, and the card of link
previews."""

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
CARD_SIZE = (1200, 630)  # pixels; the shape that previews of links show whole
CARD_TILE, CARD_MARGIN, CARD_GAP = 352, 56, 24
GLOW = "#fbbf24"


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


def link_card(record: dict[str, Any], pictures: dict[str, Image.Image], method: str) -> bytes:
    """A PNG of CARD_SIZE: how often vanilla and another method of a run asked the model, and what both drew."""
    sheet = Image.new("RGB", CARD_SIZE, PAPER)
    draw = ImageDraw.Draw(sheet)
    huge, title, body, small = (_font(size) for size in (70, 34, 26, 22))
    count, rest = texts.card_headline(record, method)
    draw.text((CARD_MARGIN, 104), count, GLOW, huge, "ls", stroke_width=1)
    draw.text((CARD_MARGIN + huge.getlength(f"{count} "), 104), rest, INK, huge, "ls")
    top, below = 148, 148 + CARD_TILE
    for i, name in enumerate(("vanilla", method)):
        x = CARD_MARGIN + i * (CARD_TILE + CARD_GAP)
        sheet.paste(pictures[name].resize((CARD_TILE, CARD_TILE), Image.Resampling.LANCZOS), (x, top))
        draw.rectangle((x, below, x + CARD_TILE - 1, below + 5), COLOURS[name])
        draw.text((x, below + 38), LABELS[name], INK, body, "ls", stroke_width=0.4)
        draw.text((x + CARD_TILE, below + 38), texts.card_runs(record["methods"][name]), SOFT, body, "rs")
    x = CARD_MARGIN + 2 * (CARD_TILE + CARD_GAP) + CARD_GAP
    y = top + 26
    for text, font, colour, step in (
        (texts.TITLE, title, INK, 42),
        (f"\u201c{record['prompt']}\u201d", body, INK, 34),
        (texts.card_price(record, method), body, SOFT, 34),
    ):
        for line in _wrapped(text, font, CARD_SIZE[0] - CARD_MARGIN - x):
            draw.text((x, y), line, colour, font, "ls")
            y += step
        y += 26
    draw.text((CARD_MARGIN, CARD_SIZE[1] - 34), texts.card_facts(record), SOFT, small, "ls")
    buffer = io.BytesIO()
    sheet.save(buffer, "PNG", optimize=True, pnginfo=text_chunks(record))
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
