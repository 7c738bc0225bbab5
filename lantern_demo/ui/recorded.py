"""Run records: the examples, the runs of this program, and visitors' files."""

from __future__ import annotations

import gzip
import json
import secrets
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from PIL import Image

from lantern_demo.models.tensors import check_fetched
from lantern_demo.runs.record import parsed
from lantern_demo.ui.run_view import picture_address, picture_of

FOLDER = Path(__file__).with_name("recorded")
THUMBNAIL = 96  # pixels a side of an example's picture, twice its size on the page
MEGABYTES = 4  # of a record that a visitor uploads


@dataclass(frozen=True)
class Recorded:
    """A recorded run; pictures are data addresses by method."""

    record: dict[str, Any]
    pictures: dict[str, str]


@cache
def recorded_runs() -> tuple[Recorded, ...]:
    """Return all recorded examples, in the order of their file names.

    Raise ValueError where git left a pointer instead of a file.
    """
    files = sorted(FOLDER.glob("*.json.gz"))
    for path in files:
        check_fetched(path)
    return tuple(unpack(path.read_bytes()) for path in files)


def save(path: Path, record: dict[str, Any], pictures: dict[str, Image.Image]) -> None:
    """Write an example."""
    addresses = {name: picture_address(image) for name, image in pictures.items()}
    path.write_bytes(pack(record, addresses))


def pack(record: dict[str, Any], pictures: dict[str, str]) -> bytes:
    """Return a run as a file holds it.

    The bytes depend only on the run: gzip's own date is left out.
    """
    whole = {"record": record, "pictures": pictures}
    return gzip.compress(json.dumps(whole, separators=(",", ":")).encode(), 9, mtime=0)


def unpack(data: bytes) -> Recorded:
    """Return a run that `pack` packed. Raise ValueError for an invalid record."""
    whole = json.loads(gzip.decompress(data))
    return Recorded(parsed(whole["record"]), whole["pictures"])


def read_record(data: bytes) -> dict[str, Any]:
    """Return the record in a file. Raise ValueError with a sentence that names the fault."""
    if len(data) > MEGABYTES * 2**20:
        raise ValueError(
            f"the record has {len(data) / 2**20:.1f} MB, at most {MEGABYTES} are allowed"
        )
    try:
        found = json.loads(data, parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise ValueError("this is not a run record: not a JSON file that can be read") from None
    return parsed(found)


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number")


class FinishedRuns:
    """The latest runs of a program, in memory only, by names that cannot be guessed.

    A link, a reload or Back shows them again.
    """

    def __init__(self, most: int = 200) -> None:
        self._most, self._packed = most, OrderedDict[str, bytes]()

    def keep(self, record: dict[str, Any], pictures: dict[str, str]) -> str:
        """Keep a run and return its name."""
        name = secrets.token_urlsafe(9)
        self._packed[name] = pack(record, pictures)
        while len(self._packed) > self._most:
            self._packed.popitem(last=False)
        return name

    def get(self, name: str) -> Recorded | None:
        """Return the run of a name, or None if it is no longer kept."""
        found = self._packed.get(name)
        return None if found is None else unpack(found)


def thumbnails(runs: Iterable[Recorded]) -> list[tuple[Image.Image, str]]:
    """Return a small picture and the prompt of each run."""
    found = []
    for run in runs:
        picture = picture_of(next(iter(run.pictures.values())))
        found.append((picture.resize((THUMBNAIL, THUMBNAIL)), run.record["prompt"]))
    return found
