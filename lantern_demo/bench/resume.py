"""What is measured is on the disk at once: JSON lines beside the report, from which an interrupted benchmark goes on.

The first line says what is measured, on what, by which code and weights. Lines that were written under another first line are not
mixed with: the numbers of one report come from one command on one machine.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any


class Journal:
    """The lines of a command; with a `file` of None they are kept in memory only."""

    def __init__(self, file: Path | None, identity: dict[str, Any], fresh: bool = False) -> None:
        """Open, or go on with, a journal. `fresh` throws away what is there.

        Raises ValueError with a sentence that names what differs when a file is another command's, or not a journal.
        """
        self.identity = identity
        self.lines: list[dict[str, Any]] = []
        self.file = file
        if file is None:
            return
        if file.exists() and not fresh:
            self.lines = _read(file, json.loads(json.dumps(identity)))
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
        """The records of a kind, in the order they came."""
        return [line for line in self.lines if line["kind"] == kind]


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
