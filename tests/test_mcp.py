"""The API as MCP tools: off unless it is switched on, and then real calls by a real client, where MCP is installed."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image
from tiny import same_picture

from lantern_demo.decoding.methods import METHODS
from lantern_demo.models.registry import REGISTRY
from lantern_demo.settings.knobs import KNOBS
from lantern_demo.settings.settings import Settings
from lantern_demo.ui import gradio_patches as patches
from lantern_demo.ui import texts, tools

MOST = 3200  # characters of an answer: it is read by a language model, which has to pay for each
FEW = {"tree": "small", "lantern_k": 10}


def test_mcp_is_off_unless_asked_for(server: str) -> None:
    assert httpx.get(f"{server}gradio_api/mcp/").status_code == 404
    assert httpx.post(f"{server}gradio_api/mcp/", json={}).status_code in (404, 405)
    assert httpx.post(f"{server}gradio_api/call/v2/tool_models", json={}).status_code == 404


@pytest.fixture(scope="module")
def served(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a page that was started with the switch on."""
    pytest.importorskip("mcp", reason='MCP is not installed: pip install "gradio[mcp]" in the version of requirements.txt')
    from lantern_demo.ui.page import build, launch, wait_for_model

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADIO_TEMP_DIR", str(tmp_path_factory.mktemp("gradio")))
        patch.setenv("GRADIO_MCP_SERVER", "True")
        page = build(tiny_model, "cpu")
        wait_for_model(page)
        _, url, _ = launch(page, server_name="127.0.0.1", prevent_thread_lock=True, quiet=True)
        yield url
        page.close(verbose=False)


async def ask(address: str, name: str | None, parameters: dict[str, Any], progress: bool = False) -> Any:
    """The list of tools, or the result of one; `progress`: the client asks how far it is."""
    from mcp import ClientSession
    from mcp.client.streamable_http import streamablehttp_client

    async def tell(*_: Any) -> None:
        """Gradio answers a client that takes progress on another way than one that does not."""

    async with streamablehttp_client(f"{address}gradio_api/mcp/") as (read, write, _), ClientSession(read, write) as session:
        await session.initialize()
        if name is None:
            return (await session.list_tools()).tools
        return await session.call_tool(name, parameters, progress_callback=tell if progress else None)


def call(address: str, name: str, progress: bool = False, **parameters: Any) -> tuple[dict[str, Any], list[Image.Image]]:
    """Call a tool -> the JSON that it answers, which has to be short, and the pictures."""
    answer = asyncio.run(ask(address, name, parameters, progress))
    assert not answer.isError, answer.content
    (text,) = [part.text for part in answer.content if part.type == "text"]
    assert len(text) < MOST
    pictures = [Image.open(io.BytesIO(base64.b64decode(part.data))) for part in answer.content if part.type == "image"]
    return json.loads(text), pictures


def test_tools_say_what_they_are(served: str) -> None:
    found = {tool.name: tool for tool in asyncio.run(ask(served, None, {}))}
    assert {name: tool.title for name, tool in found.items()} == texts.TOOL_TITLES
    for tool in found.values():
        assert (tool.annotations.title, tool.annotations.readOnlyHint, tool.annotations.openWorldHint) == (
            tool.title,
            True,
            False,
        )
    assert "what there is to draw here" in found["draw"].description.lower()
    assert set(found["draw"].inputSchema["properties"]) == {"prompt", "model", "method", "seed", "with_vanilla"}
    for name in ("compare", "generate"):
        schema = found[name].inputSchema
        assert schema["required"] == ["prompt"]
        assert set(Settings().as_dict()) <= set(schema["properties"])
        assert all(entry["description"] for entry in schema["properties"].values())
        assert found[name].description.startswith("Draw ") and "price" in found[name].description


@pytest.mark.parametrize("progress", [False, True])
def test_a_tool_draws(served: str, progress: bool) -> None:
    told, (picture,) = call(served, "generate", progress, prompt="a red lantern", method="lantern++", seed=3, **FEW)
    assert (told["model"], told["seed"], list(told["methods"])) == ("tiny", 3, ["lantern++"])
    run = dict(zip(told["columns"], told["methods"]["lantern++"], strict=True))
    assert picture.size == (256, 256) and picture.info["prompt"] == "a red lantern"
    assert same_picture(picture, Image.open(io.BytesIO(httpx.get(run["picture"]).raise_for_status().content)))
    record = httpx.get(told["record"]).raise_for_status().json()
    entry = record["methods"]["lantern++"]
    assert (record["prompt"], run["steps"], run["speedup"]) == ("a red lantern", entry["steps"], None)
    assert run["price"] == round(entry["price"], 4) > 0 and run["decode_seconds"] > 0


def test_one_tool_draws_with_a_prompt_alone(served: str) -> None:
    told, (picture,) = call(served, "draw", prompt="a red zebra lantern")
    assert picture.size == (256, 256) and picture.info["prompt"] == "a red zebra lantern"
    assert (told["method"], told["model"], told["unknown_words"]) == ("lantern++", "tiny", ["zebra"])
    assert told["seconds"] > 0 and told["speedup"] is None and told["passes"] > 0
    assert told["tokens_a_pass"] == pytest.approx(255 / told["passes"], abs=1e-3) and told["price"] > 0


def test_a_tool_compares(served: str) -> None:
    told, (sheet,) = call(served, "compare", prompt="a red zebra", methods=["eagle1", "vanilla"], seed=3, **FEW)
    assert list(told["methods"]) == ["vanilla", "eagle1"] and told["unknown_words"] == ["zebra"]
    runs = {name: dict(zip(told["columns"], values, strict=True)) for name, values in told["methods"].items()}
    assert runs["vanilla"]["speedup"] == 1 and runs["eagle1"]["speedup"] > 0
    assert sheet.width > 2 * 256 and sheet.info["prompt"] == "a red zebra"
    assert httpx.get(runs["eagle1"]["picture"]).content.startswith(b"\x89PNG")
    assert list(httpx.get(told["record"]).json()["methods"]) == ["vanilla", "eagle1"]


def test_a_tool_tells_what_there_is(served: str) -> None:
    told, pictures = call(served, "models")
    assert (told["default_model"], list(told["models"]), list(told["methods"])) == ("tiny", ["tiny", *REGISTRY], list(METHODS))
    assert told["models"]["tiny"]["runs_here"] is True and list(told["loaded"]) == ["tiny"] and pictures == []
    assert told["prompts"] and all(isinstance(prompt, str) for prompt in told["prompts"])


def test_a_bad_call_of_a_tool_gets_its_sentence(served: str) -> None:
    for progress in (False, True):
        answer = asyncio.run(ask(served, "generate", {"prompt": ""}, progress))
        assert answer.isError
        assert "prompt is empty; say what to draw" in answer.content[0].text


def test_the_tools_are_no_part_of_the_api(served: str) -> None:
    """But they are checked like it."""
    assert set(httpx.get(f"{served}gradio_api/info").json()["named_endpoints"]) == {"/draw", "/compare", "/generate", "/models"}
    file = {"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}
    answer = httpx.post(f"{served}gradio_api/call/tool_generate", json={"data": [file, *[None] * (2 + len(KNOBS))]})
    assert answer.status_code == 400 and "must not be a file" in answer.text


def test_an_answer_with_every_method_is_short() -> None:
    entry = {
        "decode_seconds": 12.3456789,
        "steps": 1024,
        "mean_accepted_length": 1.23456789,
        "speedup": 1.23456789,
        "price": 0.123456789,
    }
    words = {
        "model": {"id": "llamagen-c2i-3b-384"},
        "device": "x" * 60,
        "settings": {"seed": 2**31 - 1},
        "unknown_words": ["zebra"] * 9,
    }
    address = "https://somebody-images-drawn-faster.hf.space/gradio_api/file=/data/gradio/" + "0" * 64 + "/zipar.png"
    told = tools.told(words | {"methods": dict.fromkeys(METHODS, entry)}, dict.fromkeys(METHODS, address), address)
    assert 2000 < len(patches.short_json(told)) < 240 * len(METHODS)
    assert told["methods"]["zipar"] == [12.3457, 1024, 1.2346, 1.2346, 0.1235, address]


def test_a_failure_is_told_in_short() -> None:
    record = {
        "model": {"id": "tiny"},
        "device": "a CPU",
        "settings": {"seed": 1},
        "unknown_words": [],
        "failed": {"eagle1": "x" * 5000},
        "methods": {"vanilla": {"decode_seconds": 0.123456, "steps": 255, "mean_accepted_length": 1.0, "price": None}},
    }
    told = tools.told(record, {}, None)
    assert told["failed"] == {"eagle1": "x" * tools.REASON + "\u2026"}
    assert told["methods"] == {"vanilla": [0.1235, 255, 1.0, None, None, None]} and told["record"] is None
