"""The addresses beside the page and its API.

GET /healthz: whether the program is up and its model loaded, for uptime checks. GET /metrics:
counts of the pictures drawn so far, for Prometheus. Neither uses the device. The page's scripts get
the others when they need them: /palettes/{model}, /recorded/{name}/sweeps and /look.js.
"""

from __future__ import annotations

from typing import Any

import gradio as gr
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import lantern_demo
from lantern_demo.ui import texts
from lantern_demo.ui.admission import DEVICE
from lantern_demo.ui.gradio_patches import pending, waiting
from lantern_demo.ui.recorded import SWEEPS, recorded_runs
from lantern_demo.ui.service import Service

FRESH = {"Cache-Control": "no-store"}
FOR_AN_HOUR = {"Cache-Control": "max-age=3600"}
FOR_A_DAY = {"Cache-Control": "max-age=86400"}


def routes(page: gr.Blocks, service: Service) -> list[Route]:
    """Return the routes of a page."""
    return [*_for_operators(page, service), *_for_scripts(page, service)]


def _for_operators(page: gr.Blocks, service: Service) -> list[Route]:
    """Return the routes for uptime checks and Prometheus."""

    async def health(_: Request) -> JSONResponse:
        """Answer 200 when the model is loaded, 503 while it loads and if it could not be loaded."""
        waits = waiting(page, DEVICE)
        body: dict[str, Any] = {
            "status": service.state,
            "ready": service.state == "ready",
            "model": service.default,
            # A request counts as running from leaving the queue, before it holds the device, until
            # its answer is sent.
            "running": service.busy or sum(1 for _ in pending(page, DEVICE)) > waits,
            "waiting": waits,
            "version": lantern_demo.__version__,
        }
        if service.warning:
            body["warning"] = service.warning
        return JSONResponse(body, status_code=200 if body["ready"] else 503, headers=FRESH)

    async def metrics(_: Request) -> Response:
        """Answer with counters of the pictures drawn since the program started, by model and
        method, and two gauges.
        """
        gauges = (
            ("ready", "1 when the model is loaded.", float(service.state == "ready")),
            (
                "requests_waiting",
                "Requests in the queue for the device.",
                float(waiting(page, DEVICE)),
            ),
        )
        return Response(
            service.counters.text(gauges), media_type="text/plain; version=0.0.4", headers=FRESH
        )

    return [Route("/healthz", health), Route("/metrics", metrics)]


def _for_scripts(page: gr.Blocks, service: Service) -> list[Route]:
    """Return the routes that the page's scripts request when they need them."""

    def palette(request: Request) -> Response:
        """Answer with the colours of a model's tokens, three bytes each, or 404 for a model that is
        not loaded.
        """
        colours = service.palette(request.path_params["model"])
        if colours is None:
            return Response(status_code=404)
        return Response(colours, media_type="application/octet-stream", headers=FOR_AN_HOUR)

    def sweeps(request: Request) -> JSONResponse:
        """Answer with the recorded sweeps of an example, for the page's sliders."""
        found = next(
            (run.sweeps for run in recorded_runs() if run.name == request.path_params["name"]), ()
        )
        if not found:
            return JSONResponse({"error": texts.NO_SUCH_EXAMPLE}, status_code=404)
        return JSONResponse(found, headers=FOR_A_DAY)

    def look(_: Request) -> Response:
        """Answer with the scripts of a look at a token."""
        return Response(page.lantern_look, media_type="text/javascript")

    return [Route("/palettes/{model}", palette), Route(SWEEPS, sweeps), Route("/look.js", look)]
