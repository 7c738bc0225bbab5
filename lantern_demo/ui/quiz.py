"""Which one took the shortcut? Pairs of pictures of one prompt and seed, by vanilla and by LANTERN++, for visitors to tell apart.

They are drawn ahead by `record_quiz`, which says how they were chosen. What a visitor guesses stays in the browser and ends with
the page.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from lantern_demo.settings.settings import Settings
from lantern_demo.ui import texts
from lantern_demo.ui.run_view import found_in_pictures

FILE = Path(__file__).with_name("recorded") / "quiz.json"
METHODS_OF_A_PAIR = ("vanilla", "lantern++")
ADDRESS = "/extras/quiz.json"
DAY = 24 * 60 * 60  # seconds that a browser keeps the pairs


@cache
def quiz() -> dict[str, Any]:
    """The pairs as the page's script takes them: {"drawn": a sentence on how they were drawn, "measured": sentences for the end,
    "pairs": [{"prompt", "seed", "pictures": [{"method", "picture"}]}]}."""
    found = json.loads(FILE.read_text())
    pairs = found["pairs"]
    settings = Settings(**{**found["settings"], "seed": 0})
    measured = [texts.quiz_passes(pairs), found_in_pictures(found["model"], settings, METHODS_OF_A_PAIR)]
    shown = [{name: pair[name] for name in ("prompt", "seed", "pictures")} for pair in pairs]
    return {"drawn": texts.quiz_drawn(found), "measured": [told for told in measured if told], "pairs": shown}


def pairs(_: Request) -> JSONResponse:
    """GET /extras/quiz.json: the pairs, once somebody wants to guess."""
    return JSONResponse(quiz(), headers={"Cache-Control": f"max-age={DAY}"})
