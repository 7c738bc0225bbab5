"""Gradio's MCP server over the API: off unless it is asked for, and then called by a
client, where MCP is installed.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
import tiny
from PIL import Image


@pytest.fixture
def served(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a page that was started with the switch on."""
    pytest.importorskip(
        "mcp",
        reason='MCP is not installed: pip install "gradio[mcp]" in the version of requirements.txt',
    )
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    monkeypatch.setenv("GRADIO_MCP_SERVER", "True")
    with tiny.served(tiny_model) as (url, _):
        yield url


def ask(*arguments: Any) -> Any:
    """As `asked`, in another thread: where a browser is tested, this one has a running loop."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, asked(*arguments)).result()


async def asked(
    address: str,
    name: str | None = None,
    parameters: dict[str, Any] | None = None,
    progress: bool = True,
) -> Any:
    """The list of tools, or the result of one, of a client that asks for progress, or does not."""
    from mcp import ClientSession
    from mcp.client.streamable_http import streamablehttp_client

    async with (
        streamablehttp_client(f"{address}gradio_api/mcp/") as (read, write, _),
        ClientSession(read, write) as session,
    ):
        await session.initialize()
        if name is None:
            return (await session.list_tools()).tools
        callback = AsyncMock() if progress else None
        return await session.call_tool(name, parameters, progress_callback=callback)


def pictures(answer: Any) -> list[tuple[int, int]]:
    """The sizes of the pictures of an answer."""
    found = [base64.b64decode(part.data) for part in answer.content if part.type == "image"]
    return [Image.open(BytesIO(data)).size for data in found]


def test_programs_draw_by_mcp(served: str) -> None:
    tools = {tool.name: tool for tool in ask(served)}
    assert set(tools) == {"draw", "compare", "model"}
    assert "What there is to draw here" in tools["draw"].description
    parameters = {"prompt", "method", "seed", "settings"}
    assert set(tools["draw"].inputSchema["properties"]) == parameters

    asked = {"prompt": "a zebra lantern", "seed": 3, "settings": {"lanternpp_lambda": 2}}
    for progress in (True, False):
        drawn = ask(served, "draw", asked, progress)
        assert not drawn.isError and pictures(drawn) == [(256, 256)]
        numbers = json.loads(drawn.content[-1].text)
        assert (numbers["method"], numbers["unknown_words"]) == ("lantern++", ["zebra"])
        assert numbers["completed"] == "one round lantern over a lake at dusk"
        assert numbers["warning"] is None
    raced = ask(served, "compare", {"prompt": "a red lantern", "methods": ["vanilla", "eagle1"]})
    ((wide, _),) = pictures(raced)
    assert wide > 2 * 256, "one sheet of both"
    record = json.loads(raced.content[-1].text)
    assert record["methods"]["eagle1"]["speedup"] > 0
    assert "token_ids" not in record["methods"]["eagle1"]
    refused = ask(served, "draw", {"prompt": ""})
    assert refused.isError and "prompt is empty; say what to draw" in refused.content[0].text

    (offer,) = ask(served, "model", {}).content
    assert json.loads(offer.text)["model"]["id"] == "tiny"
