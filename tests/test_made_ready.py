"""What a visitor is told while a run is made ready."""

from __future__ import annotations

from pathlib import Path

import pytest
from published import TEXT_ID

from lantern_demo.runs import pipeline
from lantern_demo.ui import compare, texts
from lantern_demo.ui import service as services
from lantern_demo.ui.service import PROMPT, Frame, Service


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
    frames = [item for item in service.frames(request, True) if isinstance(item, Frame)]
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


def test_the_page_says_what_is_made_ready() -> None:
    assert compare._made_ready(PROMPT) == texts.READING
    assert compare._made_ready("eagle1") == "Getting EAGLE-1 ready; this is not timed."
