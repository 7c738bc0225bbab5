"""Recorded runs, the examples; pictures of all things, in a row; and what look-alikes cost."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache, lru_cache
from html import escape
from pathlib import Path

from PIL import Image

from lantern_demo.models.tensors import check_fetched
from lantern_demo.runs.race import Request
from lantern_demo.runs.record import Record
from lantern_demo.settings.settings import Settings
from lantern_demo.ui import texts
from lantern_demo.ui.run_state import Lane, PageRun
from lantern_demo.ui.run_view import changed_settings, picture_address, picture_of, webp_address

FOLDER = Path(__file__).with_name("recorded")
THUMBNAIL = 96  # pixels a side of an example's picture, twice its size on the page
THINGS = FOLDER / "things.webp"
CHIP = 56  # pixels a side of a thing's picture there, twice its size on the page
PRICE = FOLDER / "price.json"  # of `examples/quality/price.py`


@dataclass(frozen=True)
class Recorded:
    """A run to show again; pictures are data addresses by method."""

    record: Record
    pictures: dict[str, str]
    # of a run of this visit, its request, the lanes that did not finish, and the pictures' files
    request: Request | None = None
    rest: dict[str, Lane] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, run: PageRun) -> Recorded:
        """Return a run of this visit that has results."""
        assert run.record is not None
        return cls(run.record, run.pictures, run.request, run.rest, run.files)

    @property
    def key(self) -> str:
        """The name by which the page asks for the run."""
        return f"{self.record['created']} {self.record['settings']['seed']}"


@cache
def recorded_runs() -> tuple[Recorded, ...]:
    """Return all recorded examples, in the order of their file names.

    Raise ValueError where git left a pointer instead of a file.
    """
    found = []
    for path in sorted(FOLDER.glob("*.json.gz")):
        check_fetched(path)
        run = json.loads(gzip.decompress(path.read_bytes()))
        # a setting that is newer than the recording has its default there
        run["record"]["settings"] = Settings(**run["record"]["settings"]).as_dict()
        found.append(Recorded(**run))
    return tuple(found)


def save(path: Path, record: Record, pictures: dict[str, Image.Image]) -> None:
    """Write an example. The bytes depend only on the run: gzip's own date is left out."""
    addresses = {name: picture_address(image) for name, image in pictures.items()}
    text = json.dumps({"record": record, "pictures": addresses}, separators=(",", ":"))
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


@lru_cache(maxsize=64)
def _thumbnail(address: str) -> str:
    """Return the data address of a small picture of another one."""
    return webp_address(picture_of(address).resize((THUMBNAIL, THUMBNAIL)))


def strip_of(runs: Iterable[Recorded]) -> str:
    """Return a row of buttons as HTML, with a small picture of each run, and what tells it from
    others of its prompt.
    """
    found = []
    for run in runs:
        picture, own = _thumbnail(next(iter(run.pictures.values()))), run.request is not None
        seed = run.record["settings"]["seed"]
        kind = texts.CAPTION.format(seed=seed) if own else texts.RECORDED
        caption = escape(", ".join([kind, *changed_settings(run.record)]))
        name = f"{escape(run.record['prompt'])}, {caption}"
        found.append(
            f'<button type="button" data-key="{run.key}" title="{name}" aria-label="{name}">'
            f'<img src="{picture}" alt=""><small>{caption}</small></button>'
        )
    return f'<div class="runs">{"".join(found)}</div>'
