"""The API as its users call it: through gradio_client, plain HTTP and MCP."""

import base64
import gc
import json
import runpy
import sys
from collections.abc import Iterator
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock
from weakref import ref

import gradio as gr
import httpx
import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError
from PIL import Image
from tiny import awaited, ran, served

from lantern_demo.decoding.methods import METHODS
from lantern_demo.faults import NotAllowed
from lantern_demo.prompt_words import USUAL
from lantern_demo.runs.pipeline import Pipeline
from lantern_demo.runs.race import Request
from lantern_demo.runs.result import Result, image_hash
from lantern_demo.settings.knobs import DEFAULT_SEED, KNOBS
from lantern_demo.settings.settings import Planned, Settings
from lantern_demo.ui import link
from lantern_demo.ui.api import answers
from lantern_demo.ui.ask import add_prompt
from lantern_demo.ui.form import add_settings
from lantern_demo.ui.service import Service
from lantern_demo.version import __version__

EXAMPLES = Path(__file__).parent.parent / "examples"
PROMPT = "two red zebra lanterns over a lake"
SMALL = {"lantern_k": 10, "tree": "small"}
PARTS = ("prefill_seconds", "draft_seconds", "verify_seconds", "commit_seconds")


@pytest.fixture(scope="module")
def client(server: str) -> Client:
    return Client(server, verbose=False)


def test_comparison_holds_together(client: Client) -> None:
    settings = SMALL | {"window": 3, "draft_depth": None}
    asked = {"methods": list(METHODS)[::-1], "seed": 7, "settings": settings}
    *parts, (images, record) = client.submit(PROMPT, **asked, api_name="/compare")
    told = [at for _, part in parts if "progress" in part for at in part["progress"].values()]
    assert told and all(set(at) == {"tokens", "steps", "seconds"} for at in told)
    assert list(images) == record["order"] == list(record["methods"]) == list(METHODS)
    assert (record["prompt"], record["unknown_words"]) == (PROMPT, ["zebra"])
    assert record["settings"] == Settings(seed=7, window=3, **SMALL).as_dict()
    assert record["methods"]["sjd"]["nodes"] == 3
    vanilla = record["methods"]["vanilla"]
    for name, row in record["methods"].items():
        assert row["tokens"] == len(row["token_ids"]) == 256
        assert row["steps"] == len(row["accepted_lengths"])
        assert row["decode_seconds"] == pytest.approx(sum(row[part] for part in PARTS))
        assert row["tokens_per_second"] == pytest.approx(256 / row["decode_seconds"])
        assert row["speedup"] == pytest.approx(vanilla["decode_seconds"] / row["decode_seconds"])
        # The prefill's token is no step's; the last step may overshoot the picture's end.
        assert row["mean_accepted_length"] * row["steps"] == pytest.approx(255)
        assert sum(row["accepted_lengths"]) >= 255
        assert (row["changed"] == 0) == METHODS[name].lossless and row["changed"] < 1
        with Image.open(images[name]) as picture:
            assert picture.size == (256, 256) and image_hash(picture) == row["image_sha256"]
            assert picture.info["prompt"] == PROMPT and picture.info["method"] == name
    assert (vanilla["steps"], vanilla["nodes"]) == (255, 1)


# What is wrong, by what a caller sends beside a prompt, and how the sentence begins.
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("compare", {"prompt": "a \ud800"}, "prompt must be text"),
    ("compare", {"methods": []}, "methods must be a list"),
    ("compare", {"repeats": 21}, "repeats must be"),
    ("compare", {"details": "no"}, "details must be"),
    ("compare", {"settings": {"seed": 1}, "seed": 1}, "seed is given twice"),
    ("compare", {"settings": {"self": 1}}, "unknown setting 'self'"),
    ("compare", {"settings": [1]}, "settings must be an object"),
    ("draw", {"keep": [1, 2, 3]}, "keep must be whole rows of 16 token ids"),
]


@pytest.mark.parametrize(("endpoint", "changes", "begins"), REFUSED)
def test_what_is_refused(server: str, endpoint: str, changes: dict[str, Any], begins: str) -> None:
    body = json.dumps({"prompt": PROMPT} | changes)
    headers = {"Content-Type": "application/json"}
    call = f"{server}gradio_api/call"
    asked = httpx.post(f"{call}/v2/{endpoint}", content=body, headers=headers).json()["event_id"]
    stream = httpx.get(f"{call}/{endpoint}/{asked}", timeout=120).text
    event, data = stream.strip().split("\n\n")[-1].split("\n")
    told = json.loads(data.removeprefix("data: "))["error"]
    assert event == "event: error" and told.startswith(begins) and len(told) < 400


def test_a_failed_method_leaves_the_others(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    config = Pipeline.config

    def broken(self: Pipeline, plan: Planned) -> Any:
        if plan.method.id == "eagle1":
            raise RuntimeError("no such tree today")
        return config(self, plan)

    monkeypatch.setattr(Pipeline, "config", broken)
    ask = partial(client.predict, PROMPT, settings=SMALL, api_name="/compare")
    images, record = ask(methods=["vanilla", "eagle1"])
    assert list(images) == record["order"] == ["vanilla"]
    assert record["failed"] == {"eagle1": "RuntimeError: no such tree today"}
    with pytest.raises(AppError, match="no such tree today"):
        ask(methods=["eagle1"])


def test_a_prompt_is_enough_and_gradios_ready_code_has_one(client: Client) -> None:
    picture, numbers = client.predict("a red zebra lantern", api_name="/draw")
    with Image.open(picture) as image:
        assert image.size == (256, 256) and image.info["method"] == "lantern++"
    told = [numbers[name] for name in ("unknown_words", "warning", "seed")]
    assert told == [["zebra"], None, DEFAULT_SEED] and 0 < numbers["changed"] <= 1
    assert numbers["steps"] * numbers["mean_accepted_length"] == pytest.approx(255)
    assert client.predict(methods=["vanilla"], api_name="/compare")[1]["prompt"] == USUAL
    endpoints = client.view_api(return_format="dict")["named_endpoints"]
    for name in ("/draw", "/compare"):
        prompt = endpoints[name]["parameters"][0]
        assert (prompt["parameter_name"], prompt["parameter_default"]) == ("prompt", USUAL)


def test_rows_of_an_answer_are_kept(client: Client) -> None:
    first = client.predict(PROMPT, "vanilla", 7, SMALL, api_name="/draw")[1]["tokens"]
    keep = first[: 9 * 16]
    told = client.predict(PROMPT, "vanilla", 7, SMALL, keep, api_name="/draw")[1]
    assert told["tokens"] == first and told["steps"] == 7 * 16 - 1
    asked = {"methods": ["vanilla", "lantern++"], "seed": 8, "settings": SMALL, "keep": keep}
    methods = client.predict(PROMPT, **asked, api_name="/compare")[1]["methods"]
    for entry in methods.values():
        assert entry["token_ids"][: len(keep)] == keep and entry["token_ids"] != first


def test_a_race_that_is_repeated_has_the_range_of_its_speedups(client: Client) -> None:
    ask = partial(client.predict, "a red lantern", api_name="/compare")
    pictures, record = ask(methods=["vanilla", "sjd"], repeats=3)
    assert set(pictures) == {"vanilla", "sjd"}
    told = record["repeats"]["sjd"]
    gain = told["speedup"]
    assert len(told["decode_seconds"]) == 3
    assert told["decode_seconds"][0] == record["methods"]["sjd"]["decode_seconds"]
    assert 0 < gain["lowest"] <= gain["median"] <= gain["highest"]
    once = ask(methods=["sjd"], details=False)[1]
    entry = once["methods"]["sjd"]
    assert "repeats" not in once and entry["mean_accepted_length"] > 0
    assert not any(isinstance(value, list) for value in entry.values())


def test_repeats_have_a_deadline(tiny_service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock is past it in the fourth race. On a Space others wait: five are the most."""
    clock = iter((0.0, 1000.0, 2000.0, 3500.0, 3700.0))
    monkeypatch.setattr("lantern_demo.ui.api.perf_counter", clock.__next__)
    seen: list[ref[Result]] = []
    frames = Service.frames

    def noted(self: Service, request: Request) -> Iterator[Any]:
        for item in frames(self, request):
            if isinstance(item, Result):
                seen.append(ref(item))
            yield item

    monkeypatch.setattr(Service, "frames", noted)
    events: Any = answers(tiny_service, "a red lantern", ["sjd"], repeats=5)
    record = next(record for _, record in events if "repeats" in record)  # in the last answer
    gc.collect()
    assert len(record["repeats"]["sjd"]["decode_seconds"]) == len(seen) == 4
    assert sum(one() is not None for one in seen) <= 2, "the first and the last one"
    monkeypatch.setenv("SPACE_ID", "a/b")
    with pytest.raises(gr.Error, match="between 1 and 5"):
        list(answers(tiny_service, "a red lantern", ["sjd"], repeats=6))


def test_races_before_a_refusal_are_told(
    tiny_service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by ZeroGPU, of a quota that is spent."""
    frames, lent = Service.frames, iter((True, True))

    def refused(self: Service, request: Request) -> Iterator[Any]:
        if not next(lent, False):
            raise gr.Error("spent", print_exception=False)
        return frames(self, request)

    monkeypatch.setattr(Service, "frames", refused)
    *_, (pictures, record) = answers(tiny_service, "a red lantern", ["sjd"], repeats=5)
    assert pictures and len(record["repeats"]["sjd"]["decode_seconds"]) == 2
    with pytest.raises(gr.Error, match="spent"):
        list(answers(tiny_service, "a red lantern", ["sjd"]))


def test_a_prompt_is_completed_as_on_the_page_or_refused(client: Client) -> None:
    draw = partial(client.predict, method="vanilla", api_name="/draw")
    with pytest.raises(AppError, match=r"Try: a horse$"):
        draw("a zebra")
    numbers = draw("two kittens")[1]
    assert numbers["completed"] == "a cat" and numbers["warning"] and not numbers["unknown_words"]
    record = client.predict("a kitten", methods=["vanilla"], api_name="/compare")[1]
    assert (record["prompt"], record["completed"], record["warning"]) == ("a kitten", "a cat", None)


def test_form_link_and_python_refuse_a_setting_by_one_sentence(tiny_service: Service) -> None:
    with gr.Blocks():
        form = add_settings(tiny_service, add_prompt())
    boxes = form.knobs | {"seed": form.seed}
    wrong: dict[str, Any] = {"seed": -1, "cfg_scale": 21, "lantern_k": 1001, "noise": "x"}
    for name, value in wrong.items():
        told = set()
        request = partial(tiny_service.request, "a lantern", None, {name: value})
        read = partial(link.read, {name: str(value)}, tiny_service.info)
        for way in (partial(Settings, **{name: value}), request, read):
            with pytest.raises(NotAllowed) as refused:
                way()
            told.add(str(refused.value))
        (sentence,) = told
        assert sentence.startswith(f"{name} must be ") and f"got {value!r}" in sentence
        if isinstance(box := boxes.get(name), gr.Number):
            assert box.preprocess(value) == value, "Gradio leaves it to that sentence"


def test_model(client: Client) -> None:
    offer = client.predict(api_name="/model")
    told = [offer["model"][name] for name in ("id", "tokens", "dtype")]
    assert told == ["tiny", 256, "float32"]
    assert [method["id"] for method in offer["methods"]] == list(METHODS)
    assert len(json.dumps(offer)) < 3_000, "short enough for a language model"


def test_documentation(server: str) -> None:
    endpoints = httpx.get(f"{server}gradio_api/info").json()["named_endpoints"]
    assert set(endpoints) == {"/draw", "/compare", "/model"}
    for name in ("/compare", "/draw"):
        told, parameters = endpoints[name]["description"], endpoints[name]["parameters"]
        lines = [line.strip().partition(":")[0] for line in told.splitlines()]
        assert {parameter["parameter_name"] for parameter in parameters} <= set(lines)
        assert all(f"{knob} (" in told for knob in KNOBS if knob != "seed")
    assert httpx.get(f"{server}openapi.json").json()["info"]["version"] == __version__


def test_an_unknown_parameter_is_named(server: str) -> None:
    answer = httpx.post(f"{server}gradio_api/call/v2/draw", json={"metod": "lantern"})
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("Parameter `metod` is not a valid")


def test_example_client(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script = EXAMPLES / "api_client.py"
    options = f"{server} --seed 3 --methods vanilla eagle2 --out {tmp_path / 'out'}".split()
    monkeypatch.setattr(sys, "argv", [str(script), "--prompt", PROMPT, *options])
    runpy.run_path(str(script), run_name="__main__")
    files = {path.name for path in (tmp_path / "out").iterdir()}
    assert files == {"vanilla.png", "eagle2.png", "record.json"}
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "Model: tiny"
    assert "eagle2" in out and "zebra" in out


async def told(address: str) -> tuple[list[Any], Any, Any]:
    """The tools, and what they say to a prompt and to none, of a client that asks for progress."""
    import mcp
    from mcp.client.streamable_http import streamablehttp_client

    async with (
        streamablehttp_client(f"{address}gradio_api/mcp/") as (read, write, _),
        mcp.ClientSession(read, write) as session,
    ):
        await session.initialize()
        tools = (await session.list_tools()).tools
        draw = partial(session.call_tool, "draw", progress_callback=AsyncMock())
        asked = {"prompt": "a zebra lantern", "seed": 3}
        return tools, await draw(asked), await draw({"prompt": ""})


def test_draws_by_mcp(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mcp", reason="MCP is not installed; it comes with gradio[mcp]")
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    monkeypatch.setenv("GRADIO_MCP_SERVER", "True")
    with served(tiny_model) as (url, _):
        tools, drawn, refused = awaited(told(url))
    schemas = {tool.name: tool.inputSchema["properties"] for tool in tools}
    assert set(schemas) == {"draw", "compare", "model"}
    assert set(schemas["draw"]) == {"prompt", "method", "seed", "settings", "keep"}
    (picture,) = (part for part in drawn.content if part.type == "image")
    assert Image.open(BytesIO(base64.b64decode(picture.data))).size == (256, 256)
    assert not drawn.isError and "zebra" in drawn.content[-1].text
    assert refused.isError and "prompt is empty" in refused.content[0].text


@pytest.mark.slow
def test_a_model_that_is_found_out_while_the_page_is_there_ends_the_program(tmp_path: Path) -> None:
    done = ran(sys.executable, EXAMPLES.parent / "app.py", "--model", tmp_path)
    assert done.returncode == 2 and "is not the config of a model folder" in done.stderr
    assert "Traceback" not in done.stderr
