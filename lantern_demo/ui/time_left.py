"""How long a race will still take, told from what has been drawn of it."""

from __future__ import annotations

from collections.abc import Collection

from lantern_demo.ui.run_state import Lane

ENOUGH = 1 / 16  # of a picture: of less nobody can tell how long the rest takes
LONG = 10.0  # seconds of drawing in all; of less nobody needs to be told


def seconds_left(lanes: Collection[Lane], elapsed: float) -> float | None:
    """Seconds until the last token of the lanes that draw, at the pace that each has had. elapsed: seconds since the first token,
    in which lanes also waited for each other. None while nobody can tell, with nothing left to draw, and of a short race."""
    drawing = [lane for lane in lanes if lane.phase == "drawing"]
    if not drawing or any(lane.committed < ENOUGH * lane.total for lane in drawing):
        return None
    decoded = sum(lane.seconds for lane in lanes)
    left = sum(lane.seconds * (lane.total - lane.committed) / lane.committed for lane in drawing)
    if decoded <= 0:
        return None
    seconds = left * elapsed / decoded
    return seconds if elapsed + seconds >= LONG else None
