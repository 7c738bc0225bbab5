"""The files that a run hands out: previews, pictures and its record. No name is made from what a visitor sent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from PIL.PngImagePlugin import PngInfo

from lantern_demo.pipeline import Generation


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
    """Save a finished picture as PNG that says what it shows: prompt, seed, method, model and settings."""
    record = generation.record
    text = PngInfo()
    for key, value in (
        ("prompt", record["prompt"]),
        ("seed", str(record["settings"]["seed"])),
        ("method", generation.method),
        ("model", record["model"]["id"]),
        ("settings", json.dumps(record["settings"])),
    ):
        text.add_text(key, value)
    path = folder / f"{stem(generation.method)}.png"
    generation.image.save(path, pnginfo=text)
    return str(path)


def write_record(folder: Path, record: dict[str, Any]) -> str:
    return write(folder / "lantern-demo-run.json", (json.dumps(record, indent=1) + "\n").encode())
