"""What is measured is on the disk at once: JSON lines beside the report, from which an interrupted benchmark goes on.

The first line says what is measured, on what, by which code and weights. Lines that were written under another first line are not
mixed with: the numbers of one report come from one command on one machine.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple


class Slice(NamedTuple):
    """Slice `number`, counted from 1, of a work that `of` commands share, on one machine or on many."""

    number: int = 1
    of: int = 1

    @property
    def mark(self) -> str:
        """What tells its files from those of the others; nothing for the whole work."""
        return "" if self.of == 1 else f"-{self.number}-of-{self.of}"

    def holds(self, index: int) -> bool:
        """Whether it is to do the piece of work with this number, from 0 on."""
        return index % self.of == self.number - 1


WHOLE = Slice()


def slice_of(text: str | None, environment: Mapping[str, str] = os.environ) -> Slice:
    """ "i/n" -> slice i of n; without a text the process's rank under torchrun, or all there is. Raises ValueError for no such
    slice."""
    if text is None:
        if int(environment.get("WORLD_SIZE", 1)) == 1:
            return WHOLE
        text = f"{int(environment['RANK']) + 1}/{environment['WORLD_SIZE']}"
    number, _, of = text.partition("/")
    if not (number.isdigit() and of.isdigit() and 1 <= int(number) <= int(of)):
        raise ValueError(f"--slice must be i/n with i from 1 to n, got {text!r}")
    return Slice(int(number), int(of))


class Journal:
    """The lines of a command; with a `file` of None they are kept in memory only.

    Slices of one work write a file each, FILE-1-of-4.jsonl say, and read those of all: a picture that any of them has drawn is
    drawn. Whoever takes no slice goes on from all of them, which is how they are merged.
    """

    def __init__(self, file: Path | None, identity: dict[str, Any], fresh: bool = False, part: Slice = WHOLE) -> None:
        """Open, or go on with, a journal. `fresh` throws away what is there.

        Raises ValueError with a sentence that names what differs when a file is another command's, or not a journal.
        """
        self.identity = identity
        self.lines: list[dict[str, Any]] = []
        self.others: list[dict[str, Any]] = []
        self.file = file and file.with_stem(file.stem + part.mark)
        if file is None or self.file is None:
            return
        told = json.loads(json.dumps(identity))
        for other in sorted({file, *file.parent.glob(f"{file.stem}-*-of-*.jsonl")} - {self.file}):
            if fresh:
                other.unlink(missing_ok=True)
            elif other.exists():
                self.others += _read(other, told)
        file = self.file
        if file.exists() and not fresh:
            self.lines = _read(file, told)
        file.parent.mkdir(parents=True, exist_ok=True)
        half = file.with_suffix(".part")  # without half a line at the end, on which the next could not be appended
        half.write_text("".join(json.dumps(line) + "\n" for line in ({"identity": identity}, *self.lines)))
        half.replace(file)

    def add(self, kind: str, record: dict[str, Any]) -> None:
        """Append one record, so that neither an exception nor a lost machine takes it away again."""
        line = {"kind": kind, **record}
        self.lines.append(line)
        if self.file is not None:
            with self.file.open("a") as f:
                f.write(json.dumps(line) + "\n")
                f.flush()
                os.fsync(f.fileno())

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The records of a kind, in the order they came, those of other slices first."""
        return [line for line in (*self.others, *self.lines) if line["kind"] == kind]


def _read(file: Path, identity: dict[str, Any]) -> list[dict[str, Any]]:
    """The records of a journal, but a last line that was cut off in writing."""
    try:
        head, *records = [json.loads(line) for line in file.read_text().split("\n")[:-1]]
        old, new = _flat(head["identity"]), _flat(identity)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{file} is not a journal of this benchmark; move it away or give another --out") from error
    differ = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    if differ:
        said = "; ".join(f"{key} was {_short(old.get(key))}, now {_short(new.get(key))}" for key in differ)
        raise ValueError(f"{file} holds another command's results ({said}); give another --out, or --fresh to throw them away")
    return records


def _flat(identity: dict[str, Any]) -> dict[str, Any]:
    """One level of sections less, so that a sentence can name what differs."""
    flat: dict[str, Any] = {}
    for section, value in identity.items():
        flat |= {f"{section} {key}": inner for key, inner in value.items()} if isinstance(value, dict) else {section: value}
    return flat


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."


def digest_of(folder: Path, *patterns: str) -> str:
    """A digest of names and contents of the files in a folder that match one of the patterns."""
    digest = hashlib.sha256()
    for path in sorted({p for pattern in patterns for p in folder.rglob(pattern) if p.is_file()}):
        digest.update(f"{path.relative_to(folder).as_posix()}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def digest(value: Any) -> str:
    """A digest of a JSON-able value."""
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]
