"""Paths that a user names."""

from __future__ import annotations

from pathlib import Path


def user_path(path: str | Path) -> Path:
    """Return a path that a user names, with the home folder for ~.

    Raise ValueError where there is no such home.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise ValueError(f"{str(path)!r} is in no home folder: {error}") from None
