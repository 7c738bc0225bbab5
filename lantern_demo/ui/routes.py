"""The addresses beside the page and its API.

GET /healthz: whether the program is up and its model loaded, for uptime checks. The page's scripts
get the others when they need them: /palettes/{model} and /look.js.
"""

from __future__ import annotations

from typing import Any

import gradio as gr
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

import lantern_demo
from lantern_demo.ui.service import Service

FRESH = {"Cache-Control": "no-store"}
FOR_AN_HOUR = {"Cache-Control": "max-age=3600"}


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
        """Answer with a model's token colours, three bytes each, or 404 for one not loaded."""
        colours = service.palette(request.path_params["model"])
        if colours is None:
            return Response(status_code=404)
        return Response(colours, media_type="application/octet-stream", headers=FOR_AN_HOUR)

    def look(_: Request) -> Response:
        """Answer with the scripts of a look at a token."""
        return Response(page.lantern_look, media_type="text/javascript")

    return [
        Route("/healthz", health),
        Route("/palettes/{model}", palette),
        Route("/look.js", look),
    ]
