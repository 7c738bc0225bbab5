"""What is kept on disk between starts, under $LANTERN_CACHE, or in lantern-demo under the Hub's HF_HOME; choices among it, so
that the same seed gives the same picture at the next start too."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock
from huggingface_hub.constants import HF_HOME


def root() -> Path:
    """The folder of everything that is kept."""
    return Path(os.environ.get("LANTERN_CACHE") or Path(HF_HOME) / "lantern-demo").expanduser()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes, and other threads, from making the same file or folder meanwhile. Without a lock where none can be
    had: on a disk that cannot be written there is nothing to disturb."""
    place = path.parent / ".locks"
    lock = FileLock(place / path.name)
    try:
        place.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except OSError:
        yield
        return
    try:
        yield
    finally:
        lock.release()


def put(path: Path, text: str) -> None:
    """Write a small file so that nobody ever reads half of it. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.part")
    try:
        unfinished.write_text(text)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def choice_file(name: str, *circumstances: object) -> Path:
    """The file of a choice. Its name has a digest of what the choice depends on."""
    digest = hashlib.sha256(" ".join(map(str, circumstances)).encode()).hexdigest()[:12]
    return root() / "fitted" / f"{name}-{digest}.json"


def cached_choice(file: Path, allowed: Callable[[str], bool], find: Callable[[], str]) -> str:
    """A choice among names: what is on disk, or else what `find` finds, which is written there. One process finds at a time: two
    would disturb each other's clocks, and draw other pictures should they not agree."""
    with locked(file):
        with suppress(OSError, ValueError):
            if isinstance(choice := json.loads(file.read_text()), str) and allowed(choice):
                return choice
        choice = find()
        with suppress(OSError):
            put(file, json.dumps(choice) + "\n")
    return choice
