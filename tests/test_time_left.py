"""What a visitor is told while a run takes long."""

from __future__ import annotations

from pathlib import Path

import pytest
from published import TEXT_ID

from lantern_demo.runs import pipeline
from lantern_demo.runs.stats import Drawn
from lantern_demo.settings.knobs import ON_THE_FORM
from lantern_demo.ui import compare, texts, time_left
from lantern_demo.ui import service as services
from lantern_demo.ui.compare import draw
from lantern_demo.ui.page import build
from lantern_demo.ui.run_state import Lane
from lantern_demo.ui.service import PROMPT, Frame, Service
from lantern_demo.ui.time_left import seconds_left


def lane(committed: int, seconds: float, phase: str = "drawing") -> Lane:
    return Lane("vanilla", phase, 256, committed, committed, seconds)  # type: ignore[arg-type]


def test_the_time_left_follows_from_what_has_been_drawn() -> None:
    """Half of one picture and a quarter of the other in 10 + 10 seconds of decoding: 10 and 30 more. They took 25 seconds by the
    clock."""
    assert seconds_left([lane(128, 10.0), lane(64, 10.0)], 25.0) == pytest.approx(50.0)
    assert seconds_left([lane(128, 10.0), lane(256, 10.0, "drawn")], 25.0) == pytest.approx(12.5), "what is drawn takes no more"


def test_nothing_is_told_that_is_not_known() -> None:
    assert seconds_left([lane(128, 10.0), lane(15, 1.0)], 15.0) is None, "of a sixteenth of a picture nobody can tell"
    assert seconds_left([lane(128, 0.3)], 0.4) is None, "a short race"
    assert seconds_left([lane(256, 10.0, "drawn")], 12.0) is None
    assert seconds_left([lane(0, 0.0, "waiting")], 0.0) is None


def test_it_is_told_in_steps_and_says_what_comes_after() -> None:
    assert texts.left(41.0, 0) == "About 40 s left, at the pace so far."
    assert texts.left(1.0, 2) == "About 5 s left, at the pace so far, and then what 2 more take."
    assert texts.left(200.0, 0) == "About 3 min left, at the pace so far."


@pytest.fixture
def service(published_cache: Path, text_model: Path, monkeypatch: pytest.MonkeyPatch) -> Service:
    """A service of a small published model, whose first frames come as often as they can."""
    monkeypatch.setattr(services, "FRAME_SECONDS", 0.0)
    monkeypatch.setattr(services, "PREVIEW_SHARE", 0.0)
    load = pipeline.load
    monkeypatch.setattr(
        services, "load", lambda model, device, **more: load(model, device, folder=text_model, dtype="float32", **more)
    )
    return Service(TEXT_ID, "cpu")


def test_a_published_model_reads_the_prompt_and_its_cells_come_before_its_previews(service: Service) -> None:
    request = service.request("a red lantern", None, ["vanilla", "eagle1"], {"seed": 3})
    frames = [item for item in service.frames(request, True) if isinstance(item, (Frame, Drawn))]
    assert isinstance(frames[0], Frame) and (frames[0].lanes, frames[0].ready) == ({}, PROMPT)
    painted: set[str] = set()
    previewed: set[str] = set()
    for frame in frames:
        if isinstance(frame, Frame):
            assert frame.ready in (None, PROMPT) or not frame.lanes
            if frame.picture is not None:
                assert frame.picture[0] in painted, "cells are painted without waiting for a decoder"
                previewed.add(frame.picture[0])
            painted |= set(frame.lanes)
    assert painted == previewed == {"vanilla", "eagle1"}


def test_the_page_says_what_is_made_ready_and_how_long_the_rest_takes(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time_left, "LONG", 0.0)
    monkeypatch.setattr(services, "FRAME_SECONDS", 0.0)
    page = build(tiny_model, "cpu")
    (found,) = [fn for fn in page.fns.values() if getattr(fn.fn, "func", None) is compare.draw]
    w = found.fn.args[1]  # type: ignore[union-attr]
    knobs = [None] * len(ON_THE_FORM)
    answers = list(
        draw(page.lantern_service, w, "two red lanterns over a lake", None, ["vanilla", "eagle1"], 3, False, None, *knobs)
    )
    stages = [answer[w.stage] for answer in answers if isinstance(answer.get(w.stage), str)]
    told = [stage for stage in stages if "left, at the pace so far." in stage]
    assert told and stages.index(told[0]) > 1, "not before something has been drawn"
    assert (
        compare._made_ready(PROMPT) == texts.READING
        and compare._made_ready("eagle1") == "Getting EAGLE-1 ready; this is not timed."
    )
