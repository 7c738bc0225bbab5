"""Choosing a model on the page: what it needs, what it lacks, how it is prompted."""

from __future__ import annotations

from typing import Any

import gradio as gr
import pytest
from published import ANOLE_ID, CLASS_ID, JANUS_ID, TEXT_ID

from lantern_demo.decoding.methods import METHODS
from lantern_demo.models.registry import REGISTRY
from lantern_demo.runs.pipeline import Pipeline
from lantern_demo.scenes import WORDINGS, worded
from lantern_demo.settings.knobs import ON_THE_FORM
from lantern_demo.ui import texts
from lantern_demo.ui.api import _models
from lantern_demo.ui.ask import FIRST_CLASS, add_sentence
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
    parts = {"set_for": form.set_for, "note": form.note, "prompt": s.prompt, "label": s.label}
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


def test_a_class_model_is_prompted_by_class_and_says_what_it_lacks(service: Service) -> None:
    found = chosen(service, CLASS_ID)
    assert found["label"]["visible"] and found["label"]["value"] == FIRST_CLASS
    assert found["prompt"] == {"value": FIRST_CLASS, "visible": False, "__type__": "update"}
    assert found["typing"], "Draw reads the class, not the lists"
    assert len(found["label"]["choices"]) == 1000, (
        "the list comes with the first model that needs it"
    )
    assert on_offer(found) == (["vanilla", "sjd"], ["vanilla", "sjd"])
    assert "LANTERN++" in found["note"]["value"]
    assert (
        f"<code>python examples/train_drafter/drafter.py --target {CLASS_ID}"
        in found["note"]["value"]
    )


# A text model -> its guidance and top-k, tokens, pixels, and what its note says of the download and
# of the memory.
OFFERED = {
    ANOLE_ID: (3.0, 2000, 1024, 512, "about 15.1 GiB, 16.4 GiB on a GPU, 18.1 GiB on a processor"),
    JANUS_ID: (5.0, 0, 576, 384, "download of about 3.9 GiB, 4.6 GiB on a GPU"),
}


@pytest.mark.parametrize("model", OFFERED)
def test_a_published_model_is_offered_with_what_it_needs(service: Service, model: str) -> None:
    """Janus-Pro with prompts that suit it, its licence, and the methods that need no drafter."""
    found, info = chosen(service, model), REGISTRY[model]
    listed = next(one for one in _models(service)()["models"] if one["id"] == model)
    cfg_scale, top_k, tokens, size, needs = OFFERED[model]
    said = found["note"]["value"]
    assert (found["cfg_scale"], found["top_k"], found["tree"]) == (cfg_scale, top_k, "default")
    assert (listed["tokens"], listed["image_size"], listed["kind"]) == (tokens, size, "text")
    assert "estimates" in said and all(part in said for part in needs.split(", "))
    assert found["prompt"]["visible"] and found["typing"]
    lists = ("label", "count", "thing", "toggle", "surprise")
    assert not any(found[name]["visible"] for name in lists)
    assert found["prompt"]["value"] == (info.prompts or (texts.EXAMPLES[0][0],))[0]
    drafting = {method.id for method in METHODS.values() if method.needs_drafter}
    default = [method.id for method in METHODS.values() if method.default]
    if model.startswith("janus"):
        assert set(listed["unavailable_methods"]) == drafting and not drafting & set(
            on_offer(found)[1]
        )
        assert (listed["licence"], listed["prompts"]) == (info.licence, list(info.prompts))
        assert all(str(part) in said for part in (info.licence, *info.prompts))
    else:
        assert listed["unavailable_methods"] == [] and on_offer(found)[1] == default


def test_back_to_the_bundled_model(service: Service) -> None:
    found = chosen(service, "lantern-scenes")
    assert not found["prompt"]["visible"] and not found["label"]["visible"]
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
