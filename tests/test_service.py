"""The service behind page and API: one thread computes, whoever asks; and what a visitor is told
while a run is made ready.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from lantern_demo.runs.pipeline import Generation, Pipeline
from lantern_demo.ui import texts
from lantern_demo.ui.restore import _redrawn
from lantern_demo.ui.service import Service


def test_one_thread_computes_whichever_asks(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    run = Pipeline.run

    def recorded(self: Pipeline, *args: Any) -> Iterator[Any]:
        for event in run(self, *args):
            threads.append(threading.current_thread().name)
            yield event

    monkeypatch.setattr(Pipeline, "run", recorded)
    service = Service(tiny_model, "cpu")
    request = service.request("a lantern", None, ["vanilla", "eagle1"], {"seed": 3})
    frames = service.frames(request, True)
    found = []
    for _ in range(100):  # as Gradio does: every item is asked for from another thread
        with ThreadPoolExecutor(1) as asking:
            item = asking.submit(next, frames, None).result()
        if item is None:
            break
        found.append(item)
    assert [item.method for item in found if isinstance(item, Generation)] == ["vanilla", "eagle1"]
    assert len(set(threads)) == 1 and threads[0].startswith("device")


def test_pictures_of_a_record_say_by_what_they_differ(tiny_service: Service) -> None:
    service = tiny_service
    record = service.pipeline(service.default).generate("a lantern", "vanilla", seed=3).record
    entry = record["methods"]["vanilla"]
    images = service.pictures(record["model"]["id"], [entry["token_ids"]])
    assert images[0].size == (256, 256)
    assert _redrawn(service, record, images) == []
    spoilt = copy.deepcopy(record)
    spoilt["methods"]["vanilla"]["image_sha256"] = "0" * 64
    assert _redrawn(service, spoilt, images) == [texts.REDRAWN]
    spoilt["model"]["trained"] = {**record["model"]["trained"], "picture": {"step": 5}}
    assert _redrawn(service, spoilt, images) == [texts.OTHER_DECODER]
