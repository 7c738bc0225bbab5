"""Gradio's MCP server over the API: off unless it is asked for, and then called by a
client, where MCP is installed.
"""

from __future__ import annotations

import asyncio
import base64
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
    address: str, name: str | None = None, parameters: dict[str, Any] | None = None
) -> Any:
    """The list of tools, or the result of one, of a client that asks for progress."""
    from mcp import ClientSession
    from mcp.client.streamable_http import streamablehttp_client

    async with (
        streamablehttp_client(f"{address}gradio_api/mcp/") as (read, write, _),
        ClientSession(read, write) as session,
    ):
        await session.initialize()
        if name is None:
            return (await session.list_tools()).tools
        return await session.call_tool(name, parameters, progress_callback=AsyncMock())


def test_programs_draw_by_mcp(served: str) -> None:
    tools = {tool.name: tool for tool in ask(served)}
    assert set(tools) == {"draw", "compare", "model"}
    assert "What there is to draw here" in tools["draw"].description
    parameters = {"prompt", "method", "seed", "settings"}
    assert set(tools["draw"].inputSchema["properties"]) == parameters
    drawn = ask(served, "draw", {"prompt": "a zebra lantern", "seed": 3})
    (picture,) = (part for part in drawn.content if part.type == "image")
    assert Image.open(BytesIO(base64.b64decode(picture.data))).size == (256, 256)
    assert not drawn.isError and "zebra" in drawn.content[-1].text
    refused = ask(served, "draw", {"prompt": ""})
    assert refused.isError and "prompt is empty; say what to draw" in refused.content[0].text
