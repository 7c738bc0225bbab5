"""The API as its users call it: through gradio_client and through plain HTTP."""

from __future__ import annotations

import json
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError
from PIL import Image
from tiny import same_picture

from lantern_demo.decoding.methods import METHODS, Method
from lantern_demo.models.registry import REGISTRY
from lantern_demo.runs.record import image_hash
from lantern_demo.settings.settings import Settings

PROMPT = "two red zebra lanterns over a lake"
FIVE = ("seconds", "speedup", "passes", "tokens_a_pass", "changed")
KNOBS = {"lantern_k": 10, "tree": "small"}
PARTS = ("prefill_seconds", "draft_seconds", "verify_seconds", "commit_seconds")


@pytest.fixture(scope="module")
def client(server: str) -> Client:
    return Client(server, verbose=False)


@pytest.fixture(scope="module")
def comparison(client: Client) -> tuple[dict[str, str], dict[str, Any]]:
    """All methods, once for all tests: pictures by method and the record."""
    return client.predict(PROMPT, seed=7, **KNOBS, api_name="/compare")


def post(server: str, name: str, body: dict[str, Any], version: str = "v2/") -> httpx.Response:
    return httpx.post(f"{server}gradio_api/call/{version}{name}", json=body, timeout=60)


def answer(server: str, name: str, body: dict[str, Any], version: str = "v2/") -> tuple[str, Any]:
    """Call an endpoint by plain HTTP -> the last event of its stream and that event's data."""
    event_id = post(server, name, body, version).raise_for_status().json()["event_id"]
    stream = httpx.get(f"{server}gradio_api/call/{name}/{event_id}", timeout=120).text
    event, data = stream.strip().split("\n\n")[-1].split("\n")
    return event.removeprefix("event: "), json.loads(data.removeprefix("data: "))


def test_comparison_holds_together(comparison: tuple[dict[str, str], dict[str, Any]]) -> None:
    images, record = comparison
    assert list(images) == record["order"] == list(record["methods"]) == [m.id for m in METHODS.values() if m.default]
    assert record["prompt"] == PROMPT
    assert record["unknown_words"] == ["zebra"]
    assert record["settings"]["seed"] == 7
    assert record["settings"]["lantern_k"] == 10
    assert "failed" not in record
    vanilla = record["methods"]["vanilla"]
    for name, stats in record["methods"].items():
        assert stats["tokens"] == len(stats["token_ids"]) == 256
        assert stats["steps"] == len(stats["accepted_lengths"])
        assert stats["decode_seconds"] == pytest.approx(sum(stats[part] for part in PARTS))
        assert stats["tokens_per_second"] == pytest.approx(256 / stats["decode_seconds"])
        assert stats["speedup"] == pytest.approx(vanilla["decode_seconds"] / stats["decode_seconds"])
        # The prefill's token is no step's; the last step may overshoot the picture's end.
        assert stats["mean_accepted_length"] * stats["steps"] == pytest.approx(255)
        assert sum(stats["accepted_lengths"]) >= 255
        assert (stats["changed"] == 0) == METHODS[name].lossless and stats["changed"] < 1
    assert vanilla["steps"] == 255
    assert vanilla["nodes"] == 1


def test_pictures_are_those_of_the_record(comparison: tuple[dict[str, str], dict[str, Any]]) -> None:
    images, record = comparison
    for name, path in images.items():
        with Image.open(path) as picture:
            assert picture.size == (256, 256)
            assert image_hash(picture) == record["methods"][name]["image_sha256"]
            assert (picture.info["prompt"], picture.info["seed"], picture.info["method"]) == (PROMPT, "7", name)


def test_same_seed_same_picture(client: Client, comparison: tuple[dict[str, str], dict[str, Any]]) -> None:
    wanted = comparison[1]["methods"]["lantern++"]
    images, record = client.predict(PROMPT, methods=["lantern++"], seed=7, **KNOBS, api_name="/compare")
    path, again = images["lantern++"], record["methods"]["lantern++"]
    assert again["token_ids"] == wanted["token_ids"]
    with Image.open(path) as picture, Image.open(comparison[0]["lantern++"]) as before:
        assert same_picture(picture, before)
    assert "speedup" not in again  # there was no vanilla run
    assert Path(path).suffix == ".png"


def test_progress_then_result(client: Client) -> None:
    """Methods run in the table's order; answers before the last tell how far it is."""
    *parts, (images, record) = client.submit(PROMPT, methods=["lantern++", "vanilla"], seed=8, **KNOBS, api_name="/compare")
    assert list(images) == record["order"] == ["vanilla", "lantern++"]
    told = [at for _, part in parts if "progress" in part for at in part["progress"].values()]
    assert told and all(set(at) == {"tokens", "steps", "seconds"} for at in told)


FILE = {"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}
# What is wrong, by what a caller sends to /compare beside a prompt.
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"prompt": ""}, "prompt is empty; say what to draw"),
    ({"prompt": " \n "}, "prompt is empty; say what to draw"),
    ({"prompt": "x" * 201}, "prompt has 201 characters, at most 200 are allowed"),
    ({"prompt": "red " * 40}, "prompt has 40 words and marks, at most 23 are allowed"),
    ({"prompt": 5}, "prompt must be text, got int"),
    ({"model": "nothing"}, "model must be one of tiny, lantern-scenes, llamagen-t2i-256"),
    ({"methods": ["vanilla", "medusa"]}, f"method must be one of {', '.join(METHODS)}, got 'medusa'"),
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
    ({"lanternpp_lambda": 0.5}, "lanternpp_lambda must be a number between 1 and 100, got 0.5"),
    ({"tree": "oak"}, "tree must be one of fit, small, paper"),
    ({"draft_nodes": 1000}, "draft_nodes must be a whole number between 2 and 128, got 1000"),
    ({"neighbours": "none"}, "neighbours must be one of decoder, raw, got 'none'"),
    ({"neighbours": "far"}, "neighbours must be one of decoder, raw, got 'far'"),
    ({"methods": ["vanilla", "vanilla2"]}, "method must be one of"),
    *(
        ({"model": model}, "model must be one of tiny, lantern-scenes")
        for model in ("../tiny", "https://a.example/m", "", "tiny/")
    ),
    ({"model": {"id": "tiny"}}, "model must be one of tiny, lantern-scenes"),
    ({"prompt": "lantern " * 131_072}, "prompt has "),
    ({"prompt": "\U0001f3ee" * 2**18}, "prompt has "),
    *(
        ({"prompt": f"a {mark} lantern"}, f"prompt must be text without control characters, got U+{ord(mark):04X}")
        for mark in "\x00\x1b\ud800"
    ),
]
# Calls -> the status of the refusal; 200 where the call was let in and its answer is the sentence.
REFUSED: list[tuple[str, dict[str, Any], int, str]] = [
    *(("call/v2/compare", {"prompt": PROMPT, **changes}, 200, sentence) for changes, sentence in WRONG),
    ("call/v2/draw", {"prompt": ""}, 200, "prompt is empty; say what to draw"),
    ("call/v2/draw", {"prompt": "a lantern", "method": "medusa"}, 200, "method must be one of vanilla"),
    ("call/v2/draw", {"prompt": "a lantern", "model": "nothing"}, 200, "model must be one of"),
    (
        "call/v2/draw",
        {"prompt": "a lantern", "with_vanilla": "perhaps"},
        200,
        "with_vanilla must be true or false, got 'perhaps'",
    ),
    *(
        ("call/v2/draw", {"prompt": FILE | {"meta": meta}}, 400, "prompt must not be a file")
        for meta in (None, 5, [], {}, FILE["meta"])
    ),
    ("call/v2/compare", {}, 400, "No value provided for required argument: prompt"),
    ("call/v2/compare", {"prompt": PROMPT, "sede": 3}, 400, "Parameter `sede` is not a valid key-word argument."),
    ("call/v2/models", {"a": 1}, 400, "Parameter `a` is not a valid key-word argument."),
    ("call/draw", {"data": ["a lantern"]}, 400, "/draw takes 5 values in this order: prompt, model, method, seed, with_vanilla"),
    ("call/models", {"data": [1]}, 400, "This event takes 0 values"),
    ("call/v2/paint", {}, 404, "there is no endpoint 'paint'; there are /draw, /compare and /models"),
    ("call/paint", {"data": []}, 404, "there is no endpoint 'paint'"),
    *((f"call/v2/{name}", {}, 404, "there is no endpoint") for name in ("again", "explore", "load_record", "choose", "arrive")),
    *((path, {"data": [PROMPT]}, 404, "") for path in ("run/compare", "api/compare", "run/draw")),  # the queue is the only way in
]


@pytest.mark.parametrize(
    ("path", "body", "status", "sentence"), REFUSED, ids=lambda value: str(value)[:40] if isinstance(value, (dict, str)) else ""
)
def test_what_is_refused_gets_its_sentence(server: str, path: str, body: dict[str, Any], status: int, sentence: str) -> None:
    response = httpx.post(f"{server}gradio_api/{path}", content=json.dumps(body), headers={"Content-Type": "application/json"})
    assert response.status_code == status
    found = response.json()
    if status == 200:
        stream = httpx.get(f"{server}gradio_api/{path.replace('v2/', '')}/{found['event_id']}", timeout=120).text
        event, data = stream.strip().split("\n\n")[-1].split("\n")
        assert event == "event: error"
        found = json.loads(data.removeprefix("data: "))
    told = str(found.get("error") or found.get("detail"))
    assert told.startswith(sentence) and len(told) < 400


def test_a_failing_method_leaves_the_others(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    rule = Settings.rule

    def broken(self: Settings, method: Method) -> Any:
        if method.id == "eagle1":
            raise RuntimeError("no such tree today")
        return rule(self, method)

    monkeypatch.setattr(Settings, "rule", broken)
    images, record = client.predict(PROMPT, methods=["vanilla", "eagle1"], **KNOBS, api_name="/compare")
    assert list(images) == record["order"] == ["vanilla"]
    assert record["failed"] == {"eagle1": "RuntimeError: no such tree today"}
    with pytest.raises(AppError, match="RuntimeError: no such tree today"):
        client.predict(PROMPT, methods=["eagle1"], **KNOBS, api_name="/compare")


def test_a_prompt_is_enough(client: Client) -> None:
    picture, numbers = client.predict("a red zebra lantern", api_name="/draw")
    with Image.open(picture) as image:
        assert image.size == (256, 256) and image.info["method"] == "lantern++"
    assert tuple(numbers)[:5] == FIVE
    assert numbers["method"] == "lantern++" and numbers["unknown_words"] == ["zebra"]
    assert numbers["seconds"] > 0 and 0 < numbers["changed"] <= 1 and numbers["speedup"] is None
    assert numbers["passes"] * numbers["tokens_a_pass"] == pytest.approx(255)


def test_with_vanilla_the_speedup_is_known(client: Client) -> None:
    picture, numbers = client.predict("a red lantern", method="eagle1", seed=9, with_vanilla=True, api_name="/draw")
    assert numbers["speedup"] > 0 and numbers["changed"] == 0 and (numbers["method"], numbers["seed"]) == ("eagle1", 9)
    with Image.open(picture) as image:
        assert image.info["method"] == "eagle1"


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
    assert (offer["tiny"]["needs"], offer["tiny"]["unmet"], offer["tiny"]["unavailable_methods"]) == (None, None, [])
    large = offer["llamagen-t2i-512"]
    assert (large["kind"], large["preset"]["cfg_scale"], large["preset"]["top_k"], large["tokens"]) == ("text", 7.5, 1000, 1024)
    assert large["needs"]["memory_bytes"]["float32"] > large["needs"]["memory_bytes"]["bfloat16"] > 2**32
    assert large["unavailable_methods"] == []
    classes = offer["llamagen-c2i-b-256"]
    assert classes["kind"] == "class"
    assert set(classes["unavailable_methods"]) == {method.id for method in METHODS.values() if method.needs_drafter}


def test_plain_http(server: str) -> None:
    event, (images, record) = answer(server, "compare", {"prompt": PROMPT, "methods": ["vanilla"], "seed": 3, **KNOBS})
    assert event == "complete"
    assert record["methods"]["vanilla"]["speedup"] == 1
    assert httpx.get(images["vanilla"]["url"]).content.startswith(b"\x89PNG")
    assert answer(server, "models", {"data": []}, version="")[1][0]["default_model"] == "tiny"


def test_documentation(server: str) -> None:
    """Only the API is public; each parameter but the prompt has a default, and all have their sentence."""
    endpoints = httpx.get(f"{server}gradio_api/info").json()["named_endpoints"]
    assert set(endpoints) == {"/draw", "/compare", "/models"}
    compare = endpoints["/compare"]
    assert [p["parameter_name"] for p in compare["parameters"] if not p["parameter_has_default"]] == ["prompt"]
    assert all(p["python_type"]["description"] for at in ("/compare", "/draw") for p in endpoints[at]["parameters"])
    assert set(Settings().as_dict()) <= {p["parameter_name"] for p in compare["parameters"]}
    assert compare["description"].startswith("Draw a prompt with")
    draw = endpoints["/draw"]
    assert "What there is to draw here: " in draw["description"] and "{can_draw}" not in draw["description"]
    assert [p["parameter_name"] for p in draw["parameters"] if not p["parameter_has_default"]] == ["prompt"]
    assert "0 to 2." in next(str(p) for p in compare["parameters"] if p["parameter_name"] == "temperature")


def test_example_client(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    script = Path(__file__).parent.parent / "examples" / "api_client.py"
    options = f"{server} --seed 3 --methods vanilla eagle2 --out {tmp_path / 'out'}".split()
    monkeypatch.setattr(sys, "argv", [str(script), "--prompt", PROMPT, *options])
    runpy.run_path(str(script), run_name="__main__")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"vanilla.png", "eagle2.png", "record.json"}
    out = capsys.readouterr().out
    assert "eagle2" in out
    assert "zebra" in out


EXAMPLES = Path(__file__).parent.parent / "examples"


def test_curl_example(server: str, tmp_path: Path) -> None:
    if shutil.which("curl") is None or shutil.which("bash") is None:
        pytest.skip("curl or bash is not installed")
    command = ["bash", str(EXAMPLES / "api_curl.sh"), server]
    done = subprocess.run(
        [*command, 'a "red" lantern \\', "eagle2", "3"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    _, numbers = json.loads(done.stdout)
    assert (numbers["method"], numbers["seed"]) == ("eagle2", 3)
    with Image.open(tmp_path / "picture.png") as picture:
        assert (picture.info["prompt"], picture.info["seed"]) == ('a "red" lantern \\', "3")
    bad = subprocess.run(
        [*command, "a lantern", "medusa"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert bad.returncode != 0 and "method must be one of vanilla" in bad.stderr


def test_javascript_example(server: str) -> None:
    node = shutil.which("node")
    if node is None or subprocess.run([node, "-e", "process.exit(typeof fetch === 'function' ? 0 : 1)"], check=False).returncode:
        pytest.skip("there is no node with fetch")
    command = [node, str(EXAMPLES / "api_client.mjs"), server, PROMPT]
    done = subprocess.run([*command, "vanilla,eagle1", "3"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == ["vanilla", "eagle1"]
    assert "1.00x" in done.stdout and ".png" in done.stdout
    told = done.stderr.splitlines()
    assert told and all(re.fullmatch(r"(vanilla|eagle1): \d+ tokens", line) for line in told), told
    bad = subprocess.run([*command, "medusa"], capture_output=True, text=True, timeout=120, check=False)
    assert bad.returncode != 0 and "method must be one of vanilla" in bad.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "program"), [("endpoints.py", sys.executable), ("endpoints.sh", "bash"), ("endpoints.mjs", "node")]
)
def test_every_endpoint_in_every_language(server: str, name: str, program: str) -> None:
    for needed in (program, "curl") if program == "bash" else (program,):
        if shutil.which(needed) is None:
            pytest.skip(f"{needed} is not installed")
    if (
        program == "node"
        and subprocess.run(["node", "-e", "process.exit(typeof fetch === 'function' ? 0 : 1)"], check=False).returncode
    ):
        pytest.skip("this node has no fetch")
    done = subprocess.run([program, str(EXAMPLES / name), server], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    if program == "bash":
        offer, (_, numbers), (_, compared) = (json.loads(line) for line in lines)
        assert offer[0]["default_model"] == "tiny" and numbers["method"] == "lantern++"
        assert compared["order"] == ["vanilla", "eagle1"]
    else:
        assert [line.split(":")[0] for line in lines] == ["models", "draw", "compare", "compare"]
        assert "lantern-scenes" in lines[0] and ".png" in lines[1] and lines[2].endswith("1.00x")


def test_an_unknown_model_ends_the_program_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import app

    monkeypatch.setattr(sys, "argv", ["app.py", "--model", "nothing"])
    with pytest.raises(SystemExit, match="2"):
        app.main()
    assert "model must be one of" in capsys.readouterr().err


@pytest.mark.slow
def test_so_does_one_that_is_found_out_while_the_page_is_there(tmp_path: Path) -> None:
    app = Path(__file__).parent.parent / "app.py"
    done = subprocess.run(
        [sys.executable, str(app), "--model", str(tmp_path)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2 and "is not the config of a model folder" in done.stderr
    assert "Traceback" not in done.stderr
