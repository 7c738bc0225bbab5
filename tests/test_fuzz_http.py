"""The server against strangers' requests: never a 500, never a traceback, always an end, and a sentence that names what is wrong.

The cases come from what each endpoint says of itself at /gradio_api/info. How many: see `hostile`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hostile import BAD, GOOD, JSON, TEXTS, fuzz
from hypothesis import assume, given
from hypothesis import strategies as st

SECONDS = 90  # a request may take at most, on a machine that is busy with other tests; none hangs
PROMPT = "a red lantern"


@pytest.fixture(scope="module")
def http(server: str) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server, timeout=SECONDS) as client:
        yield client


@pytest.fixture(scope="module")
def info(http: httpx.Client) -> dict[str, Any]:
    return http.get("gradio_api/info").json()["named_endpoints"]


@pytest.fixture(scope="module")
def counts(http: httpx.Client) -> dict[int, int]:
    """The page's own events but those that would draw with it: their number and how many values they take."""
    drawing = ("draw", "compare", "generate")
    events = http.get("config").json()["dependencies"]
    return {event["id"]: len(event["inputs"]) for event in events if event["backend_fn"] and event["api_name"] not in drawing}


def body_of(value: Any) -> bytes:
    """JSON as a stranger may write it: also with NaN and half surrogates, which Python's parser takes."""
    return json.dumps(value).encode("utf-8", "surrogatepass")


def post(http: httpx.Client, path: str, content: bytes, kind: str = "application/json") -> httpx.Response:
    response = http.post(path, content=content, headers={"Content-Type": kind})
    assert response.status_code < 500, f"{path} answered {response.status_code}: {response.text[:300]}"
    assert "Traceback" not in response.text and "/site-packages/" not in response.text
    return response


def outcome(http: httpx.Client, name: str, event_id: str) -> tuple[str, Any]:
    """The last event of a call's stream, and its data."""
    stream = http.get(f"gradio_api/call/{name}/{event_id}")
    assert stream.status_code == 200 and "Traceback" not in stream.text
    event, data = stream.text.strip().split("\n\n")[-1].split("\n", 1)
    return event.removeprefix("event: "), json.loads(data.removeprefix("data: "))


def refused(response: httpx.Response) -> str:
    """The sentence of a refusal."""
    found = response.json()
    return str(found.get("error") or found.get("detail"))


@pytest.mark.slow
@fuzz(60, 0.2)
@given(data=st.data())
def test_a_wrong_value_is_refused_by_name(http: httpx.Client, info: dict[str, Any], data: st.DataObject) -> None:
    """One wrong value at a time, for every parameter that an endpoint tells of."""
    parameters = [p["parameter_name"] for p in info["/compare"]["parameters"]]
    wrong = data.draw(st.sampled_from(parameters))
    value = data.draw(BAD)
    body = {"prompt": PROMPT, "tree": "small", "methods": ["vanilla"], wrong: value}
    assume(not allowed(wrong, value))
    response = post(http, "gradio_api/call/v2/compare", body_of(body))
    if response.status_code != 200:
        assert refused(response) != "None"
        return
    event, found = outcome(http, "compare", response.json()["event_id"])
    assert event == "error" and found["error"], "an empty error tells nothing"
    assert found["error"].startswith((wrong, "prompt", "method", "draft_")) and len(found["error"]) < 700


def allowed(name: str, value: Any) -> bool:
    """Whether a value could start a run, which is not what is tried here."""
    if value is None:
        return name != "prompt"
    if name == "prompt":
        return isinstance(value, str)
    return isinstance(value, (int, float)) or (isinstance(value, str) and value in ("small", "set", "raw")) or value == "tiny"


@fuzz(60, 0.1)
@given(st.sampled_from(["draw", "compare", "models"]), st.dictionaries(TEXTS, JSON, min_size=1, max_size=3))
def test_unknown_parameters_are_refused_by_name(
    http: httpx.Client, info: dict[str, Any], name: str, extra: dict[str, Any]
) -> None:
    known = {p["parameter_name"] for p in info[f"/{name}"]["parameters"]}
    strange = [key for key in extra if key not in known and key != "oauth_token"]
    assume(strange)
    response = post(http, f"gradio_api/call/v2/{name}", body_of({"prompt": PROMPT} | extra if name != "models" else extra))
    assert response.status_code == 400
    assert "is not a valid key-word argument" in refused(response)


@fuzz(60, 0.1)
@given(st.sampled_from(["draw", "compare", "models"]), st.lists(JSON, max_size=30))
def test_positional_calls_of_the_wrong_length_are_refused(
    http: httpx.Client, info: dict[str, Any], name: str, values: list[Any]
) -> None:
    parameters = info[f"/{name}"]["parameters"]
    assume(len(values) != len(parameters))
    response = post(http, f"gradio_api/call/{name}", body_of({"data": values}))
    assert response.status_code == 400
    sentence = refused(response)
    assert sentence.startswith(f"/{name} takes {len(parameters)} values" if parameters else "This event takes 0 values")
    assert f"got {len(values)}" in sentence
    assert all(p["parameter_name"] in sentence for p in parameters)


PLACES = [
    "call/compare",
    "call/v2/compare",
    "call/draw",
    "call/v2/models",
    "call/nothing",
    "call/v2/nothing",
    "queue/join",
    "run/compare",
    "api/draw",
    "run/nothing",
    "cancel",
    "reset",
    "component_server",
    "upload",
    "stream/x",
    "stream/x/close",
]


@fuzz(100, 0.25)
@given(
    st.sampled_from(PLACES),
    st.one_of(JSON.map(body_of), st.binary(max_size=60), st.sampled_from([b"[" * 50_000, b'{"a":' * 50_000])),
)
def test_no_body_breaks_the_server(http: httpx.Client, place: str, body: bytes) -> None:
    post(http, f"gradio_api/{place}", body)


@pytest.mark.slow
@fuzz(50, 0.15)
@given(data=st.data())
def test_events_of_the_page_called_by_hand(http: httpx.Client, counts: dict[int, int], data: st.DataObject) -> None:
    """What is private is only hidden: anybody can post to the page's own events, with anything."""
    index = data.draw(st.sampled_from([*counts, -1, 10**6, None]))
    values = (
        [data.draw(BAD) for _ in range(counts.get(index, 1))]
        if data.draw(st.booleans())
        else data.draw(st.lists(JSON, max_size=4))
    )
    body = {"data": values, "fn_index": index, "session_hash": "fuzz", "event_data": data.draw(JSON), "trigger_id": None}
    response = post(http, "gradio_api/queue/join", body_of(body))
    if response.status_code == 200:
        event_id = response.json()["event_id"]
        with http.stream("GET", "gradio_api/queue/data", params={"session_hash": "fuzz"}) as stream:
            for line in stream.iter_lines():
                assert "Traceback" not in line
                if "process_completed" in line and event_id in line:
                    break


def test_a_megabyte_of_prompt(http: httpx.Client) -> None:
    for prompt in ("lantern " * 131_072, "\x00" * 2**20, "\U0001f3ee" * 2**18):
        event_id = post(http, "gradio_api/call/v2/draw", body_of({"prompt": prompt})).json()["event_id"]
        event, found = outcome(http, "draw", event_id)
        assert event == "error" and found["error"].startswith("prompt has ") and len(found["error"]) < 200


def test_control_characters_are_refused_by_name(http: httpx.Client) -> None:
    for prompt, code in (("a \x00 lantern", "U+0000"), ("a lantern\x1b[31m", "U+001B"), ("\ud800 lantern", "U+D800")):
        event_id = post(http, "gradio_api/call/v2/draw", body_of({"prompt": prompt})).json()["event_id"]
        assert outcome(http, "draw", event_id)[1]["error"] == f"prompt must be text without control characters, got {code}"


def test_more_than_anything_needs_is_not_read(http: httpx.Client) -> None:
    big = b'{"prompt": "' + b"x" * (9 * 2**20) + b'"}'
    response = post(http, "gradio_api/call/v2/compare", big)
    assert response.status_code == 413 and refused(response) == "The request is too large; at most 8 MB are read."
    pieces = (big[i : i + 65536] for i in range(0, len(big), 65536))  # without a length
    try:
        response = http.post("gradio_api/call/v2/compare", content=pieces)
        assert response.status_code == 413
    except httpx.WriteError:
        pass  # the server has hung up, which says the same
    files = {"files": ("run.json", b"x" * (5 * 2**20))}
    assert http.post("gradio_api/upload", files=files).status_code == 413


def test_the_server_is_well_after_all_that(http: httpx.Client) -> None:
    assert http.get("healthz").json()["ready"]
    body = body_of({"prompt": PROMPT, "tree": "small", "methods": ["vanilla"]})
    event_id = post(http, "gradio_api/call/v2/compare", body).json()["event_id"]
    event, (_, record) = outcome(http, "compare", event_id)
    assert event == "complete" and record["order"] == ["vanilla"]


def test_every_parameter_is_fuzzed(info: dict[str, Any]) -> None:
    named = {p["parameter_name"] for p in info["/compare"]["parameters"]}
    assert named == set(GOOD)
