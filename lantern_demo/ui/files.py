"""The files that a run hands out: previews, pictures, the contact sheet and the record. No name is made from what a visitor sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from PIL import Image

from lantern_demo.pipeline import Generation
from lantern_demo.ui.sheet import contact_sheet, text_chunks


def stem(method: str) -> str:
    """A method's id as a file name that every system and web address takes."""
    return method.replace("+", "p")


def write(path: Path, data: bytes) -> str:
    """Write a file so that nobody ever reads half of it, and return its path."""
    part = path.with_suffix(path.suffix + ".part")
    part.write_bytes(data)
    part.replace(path)
    return str(path)


def write_picture(folder: Path, generation: Generation) -> str:
    """Save a finished picture as PNG that says what it shows: prompt, seed, method, model, settings and version."""
    path = folder / f"{stem(generation.method)}.png"
    generation.image.save(path, pnginfo=text_chunks(generation.record, generation.method))
    return str(path)


def write_sheet(folder: Path, record: dict[str, Any], pictures: dict[str, Image.Image]) -> str:
    return write(folder / "lantern-demo-pictures.png", contact_sheet(record, pictures))


def write_record(folder: Path, record: dict[str, Any]) -> str:
    # Without indentation: a line for every number would make it several times as large as what may be loaded back.
    return write(folder / "lantern-demo-run.json", (json.dumps(record) + "\n").encode())
