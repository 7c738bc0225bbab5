"""The recorded examples that ship with the code: real runs with their pictures, and the machine and date they come from."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from PIL import Image

from lantern_demo.ui import texts
from lantern_demo.ui.record_reader import checked
from lantern_demo.ui.run_state import Source
from lantern_demo.ui.run_view import picture_address

FOLDER = Path(__file__).with_name("recorded")


@dataclass(frozen=True)
class Recorded:
    """A recorded run; pictures are data addresses by method."""

    record: dict[str, Any]
    pictures: dict[str, str]

    @property
    def source(self) -> Source:
        return Source("recorded", texts.RECORDED.format(device=self.record["device"], date=self.record["created"][:10]))


@cache
def recorded_runs() -> tuple[Recorded, ...]:
    """All recorded examples, in the order of their file names."""
    return tuple(read(path) for path in sorted(FOLDER.glob("*.json.gz")))


def save(path: Path, record: dict[str, Any], pictures: dict[str, Image.Image]) -> None:
    """Write an example. Its bytes depend on nothing but the run: gzip's own date is left out."""
    whole = {"record": record, "pictures": {name: picture_address(image) for name, image in pictures.items()}}
    path.write_bytes(gzip.compress(json.dumps(whole, separators=(",", ":")).encode(), 9, mtime=0))


def read(path: Path) -> Recorded:
    """An example that `save` wrote. Raises ValueError for a record that is none."""
    whole = json.loads(gzip.decompress(path.read_bytes()))
    return Recorded(checked(whole["record"]), whole["pictures"])


def cards() -> dict[str, Any] | None:
    """The value of the examples' component: of each the picture that vanilla drew, and the prompt."""
    found = [{"prompt": run.record["prompt"], "picture": run.pictures.get("vanilla")} for run in recorded_runs()]
    return {"cards": found, "words": texts.WEB} if found else None
