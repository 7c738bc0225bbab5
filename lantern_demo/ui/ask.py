"""The prompt: a sentence of lists for a model of known words, a line of text for others."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from html import escape
from typing import Any

import gradio as gr

from lantern_demo.models.registry import ModelInfo
from lantern_demo.prompt_words import (
    NUMBER,
    PLACE,
    THING,
    USUAL,
    NotDrawn,
    Phrasebook,
    completed,
    phrasebook,
)
from lantern_demo.scenes import (
    LANTERN,
    LANTERNS,
    OF_LANTERNS,
    SINGULAR,
    THING_PLACES,
    WORDINGS,
    worded,
)
from lantern_demo.ui import texts
from lantern_demo.ui.components import Updates
from lantern_demo.ui.gradio_patches import take_late_words
from lantern_demo.ui.limits import AT_ONCE, QUIET
from lantern_demo.ui.service import Service

PRESS_DRAW = "() => document.getElementById('draw').click()"
# The line of text has the keys when it appears.
TO_THE_TEXT = """() => {
  let left = 20;
  const timer = setInterval(() => {
    const line = document.querySelector("#prompt textarea, #prompt input");
    if (line && line !== document.activeElement) line.select();
    if (line || !left--) clearInterval(timer);
  }, 50);
}"""
# The keys of a list do not scroll the page. Gradio hears no others: it would open a list again
# after Tab, and fail when an answer changes it. After Enter the list has the keys again, closed.
# `before` keeps the values of all lists from when one of them was opened.
LIST_KEYS = """() => {
  const keys = ["ArrowDown", "ArrowUp", "Home", "End", "Enter", "Escape"];
  const sentence = document.getElementById("sentence");
  sentence.addEventListener("keydown", (event) => {
    if (!keys.includes(event.key)) return event.stopPropagation();
    event.preventDefault();
    if (event.key !== "Enter") return;
    setTimeout(() => {
      if (document.activeElement !== document.body) return;
      event.target.focus();
      event.target.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape", bubbles: true }));
    }, 50);
  });
  sentence.addEventListener("focusin", () => {
    for (const list of sentence.querySelectorAll("input")) list.dataset.before = list.value;
  });
}"""
# Lists that a choice has changed are marked for two seconds.
MARK = """() => setTimeout(() => {
  const outline = ["2px solid var(--color-accent)", "2px solid transparent"];
  for (const list of document.querySelectorAll("#sentence input")) {
    if (list.value !== list.dataset.before) list.closest(".part").animate({ outline }, 2000);
    list.dataset.before = list.value;
  }
}, 50)"""
LISTED = tuple(part for part in WORDINGS if part != "moon")  # parts of a prompt that have lists
TYPE = "type"  # the entry of the things' list that shows the line of text
# the words of each list, by part; a late choice may be a word that its list no longer offers
WORDS = {part: {phrase for option in WORDINGS[part] for phrase in option} for part in LISTED}
WORDS[PLACE] |= {phrase for option in THING_PLACES for phrase in option}
WORDS[THING] |= {TYPE}


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

    def said(self, given: dict[Any, Any]) -> dict[str, Any]:
        """Return the words of the lists by part of the sentence. given: values by component."""
        return {part: given[one] for part, one in self.lists.items() if given[one] in WORDS[part]}


def add_sentence(info: ModelInfo) -> Sentence:
    """Add the fields, for the model of the page."""
    take_late_words("part")
    given = _fields(info, texts.EXAMPLES[0][0], typing=False)
    lists = {}
    with gr.Row(elem_id="sentence"):
        for part in LISTED:
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
    # Draw is between these and the prompt.
    small: dict[str, Any] = {"min_width": 60, "render": False}
    toggle = gr.Button(texts.PICK, elem_id="type", **small, **given["toggle"])
    surprise = gr.Button(texts.SURPRISE, elem_id="surprise", **small, **given["surprise"])
    return Sentence(prompt, lists, gr.State(given["typing"]), toggle, surprise)


def offers_of(offers: Mapping[str, str]) -> str:
    """Return the prompts that a refusal offers as buttons, each by the name of its thing."""
    buttons = "".join(
        f'<button type="button" title="{escape(prompt)}">{escape(name)}</button>'
        for name, prompt in offers.items()
    )
    return f'<div class="offers" role="group" aria-label="{texts.OFFERS}">{buttons}</div>'


def _fields(info: ModelInfo, prompt: str, typing: bool) -> dict[str, Any]:
    """Return the properties of the fields that show a prompt.

    A prompt that the lists cannot form is shown as text.
    """
    book = phrasebook(info)
    said: dict[str, str] = {}
    if book is not None and not typing:
        said = dict(book.read(prompt).said)
        typing = THING not in said or "moon" in said or worded(said) != prompt
    typing = typing or book is None
    fields: dict[str, Any] = {
        "prompt": {"value": prompt, "visible": typing},
        "typing": typing,
        "toggle": {"visible": book is not None and typing},
        "surprise": {"visible": book is not None},
    }
    lanterns = said.get(THING, LANTERN) in WORDINGS[THING][0]
    options = {} if book is None else _options(book, lanterns)
    for part in LISTED:
        chosen = said.get(part, LANTERN if part == THING else "")
        choices = options.get(part, [])
        if chosen not in [value for _, value in choices]:
            choices = [*choices, (chosen, chosen)]
        visible = not typing and (lanterns or part not in OF_LANTERNS)
        fields[part] = {"choices": choices, "value": chosen, "visible": visible}
    return fields


def _options(book: Phrasebook, lanterns: bool) -> dict[str, list[tuple[str, str]]]:
    """Return the choices of each list. There is one of a thing, and its places are its own."""
    phrases = {part: [option[0] for option in book.parts[part]] for part in LISTED}
    if not lanterns:
        phrases[PLACE] = [option[0] for option in THING_PLACES]
    options = {
        part: [(texts.ANY[part], ""), *((phrase, phrase) for phrase in phrases[part])]
        for part in LISTED
    }
    if not lanterns:
        options[NUMBER] = [(SINGULAR[0], SINGULAR[0])]
    named = [(LANTERNS if name == LANTERN else name, name) for name in phrases[THING]]
    return options | {THING: [*named, (texts.TYPE, TYPE)]}


def filled(s: Sentence, info: ModelInfo, prompt: str, typing: bool = False) -> Updates:
    """Return the updates that show a prompt in the fields of a model."""
    fields = _fields(info, prompt, typing)
    components = {"prompt": s.prompt, "toggle": s.toggle, "surprise": s.surprise}
    components |= s.lists
    updates = {component: gr.update(**fields[name]) for name, component in components.items()}
    return {s.typing: fields["typing"], **updates}


def prompt_of(s: Sentence, given: dict[Any, Any]) -> Any:
    """Return the prompt of the fields, from their values by component.

    It is the line of text where that counts, else the sentence of the lists.
    """
    said = s.said(given)
    typing = given[s.typing] or TYPE in said.values()
    return given[s.prompt] if typing else _sentence(said, given[s.prompt])


def _sentence(said: dict[str, Any], shown: str) -> str:
    """Return the sentence of the lists. shown: the one before their latest choice.

    Lanterns after a thing are the usual ones.
    """
    lanterns = said.get(THING, LANTERN) in WORDINGS[THING][0]
    return USUAL if lanterns and LANTERN not in f"{shown}" else worded(said)


def wire_prompt(service: Service, s: Sentence, offers: gr.HTML) -> None:
    """Wire the lists, the line of text, Surprise, and the prompts that a refusal offers."""
    info = service.info
    gr.on(None, None, js=LIST_KEYS, **QUIET)  # when the page is loaded
    # `select` would not hear Enter. `input` also hears that a list is left unchanged.
    picked = s.lists[THING].input(
        partial(chosen, s, info),
        {s.typing, s.prompt, *s.lists.values()},
        s.all(),
        trigger_mode="always_last",
        **AT_ONCE,
    )
    picked.then(None, js=TO_THE_TEXT, **QUIET)
    picked.then(None, js=MARK, **QUIET)
    s.toggle.click(lambda text: filled(s, info, listed(info, text)), [s.prompt], s.all(), **AT_ONCE)
    drawn = s.surprise.click(partial(surprised, s, info), None, s.all(), **AT_ONCE)
    drawn.then(None, js=PRESS_DRAW, **QUIET)

    def offered(event: gr.SelectData) -> Updates:
        return {offers: "", **filled(s, info, event.value)}

    taken = offers.select(offered, None, [offers, *s.all()], **AT_ONCE)
    taken.then(None, js=PRESS_DRAW, **QUIET)


def chosen(s: Sentence, info: ModelInfo, given: dict[Any, Any]) -> Updates:
    """Show the prompt that is drawn for a chosen thing, or the line of text.

    The hidden line of text has the sentence that was shown before. A late choice, from a list that
    the line of text has replaced, changes nothing.
    """
    if given[s.typing]:
        return {s.typing: True}
    book, said, shown = phrasebook(info), s.said(given), given[s.prompt]
    assert book is not None
    if said.get(THING) == TYPE:
        thing = book.read(shown).said.get(THING, LANTERN)
        return filled(s, info, worded(said | {THING: thing}), typing=True)
    prompt = _sentence(said, shown)
    lanterns = said.get(THING, LANTERN) in WORDINGS[THING][0]
    return filled(s, info, prompt if lanterns else nearest(info, prompt))


def surprised(s: Sentence, info: ModelInfo) -> Updates:
    """Show a random prompt: of lanterns every other time, else of a thing with or without a place
    and a time.
    """
    book = phrasebook(info)
    assert book is not None
    said = {part: secrets.choice(book.parts[part])[0] for part in LISTED}
    if secrets.randbelow(2):
        said[THING] = LANTERN
    else:
        said = {part: said[part] for part in LISTED if part == THING or secrets.randbelow(4)}
    return filled(s, info, nearest(info, worded(said)))


def nearest(info: ModelInfo, prompt: str) -> str:
    """Return the prompt that is drawn for another one, or the nearest that the model can draw."""
    try:
        return completed(info, prompt).prompt
    except NotDrawn as error:
        return next(iter(error.offers.values()))


def listed(info: ModelInfo, prompt: str) -> str:
    """Return the prompt that is drawn for another one, as far as the lists have words for it."""
    book = phrasebook(info)
    assert book is not None
    said = book.read(nearest(info, prompt)).said
    return worded({part: said[part] for part in LISTED if part in said})
