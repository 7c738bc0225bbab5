"""The prompt: a sentence of lists for a model of known words, a line of text for others."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

import gradio as gr

from lantern_demo.models.registry import ModelInfo
from lantern_demo.prompt_words import NOUNS, cannot_draw, phrasebook
from lantern_demo.scenes import BEFORE_NOUN, WORDINGS, worded
from lantern_demo.ui import texts
from lantern_demo.ui.components import Updates

FIRST_CLASS = "goldfish (1)"


@dataclass(frozen=True)
class Sentence:
    """The fields of a prompt. `typing` says that the line of text counts, not the lists."""

    prompt: gr.Textbox
    label: gr.Dropdown  # of a model that draws classes
    lists: dict[str, gr.Dropdown]  # by part of the sentence
    noun: gr.HTML
    typing: gr.State
    toggle: gr.Button
    surprise: gr.Button

    def all(self) -> list[Any]:
        """Return the components that depend on the model or the prompt."""
        shown = [self.prompt, self.label, self.noun, self.toggle, self.surprise]
        return [self.typing, *self.lists.values(), *shown]

    def asked(self) -> list[Any]:
        """Return the components that `prompt_of` reads."""
        return [self.typing, self.prompt, *self.lists.values()]


def add_sentence(info: ModelInfo) -> Sentence:
    """Add the fields, for the model that the page begins with."""
    given = _fields(info, texts.EXAMPLES[0][0], typing=False)
    lists = {}
    with gr.Row(elem_id="sentence"):
        for part in WORDINGS:
            if part not in BEFORE_NOUN and "noun" not in lists:
                html = f"<span>{NOUNS[1]}</span>"
                lists["noun"] = gr.HTML(html, elem_id="noun", **given["noun"])
            lists[part] = gr.Dropdown(
                label=texts.PARTS[part],
                container=False,
                filterable=False,
                min_width=72,
                elem_classes="part",
                **given[part],
            )
    noun = lists.pop("noun")
    prompt = gr.Textbox(
        label=texts.PROMPT_LABEL,
        placeholder=texts.PROMPT_PLACEHOLDER,
        lines=1,
        max_lines=3,
        container=False,
        elem_id="prompt",
        **given["prompt"],
    )
    # The list of 1,000 classes is a hundred kilobytes: it comes with the first model that has it.
    label = gr.Dropdown(
        [FIRST_CLASS],
        value=FIRST_CLASS,
        label=texts.CLASS_LABEL,
        info=texts.CLASS_INFO,
        visible=False,
        elem_id="class",
    )
    toggle = gr.Button(min_width=60, elem_id="type", **given["toggle"])
    surprise = gr.Button(texts.SURPRISE, min_width=60, elem_id="surprise", **given["surprise"])
    return Sentence(prompt, label, lists, noun, gr.State(given["typing"]), toggle, surprise)


def _fields(info: ModelInfo, prompt: str, typing: bool) -> dict[str, Any]:
    """Return the properties of the fields that show a prompt.

    A prompt that the lists cannot say is shown as text.
    """
    book = phrasebook(info)
    said = {} if book is None else dict(book.read(prompt).said)
    typing = typing or book is None or worded(said) != prompt
    by_class = info.kind == "class"
    fields: dict[str, Any] = {
        "prompt": {"value": prompt, "visible": typing and not by_class},
        "noun": {"visible": not typing},
        "typing": typing,
        "toggle": {"visible": book is not None, "value": texts.PICK if typing else texts.TYPE},
        "surprise": {"visible": book is not None},
    }
    for part in WORDINGS:
        options = [] if book is None else [phrases[0] for phrases in book.parts[part]]
        chosen = said.get(part, "")
        choices = dict.fromkeys([*options, *([chosen] if chosen else [])])
        fields[part] = {
            "choices": [(texts.ANY[part], ""), *((choice, choice) for choice in choices)],
            "value": chosen,
            "visible": not typing,
        }
    return fields


def filled(s: Sentence, info: ModelInfo, prompt: str, typing: bool = False) -> Updates:
    """Return the updates that show a prompt in the fields of a model."""
    fields = _fields(info, prompt, typing)
    components = {"prompt": s.prompt, "noun": s.noun, "toggle": s.toggle, "surprise": s.surprise}
    components |= s.lists
    updates = {component: gr.update(**fields[name]) for name, component in components.items()}
    return {s.typing: fields["typing"], **updates}


def prompt_of(s: Sentence, typing: bool, prompt: Any, lists: tuple[Any, ...]) -> Any:
    """Return the prompt that the fields say."""
    if typing:
        return prompt
    return worded({part: value for part, value in zip(s.lists, lists, strict=True) if value})


def switched(s: Sentence, info: ModelInfo, typing: bool, prompt: Any, *lists: Any) -> Updates:
    """Show the line of text in place of the lists, or the lists."""
    asked = prompt_of(s, typing, prompt, lists)
    book = phrasebook(info)
    if not typing or book is None:
        return filled(s, info, asked, typing=True)
    return filled(s, info, book.nearest(asked))


def completed(info: ModelInfo, prompt: Any) -> tuple[Any, list[str]]:
    """Return the prompt to draw, with the usual parts if it lacks some, and a sentence on that.

    Raise ValueError for a prompt that does not name what the model draws.
    """
    book = phrasebook(info)
    if (
        book is None
        or not isinstance(prompt, str)
        or not 0 < len(prompt.strip()) <= info.max_prompt
    ):
        return prompt, []  # the request answers for what is no prompt at all
    reading = book.read(prompt)
    if not reading.named:
        why, nearest = cannot_draw(info, prompt) or ("", "")
        raise ValueError(f"{why} {texts.OFFER} {nearest}")
    if reading.drawable:
        return prompt, []
    return book.nearest(prompt), [texts.COMPLETED.format(prompt=book.nearest(prompt))]


def any_prompt(info: ModelInfo) -> str:
    """Return a random prompt of two to four lanterns: a single one is often missing."""
    book = phrasebook(info)
    assert book is not None
    parts = {p: options[1:] if p == "count" else options for p, options in book.parts.items()}
    return worded({part: secrets.choice(options)[0] for part, options in parts.items()})
