"""Arbitrary values, as strangers send them: each is right, or refused by a short sentence.

FUZZ_CASES=3000 python -m pytest tests/test_fuzz.py tries thousands of cases.
"""

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import httpx
import pytest
from test_guess_pictures import step

from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.trees import static_tree
from lantern_demo.models.registry import REGISTRY
from lantern_demo.runs.race import Request
from lantern_demo.settings.knobs import KNOBS
from lantern_demo.settings.named_trees import DEFAULTS, TREES
from lantern_demo.settings.settings import Settings, planned
from lantern_demo.ui import link
from lantern_demo.ui.guess_pictures import looker
from lantern_demo.ui.service import Service

pytest.importorskip("hypothesis", reason="hypothesis of requirements-test.txt is not installed")
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

CASES = int(os.environ.get("FUZZ_CASES", "0"))


def fuzz(usual: int, share: float = 1.0) -> settings:
    """Always the same cases: `usual` ones, or a `share` of FUZZ_CASES where that is set."""
    checks = HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture
    return settings(
        max_examples=round(CASES * share) or usual,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=checks,
    )


ENDS = [0, 1, -1, 2**31, 2**63, -(2**63), 10**400]
ENDS += map(float, ("1e308", "-1e308", "5e-324", "nan", "inf", "-inf"))
WHOLE = st.integers() | st.integers(-(10**4000), 10**4000)
NUMBERS = WHOLE | st.floats() | st.sampled_from(ENDS)
ODD = ["", " \n\t", "\x00", "\ud800", "\u202e", "NaN", "x" * 3000, "\U0001f3ee" * 50]
ODD += ["<img src=x onerror=alert(1)>", "{{7*7}}", "${7*7}", "%s%n", "../../etc/passwd"]
INVISIBLE = st.characters(categories=["Cc", "Cf", "Cs", "Co", "Mn", "Zl", "Zp"])
TEXTS = st.text(max_size=40) | st.text(INVISIBLE, max_size=20) | st.sampled_from(ODD)
FILES = st.sampled_from(["/etc/passwd", "../x", ""]).map(
    lambda path: {"path": path, "meta": {"_type": "gradio.FileData"}}
)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS | FILES,
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=5)
    ),
    max_leaves=12,
)
DEEP = st.integers(1, 100).map(lambda depth: json.loads('{"a":[' * depth + "0" + "]}" * depth))
BAD = JSON | DEEP

# Trees: paths without a parent or given twice, a million nodes, too deep, other digits and signs.
_WORDS = st.lists(st.text("0123456789", min_size=1, max_size=12), max_size=12)
NO_TREES = ["0 0", "00", "0 00 0", "\u0660", "0\u00a01", "0,1", "-1", "paper ", "0\n1", "[[0]]"]
NO_TREES += ["0 " * 1_000_000, " ".join("0" * n for n in range(1, 300)), "0" * 70_000]


def whole(words: list[str]) -> str:
    """A tree of paths with all their parents."""
    return " ".join(sorted({w[:n] for w in words for n in range(1, len(w) + 1)}, key=len))


TREE_TEXTS = _WORDS.map(" ".join) | _WORDS.map(whole) | st.sampled_from([*NO_TREES, *TREES]) | TEXTS

# Per parameter, what is often right, so that cases get past the first check.
GOOD: dict[str, st.SearchStrategy[Any]] = {
    "prompt": st.sampled_from(["a red lantern", "two blue lanterns", "\u706f\u7c60", "<b>"]),
    "methods": st.none() | st.lists(st.sampled_from(list(METHODS)), min_size=1, max_size=7),
}
for name, knob in KNOBS.items():
    if knob.limit is None:
        GOOD[name] = TREE_TEXTS if name == "tree" else st.sampled_from(knob.choices)
    elif knob.limit.whole:
        GOOD[name] = st.integers(int(knob.limit.low), int(knob.limit.high))
    else:
        GOOD[name] = st.floats(knob.limit.low, knob.limit.high)
GOOD["keep"] = st.integers(0, 15).map(lambda rows: [7] * (16 * rows))
NAMED = re.compile("|".join(["prompt", "methods?", "keep", "tree", "unknown setting", *KNOBS]))


def attempt(call: Callable[[], Any]) -> tuple[Any, str]:
    """What a call returns, and the sentence of its refusal; all else that it raises is a fault."""
    try:
        return call(), ""
    except ValueError as error:
        sentence = str(error)
    assert sentence and len(sentence) < 700 and "\n" not in sentence and "Traceback" not in sentence
    return None, sentence


@st.composite
def requests(draw: Any) -> dict[str, Any]:
    """Values of a comparison: mostly right ones, some of any kind."""
    chosen = draw(st.lists(st.sampled_from(["methods", "keep", *KNOBS]), unique=True, max_size=6))
    wrong = set(draw(st.lists(st.sampled_from(["prompt", *chosen]), max_size=2)))
    return {name: draw(BAD if name in wrong else GOOD[name]) for name in ["prompt", *chosen]}


@pytest.mark.slow
@fuzz(120)
@given(requests())
def test_requests(tiny_service: Service, values: dict[str, Any]) -> None:
    given_ = dict(values)
    prompt, methods = given_.pop("prompt"), given_.pop("methods", None)
    keep = given_.pop("keep", None)
    request, sentence = attempt(lambda: tiny_service.request(prompt, methods, given_, keep=keep))
    if sentence:
        assert NAMED.match(sentence), "a sentence starts with what it is about"
        return
    assert isinstance(request, Request) and request.model == "tiny"
    assert len(request.keep) % 16 == 0 and len(request.keep) < 256
    assert request.prompt == " ".join(prompt.split()) and 0 < len(request.prompt) <= 200
    request.prompt.encode()
    assert set(request.methods) <= set(METHODS) and len(request.methods) <= len(METHODS)
    settings = next(iter(request.runs.values())).settings
    for name, knob in KNOBS.items():
        value = getattr(settings, name)
        assert knob.limit is None or value is None or knob.limit.low <= value <= knob.limit.high
    for method in METHODS.values():
        assert planned(method, settings).drafts.nodes <= 128
    settings.sampling()


@fuzz(300)
@given(TREE_TEXTS)
def test_trees(text: str) -> None:
    settings, sentence = attempt(lambda: Settings(tree=text))
    if sentence:
        assert sentence.startswith("tree must be one of")
        return
    tree = static_tree(settings.static_paths(DEFAULTS["cpu"].static))
    assert tree.size <= 128 and tree.depth <= 9
    assert all(int(parent) < node for node, parent in enumerate(tree.parents) if node), "no cycles"


LINK_NAMES = st.sampled_from(["prompt", "methods", "model", *KNOBS])


@fuzz(200)
@given(st.dictionaries(LINK_NAMES | TEXTS, TEXTS, max_size=6))
def test_links(parameters: dict[str, str]) -> None:
    found, sentence = attempt(lambda: link.read(parameters, REGISTRY["lantern-scenes"]))
    assert sentence or found is None or isinstance(found.settings, Settings)


CHANGED_STEPS = st.dictionaries(st.sampled_from(list(step())), JSON, max_size=6)


@fuzz(60)
@given(asked=JSON | CHANGED_STEPS.map(lambda changes: step(**changes)))
def test_whatever_step_is_sent_is_answered(tiny_service: Service, asked: Any) -> None:
    found = looker(tiny_service)(asked)
    assert set(found) in ({"error"}, {"picture", "tree"})


SECONDS = 90  # a request may take at most, on a machine that is busy with other tests; none hangs


@pytest.fixture(scope="module")
def http(server: str) -> Iterator[httpx.Client]:
    # after an error the server hangs up, so that the next request needs another connection
    alone = {"Connection": "close"}
    with httpx.Client(base_url=server, timeout=SECONDS, headers=alone) as client:
        yield client


@pytest.fixture(scope="module")
def counts(http: httpx.Client) -> dict[int, int]:
    """The page's own events but those that draw: their number and how many values they take."""
    drawing = ("draw", "compare")
    events = http.get("config").json()["dependencies"]
    private = [one for one in events if one["backend_fn"] and one["api_name"] not in drawing]
    return {event["id"]: len(event["inputs"]) for event in private}


def body_of(value: Any) -> bytes:
    """JSON as a stranger may write it: also with NaN and half surrogates."""
    return json.dumps(value).encode("utf-8", "surrogatepass")


def post(http: httpx.Client, path: str, content: bytes) -> httpx.Response:
    response = http.post(path, content=content, headers={"Content-Type": "application/json"})
    assert "Traceback" not in response.text and "/site-packages/" not in response.text
    return response


PLACES = ["queue/join", "cancel", "reset", "component_server", "upload", "stream/x", "run/compare"]
PLACES += ["call/compare", "call/v2/compare", "call/draw", "call/v2/model", "call/nothing"]
DEEPER = st.sampled_from([b"[" * 50_000, b'{"a":' * 50_000])
BODIES = JSON.map(body_of) | st.binary(max_size=60) | DEEPER


@fuzz(100, 0.25)
@given(st.sampled_from(PLACES), BODIES)
def test_no_body_breaks_the_server(http: httpx.Client, place: str, body: bytes) -> None:
    post(http, f"gradio_api/{place}", body)


@pytest.mark.slow
@fuzz(30, 0.15)
@given(data=st.data())
def test_events_by_hand(http: httpx.Client, counts: dict[int, int], data: st.DataObject) -> None:
    """What is private is only hidden: anybody can post to the page's own events, with anything."""
    index = data.draw(st.sampled_from([*counts, -1, 10**6, None]))
    count = counts.get(index, 1) if data.draw(st.booleans()) else data.draw(st.integers(0, 4))
    values = [data.draw(BAD) for _ in range(count)]
    body = {"data": values, "fn_index": index, "session_hash": "fuzz", "trigger_id": None}
    body["event_data"] = data.draw(JSON)
    response = post(http, "gradio_api/queue/join", body_of(body))
    if response.status_code == 200:
        event_id = response.json()["event_id"]
        with http.stream("GET", "gradio_api/queue/data", params={"session_hash": "fuzz"}) as stream:
            for line in stream.iter_lines():
                assert "Traceback" not in line
                if "process_completed" in line and event_id in line:
                    break


def test_more_than_anything_needs_is_not_read(http: httpx.Client) -> None:
    big = b'{"prompt": "' + b"x" * (9 * 2**20) + b'"}'
    response = post(http, "gradio_api/call/v2/compare", big)
    assert response.status_code == 413 and "too large" in response.text
    pieces = (big[i : i + 65536] for i in range(0, len(big), 65536))  # without a length
    with suppress(httpx.WriteError):  # the server has hung up, which says the same
        assert http.post("gradio_api/call/v2/compare", content=pieces).status_code == 413
    files = {"files": ("run.json", b"x" * (5 * 2**20))}
    assert http.post("gradio_api/upload", files=files).status_code == 413


def test_the_server_is_well_after_all_that(http: httpx.Client) -> None:
    assert http.get("healthz").json()["ready"]
    body = body_of({"prompt": "a red lantern", "methods": ["vanilla"]})
    event_id = post(http, "gradio_api/call/v2/compare", body).json()["event_id"]
    stream = http.get(f"gradio_api/call/compare/{event_id}").text.strip().split("\n\n")[-1]
    assert stream.startswith("event: complete") and '"order": ["vanilla"]' in stream
