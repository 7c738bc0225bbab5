"""Read what a prompt asks of a model with a small vocabulary, and explain undrawable prompts."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from tokenizers.pre_tokenizers import Whitespace

from lantern_demo.models.registry import ModelInfo
from lantern_demo.scenes import (
    LANTERN,
    NOUNS,
    OF_LANTERNS,
    SHOWN,
    SINGULAR,
    THING_PLACES,
    WORDINGS,
    worded,
)

# offered for a prompt that names nothing that the model draws; the page begins with it
USUAL = "three red round lanterns over a lake at dusk"
NUMBER, THING, PLACE = "count", "thing", "place"
ARTICLE = "a"  # a number in captions, but mostly not in other sentences
ARTICLES = frozenset((ARTICLE, "an"))
# replaces words that have been read, so that the words around them do not become neighbours
GAP = "|"
FOLLOW_NOUN = ("place", "time", "moon")


@dataclass(frozen=True)
class Reading:
    """The requests of a prompt: a phrase for each part that it has, and the kinds of its things.

    The first thing that the model is asked for counts. `counted` says whether an article or a
    number stands before it.
    """

    said: Mapping[str, str]
    kinds: frozenset[int]
    counted: bool

    @property
    def lanterns(self) -> bool:
        """Return whether the prompt asks for lanterns first."""
        return self.said.get(THING) in WORDINGS[THING][0]

    @property
    def drawable(self) -> bool:
        """Return whether the model draws such a prompt: lanterns in any words, or one thing.

        Things have no colour and no shape, and without a number the model draws another one.
        """
        if len(self.kinds) != 1 or THING not in self.said:
            return False
        one = self.counted and self.said.get(NUMBER) in SINGULAR
        return self.lanterns or (one and not self.said.keys() & set(OF_LANTERNS))


class Phrasebook:
    """The phrases of a vocabulary, by part of a prompt and option, the plainest first."""

    def __init__(self, words: frozenset[str]) -> None:
        self.words = words
        self.parts: dict[str, list[list[str]]] = {}
        for part, classes in WORDINGS.items():
            options = [
                self._known(phrases)
                for kind, phrases in enumerate(classes)
                if part != THING or kind in SHOWN
            ]
            self.parts[part] = [phrases for phrases in options if phrases]
        self.forms = {
            form: (kind, names[0])
            for kind, nouns in enumerate(NOUNS)
            for names in nouns
            for form in self._known(names)
        }
        self.readings = self._readings()
        self.usual = self.read(USUAL).said

    def _known(self, phrases: tuple[str, ...]) -> list[str]:
        """Return the different phrases whose words are all of the vocabulary."""
        return [
            phrase for phrase in dict.fromkeys(phrases) if self.words.issuperset(phrase.split())
        ]

    def _readings(self) -> list[tuple[str, str, str]]:
        """Return (words, part, their phrase), the longest first.

        "under a moonless sky" contains the shape "sky" without meaning it.
        """
        whole: dict[str, tuple[str, str]] = {}
        ends: dict[str, tuple[str, str]] = {}
        places = {
            phrase: (PLACE, phrase) for phrases in THING_PLACES for phrase in self._known(phrases)
        }
        for part, options in self.parts.items():
            for option in options if part != THING else ():
                whole |= {phrase: (part, phrase) for phrase in option if phrase != ARTICLE}
                if part in FOLLOW_NOUN:
                    # The last word of a phrase alone has its meaning, as in "a lake". If two
                    # options share their last word, the later one applies, so that "moon" means a
                    # moon unless the prompt denies it.
                    ends |= {phrase.split()[-1]: (part, phrase) for phrase in reversed(option)}
        found = {**ends, **places, **whole}
        return [
            (words, *found[words]) for words in sorted(found, key=lambda words: -len(words.split()))
        ]

    def read(self, prompt: str) -> Reading:
        """Return the requests that the known words of a prompt make."""
        plain = unicodedata.normalize("NFKC", prompt).lower()
        text = f" {' '.join(word for word, _ in Whitespace().pre_tokenize_str(plain))} "
        said: dict[str, str] = {}
        for words, part, phrase in self.readings:
            if part not in said and f" {words} " in text:
                said[part], text = phrase, text.replace(f" {words} ", f" {GAP} ")
        found = sorted((text.find(f" {form} "), form) for form in self.forms if f" {form} " in text)
        shown = [(at, form) for at, form in found if self.forms[form][0] in SHOWN]
        counted = NUMBER in said
        if shown:
            at, form = shown[0]
            said[THING] = self.forms[form][1]
            counted |= not ARTICLES.isdisjoint(text[:at].split())
            if form == said[THING]:
                said.setdefault(NUMBER, SINGULAR[0])
        ordered = {part: said[part] for part in WORDINGS if part in said}
        return Reading(ordered, frozenset(self.forms[form][0] for _, form in found), counted)

    def nearest(self, prompt: str) -> str:
        """Return the nearest prompt of known phrases alone that is drawn reliably."""
        said = dict(self.read(prompt).said)
        if THING not in said:
            said = {**self.usual, **said}
        elif said[THING] not in WORDINGS[THING][0]:
            said = {part: phrase for part, phrase in said.items() if part not in OF_LANTERNS}
            if said.get(NUMBER) not in SINGULAR:
                said[NUMBER] = SINGULAR[0]
        if PLACE in said:
            places, other = WORDINGS[PLACE], THING_PLACES
            if said[THING] not in WORDINGS[THING][0]:
                places, other = other, places
            if not any(said[PLACE] in phrases for phrases in places):
                same = next(i for i, phrases in enumerate(other) if said[PLACE] in phrases)
                said[PLACE] = places[same][0]
        return worded(said)


def phrasebook(info: ModelInfo) -> Phrasebook | None:
    """Return a model's phrasebook, or None if it reads any text or lacks the plain phrases."""
    return None if info.vocabulary is None else _of(info.vocabulary)


@cache
def _of(words: frozenset[str]) -> Phrasebook | None:
    plain = {*USUAL.split(), LANTERN, SINGULAR[0]}
    return Phrasebook(words) if words.issuperset(plain) else None


def cannot_draw(info: ModelInfo, prompt: str) -> tuple[str, str] | None:
    """Return why a model of few words cannot draw a prompt, and the nearest one that it can draw.

    Return None if it can draw this one."""
    book = phrasebook(info)
    if book is None or (reading := book.read(prompt)).drawable:
        return None
    things = len(book.parts[THING]) - 1
    if THING not in reading.said:
        drawn = f"lanterns and {things} things" if things else "only lanterns"
        why = f"This model draws {drawn}, and the prompt names none of them."
    elif len(reading.kinds) > 1:
        why = "This model draws one kind of thing in a picture."
    else:
        why = "This model draws one of a thing, without a colour or kind."
    return why, book.nearest(prompt)


def warning(info: ModelInfo, prompt: str) -> str | None:
    """Return the warning for a prompt that the model cannot draw, otherwise None."""
    lacking = cannot_draw(info, prompt)
    if lacking is None:
        return None
    why, nearest = lacking
    return f"The picture does not show the prompt. {why} Try: {nearest}"
