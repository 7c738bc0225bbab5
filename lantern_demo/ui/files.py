"""Write the files of a run: pictures, the contact sheet and the record.

No file name contains a visitor's text.
"""

from __future__ import annotations

import errno
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

from lantern_demo.faults import disk_full
from lantern_demo.runs.result import Result
from lantern_demo.ui.contact_sheet import contact_sheet, text_chunks
from lantern_demo.ui.run_view import stem

ROOM = 32 * 2**20  # bytes that must stay free: Gradio keeps a copy of each shown file


def write(path: Path, data: bytes) -> str:
    """Write a file and return its path. Raise OSError, also for a disk that is nearly full."""
    if shutil.disk_usage(path.parent).free < ROOM:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))
    path.write_bytes(data)
    return str(path)


def saved(write: Callable[..., str], *arguments: Any) -> str | None:
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
    buffer = io.BytesIO()
    # Twice as fast as the usual level, and 2 % larger.
    result.image.save(
        buffer, "PNG", pnginfo=text_chunks(result.record, result.method), compress_level=4
    )
    return write(folder / f"{stem(result.method)}.png", buffer.getvalue())


def write_sheet(folder: Path, record: dict[str, Any], pictures: dict[str, Image.Image]) -> str:
    return write(folder / "lantern-demo-pictures.png", contact_sheet(record, pictures))


def write_record(folder: Path, record: dict[str, Any]) -> str:
    # Not indented: with a line for every number the file would be several times as large as the
    # upload limit.
    return write(folder / "lantern-demo-run.json", (json.dumps(record) + "\n").encode())
