"""Write the files of a run: pictures, one sheet of all of them, and the record.

No file name contains a visitor's text.
"""

from __future__ import annotations

import errno
import io
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import wrap
from typing import Any

from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

from lantern_demo.decoding.methods import METHODS
from lantern_demo.faults import disk_full
from lantern_demo.runs.record import Record, drawn_with, kept_of
from lantern_demo.runs.result import Result
from lantern_demo.ui import texts
from lantern_demo.ui.run_view import changed_settings, colour, describe_run, stem

FULL = Path("a full disk")  # stands for a folder that could not be made
ROOM = 32 * 2**20  # bytes that must stay free: Gradio keeps a copy of each shown file
TILE, GAP, MARGIN = 256, 20, 36  # pixels of the sheet
INK, SOFT, PAPER = "#f1f5f9", "#a3b1c6", "#141a2b"
LINES, ADDRESS_LINES = 3, 6  # at most: of a prompt, which is cut, and of an address
LONGEST_HOST = 80  # letters of a host's name


@contextmanager
def scratch() -> Iterator[Path]:
    """Give a folder that goes at the end, or FULL."""
    try:
        own = TemporaryDirectory(prefix="lantern-demo-")
    except OSError as error:
        if not disk_full(error):
            raise
        yield FULL
        return
    with own as folder:
        yield Path(folder)


def write(path: Path, data: bytes) -> str:
    """Write a file and return its path. Raise OSError, also for a disk that is nearly full."""
    if path.parent == FULL or shutil.disk_usage(path.parent).free < ROOM:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))
    path.write_bytes(data)
    return str(path)


def saved(write: Callable[..., str], *arguments: object) -> str | None:
    """Return the path that `write` returns, or None if the disk is full.

    A run's results are worth more than its files.
    """
    try:
        return write(*arguments)
    except OSError as error:
        if not disk_full(error):
            raise
        return None


def write_picture(folder: Path, result: Result) -> str:
    """Save a finished picture as PNG, with prompt, seed, method, model and settings as text."""
    name = f"{stem(result.method)}.png"
    # Twice as fast as the usual level, and 2 % larger.
    return _write_png(folder / name, result.image, result.record, result.method, level=4)


def write_record(folder: Path, record: Record) -> str:
    # Not indented: with a line for every number the file would be several times as large as the
    # upload limit.
    return write(folder / "lantern-demo-run.json", (json.dumps(record) + "\n").encode())


def address(host: str, query: str) -> str:
    """Return the address of a run as it is printed. host: as the browser named it."""
    name = "".join(letter for letter in host if " " < letter < "\x7f")[:LONGEST_HOST]
    return f"{name}/{query}"


def facts(record: Record, link: str, font: Any, width: float) -> list[str]:
    """Return what is printed of a run in lines of so many pixels: its facts, settings that are not
    the preset's, and its address.
    """
    widest = max(map(font.getlength, link), default=1)
    told = [texts.of_run(texts.SHEET_FACTS, record), *changed_settings(record)]
    printed = wrap(link, int(width / widest))  # a part of it would draw something else
    return [
        *wrap("  \u00b7  ".join(told), int(width / font.getlength("n"))),
        *(printed if len(printed) <= ADDRESS_LINES else [texts.LONG_ADDRESS]),
    ]


def write_sheet(
    folder: Path, record: Record, pictures: dict[str, Image.Image], link: str = ""
) -> str:
    """Draw the available pictures with their names and numbers, in the record's order, as PNG.

    `link` is the address of the run, which is printed.
    """
    names = [name for name in record["methods"] if name in pictures]
    width = 2 * MARGIN + max(len(names), 3) * (TILE + GAP) - GAP
    title, body, small = (ImageFont.load_default(size) for size in (30, 20, 16))
    letters = int((width - 2 * MARGIN) / title.getlength("m"))  # in a line
    prompt = wrap(record["prompt"], letters, max_lines=LINES, placeholder=" \u2026")
    lines = facts(record, link, small, width - 2 * MARGIN)
    top = MARGIN + len(prompt) * 40 + 20 + 24 * len(lines)
    sheet = Image.new("RGB", (width, top + TILE + 198), PAPER)
    draw = ImageDraw.Draw(sheet)
    for i, line in enumerate(prompt):
        draw.text((MARGIN, MARGIN + 40 * i), line, INK, title)
    for row, line in enumerate(lines):
        draw.text((MARGIN, top - 14 - 24 * (len(lines) - row)), line, SOFT, small)
    for i, name in enumerate(names):
        x = MARGIN + i * (TILE + GAP)
        entry = record["methods"][name]
        sheet.paste(pictures[name].resize((TILE, TILE), Image.Resampling.LANCZOS), (x, top))
        draw.rectangle((x, top + TILE, x + TILE - 1, top + TILE + 5), colour(name))
        draw.text((x, top + TILE + 16), METHODS[name].label, INK, body)
        lines = texts.sheet_lines(entry)
        ran = describe_run(record, name)
        lines += wrap(ran, int(TILE / small.getlength("a")), max_lines=2, placeholder=" \u2026")
        for row, line in enumerate(lines):
            draw.text((x, top + TILE + 46 + 24 * row), line, SOFT, small)
    return _write_png(folder / "lantern-demo-pictures.png", sheet, record)


def _write_png(
    path: Path, image: Image.Image, record: Record, method: str | None = None, level: int = 6
) -> str:
    """Write a PNG with text chunks: prompt, seed, method, model, settings, version, kept tokens.

    The settings have the draft trees that ran. level: of the compression, zlib's own by default.
    """
    settings, version = drawn_with(record), record["lantern_demo"]
    facts = {
        "Software": f"lantern-demo {version}",
        "prompt": record["prompt"],
        "seed": str(settings["seed"]),
        "model": record["model"]["id"],
        "settings": json.dumps(settings),
        "version": version,
    }
    if keep := kept_of(record["methods"][record["order"][0]]):
        facts["keep"] = json.dumps(keep)
    info, buffer = PngInfo(), io.BytesIO()
    for key, value in (facts if method is None else facts | {"method": method}).items():
        info.add_text(key, value)
    image.save(buffer, "PNG", pnginfo=info, compress_level=level)
    return write(path, buffer.getvalue())
