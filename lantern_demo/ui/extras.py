"""GET /extras/NAME: scripts that only some visitors ask for, each with its words, and their styles. No first visit pays for
them."""

from __future__ import annotations

import json

from starlette.requests import Request
from starlette.responses import Response

from lantern_demo.ui import texts
from lantern_demo.ui.components import SCRIPTS, script

ADDRESS = "/extras/{name}"
FOLDER = "extras"
HOUR = 60 * 60  # seconds that a browser keeps them


def files() -> dict[str, tuple[str, str]]:
    """By name what is served there: its type and its text."""
    styles = (SCRIPTS / FOLDER / "style.css").read_text()
    return {"style.css": ("text/css", styles)} | {
        f"{name}.js": ("text/javascript", f"(() => {{\nconst words = {json.dumps(words)};\n{script(f'{FOLDER}/{name}')}\n}})();")
        for name, words in texts.EXTRAS.items()
    }


def served(request: Request) -> Response:
    """One of them, or 404."""
    found = files().get(request.path_params["name"])
    if found is None:
        return Response(status_code=404)
    kind, text = found
    return Response(text, media_type=kind, headers={"Cache-Control": f"max-age={HOUR}"})
