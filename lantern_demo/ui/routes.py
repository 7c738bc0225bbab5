"""Addresses in addition to those of the page and its API.

GET /healthz: whether the program is up and its model loaded, for uptime checks. The page's scripts
and styles get the others when they need them: /palettes/{model}, /patches/{model}, /panel.js,
/price.js and /things.webp. Who is sent a link gets /preview.png.
"""

from __future__ import annotations

import io
from functools import cache
from pathlib import Path
from typing import Any

import gradio as gr
from PIL import Image, ImageOps
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

import lantern_demo
from lantern_demo.models.bundled import PATCHES
from lantern_demo.ui.files import PAPER, scratch, write_sheet
from lantern_demo.ui.recorded import THINGS, recorded_runs
from lantern_demo.ui.run_view import picture_of
from lantern_demo.ui.service import Service

FRESH = {"Cache-Control": "no-store"}
PREVIEW = "preview.png"
PREVIEW_SIZE = (1200, 630)  # which the sites that show previews ask for
FOR_AN_HOUR = {"Cache-Control": "max-age=3600"}


@cache
def preview_picture() -> bytes:
    """Return the race of the first example as PNG, in the shape of a preview."""
    run, buffer = recorded_runs()[0], io.BytesIO()
    pictures = {name: picture_of(address) for name, address in run.pictures.items()}
    with scratch() as folder:
        sheet = Image.open(write_sheet(Path(folder), run.record, pictures))
        ImageOps.pad(sheet, PREVIEW_SIZE, color=PAPER).save(buffer, "PNG")
    return buffer.getvalue()


def routes(page: gr.Blocks, service: Service) -> list[Route]:
    """Return the routes of a page."""

    async def health(_: Request) -> JSONResponse:
        """Answer 200 when the model is loaded, 503 while it loads and if it could not be loaded."""
        body: dict[str, Any] = {
            "status": service.state,
            "ready": service.state == "ready",
            "model": service.info.id,
            "running": service.busy,
            "version": lantern_demo.__version__,
        }
        if service.warning:
            body["warning"] = service.warning
        return JSONResponse(body, status_code=200 if body["ready"] else 503, headers=FRESH)

    def palette(request: Request) -> Response:
        """Answer with a model's token colours, three bytes each.

        404: this server never has them; 503: not yet, since the model still loads.
        """
        colours = service.palette(request.path_params["model"])
        if colours is None:
            return Response(status_code=503 if service.state == "loading" else 404, headers=FRESH)
        return Response(colours, media_type="application/octet-stream", headers=FOR_AN_HOUR)

    def patches(request: Request) -> Response:
        """Answer with a picture of a model's tokens. 204: it has none."""
        folder, model = service.info.folder, request.path_params["model"]
        path = folder / PATCHES if folder and model == service.info.id else None
        if path is None or not path.exists():
            return Response(status_code=204, headers=FRESH)
        return FileResponse(path, headers=FOR_AN_HOUR)

    def script(name: str) -> Route:
        """Return the route of a panel's scripts."""
        text = page.lantern_scripts[name]
        return Route(f"/{name}", lambda _: Response(text, media_type="text/javascript"))

    def preview(_: Request) -> Response:
        """Answer with the picture of a link's preview."""
        return Response(preview_picture(), media_type="image/png", headers=FOR_AN_HOUR)

    def things(_: Request) -> Response:
        """Answer with the pictures of the chips, in a row."""
        return FileResponse(THINGS, headers=FOR_AN_HOUR)

    return [
        Route("/healthz", health),
        Route(f"/{PREVIEW}", preview),
        Route("/palettes/{model}", palette),
        Route("/patches/{model}", patches),
        *map(script, page.lantern_scripts),
        Route(f"/{THINGS.name}", things),
    ]


def bad_call(_: Request, error: Exception) -> Response:
    """Answer a call with an unknown parameter with Gradio's sentence.

    Without this handler Gradio answers 500 without a reason, and logs a traceback.
    """
    if "is not a valid key-word argument" not in str(error):
        raise error  # a fault of this program
    return JSONResponse({"detail": str(error)}, status_code=422)
