"""The addresses beside the page and its API.

GET /healthz: whether the program is up and its model loaded, for uptime checks. The page's scripts
get the others when they need them: /palettes/{model}, /recorded/{name}/sweeps and /look.js.
"""

from __future__ import annotations

from typing import Any

import gradio as gr
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import lantern_demo
from lantern_demo.ui import texts
from lantern_demo.ui.recorded import SWEEPS, recorded_runs
from lantern_demo.ui.service import Service

FRESH = {"Cache-Control": "no-store"}
FOR_AN_HOUR = {"Cache-Control": "max-age=3600"}
FOR_A_DAY = {"Cache-Control": "max-age=86400"}


def routes(page: gr.Blocks, service: Service) -> list[Route]:
    """Return the routes of a page."""

    async def health(_: Request) -> JSONResponse:
        """Answer 200 when the model is loaded, 503 while it loads and if it could not be loaded."""
        body: dict[str, Any] = {
            "status": service.state,
            "ready": service.state == "ready",
            "model": service.default,
            "running": service.busy,
            "version": lantern_demo.__version__,
        }
        if service.warning:
            body["warning"] = service.warning
        return JSONResponse(body, status_code=200 if body["ready"] else 503, headers=FRESH)

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

    return [
        Route("/healthz", health),
        Route("/palettes/{model}", palette),
        Route(SWEEPS, sweeps),
        Route("/look.js", look),
    ]
