"""GET /healthz: whether the program is up and its model there, for uptime checks. It asks nothing of the device."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import gradio as gr
from starlette.requests import Request
from starlette.responses import JSONResponse

import lantern_demo
from lantern_demo.ui.door import waiting
from lantern_demo.ui.engine import Engine

PATH = "/healthz"


def health(page: gr.Blocks, engine: Engine, device: str) -> Callable[[Request], Awaitable[JSONResponse]]:
    """The endpoint of a page: 200 when the model is loaded, 503 while it loads and when it could not be."""

    async def answer(_: Request) -> JSONResponse:
        told: dict[str, Any] = {
            "status": engine.state,
            "ready": engine.state == "ready",
            "model": engine.default,
            "running": engine.busy,
            "waiting": waiting(page._queue, device),
            "version": lantern_demo.__version__,
        }
        return JSONResponse(told, status_code=200 if told["ready"] else 503, headers={"Cache-Control": "no-store"})

    return answer
