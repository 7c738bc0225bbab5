"""What is checked before anything runs, against arbitrary values: a request is right, or refused by a short sentence that names
what is wrong. Nothing else is ever raised. How many cases: see `hostile`."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hostile import BAD, GOOD, JSON, TEXTS, TREE_TEXTS, fuzz
from hypothesis import given
from hypothesis import strategies as st
from test_look_alikes import place

from lantern_demo import load
from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.trees import static_tree
from lantern_demo.runs.pipeline import Generation, Pipeline
from lantern_demo.runs.race import Request
from lantern_demo.runs.record import merge_records
from lantern_demo.settings.knobs import KNOBS
from lantern_demo.settings.settings import Settings
from lantern_demo.ui import link
from lantern_demo.ui.contact_sheet import contact_sheet
from lantern_demo.ui.files import write_record
from lantern_demo.ui.look_alikes import LookAlikes
from lantern_demo.ui.record_reader import read_record
from lantern_demo.ui.run_view import live, results_view
from lantern_demo.ui.service import Service

NAMED = re.compile("|".join(["prompt", "model", "methods?", "tree", "unknown setting", *KNOBS]))


@pytest.fixture(scope="module")
def service(tiny_model: Path) -> Service:
    service = Service(tiny_model, "cpu")
    service.wait()
    return service


def attempt(call: Callable[[], Any]) -> tuple[Any, str]:
    """What a call returns, and the sentence of its refusal; whatever else it raises fails the test."""
    try:
        return call(), ""
    except ValueError as error:
        sentence = str(error)
    assert sentence and len(sentence) < 700 and "\n" not in sentence and "Traceback" not in sentence
    return None, sentence


@st.composite
def requests(draw: Any) -> dict[str, Any]:
    """Values of a comparison: mostly right ones, some of any kind."""
    chosen = draw(st.lists(st.sampled_from(["model", "methods", *KNOBS]), unique=True, max_size=6))
    wrong = set(draw(st.lists(st.sampled_from(["prompt", *chosen]), max_size=2)))
    return {name: draw(BAD if name in wrong else GOOD[name]) for name in ["prompt", *chosen]}


@pytest.mark.slow
@fuzz(250)
@given(requests())
def test_requests(service: Service, values: dict[str, Any]) -> None:
    given_ = dict(values)
    named = {name: given_.pop(name, None) for name in ("prompt", "model", "methods")}
    request, sentence = attempt(lambda: service.request(named["prompt"], named["model"], named["methods"], given_))
    if sentence:
        assert NAMED.match(sentence), "a sentence starts with what it is about"
        return
    assert isinstance(request, Request) and request.model == "tiny"
    assert request.prompt == " ".join(named["prompt"].split()) and 0 < len(request.prompt) <= 200
    request.prompt.encode()
    assert set(request.methods) <= set(METHODS) and len(request.methods) <= len(METHODS)
    settings = next(iter(request.settings.values()))
    for name, knob in KNOBS.items():
        value = getattr(settings, name)
        assert knob.limit is None or value is None or knob.limit.low <= value <= knob.limit.high
    for method in METHODS.values():
        assert method.drafts.of(settings).nodes <= 128
        settings.rule(method)
    settings.sampling()


@pytest.mark.slow
@fuzz(400)
@given(st.sampled_from(list(KNOBS)), BAD)
def test_a_bad_setting_is_refused_by_its_name(name: str, value: Any) -> None:
    _, sentence = attempt(lambda: Settings(**{name: value}))
    assert not sentence or sentence.startswith((name, "draft_"))


@fuzz(300)
@given(TREE_TEXTS)
def test_trees(text: str) -> None:
    """A tree that is allowed is a tree, of at most 128 nodes and 9 deep; whatever else is refused at once."""
    settings, sentence = attempt(lambda: Settings(tree=text))
    if sentence:
        assert sentence.startswith("tree must be one of")
        return
    tree = static_tree(METHODS["eagle1"].drafts.of(settings).paths)
    assert tree.size <= 128 and tree.depth <= 9
    assert all(int(parent) < node for node, parent in enumerate(tree.parents) if node), "no cycles"


@fuzz(200)
@given(st.dictionaries(st.one_of(st.sampled_from(["prompt", "methods", "model", *KNOBS]), TEXTS), TEXTS, max_size=6))
def test_links(parameters: dict[str, str]) -> None:
    found, _ = attempt(lambda: link.read(parameters, "tiny", {"tiny": Settings()}))
    assert found is None or (found["model"] == "tiny" and isinstance(found["settings"], Settings))


# -- run records that a visitor hands in


@pytest.fixture(scope="module")
def record(tiny_model: Path) -> dict[str, Any]:
    pipe: Pipeline = load(tiny_model, "cpu")
    runs = [
        e.record for _, e in pipe.compare("a lantern", ["vanilla", "lantern"], seed=5, tree="small") if isinstance(e, Generation)
    ]
    return json.loads(json.dumps(merge_records(runs)))


@fuzz(300)
@given(st.binary(max_size=200))
def test_files_that_are_no_records(data: bytes) -> None:
    with pytest.raises(ValueError, match="record"):
        read_record(data)


@fuzz(200)
@given(JSON)
def test_documents_that_are_no_records(value: Any) -> None:
    document = json.dumps(value).encode("utf-8", "surrogatepass")
    assert attempt(lambda: read_record(document))[1]


def paths_of(value: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The ways to every value of a document; of lists only the first entries."""
    inner = list(value.items()) if isinstance(value, dict) else list(enumerate(value[:2])) if isinstance(value, list) else []
    return [way] * bool(way) + [path for key, child in inner for path in paths_of(child, (*way, key))]


@pytest.mark.slow
@fuzz(80)
@given(data=st.data())
def test_spoilt_records(record: dict[str, Any], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """A record with a value replaced or taken away is refused, or all that the page makes of it can be made."""
    spoilt = copy.deepcopy(record)
    *way, last = data.draw(st.sampled_from(paths_of(record)))
    inner: Any = spoilt
    for key in way:
        inner = inner[key]
    if data.draw(st.booleans()):
        inner[last] = data.draw(BAD)
    else:
        del inner[last]
    read, sentence = attempt(lambda: read_record(json.dumps(spoilt).encode()))
    if sentence:
        return
    link.query(read, Settings())
    json.dumps(results_view(read, {}, live(read)))
    contact_sheet(read, {})
    folder = tmp_path_factory.mktemp("record")
    assert read_record(Path(write_record(folder, read)).read_bytes()) == read


@fuzz(150)
@given(
    asked=st.one_of(
        JSON,
        st.dictionaries(st.sampled_from(list(place())), JSON, max_size=6).map(lambda changes: place(**changes)),
        st.dictionaries(st.sampled_from(list(Settings().as_dict())), JSON, max_size=4).map(lambda given: place(settings=given)),
    )
)
def test_whatever_place_is_sent_is_answered(service: Service, asked: Any) -> None:
    found = LookAlikes(service).look(asked)
    assert set(found) == {"error"} or set(found) == {"picture", "squares", "tokens", "guesses", "liked", "tree"}
