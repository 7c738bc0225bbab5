"""GET /healthz: whether the program is up and its model there, for uptime checks. It asks nothing of the device."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import gradio as gr
from starlette.requests import Request
from starlette.responses import JSONResponse

import lantern_demo
from lantern_demo.ui.door import pending, waiting
from lantern_demo.ui.engine import Engine

PATH = "/healthz"


def health(page: gr.Blocks, engine: Engine, device: str) -> Callable[[Request], Awaitable[JSONResponse]]:
    """The endpoint of a page: 200 when the model is loaded, 503 while it loads and when it could not be."""

    async def answer(_: Request) -> JSONResponse:
        waits = waiting(page._queue, device)
        told: dict[str, Any] = {
            "status": engine.state,
            "ready": engine.state == "ready",
            "model": engine.default,
            # A request that has left the queue runs, before it holds the device and until its answer is sent.
            "running": engine.busy or sum(1 for _ in pending(page._queue, device)) > waits,
            "waiting": waits,
            "version": lantern_demo.__version__,
        }
        if engine.warning:
            told["warning"] = engine.warning
        return JSONResponse(told, status_code=200 if told["ready"] else 503, headers={"Cache-Control": "no-store"})

    return answer
