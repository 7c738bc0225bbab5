"""Read what a prompt asks of a model with a small vocabulary, and explain undrawable prompts."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from tokenizers.pre_tokenizers import Whitespace

from lantern_demo.models.registry import ModelInfo
from lantern_demo.scenes import BEFORE_NOUN, NOUN, WORDINGS, worded

# fills in the parts that a prompt lacks; the page begins with it
USUAL = "three red round lanterns over a lake at dusk"
NUMBER = "count"
SINGULAR = WORDINGS[NUMBER][0]
ARTICLE = "a"  # a number in captions, but mostly not in other sentences
NOUNS = (NOUN, f"{NOUN}s")
ALL_BUT_THE_MOON = tuple(part for part in WORDINGS if part != "moon")
# replaces words that have been read, so that the words around them do not become neighbours
GAP = "|"


@dataclass(frozen=True)
class Reading:
    """The requests of a prompt: whether it names the model's subject, and the phrase of each part
    that it has.
    """

    named: bool
    said: Mapping[str, str]

    @property
    def drawable(self) -> bool:
        """Return whether the prompt has enough parts.

        From a bare noun, or a number of them, models draw no clear picture.
        """
        return self.named and any(part != NUMBER for part in self.said)

    @property
    def sure(self) -> bool:
        """Return whether the requested parts mostly appear.

        A single lantern is missing from about every second picture unless the prompt has all parts
        but the moon.
        """
        several = self.said.get(NUMBER) not in SINGULAR
        return self.drawable and (several or all(part in self.said for part in ALL_BUT_THE_MOON))


class Phrasebook:
    """The phrases that a vocabulary contains, by part of a prompt and option, the plainest first."""

    def __init__(self, words: frozenset[str]) -> None:
        self.words = words
        self.parts: dict[str, list[list[str]]] = {}
        for part, classes in WORDINGS.items():
            options = [
                [phrase for phrase in dict.fromkeys(phrases) if words.issuperset(phrase.split())]
                for phrases in classes
            ]
            self.parts[part] = [phrases for phrases in options if phrases]
        self.readings = self._readings()
        self.usual = self.read(USUAL).said

    def _readings(self) -> list[tuple[str, str, str]]:
        """Return (words, part, their phrase), the longest first: "under a moonless sky" contains
        the kind "sky" without meaning it.
        """
        whole: dict[str, tuple[str, str]] = {}
        ends: dict[str, tuple[str, str]] = {}
        for part, options in self.parts.items():
            for option in options:
                whole |= {phrase: (part, phrase) for phrase in option if phrase != ARTICLE}
                if part not in BEFORE_NOUN:
                    # The last word of a phrase alone has its meaning, as in "a lake". If two
                    # options share their last word, the later one applies, so that "moon" means a
                    # moon unless the prompt denies it.
                    ends |= {phrase.split()[-1]: (part, phrase) for phrase in reversed(option)}
        found = {**ends, **whole}
        return [
            (words, *found[words]) for words in sorted(found, key=lambda words: -len(words.split()))
        ]

    def read(self, prompt: str) -> Reading:
        """Return the requests that the known words of a prompt make."""
        tokens = [
            word
            for word, _ in Whitespace().pre_tokenize_str(
                unicodedata.normalize("NFKC", prompt).lower()
            )
        ]
        text = f" {' '.join(tokens)} "
        said: dict[str, str] = {}
        for words, part, phrase in self.readings:
            if part not in said and f" {words} " in text:
                said[part], text = phrase, text.replace(f" {words} ", f" {GAP} ")
        one, several = (noun in tokens for noun in NOUNS)
        if one and not several:
            said.setdefault(NUMBER, SINGULAR[0])
        return Reading(one or several, said)

    def nearest(self, prompt: str) -> str:
        """Return the nearest prompt of known phrases alone, with enough of them to be drawn
        reliably.
        """
        said = self.read(prompt).said
        return worded(said if Reading(True, said).sure else {**self.usual, **said})


def phrasebook(info: ModelInfo) -> Phrasebook | None:
    """Return a model's phrasebook, or None if it reads any text or lacks the nouns of these
    phrases.
    """
    return None if info.vocabulary is None else _of(info.vocabulary)


@cache
def _of(words: frozenset[str]) -> Phrasebook | None:
    return Phrasebook(words) if words.issuperset(NOUNS) else None


def cannot_draw(info: ModelInfo, prompt: str) -> tuple[str, str] | None:
    """Return why a model of few words cannot draw a prompt, and the nearest one that it can draw.

    Return None if it can draw this one."""
    book = phrasebook(info)
    if book is None or (reading := book.read(prompt)).drawable:
        return None
    if not reading.named:
        return f"This model draws only {NOUNS[1]}, and the prompt asks for none.", book.nearest(
            prompt
        )
    return (
        f"This model draws one to four {NOUNS[1]}. Add a colour, kind, place or time.",
        book.nearest(prompt),
    )


def warning(info: ModelInfo, prompt: str) -> str | None:
    """Return the warning shown with the picture of a prompt that the model cannot draw, otherwise
    None.
    """
    lacking = cannot_draw(info, prompt)
    return (
        None
        if lacking is None
        else f"The picture does not show the prompt. {lacking[0]} Try: {lacking[1]}"
    )
