"""GET /palettes/{model}: the colours of a loaded model's tokens, for pictures that are being drawn."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import Response

from lantern_demo.ui.service import Service

PALETTES = "/palettes/{model}"
HOUR = 60 * 60  # seconds that a browser keeps them


def palettes(service: Service) -> Callable[[Request], Response]:
    """Return the endpoint: three bytes a token, or 404 for a model that is not loaded."""

    def palette(request: Request) -> Response:
        colours = service.palette(request.path_params["model"])
        if colours is None:
            return Response(status_code=404)
        return Response(colours, media_type="application/octet-stream", headers={"Cache-Control": f"max-age={HOUR}"})

    return palette
