"""Gather the steps of a race into frames, of which a page can show a few a second."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter

from lantern_demo.decoding.loop import Step

FRAME_SECONDS = 0.125  # between two frames; a run stops within about as long

Token = tuple[int, str, int]  # the position, e, r or t for how it was accepted, and the token


@dataclass(frozen=True)
class Frame:
    """The changes since the last one: by method its latest step and the tokens that it drew.

    It has no steps while a part is made ready: `ready` is the method that is warmed up, or
    `service.PROMPT` while the prompt is read.
    """

    steps: dict[str, Step]
    tokens: dict[str, list[Token]]
    ready: str = ""


class Frames:
    """The frames of a race."""

    def __init__(self) -> None:
        self._steps: dict[str, Step] = {}
        self._fresh: dict[str, list[Token]] = {}
        self._due = 0.0

    @property
    def due(self) -> bool:
        """Whether it is time for a frame."""
        return perf_counter() >= self._due

    @property
    def empty(self) -> bool:
        """Whether no method has advanced since the last frame."""
        return not self._steps

    def add(self, method: str, step: Step) -> None:
        """Add a step of a method."""
        places = range(step.committed - len(step.tokens), step.committed)
        kinds = (kind[0] for kind in step.kinds)
        self._fresh.setdefault(method, []).extend(zip(places, kinds, step.tokens, strict=True))
        self._steps[method] = step

    def take(self, ready: str = "") -> Frame:
        """Return the frame that is due."""
        self._due = perf_counter() + FRAME_SECONDS
        frame = Frame(self._steps, self._fresh, ready)
        self._steps, self._fresh = {}, {}
        return frame
