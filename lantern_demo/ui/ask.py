"""The prompt: a sentence of lists for a model of known words, a line of text for others."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from functools import partial
from typing import Any

import gradio as gr

from lantern_demo.models.registry import ModelInfo
from lantern_demo.prompt_words import THING, NotDrawn, Phrasebook, completed, phrasebook
from lantern_demo.scenes import LANTERN, OF_LANTERNS, PLURALS, WORDINGS, worded
from lantern_demo.ui import texts
from lantern_demo.ui.components import Updates
from lantern_demo.ui.limits import AT_ONCE
from lantern_demo.ui.service import Service


@dataclass(frozen=True)
class Sentence:
    """The fields of a prompt. `typing`: whether the line of text counts, not the lists."""

    prompt: gr.Textbox
    lists: dict[str, gr.Dropdown]  # by part of the sentence
    typing: gr.State
    toggle: gr.Button
    surprise: gr.Button

    def all(self) -> list[Any]:
        """Return the components that depend on the model or the prompt."""
        shown = [self.prompt, self.toggle, self.surprise]
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
            lists[part] = gr.Dropdown(
                label=texts.PARTS[part],
                container=False,
                filterable=False,
                min_width=72,
                elem_classes=["part", part],
                **given[part],
            )
    prompt = gr.Textbox(
        label=texts.PROMPT_LABEL,
        placeholder=texts.PROMPT_PLACEHOLDER,
        lines=1,
        max_lines=3,
        container=False,
        elem_id="prompt",
        **given["prompt"],
    )
    toggle = gr.Button(min_width=60, elem_id="type", **given["toggle"])
    surprise = gr.Button(texts.SURPRISE, min_width=60, elem_id="surprise", **given["surprise"])
    return Sentence(prompt, lists, gr.State(given["typing"]), toggle, surprise)


def _fields(info: ModelInfo, prompt: str, typing: bool) -> dict[str, Any]:
    """Return the properties of the fields that show a prompt.

    A prompt that the lists cannot form is shown as text.
    """
    book = phrasebook(info)
    said: dict[str, str] = {}
    if book is not None and not typing:
        reading = book.read(prompt)
        said = dict(reading.said)
        typing = THING not in said or worded(said) != prompt
    typing = typing or book is None
    thing = said.get(THING, LANTERN)
    lanterns = thing in WORDINGS[THING][0]
    fields: dict[str, Any] = {
        "prompt": {"value": prompt, "visible": typing},
        "typing": typing,
        "toggle": {"visible": book is not None, "value": texts.PICK if typing else texts.TYPE},
        "surprise": {"visible": book is not None},
    }
    for part in WORDINGS:
        options = [] if book is None else [phrases[0] for phrases in book.parts[part]]
        chosen = thing if part == THING else said.get(part, "")
        choices = dict.fromkeys([*options, *([chosen] if chosen else [])])
        named = [(PLURALS[LANTERN] if choice == LANTERN else choice, choice) for choice in choices]
        fields[part] = {
            "choices": [*([] if part == THING else [(texts.ANY[part], "")]), *named],
            "value": chosen,
            "visible": not typing and (lanterns or part not in OF_LANTERNS),
        }
    return fields


def filled(s: Sentence, info: ModelInfo, prompt: str, typing: bool = False) -> Updates:
    """Return the updates that show a prompt in the fields of a model."""
    fields = _fields(info, prompt, typing)
    components = {"prompt": s.prompt, "toggle": s.toggle, "surprise": s.surprise}
    components |= s.lists
    updates = {component: gr.update(**fields[name]) for name, component in components.items()}
    return {s.typing: fields["typing"], **updates}


def prompt_of(s: Sentence, typing: bool, prompt: Any, lists: tuple[Any, ...]) -> Any:
    """Return the prompt of the fields."""
    if typing:
        return prompt
    return worded({part: value for part, value in zip(s.lists, lists, strict=True) if value})


def wire_prompt(service: Service, s: Sentence, model: gr.Dropdown) -> None:
    """Wire the list of things, the switch between lists and text, and Surprise."""
    lists = list(s.lists.values())
    s.lists[THING].select(partial(thing_chosen, service, s), [model, *lists], s.all(), **AT_ONCE)
    s.toggle.click(partial(switched, service, s), [model, *s.asked()], s.all(), **AT_ONCE)
    s.surprise.click(partial(surprised, service, s), [model], s.all(), **AT_ONCE)


def switched(
    service: Service, s: Sentence, model: str, typing: bool, prompt: Any, *lists: Any
) -> Updates:
    """Show the line of text instead of the lists, or the lists again."""
    info, asked = service.offered()[model], prompt_of(s, typing, prompt, lists)
    book = phrasebook(info)
    if not typing or book is None:
        return filled(s, info, asked, typing=True)
    return filled(s, info, _nearest(book, asked))


def thing_chosen(service: Service, s: Sentence, model: str, *lists: Any) -> Updates:
    """Show the lists of a chosen thing, with the nearest prompt that the model can draw."""
    info = service.offered()[model]
    book = phrasebook(info)
    assert book is not None
    return filled(s, info, _nearest(book, prompt_of(s, False, "", lists)))


def _nearest(book: Phrasebook, prompt: str) -> str:
    """Return what is drawn for a prompt, or the nearest prompt that the model can draw."""
    try:
        return book.completed(prompt).prompt
    except NotDrawn as error:
        return error.prompts[0]


def surprised(service: Service, s: Sentence, model: str) -> Updates:
    """Show a random prompt, of lanterns every other time."""
    info = service.offered()[model]
    book = phrasebook(info)
    assert book is not None
    said = {part: secrets.choice(options)[0] for part, options in book.parts.items() if options}
    if secrets.randbelow(2):
        return filled(s, info, worded({**said, THING: LANTERN}))
    return filled(s, info, _nearest(book, worded(said)))


def told_of(info: ModelInfo, prompt: str) -> list[str]:
    """Return the sentences that say what is drawn for a prompt, if it is another."""
    done = completed(info, prompt)
    drawn = [] if done.prompt == prompt else [texts.DRAWN.format(prompt=done.prompt)]
    return [*([done.why] if done.why else []), *drawn]
