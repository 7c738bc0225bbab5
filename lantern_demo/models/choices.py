"""Choices that are kept on disk between starts, so that the same seed gives the same picture at the next one too."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from lantern_demo.models import store


def choice_file(name: str, *circumstances: object) -> Path:
    """The file of a choice. Its name has a digest of what the choice depends on."""
    digest = hashlib.sha256(" ".join(map(str, circumstances)).encode()).hexdigest()[:12]
    return store.root() / "fitted" / f"{name}-{digest}.json"


def kept_choice(file: Path, allowed: Callable[[str], bool], find: Callable[[], str]) -> str:
    """A choice among names: what is on disk, or else what `find` finds, which is written there. One process finds at a time: two would
    disturb each other's clocks, and draw other pictures should they not agree."""
    with store.locked(file):
        with suppress(OSError, ValueError):
            if isinstance(choice := json.loads(file.read_text()), str) and allowed(choice):
                return choice
        choice = find()
        with suppress(OSError):
            store.put(file, json.dumps(choice) + "\n")
    return choice
