"""GET /healthz: whether the program is up and its model there, for uptime checks. It asks nothing of the device."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import gradio as gr
from starlette.requests import Request
from starlette.responses import JSONResponse

import lantern_demo
from lantern_demo.ui.gradio_patches import pending, waiting
from lantern_demo.ui.service import Service

PATH = "/healthz"


def health(page: gr.Blocks, service: Service, device: str) -> Callable[[Request], Awaitable[JSONResponse]]:
    """The endpoint of a page: 200 when the model is loaded, 503 while it loads and when it could not be."""

    async def answer(_: Request) -> JSONResponse:
        waits = waiting(page, device)
        body: dict[str, Any] = {
            "status": service.state,
            "ready": service.state == "ready",
            "model": service.default,
            # A request that has left the queue runs, before it holds the device and until its answer is sent.
            "running": service.busy or sum(1 for _ in pending(page, device)) > waits,
            "waiting": waits,
            "version": lantern_demo.__version__,
        }
        if service.warning:
            body["warning"] = service.warning
        return JSONResponse(body, status_code=200 if body["ready"] else 503, headers={"Cache-Control": "no-store"})

    return answer
