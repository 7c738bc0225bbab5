"""The API as MCP tools: off unless it is switched on, and then real calls by a real client, where MCP is installed."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from lantern_demo.settings import Settings


def test_mcp_is_off_unless_asked_for(server: str) -> None:
    assert httpx.get(f"{server}gradio_api/mcp/").status_code == 404
    assert httpx.post(f"{server}gradio_api/mcp/", json={}).status_code in (404, 405)


@pytest.fixture(scope="module")
def tools(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the tools of a page that was started with the switch on."""
    # Not in requirements.txt: it asks for an older pydantic than Gradio alone does.
    pytest.importorskip("mcp", reason='MCP is not installed: pip install "gradio[mcp]" in the version of requirements.txt')
    from lantern_demo.ui.page import build, launch, wait_for_model

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADIO_TEMP_DIR", str(tmp_path_factory.mktemp("gradio")))
        patch.setenv("GRADIO_MCP_SERVER", "True")
        page = build(tiny_model, "cpu")
        wait_for_model(page)
        _, url, _ = launch(page, server_name="127.0.0.1", prevent_thread_lock=True, quiet=True)
        yield f"{url}gradio_api/mcp/"
        page.close(verbose=False)


async def ask(address: str, name: str | None, parameters: dict[str, Any]) -> Any:
    """The list of tools, or the result of one."""
    from mcp import ClientSession
    from mcp.client.streamable_http import streamablehttp_client

    async def progress(*_: Any) -> None:
        """A client that takes progress gets the picture itself; to others Gradio sends only its address."""

    async with streamablehttp_client(address) as (read, write, _), ClientSession(read, write) as session:
        await session.initialize()
        if name is None:
            return (await session.list_tools()).tools
        return await session.call_tool(name, parameters, progress_callback=progress)


def test_the_endpoints_are_tools(tools: str) -> None:
    found = {tool.name: tool for tool in asyncio.run(ask(tools, None, {}))}
    assert set(found) == {"compare", "generate", "models"}
    for name in ("compare", "generate"):
        schema = found[name].inputSchema
        assert schema["required"] == ["prompt"]
        assert set(Settings().as_dict()) <= set(schema["properties"])
        assert all(entry["description"] for entry in schema["properties"].values())
        assert found[name].description.startswith("Draw a prompt with")


def test_a_tool_draws(tools: str) -> None:
    answer = asyncio.run(ask(tools, "generate", {"prompt": "a red lantern", "method": "lantern++", "seed": 3, "tree": "small"}))
    assert not answer.isError
    pictures = [part for part in answer.content if part.type == "image"]
    with Image.open(io.BytesIO(base64.b64decode(pictures[0].data))) as picture:
        assert picture.size == (256, 256)
    assert any("'lantern++'" in part.text and "one_step_tvd" in part.text for part in answer.content if part.type == "text")


def test_a_bad_call_of_a_tool_gets_its_sentence(tools: str) -> None:
    answer = asyncio.run(ask(tools, "generate", {"prompt": ""}))
    assert answer.isError
    assert "prompt is empty; say what to draw" in answer.content[0].text
