"""The prompt: a line of text, and chips of the words that the model knows, which edit it."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from functools import partial
from html import escape
from typing import Any

import gradio as gr

from lantern_demo.faults import NotAllowed
from lantern_demo.models.registry import ModelInfo
from lantern_demo.prompt_words import (
    PLACE,
    THING,
    TIME,
    Heard,
    Phrasebook,
    check_length,
    named_words,
    phrasebook,
    visible,
)
from lantern_demo.scenes import LANTERN, LANTERNS, THINGS, worded
from lantern_demo.ui import texts
from lantern_demo.ui.components import script
from lantern_demo.ui.events import AT_ONCE, QUIET
from lantern_demo.ui.recorded import recorded_runs

LONGEST = 5000  # characters that are read while somebody types
PICTURES = (LANTERN, *THINGS)  # the order of the pictures in things.webp


def add_prompt() -> gr.Textbox:
    """Add the line of text."""
    return gr.Textbox(
        texts.EXAMPLES[0],
        label=texts.PROMPT_LABEL,
        placeholder=texts.PROMPT_PLACEHOLDER,
        max_lines=1,
        container=False,
        elem_id="prompt",
    )


def add_chips(info: ModelInfo, prompt: gr.Textbox, surprise: gr.Button) -> None:
    """Add the chips, and wire them and Surprise. A model that reads any text has neither."""
    if (book := phrasebook(info)) is None:
        return
    chips = gr.HTML(
        texts.EXAMPLES[0],
        html_template=chips_html(book, texts.EXAMPLES[0], pictured(info)),
        js_on_load=script("ask"),
        apply_default_css=False,
        elem_id="chips",
        server_functions=[hearing(info, book)],
    )
    prompt.change(None, [prompt], [chips], js="(text) => text", **QUIET)
    drawn = surprise.click(partial(surprised, book), None, [prompt], **AT_ONCE)
    drawn.then(None, js="() => pressDraw(true)", **QUIET)


def pictured(info: ModelInfo) -> bool:
    """Return whether the pictures of the things are this model's: they come with the recordings."""
    return info.id == recorded_runs()[0].record["model"]["id"]


def chips_html(book: Phrasebook, prompt: str, pictures: bool) -> str:
    """Return the chips as HTML, those of a prompt lit: a row of things, with their pictures, and
    one of the details.
    """
    lit = book.heard(prompt).parts

    def chips_of(part: str) -> str:
        return "".join(
            _chip(part, option[0], lit[part] == option[0], pictures) for option in book.parts[part]
        )

    groups = "".join(
        f'<div role="group" aria-label="{texts.PARTS[part]}">{chips_of(part)}</div>'
        for part in texts.PARTS
    )
    every = texts.ALL_THINGS.format(count=len(book.parts[THING]))
    return (
        '<div class="chips"><div class="things">'
        f'<div class="row" role="toolbar" aria-label="{texts.KNOWS}">{chips_of(THING)}</div>'
        f'<button type="button" class="all" aria-expanded="false">{every}</button></div>'
        f'<div class="row details" role="toolbar" aria-label="{texts.DETAILS}">{groups}</div>'
        '<div class="status heard" role="status"></div></div>'
    )


def _chip(part: str, phrase: str, lit: bool, pictures: bool) -> str:
    """Return a chip. Tab reaches those that are lit; the script leaves it one in a row."""
    name = LANTERNS if phrase == LANTERN else phrase.split()[-1]
    image = ""
    if pictures and part == THING:
        image = f'<i style="--at:{PICTURES.index(phrase)}"></i>'
    return (
        f'<button type="button" aria-pressed="{str(lit).lower()}" tabindex="{0 if lit else -1}" '
        f'data-part="{part}" data-phrase="{escape(phrase)}">{image}{escape(name)}</button>'
    )


def hearing(info: ModelInfo, book: Phrasebook) -> Callable[[Any], Awaitable[dict[str, Any]]]:
    """Return the reading of a prompt for the page's script, while it is typed."""

    async def hear(request: Any) -> dict[str, Any]:
        """Answer in the server's event loop: it takes less than a millisecond, and holds no thread.

        request: {"prompt"}, and of a chip that is pressed its "part" and "phrase", which edit the
        prompt of the answer. A stranger can send anything.
        """
        given = request if isinstance(request, dict) else {}
        prompt, part, phrase = (f"{given.get(name, '')}" for name in ("prompt", "part", "phrase"))
        if len(prompt) <= LONGEST:  # as a run reads it; longer ones would take time
            prompt = " ".join(visible(prompt).split())
        try:
            check_length(info, prompt)
        except NotAllowed as error:
            nothing = {"parts": {}, "lanterns": True, "leftOut": [], "drawn": ""}
            return {"prompt": prompt, "why": texts.to_visitor(error), **nothing}
        if phrase in [option[0] for option in book.parts.get(part, [])]:
            prompt = book.edited(prompt, part, phrase)
        heard = book.heard(prompt)
        return {
            "prompt": prompt,
            "parts": heard.parts,
            "lanterns": book.read(heard.drawn).lanterns,
            "leftOut": list(heard.left_out.items()),
            "why": " ".join(filter(None, [read_as(heard), heard.why])),
            "drawn": heard.drawn if heard.drawn != prompt else "",
        }

    return hear


def read_as(heard: Heard) -> str:
    """Return a sentence on the words that were read as the thing drawn; empty for none."""
    thing, words = heard.parts.get(THING, ""), ", ".join(heard.meant)
    return texts.READ_AS.format(thing=thing, words=words) if words else ""


def left_out(info: ModelInfo, prompt: str, unknown: list[str]) -> tuple[list[str], str]:
    """Return the words of a prompt that its picture does not show, and what others were read as.

    unknown: those that the model lacks, where it reads any text.
    """
    book = phrasebook(info)
    if book is None:
        return named_words(unknown), ""
    heard = book.heard(prompt)
    return list(heard.left_out), read_as(heard)


def surprised(book: Phrasebook) -> str:
    """Return a random prompt: of lanterns every other time, else of a thing with or without a place
    and a time.
    """
    wording = {part: secrets.choice(book.parts[part])[0] for part in (THING, *texts.PARTS)}
    if secrets.randbelow(2):
        return worded(wording | {THING: LANTERN})
    kept = {part: wording[part] for part in (PLACE, TIME) if secrets.randbelow(4)}
    return book.edited(worded(kept), THING, wording[THING])
