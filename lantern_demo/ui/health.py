"""GET /healthz: whether the program is up and its model loaded, for uptime checks. GET /metrics: counts of the pictures drawn
so far, for Prometheus. Neither uses the device."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import gradio as gr
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

import lantern_demo
from lantern_demo.ui.admission import DEVICE
from lantern_demo.ui.gradio_patches import pending, waiting
from lantern_demo.ui.service import Service

PATH, METRICS = "/healthz", "/metrics"
FRESH = {"Cache-Control": "no-store"}


def health(page: gr.Blocks, service: Service) -> Callable[[Request], Awaitable[JSONResponse]]:
    """Return the endpoint of a page: 200 when the model is loaded, 503 while it loads and if it could not be loaded."""

    async def answer(_: Request) -> JSONResponse:
        waits = waiting(page, DEVICE)
        body: dict[str, Any] = {
            "status": service.state,
            "ready": service.state == "ready",
            "model": service.default,
            # A request counts as running from leaving the queue, before it holds the device, until its answer is sent.
            "running": service.busy or sum(1 for _ in pending(page, DEVICE)) > waits,
            "waiting": waits,
            "version": lantern_demo.__version__,
        }
        if service.warning:
            body["warning"] = service.warning
        return JSONResponse(body, status_code=200 if body["ready"] else 503, headers=FRESH)

    return answer


def metrics(page: gr.Blocks, service: Service) -> Callable[[Request], Awaitable[Response]]:
    """Return the endpoint that Prometheus reads: counters of the pictures drawn since the program started, by model and method,
    and two gauges."""

    async def answer(_: Request) -> Response:
        gauges = (
            ("ready", "1 when the model is loaded.", float(service.state == "ready")),
            ("requests_waiting", "Requests in the queue for the device.", float(waiting(page, DEVICE))),
        )
        return Response(service.counters.text(gauges), media_type="text/plain; version=0.0.4", headers=FRESH)

    return answer
