"""Gradio's MCP server over the API, called by a client where MCP is installed."""

from __future__ import annotations

import base64
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from PIL import Image
from tiny import awaited, served


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


def test_programs_draw_by_mcp(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
