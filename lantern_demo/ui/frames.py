"""Gather the steps of a race into frames, of which a page can show a few a second."""

from __future__ import annotations

import io
import logging
from dataclasses import dataclass
from time import perf_counter

from lantern_demo.decoding.loop import Step
from lantern_demo.faults import sentence
from lantern_demo.runs.pipeline import Pipeline

FRAME_SECONDS = 0.125  # between two frames; a run stops within about as long
# A method has previews from half of its picture on: they sharpen cells that are painted already.
# Before each but the first a run waits so many times as long as the last preview took.
PREVIEW_SHARE = 16

Token = tuple[int, str, int]  # the position, e, r or t for how it was accepted, and the token

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Frame:
    """The changes since the last one: by method its latest step and the tokens that it drew, and a
    preview (JPEG) of one method.

    It has no steps while a part is made ready: `ready` is the method that is warmed up, or
    `service.PROMPT` while the prompt is read.
    """

    steps: dict[str, Step]
    tokens: dict[str, list[Token]]
    picture: tuple[str, bytes] | None = None
    ready: str | None = None


class Frames:
    """The frames of a race, with or without previews."""

    def __init__(self, pipe: Pipeline, previews: bool) -> None:
        self._pipe, self._previews = pipe, previews
        self._steps: dict[str, Step] = {}
        self._fresh: dict[str, list[Token]] = {}
        self._drawn: dict[str, dict[int, int]] = {}  # by method, its tokens by position
        self._pictured: dict[str, float] = {}  # by method that draws, when it was last previewed
        self._due = self._preview_due = 0.0

    @property
    def due(self) -> bool:
        """Whether it is time for a frame."""
        return perf_counter() >= self._due

    def add(self, method: str, step: Step) -> None:
        """Add a step of a method."""
        if step.index == 0:
            if method in self._drawn:  # memory ran out, and it starts again
                self._pictured.clear()
            self._drawn[method], self._pictured[method] = {}, 0.0
        places = range(step.committed - len(step.tokens), step.committed)
        self._drawn[method].update(zip(places, step.tokens, strict=True))
        kinds = (kind[0] for kind in step.kinds)
        self._fresh.setdefault(method, []).extend(zip(places, kinds, step.tokens, strict=True))
        self._steps[method] = step

    def end(self, method: str) -> Frame | None:
        """End a method, and return the frame that comes before its outcome, if anything changed."""
        self._pictured.pop(method, None)
        return self._taken() if self._steps else None

    def take(self, ready: str | None = None) -> Frame:
        """Return the frame that is due."""
        picture = self._preview()
        self._due = perf_counter() + FRAME_SECONDS
        return self._taken(picture, ready)

    def _taken(self, picture: tuple[str, bytes] | None = None, ready: str | None = None) -> Frame:
        frame = Frame(self._steps, self._fresh, picture, ready)
        self._steps, self._fresh = {}, {}
        return frame

    def _preview(self) -> tuple[str, bytes] | None:
        """Preview the method whose last preview is the oldest, if one is due."""
        began, whole = perf_counter(), self._pipe.info.tokens
        half = [name for name in self._pictured if 2 * len(self._drawn[name]) >= whole]
        name = min(half, key=lambda one: self._pictured[one], default=None)
        if not self._previews or name is None:
            return None
        if self._pictured[name] and began < self._preview_due:
            return None
        data = _jpeg(self._pipe, self._drawn[name])
        self._pictured[name] = perf_counter()
        self._preview_due = self._pictured[name] + PREVIEW_SHARE * (self._pictured[name] - began)
        return None if data is None else (name, data)


def _jpeg(pipe: Pipeline, tokens: dict[int, int]) -> bytes | None:
    """Return a preview, or None if it fails: the run goes on without one."""
    buffer = io.BytesIO()
    try:
        pipe.images.preview(tokens).save(buffer, "JPEG", quality=85)
    except Exception as error:
        _LOG.warning("no preview: %s", sentence(error))
        return None
    return buffer.getvalue()
