"""What a visitor's page shows of a run, as data: the lanes of its methods, and where the run comes from."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from lantern_demo.runs.race import Request
from lantern_demo.ui.service import Progress

Phase = Literal["asked", "waiting", "drawing", "done", "failed", "stopped"]


Token = tuple[int, str, int]  # the place, e, r or t for how it was accepted, and the token


@dataclass(frozen=True)
class Lane:
    """What a lane shows. `entry` is the method's part of the run record once it has finished."""

    method: str
    phase: Phase
    total: int  # tokens of a picture
    committed: int = 0
    steps: int = 0
    seconds: float = 0.0  # of decoding, so far
    entry: dict[str, Any] | None = None
    message: str = ""  # why it failed

    @property
    def running(self) -> bool:
        return self.phase in ("waiting", "drawing")

    def at(self, progress: Progress) -> Lane:
        return replace(self, phase="drawing", committed=progress.committed, steps=progress.steps, seconds=progress.seconds)

    def finished(self, entry: dict[str, Any]) -> Lane:
        return replace(
            self, phase="done", committed=entry["tokens"], steps=entry["steps"], seconds=entry["decode_seconds"], entry=entry
        )

    def failed(self, message: str) -> Lane:
        return replace(self, phase="failed", message=message)

    def stopped(self) -> Lane:
        return replace(self, phase="stopped") if self.running else self


@dataclass(frozen=True)
class Source:
    """Where a run that is shown comes from: drawn just now, recorded with the code, or loaded from a visitor's file."""

    kind: Literal["live", "recorded", "loaded"]
    text: str


@dataclass
class Shown:
    """A run on a visitor's page: the lanes, and of the methods that finished the record and the pictures.

    A run hands it to the page's state once and from then on changes it in place. To hand it over with every frame would cost the
    server more with every method that is done.
    """

    lanes: dict[str, Lane] = field(default_factory=dict)
    record: dict[str, Any] | None = None
    pictures: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)  # addresses of the pictures as files
    told: dict[str, list[Token]] = field(default_factory=dict)  # by method, what has been drawn so far
    request: Request | None = None  # None of a run that was not drawn here
    run: str = field(default_factory=lambda: secrets.token_hex(4))  # tells one run's updates from another's
    exploring: bool = False
    settled: bool = False  # the run is over and the page shows its results; a step that had begun may still be noted

    @property
    def running(self) -> bool:
        return self.exploring or (not self.settled and any(lane.running for lane in self.lanes.values()))
