"""The program's log: a line per run and each warning once.

Prompts are left out unless LANTERN_LOG_PROMPTS is 1.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

PROMPTS = "LANTERN_LOG_PROMPTS"  # set to 1 to have prompts in the log
REMEMBERED = 1000  # warnings
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def once() -> Callable[[logging.LogRecord], bool]:
    """Make a filter that passes each warning once; a public page would repeat it for visitors."""
    seen: set[tuple[str, str]] = set()

    def passes(record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING or record.exc_info:
            return True
        key = (record.name, record.getMessage())
        new = key not in seen
        if len(seen) < REMEMBERED:
            seen.add(key)
        return new

    return passes


def set_up() -> None:
    """Send the program's log, and Python's warnings, to the standard error stream.

    Calling it again changes nothing.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(FORMAT))
    handler.addFilter(once())
    for name in ("lantern_demo", "py.warnings"):
        logger = logging.getLogger(name)
        if not logger.handlers:
            logger.addHandler(handler)
            logger.propagate = False
    logging.getLogger("lantern_demo").setLevel(logging.INFO)
    logging.captureWarnings(True)


def of_prompt(prompt: str) -> str:
    """Return a prompt for the log: its length, or the prompt itself if LANTERN_LOG_PROMPTS is 1."""
    return repr(prompt) if os.environ.get(PROMPTS) == "1" else f"{len(prompt)} characters"
