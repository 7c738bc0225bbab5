"""Read a run record that a visitor hands in: every value is checked, and only known fields are kept."""

from __future__ import annotations

import json
from typing import Any

from lantern_demo.runs.record import parsed
from lantern_demo.ui.evidence import trials_of_older

MEGABYTES = 4


def read_record(data: bytes) -> dict[str, Any]:
    """The record in a file. Raises ValueError with a sentence that says what is wrong with it."""
    if len(data) > MEGABYTES * 2**20:
        raise ValueError(f"the record has {len(data) / 2**20:.1f} MB, at most {MEGABYTES} are allowed")
    try:
        found = json.loads(data.decode(), parse_constant=_no_number)
    except (ValueError, RecursionError):
        raise ValueError("this is not a run record: not a JSON file that can be read") from None
    return checked(found)


def checked(found: Any) -> dict[str, Any]:
    """A record made anew from what is known of a parsed one; an older one as it would be written now. Raises ValueError as
    `read_record` does."""
    record = parsed(found)
    for entry in record["methods"].values():
        events = entry["events"]
        judged = events.pop("judged", None)
        if "trials" not in events:
            events["trials"] = trials_of_older(judged)
    return record


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number")
