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

import lantern_demo


class Journal:
    """The lines of one process; with a `file` of None they are kept in memory only."""

    def __init__(self, file: Path | None, identity: dict[str, Any], fresh: bool = False) -> None:
        """Open, or go on with, a journal. `fresh` throws away what is there.

        Raises ValueError with a sentence that names what differs when the file is another command's, or not a journal.
        """
        self.file, self.identity = file, identity
        self.lines: list[dict[str, Any]] = []
        if file is not None and file.exists() and not fresh:
            head, self.lines = read(file)
            _check_same(file, head, identity)
            self._rewrite([{"identity": head}, *self.lines])
        elif file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            self._rewrite([{"identity": identity}])

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

    def _rewrite(self, lines: list[dict[str, Any]]) -> None:
        """The file with these lines and no half one at the end, on which the next could not be appended."""
        assert self.file is not None
        part = self.file.with_suffix(".part")
        part.write_text("".join(json.dumps(line) + "\n" for line in lines))
        part.replace(self.file)


def read(file: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """What a journal is of, and its records; a last line that was cut off in writing is left out.

    Raises ValueError naming the file when it is not a journal.
    """
    lines = file.read_text().split("\n")
    try:
        head, *records = [json.loads(line) for line in lines[:-1]]
        return head["identity"], records
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} is not a journal of this benchmark; move it away or give another --out") from error


def _check_same(file: Path, head: dict[str, Any], identity: dict[str, Any]) -> None:
    # as it would come back from the file
    old, new = _flat(head), _flat(json.loads(json.dumps(identity)))
    differ = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    if differ:
        said = "; ".join(f"{key} was {_short(old.get(key))}, now {_short(new.get(key))}" for key in differ)
        raise ValueError(f"{file} holds another command's results ({said}); give another --out, or --fresh to throw them away")


def _flat(identity: dict[str, Any]) -> dict[str, Any]:
    """One level of sections less, so that a sentence can name what differs."""
    flat: dict[str, Any] = {}
    for section, value in identity.items():
        flat |= {f"{section} {key}": inner for key, inner in value.items()} if isinstance(value, dict) else {section: value}
    return flat


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else text[:77] + "..."


def merged(journals: list[Path], kind: str) -> list[dict[str, Any]]:
    """The records of a kind from the journals of all processes, each with its process, by the number of the round."""
    records = [{**line, "process": p} for p, file in enumerate(journals) for line in read(file)[1] if line["kind"] == kind]
    return sorted(records, key=lambda record: record.get("number", 0))


def journal_of(out: Path, rank: int) -> Path:
    """Where a process of a benchmark that reports to `out` keeps its lines."""
    return out.with_suffix(".jsonl" if rank == 0 else f".{rank}.jsonl")


def digest_of(folder: Path, *patterns: str) -> str:
    """A digest of names and contents of the files in a folder that match one of the patterns."""
    digest = hashlib.sha256()
    for path in sorted({p for pattern in patterns for p in folder.rglob(pattern) if p.is_file()}):
        digest.update(f"{path.relative_to(folder).as_posix()}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def code_digest() -> str:
    """A digest of this package's code: numbers of two versions are not one benchmark."""
    return digest_of(Path(lantern_demo.__file__).parent, "*.py")
