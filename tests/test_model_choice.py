"""Choosing a model on the page: what it needs, what it lacks, how it is prompted."""

from __future__ import annotations

from typing import Any

import gradio as gr
import pytest
from published import ANOLE_ID, TEXT_ID

from lantern_demo.decoding.methods import METHODS
from lantern_demo.models.registry import REGISTRY
from lantern_demo.runs.pipeline import Pipeline
from lantern_demo.scenes import WORDINGS, worded
from lantern_demo.settings.knobs import ON_THE_FORM
from lantern_demo.ui import texts
from lantern_demo.ui.api import _models
from lantern_demo.ui.ask import add_sentence
from lantern_demo.ui.model_choice import Form, choose, note
from lantern_demo.ui.service import Service


@pytest.fixture(scope="module")
def service() -> Service:
    """Nothing is drawn here with the bundled model, so that it need not be prepared."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pipeline, "prepare", lambda _: iter(()))
        service = Service("lantern-scenes", "cpu")
        service.wait()
    return service


def form_of(service: Service) -> Form:
    with gr.Blocks():
        return Form(
            gr.Dropdown(),
            gr.State(service.default),
            gr.HTML(),
            add_sentence(service.offered()[service.default]),
            (gr.CheckboxGroup(), gr.CheckboxGroup()),
            {name: gr.Number() for name in ON_THE_FORM},
            gr.Number(),
            gr.Checkbox(),
        )


def chosen(service: Service, model: str) -> dict[str, Any]:
    form = form_of(service)
    found = choose(service, form, model)
    s = form.sentence
    parts = {"set_for": form.set_for, "note": form.note, "prompt": s.prompt}
    parts |= {"typing": s.typing, "toggle": s.toggle, "surprise": s.surprise}
    parts |= {"methods": form.methods[0], "others": form.methods[1]} | s.lists | form.knobs
    names = {id(part): name for name, part in parts.items()}
    assert {id(component) for component in found} == set(names)
    return {names[id(component)]: update for component, update in found.items()}


def on_offer(found: dict[str, Any]) -> tuple[list[str], list[str]]:
    """The methods that can be chosen, and those that are."""
    boxes = [found[name] for name in ("methods", "others")]
    offered = [method for box in boxes for _, method in box["choices"]]
    return offered, [method for box in boxes for method in box["value"]]


def test_a_published_model_is_offered_with_what_it_needs(service: Service) -> None:
    found = chosen(service, ANOLE_ID)
    listed = next(one for one in _models(service)()["models"] if one["id"] == ANOLE_ID)
    said = found["note"]["value"]
    assert (found["cfg_scale"], found["top_k"], found["tree"]) == (3.0, 2000, "default")
    assert (listed["tokens"], listed["image_size"]) == (1024, 512)
    assert "about 15.1 GiB" in said and "memory of about 16.4 GiB (estimates" in said
    assert found["prompt"]["visible"] and found["typing"]
    assert not any(found[name]["visible"] for name in ("count", "thing", "toggle", "surprise"))
    assert found["prompt"]["value"] == texts.EXAMPLES[0][0]
    default = [method.id for method in METHODS.values() if method.default]
    assert listed["unavailable_methods"] == [] and on_offer(found)[1] == default


def test_back_to_the_bundled_model(service: Service) -> None:
    found = chosen(service, "lantern-scenes")
    assert not found["prompt"]["visible"]
    assert all(found[name]["visible"] for name in ("toggle", "surprise", *WORDINGS))
    said = {part: found[part]["value"] for part in WORDINGS if found[part]["value"]}
    assert worded(said) == texts.EXAMPLES[0][0] and not found["typing"]
    assert found["note"]["value"] == f"<p>{REGISTRY['lantern-scenes'].description}</p>"


def test_a_model_that_cannot_run_here_says_why(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPACE_ID", raising=False)
    monkeypatch.setattr("lantern_demo.models.checkpoints.free_memory", lambda device: 2**20)
    assert "**It cannot run here:**" in note(service, TEXT_ID)
    with pytest.raises(ValueError, match="cannot run here"):
        service.pipeline(TEXT_ID)


def test_a_stranger_starts_no_download_on_a_space(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPACE_ID", "someone/something")
    monkeypatch.setattr("lantern_demo.ui.service.load", lambda *_: pytest.fail("loaded"))
    assert "only the model that it was started with" in note(service, TEXT_ID)
    with pytest.raises(ValueError, match="cannot run here: this Space"):
        service.pipeline(TEXT_ID)
    assert service.pipeline("lantern-scenes")
