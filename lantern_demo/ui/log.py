"""The program's log: a line per run and each warning once.

Prompts are left out unless LANTERN_LOG_PROMPTS is 1.
"""

from __future__ import annotations

import logging
import os

PROMPTS = "LANTERN_LOG_PROMPTS"  # set to 1 to have prompts in the log
FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class Once(logging.Filter):
    """Passes each warning once; a run on a public page would repeat it for every visitor."""

    MOST = 1000  # warnings to remember

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[tuple[str, str], None] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno != logging.WARNING or record.exc_info:
            return True
        key = (record.name, record.getMessage())
        if key in self._seen:
            return False
        if len(self._seen) < self.MOST:
            self._seen[key] = None
        return True


def set_up() -> None:
    """Send the program's log, and Python's warnings, to the standard error stream.

    Calling it again changes nothing.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter(FORMAT))
    handler.addFilter(Once())
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
