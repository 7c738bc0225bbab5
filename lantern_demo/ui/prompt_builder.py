"""The prompt in parts on the page, for models that know few words, and the notices about prompts
that they cannot draw.
"""

from __future__ import annotations

import unicodedata
from typing import Any

import gradio as gr

from lantern_demo.models.registry import ModelInfo
from lantern_demo.prompt_words import cannot_draw, phrasebook
from lantern_demo.ui import texts
from lantern_demo.ui.components import Offer, component, status_html


def prompt_builder(info: ModelInfo) -> gr.HTML:
    return component("builder", ["phrases", "ask"], builder_view(info), elem_id="builder")


def builder_view(info: ModelInfo) -> dict[str, Any] | None:
    """Return the builder's value for a model; None, which hides it, for one that reads any text."""
    book = phrasebook(info)
    return None if book is None else {**book.view(), "most": info.max_prompt}


def refusal(info: ModelInfo, prompt: str) -> str | None:
    """Return the refusal of a prompt that the model cannot draw, with the nearest one that it can
    draw; None for other prompts.
    """
    lacking = cannot_draw(info, prompt)
    return None if lacking is None else status_html(texts.NOT_DRAWN, "error", offer=Offer(*lacking))


def drawn_without(
    info: ModelInfo, prompt: str, unknown: list[str]
) -> tuple[list[str], Offer | None]:
    """Return notes on the words that a model drew without, or a prompt that is offered instead.

    Punctuation alone needs neither.
    """
    words = [
        word
        for word in dict.fromkeys(unknown)
        if not all(unicodedata.category(letter).startswith("P") for letter in word)
    ]
    if not words:
        return [], None
    book = phrasebook(info)
    if book is None:
        return [texts.UNKNOWN_WORDS.format(words=", ".join(words))], None
    return [], Offer(texts.drawn_without(words), book.nearest(prompt))
