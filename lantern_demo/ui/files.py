"""The files that a run hands out: previews, pictures, the contact sheet and the record. No name is made from what a visitor
sent."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

from lantern_demo.models.files.hub import disk_full
from lantern_demo.runs.pipeline import Generation
from lantern_demo.ui.contact_sheet import contact_sheet, text_chunks
from lantern_demo.ui.run_view import stem

ROOM = 32 * 2**20  # bytes that must stay free: Gradio keeps a copy of what is shown


def write(path: Path, data: bytes) -> str:
    """Write a file so that nobody ever reads half of it, and return its path. Raises OSError."""
    _check_room(path)
    part = path.with_suffix(path.suffix + ".part")
    part.write_bytes(data)
    part.replace(path)
    return str(path)


def saved(write: Callable[..., str], *arguments: Any) -> str | None:
    """Return the path that `write` returns, or None where the disk is full: what a run has found is worth more than its files."""
    try:
        return write(*arguments)
    except OSError as error:
        if not disk_full(error):
            raise
        return None


def _check_room(path: Path) -> None:
    if shutil.disk_usage(path.parent).free < ROOM:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))


def write_picture(folder: Path, generation: Generation) -> str:
    """Save a finished picture as PNG that says what it shows: prompt, seed, method, model, settings and version."""
    path = folder / f"{stem(generation.method)}.png"
    _check_room(path)
    # Twice as fast as by the usual level, and 2 % larger.
    generation.image.save(path, pnginfo=text_chunks(generation.record, generation.method), compress_level=4)
    return str(path)


def write_sheet(folder: Path, record: dict[str, Any], pictures: dict[str, Image.Image]) -> str:
    return write(folder / "lantern-demo-pictures.png", contact_sheet(record, pictures))


def write_record(folder: Path, record: dict[str, Any]) -> str:
    # Without indentation: a line for every number would make it several times as large as what may be loaded back.
    return write(folder / "lantern-demo-run.json", (json.dumps(record) + "\n").encode())
