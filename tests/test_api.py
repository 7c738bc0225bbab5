"""The API as its users call it: through gradio_client and through plain HTTP."""

from __future__ import annotations

import json
import pydoc
import re
import runpy
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr
import httpx
import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError
from PIL import Image
from tiny import ran

from lantern_demo.decoding.methods import METHODS, Method
from lantern_demo.models.registry import REGISTRY
from lantern_demo.prompt_words import USUAL
from lantern_demo.runs.pipeline import Pipeline
from lantern_demo.runs.record import image_hash, parsed
from lantern_demo.settings.knobs import DEFAULT_SEED, KNOBS
from lantern_demo.settings.settings import Settings
from lantern_demo.ui import link, texts
from lantern_demo.ui.form import choices, first_knobs, other_knobs
from lantern_demo.ui.service import Service
from lantern_demo.version import __version__

EXAMPLES = Path(__file__).parent.parent / "examples"
PROMPT = "two red zebra lanterns over a lake"
NUMBERS = [
    "method",
    "decode_seconds",
    "steps",
    "mean_accepted_length",
    "changed",
    "seconds",
    "passes",
    "tokens_a_pass",
    "model",
    "seed",
    "unknown_words",
    "warning",
]
SMALL = {"lantern_k": 10, "tree": "small"}
PARTS = ("prefill_seconds", "draft_seconds", "verify_seconds", "commit_seconds")


@pytest.fixture(scope="module")
def client(server: str) -> Client:
    return Client(server, verbose=False)


def test_comparison_holds_together(client: Client) -> None:
    """Pictures and numbers are the record's."""
    images, record = client.predict(
        PROMPT, methods=list(METHODS), seed=7, **SMALL, api_name="/compare"
    )
    assert list(images) == record["order"] == list(record["methods"]) == list(METHODS)
    assert (
        record["prompt"] == PROMPT
        and record["unknown_words"] == ["zebra"]
        and "failed" not in record
    )
    assert (record["settings"]["seed"], record["settings"]["lantern_k"]) == (7, 10)
    vanilla = record["methods"]["vanilla"]
    for name, stats in record["methods"].items():
        assert stats["tokens"] == len(stats["token_ids"]) == 256
        assert stats["steps"] == len(stats["accepted_lengths"])
        assert stats["decode_seconds"] == pytest.approx(sum(stats[part] for part in PARTS))
        assert stats["tokens_per_second"] == pytest.approx(256 / stats["decode_seconds"])
        assert stats["speedup"] == pytest.approx(
            vanilla["decode_seconds"] / stats["decode_seconds"]
        )
        # The prefill's token is no step's; the last step may overshoot the picture's end.
        assert stats["mean_accepted_length"] * stats["steps"] == pytest.approx(255)
        assert sum(stats["accepted_lengths"]) >= 255
        assert (stats["changed"] == 0) == METHODS[name].lossless and stats["changed"] < 1
        with Image.open(images[name]) as picture:
            assert picture.size == (256, 256) and image_hash(picture) == stats["image_sha256"]
            assert (picture.info["prompt"], picture.info["seed"], picture.info["method"]) == (
                PROMPT,
                "7",
                name,
            )
    assert (vanilla["steps"], vanilla["nodes"]) == (255, 1)


def test_progress_then_result(client: Client) -> None:
    """Methods run in the table's order; answers before the last tell how far it is."""
    *parts, (images, record) = client.submit(
        PROMPT, methods=["lantern++", "vanilla"], seed=8, **SMALL, api_name="/compare"
    )
    assert list(images) == record["order"] == ["vanilla", "lantern++"]
    told = [at for _, part in parts if "progress" in part for at in part["progress"].values()]
    assert told and all(set(at) == {"tokens", "steps", "seconds"} for at in told)


# What is wrong, by what a caller sends to /compare beside a prompt.
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"prompt": ""}, "prompt is empty; say what to draw"),
    ({"prompt": " \n "}, "prompt is empty; say what to draw"),
    ({"prompt": "x" * 201}, "prompt has 201 characters, at most 200 are allowed"),
    ({"prompt": "red " * 40}, "prompt has 40 words and marks, at most 23 are allowed"),
    ({"prompt": 5}, "prompt must be text, got int"),
    *(
        ({"model": other}, "model must be one of tiny, lantern-scenes, llamagen-t2i-256")
        for other in ("nothing", "../tiny", "https://a.example/m", "", "tiny/", {"id": "tiny"})
    ),
    (
        {"methods": ["vanilla", "medusa"]},
        f"method must be one of {', '.join(METHODS)}, got 'medusa'",
    ),
    ({"methods": []}, f"methods must be a list of one or more of {', '.join(METHODS)}, got []"),
    ({"methods": "vanilla"}, "methods must be a list of one or more of"),
    ({"seed": "seven"}, "seed must be a whole number between 0 and 2147483647, got 'seven'"),
    ({"seed": -1}, "seed must be a whole number between 0 and 2147483647, got -1"),
    ({"seed": 10**400}, "seed must be a whole number between 0 and 2147483647"),
    ({"temperature": 3}, "temperature must be a number between 0 and 2, got 3"),
    ({"top_k": 1.5}, "top_k must be a whole number between 0 and 65536, got 1.5"),
    ({"top_p": 0}, "top_p must be a number between 0.05 and 1, got 0"),
    ({"cfg_scale": [3]}, "cfg_scale must be a number between 1 and 20, got [3]"),
    ({"lantern_delta": True}, "lantern_delta must be a number between 0 and 1, got True"),
    ({"lanternpp_lambda": 0.5}, "lanternpp_lambda must be a number between 1 and 40, got 0.5"),
    ({"settings": {"window": 65}}, "window must be a whole number between 0 and 64, got 65"),
    (
        {"settings": {"lanternpp_lambda": 41}},
        "lanternpp_lambda must be a number between 1 and 40, got 41",
    ),
    (
        {"settings": {"temperature": 1}, "temperature": 1},
        "temperature is given twice; it must be a parameter or in settings",
    ),
    *(
        ({"settings": {name: 1}}, f"unknown setting '{name}'; allowed are seed, ")
        for name in ("self", "prompt", "trees", "")
    ),
    *(
        ({"settings": bad}, "settings must be an object of values by name, got ")
        for bad in ([1], [], "window", 5, True)
    ),
    ({"tree": "oak"}, "tree must be one of default, small, paper"),
    ({"draft_nodes": 1000}, "draft_nodes must be a whole number between 2 and 128, got 1000"),
    ({"neighbours": "none"}, "neighbours must be one of decoder, raw, got 'none'"),
    *(({"prompt": long}, "prompt has ") for long in ("lantern " * 131_072, "\U0001f3ee" * 2**18)),
    *(
        (
            {"prompt": f"a {mark} lantern"},
            f"prompt must be text without control characters, got U+{ord(mark):04X}",
        )
        for mark in "\x00\x1b\ud800"
    ),
]
# Calls -> the status of the refusal; 200 where the call was let in and its answer is the sentence.
REFUSED: list[tuple[str, dict[str, Any], int, str]] = [
    *(
        ("call/v2/compare", {"prompt": PROMPT, **changes}, 200, sentence)
        for changes, sentence in WRONG
    ),
    ("call/v2/draw", {"prompt": ""}, 200, "prompt is empty; say what to draw"),
    (
        "call/v2/draw",
        {"prompt": "a lantern", "method": "medusa"},
        200,
        "method must be one of vanilla",
    ),
    ("call/v2/draw", {"prompt": "a lantern", "model": "nothing"}, 200, "model must be one of"),
    (
        "call/v2/draw",
        {"prompt": "a lantern", "seed": -1},
        200,
        "seed must be a whole number between 0 and 2147483647, got -1",
    ),
    (
        "call/v2/draw",
        {"prompt": "a lantern", "settings": {"top_p": 2}},
        200,
        "top_p must be a number between 0.05 and 1, got 2",
    ),
    (
        "call/v2/draw",
        {"prompt": "a lantern", "settings": {"seed": 1}, "seed": 1},
        200,
        "seed is given twice",
    ),
    ("call/v2/compare", {}, 200, "prompt is empty; say what to draw"),
    # the queue is the only way in
    *((path, {"data": [PROMPT]}, 404, "") for path in ("run/compare", "api/compare", "run/draw")),
]


@pytest.mark.parametrize(
    ("path", "body", "status", "sentence"),
    REFUSED,
    ids=lambda value: str(value)[:40] if isinstance(value, (dict, str)) else "",
)
def test_what_is_refused_gets_its_sentence(
    server: str, path: str, body: dict[str, Any], status: int, sentence: str
) -> None:
    response = httpx.post(
        f"{server}gradio_api/{path}",
        content=json.dumps(body),
        headers={"Content-Type": "application/json"},
    )
    assert response.status_code == status
    found = response.json()
    if status == 200:
        stream = httpx.get(
            f"{server}gradio_api/{path.replace('v2/', '')}/{found['event_id']}", timeout=120
        ).text
        event, data = stream.strip().split("\n\n")[-1].split("\n")
        assert event == "event: error"
        found = json.loads(data.removeprefix("data: "))
    told = str(found.get("error") or found.get("detail"))
    assert told.startswith(sentence) and len(told) < 400


def test_a_failing_method_leaves_the_others(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = Settings.rule

    def broken(self: Settings, method: Method) -> Any:
        if method.id == "eagle1":
            raise RuntimeError("no such tree today")
        return rule(self, method)

    monkeypatch.setattr(Settings, "rule", broken)
    images, record = client.predict(
        PROMPT, methods=["vanilla", "eagle1"], **SMALL, api_name="/compare"
    )
    assert list(images) == record["order"] == ["vanilla"]
    assert record["failed"] == {"eagle1": "RuntimeError: no such tree today"}
    with pytest.raises(AppError, match="RuntimeError: no such tree today"):
        client.predict(PROMPT, methods=["eagle1"], **SMALL, api_name="/compare")


def test_a_prompt_is_enough(client: Client) -> None:
    picture, numbers = client.predict("a red zebra lantern", api_name="/draw")
    with Image.open(picture) as image:
        assert image.size == (256, 256) and image.info["method"] == "lantern++"
    assert list(numbers) == NUMBERS
    assert (
        numbers["method"] == "lantern++"
        and numbers["unknown_words"] == ["zebra"]
        and numbers["warning"] is None
    )
    assert (
        numbers["seconds"] > 0 and 0 < numbers["changed"] <= 1 and numbers["seed"] == DEFAULT_SEED
    )
    assert numbers["steps"] * numbers["mean_accepted_length"] == pytest.approx(255)
    assert numbers["passes"] == numbers["steps"]


def test_a_brief_record_has_the_numbers_alone(client: Client) -> None:
    pictures, record = client.predict(
        "a red lantern", methods=["sjd"], details=False, api_name="/compare"
    )
    entry = record["methods"]["sjd"]
    assert set(pictures) == {"sjd"}
    assert entry["steps"] > 0 and entry["mean_accepted_length"] > 0
    assert not any(isinstance(value, list) for value in entry.values())


def test_a_race_that_is_repeated_has_the_range_of_its_speedups(client: Client) -> None:
    pictures, record = client.predict(
        "a red lantern", methods=["vanilla", "sjd"], repeats=3, api_name="/compare"
    )
    assert set(pictures) == {"vanilla", "sjd"}
    told = record["repeats"]["sjd"]
    gain = told["speedup"]
    assert len(told["decode_seconds"]) == 3
    assert told["decode_seconds"][0] == record["methods"]["sjd"]["decode_seconds"]
    assert 0 < gain["lowest"] <= gain["median"] <= gain["highest"]
    once = client.predict("a red lantern", methods=["sjd"], api_name="/compare")[1]
    assert "repeats" not in once
    with pytest.raises(AppError, match="repeats must be a whole number between 1 and 20, got 21"):
        client.predict("a red lantern", methods=["sjd"], repeats=21, api_name="/compare")


def test_settings_come_as_parameters_or_in_one_object(client: Client) -> None:
    drawn = client.predict(
        "a red lantern",
        method="sjd",
        seed=9,
        settings={"window": 3, "temperature": 0.9},
        api_name="/draw",
    )[1]
    assert (drawn["method"], drawn["seed"], drawn["changed"]) == ("sjd", 9, 0)
    asked = {
        "methods": ["sjd"],
        "temperature": 0.9,
        "settings": {"window": 3, "seed": 9, "draft_depth": None},
    }
    record = client.predict("a red lantern", **asked, api_name="/compare")[1]
    assert record["settings"] == Settings(seed=9, temperature=0.9, window=3).as_dict()
    assert (
        record["methods"]["sjd"]["nodes"] == 3
        and record["methods"]["sjd"]["steps"] == drawn["steps"]
    )


@pytest.mark.parametrize(
    ("prompt", "why"),
    [
        ("a cat", "This model draws only lanterns, and the prompt asks for none."),
        ("\U0001f3ee", "This model draws only lanterns, and the prompt asks for none."),
        (
            "five lanterns",
            "This model draws one to four lanterns. Add a colour, kind, place or time.",
        ),
    ],
)
def test_a_prompt_that_the_model_cannot_draw_is_drawn_with_a_warning(
    client: Client, prompt: str, why: str
) -> None:
    warned = f"The picture does not show the prompt. {why} Try: {USUAL}"
    assert client.predict(prompt, method="vanilla", api_name="/draw")[1]["warning"] == warned
    record = client.predict(prompt, methods=["vanilla"], api_name="/compare")[1]
    assert record["warning"] == warned and parsed(record)["warning"] == warned


# -- the same limits at every boundary

OUT_OF_RANGE = {
    "seed": -1,
    "lanternpp_lambda": 100,
    "cfg_scale": 21,
    "lantern_k": 1001,
    "window": 65,
    "draft_nodes": 1,
}
OUT_OF_RANGE |= {"noise": "x"}


def test_form_link_and_python_refuse_a_setting_by_one_sentence(tiny_service: Service) -> None:
    def sentence(call: Callable[[], Any]) -> str:
        with pytest.raises(ValueError) as refused:  # noqa: PT011  # the sentences are compared
            call()
        return str(refused.value)

    with gr.Blocks():
        boxes = (
            first_knobs(tiny_service)
            | other_knobs(tiny_service)
            | {"seed": choices(tiny_service)[2]}
        )
    for name, value in OUT_OF_RANGE.items():
        ways: list[Callable[[], Any]] = [
            partial(Settings, **{name: value}),
            partial(tiny_service.request, "a lantern", None, None, {name: value}),
        ]
        asked = link.read({name: str(value)}, "tiny", tiny_service.offered())
        (told,) = {*(sentence(way) for way in ways), asked.refused[name] if asked else ""}
        assert told.startswith(f"{name} must be ") and f"got {value!r}" in told
        box, limit = boxes[name], KNOBS[name].limit
        if isinstance(box, gr.Slider):
            assert limit is not None and (box.minimum, box.maximum) == (limit.low, limit.high)
        elif isinstance(box, gr.Number):
            assert box.preprocess(value) == value, "Gradio leaves it to that sentence"


def test_models(client: Client) -> None:
    offer = client.predict(api_name="/models")
    assert offer["default_model"] == "tiny"
    assert [model["id"] for model in offer["models"]] == ["tiny", *REGISTRY]
    assert (offer["models"][0]["tokens"], offer["models"][0]["max_prompt"]) == (256, 200)
    assert all(model["max_prompt"] <= 1000 for model in offer["models"])
    assert offer["models"][1]["preset"]["lantern_k"] == 100
    # The server is shared: other tests may have had it load another model.
    assert offer["loaded"][0]["id"] == "tiny" and offer["loaded"][0]["dtype"] == "float32"
    assert [method["id"] for method in offer["methods"]] == list(METHODS)
    assert len(json.dumps(offer)) < 11_000, "short enough for a language model"
    offer = {model["id"]: model for model in offer["models"]}
    assert (
        offer["tiny"]["needs"],
        offer["tiny"]["unmet"],
        offer["tiny"]["unavailable_methods"],
    ) == (None, None, [])
    large = offer["llamagen-t2i-512"]
    assert (
        large["kind"],
        large["preset"]["cfg_scale"],
        large["preset"]["top_k"],
        large["tokens"],
    ) == ("text", 7.5, 1000, 1024)
    assert (
        large["needs"]["memory_bytes"]["processor"] > large["needs"]["memory_bytes"]["gpu"] > 2**32
    )
    assert large["unavailable_methods"] == []
    classes = offer["llamagen-c2i-b-256"]
    assert classes["kind"] == "class"
    assert set(classes["unavailable_methods"]) == {
        method.id for method in METHODS.values() if method.needs_drafter
    }


def test_documentation(server: str) -> None:
    """Only the API is public, and its description has a line for each parameter."""
    endpoints = httpx.get(f"{server}gradio_api/info").json()["named_endpoints"]
    assert set(endpoints) == {"/draw", "/compare", "/models"}
    compare = endpoints["/compare"]
    for_others = {"window"}
    named = [p["parameter_name"] for p in compare["parameters"]]
    assert named == [
        "prompt",
        "model",
        "methods",
        *(name for name in KNOBS if name not in for_others),
        "settings",
        "details",
        "repeats",
    ]
    for endpoint in (compare, endpoints["/draw"]):
        lines = endpoint["description"].splitlines()
        for parameter in endpoint["parameters"]:
            name = parameter["parameter_name"]
            assert any(line.strip().startswith(f"{name}: ") for line in lines), name
        told = lines[lines.index("Args:") + 1 : lines.index("Returns:")]
        assert sum(map(bool, told)) == len(endpoint["parameters"]), "each on one line"
    text = compare["description"]
    assert "window: " in text, "a setting of a method that is no default one"
    assert "(int, 0 to 2147483647; default 7)" in text
    assert "(float, 0 to 2; default 1.0)" in text
    titles = [
        httpx.get(f"{server}{path}").json()["info"]["title"]
        for path in ("openapi.json", "gradio_api/openapi.json")
    ]
    assert (
        titles == [texts.TITLE] * 2
        and httpx.get(f"{server}openapi.json").json()["info"]["version"] == __version__
    )
    assert compare["description"].startswith("Draw a prompt with")
    draw = endpoints["/draw"]
    assert (
        "What there is to draw here: " in draw["description"]
        and "{can_draw}" not in draw["description"]
    )
    asked = httpx.post(f"{server}gradio_api/call/models", json={"data": []}).json()["event_id"]
    assert (
        "event: complete" in httpx.get(f"{server}gradio_api/call/models/{asked}", timeout=60).text
    ), "its older address"


@pytest.mark.parametrize("call", [Pipeline.generate, Pipeline.compare])
def test_help_lists_the_settings(call: Callable[..., Any]) -> None:
    lines = pydoc.plain(pydoc.render_doc(call)).splitlines()
    for name, knob in KNOBS.items():
        (told,) = (line for line in lines if line.strip().startswith(f"{name}: "))
        assert told.endswith(
            f"default {'as the draft tree has it' if knob.of_tree else knob.default})"
        )
        assert knob.limit is None or f"{knob.limit.low:g} to " in told
        assert all(choice in told for choice in knob.choices)


def test_example_client(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = EXAMPLES / "api_client.py"
    options = f"{server} --seed 3 --methods vanilla eagle2 --out {tmp_path / 'out'}".split()
    monkeypatch.setattr(sys, "argv", [str(script), "--prompt", PROMPT, *options])
    runpy.run_path(str(script), run_name="__main__")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "vanilla.png",
        "eagle2.png",
        "record.json",
    }
    out = capsys.readouterr().out
    assert "eagle2" in out and "zebra" in out


def check_for(*programs: str) -> None:
    """Skip the test where a program is missing, or Node is older than `fetch`."""
    for program in programs:
        has_fetch = ("-e", "process.exit(typeof fetch === 'function' ? 0 : 1)")
        if shutil.which(program) is None or (
            program == "node" and ran(program, *has_fetch).returncode
        ):
            pytest.skip(f"{program} is not installed, or too old")


def test_curl_example(server: str, tmp_path: Path) -> None:
    check_for("curl", "bash")
    command = ["bash", EXAMPLES / "api_curl.sh", server]
    done = ran(*command, 'a "red" lantern \\', "eagle2", "3", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    _, numbers = json.loads(done.stdout)
    assert (numbers["method"], numbers["seed"]) == ("eagle2", 3)
    with Image.open(tmp_path / "picture.png") as picture:
        assert (picture.info["prompt"], picture.info["seed"]) == ('a "red" lantern \\', "3")
    bad = ran(*command, "a lantern", "medusa", cwd=tmp_path)
    assert bad.returncode != 0 and "method must be one of vanilla" in bad.stderr


def test_javascript_example(server: str) -> None:
    check_for("node")
    command = ["node", EXAMPLES / "api_client.mjs", server, PROMPT]
    done = ran(*command, "vanilla,eagle1", "3")
    assert done.returncode == 0, done.stderr
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == ["vanilla", "eagle1"]
    assert "1.00x" in done.stdout and ".png" in done.stdout
    told = done.stderr.splitlines()
    assert told and all(re.fullmatch(r"(vanilla|eagle1): \d+ tokens", line) for line in told), told
    bad = ran(*command, "medusa")
    assert bad.returncode != 0 and "method must be one of vanilla" in bad.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "program"),
    [("endpoints.py", sys.executable), ("endpoints.sh", "bash"), ("endpoints.mjs", "node")],
)
def test_every_endpoint_in_every_language(server: str, name: str, program: str) -> None:
    check_for(program, *["curl"] * (program == "bash"))
    done = ran(program, EXAMPLES / name, server)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    if program == "bash":
        offer, (_, numbers), (_, compared) = (json.loads(line) for line in lines)
        assert offer[0]["default_model"] == "tiny" and numbers["method"] == "lantern++"
        assert compared["order"] == ["vanilla", "eagle1"]
    else:
        assert [line.split(":")[0] for line in lines] == ["models", "draw", "compare", "compare"]
        assert "lantern-scenes" in lines[0] and ".png" in lines[1] and lines[2].endswith("1.00x")


@pytest.mark.slow
def test_a_model_that_is_found_out_while_the_page_is_there_ends_the_program(tmp_path: Path) -> None:
    done = ran(sys.executable, EXAMPLES.parent / "app.py", "--model", tmp_path)
    assert (
        done.returncode == 2
        and "is not the config of a model folder" in done.stderr
        and "Traceback" not in done.stderr
    )
