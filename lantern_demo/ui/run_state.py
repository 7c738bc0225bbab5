"""The state of a run on a visitor's page: the lanes of its methods, and its results."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Literal

from lantern_demo.decoding.loop import Step
from lantern_demo.runs.race import Request
from lantern_demo.runs.record import Entry, Record, kept_of
from lantern_demo.settings.settings import Settings
from lantern_demo.ui.frames import Token

Phase = Literal["asked", "waiting", "drawing", "done", "failed", "stopped"]


@dataclass
class Lane:
    """The state of a lane."""

    method: str
    phase: Phase
    total: int  # tokens of a picture
    kept: int = 0  # of them, from another picture
    committed: int = 0  # the kept ones included
    steps: int = 0
    seconds: float = 0.0  # of decoding, so far
    message: str = ""  # why it failed

    @classmethod
    def done(cls, entry: Entry) -> Lane:
        """Return the lane of a method that has finished."""
        total, steps, seconds = entry["tokens"], entry["steps"], entry["decode_seconds"]
        return cls(entry["method"], "done", total, len(kept_of(entry)), total, steps, seconds)

    @property
    def drawn(self) -> int:
        """The tokens drawn so far."""
        return max(0, self.committed - self.kept)

    @property
    def to_draw(self) -> int:
        """The tokens that the method draws in all."""
        return self.total - self.kept

    @property
    def running(self) -> bool:
        return self.phase in ("waiting", "drawing")

    def at(self, step: Step) -> None:
        self.phase = "drawing"
        self.committed, self.steps, self.seconds = step.committed, step.index, step.seconds

    def failed(self, message: str) -> None:
        self.phase, self.message = "failed", message


@dataclass
class PageRun:
    """A run on a visitor's page: lanes, and record and pictures of the finished methods.

    A run hands it to the page's state once and then mutates it. To hand it over with every frame
    would cost the server more with every finished method.
    """

    lanes: dict[str, Lane] = field(default_factory=dict)
    record: Record | None = None
    pictures: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)  # addresses of the pictures as files
    # by method, the tokens drawn so far
    tokens: dict[str, list[Token]] = field(default_factory=dict)
    request: Request | None = None  # None for a run that was not drawn here
    preset: Settings = field(default_factory=Settings)  # of the served model
    # distinguishes one run's updates from another's
    run: str = field(default_factory=lambda: secrets.token_hex(4))
    # the run is over and the page shows its results; a step that had begun may still be noted
    settled: bool = False

    @property
    def running(self) -> bool:
        return not self.settled and any(lane.running for lane in self.lanes.values())

    @property
    def rest(self) -> dict[str, Lane]:
        """The lanes that are not done."""
        return {method: lane for method, lane in self.lanes.items() if lane.phase != "done"}

    def stop(self) -> None:
        """Mark the lanes that are not done as stopped."""
        for lane in self.lanes.values():
            if lane.running:
                lane.phase = "stopped"
