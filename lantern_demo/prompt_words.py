"""Read the requests of a prompt from its words: the known phrases of a model with its own vocabulary, read and written, and the
reason why it cannot draw a prompt.

`ui/web/phrases.js` does the same in the page, while somebody types, with the tables of `Phrasebook.view`.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from tokenizers.pre_tokenizers import Whitespace

from lantern_demo.models.registry import ModelInfo
from lantern_demo.scenes import BEFORE_NOUN, NOUN, WORDINGS, worded

USUAL = "three red round lanterns over a lake at dusk"  # fills in the parts that a prompt lacks; the page begins with it
NUMBER = "count"
SINGULAR = WORDINGS[NUMBER][0]
ARTICLE = "a"  # a number in captions; in other sentences it mostly is none
NOUNS = (NOUN, f"{NOUN}s")
ALL_BUT_THE_MOON = tuple(part for part in WORDINGS if part != "moon")
GAP = "|"  # stands for words that have been read, so that those around them do not become neighbours


@dataclass(frozen=True)
class Reading:
    """The requests of a prompt: whether it names the model's subject, and the phrase of each part that it has."""

    named: bool
    said: Mapping[str, str]

    @property
    def drawable(self) -> bool:
        """Whether there is enough to draw from: of a bare name, or a number of them, these models make mush."""
        return self.named and any(part != NUMBER for part in self.said)

    @property
    def sure(self) -> bool:
        """Whether the requested parts mostly appear. One lantern alone is left out of about every second picture unless all but
        the moon is said; several are not."""
        several = self.said.get(NUMBER) not in SINGULAR
        return self.drawable and (several or all(part in self.said for part in ALL_BUT_THE_MOON))


class Phrasebook:
    """The phrases that a vocabulary holds, by part of a prompt and option, the plainest first."""

    def __init__(self, words: frozenset[str]) -> None:
        self.words = words
        self.parts: dict[str, list[list[str]]] = {}
        for part, classes in WORDINGS.items():
            options = [[phrase for phrase in dict.fromkeys(phrases) if words.issuperset(phrase.split())] for phrases in classes]
            self.parts[part] = [phrases for phrases in options if phrases]
        self.readings = self._readings()
        self.usual = self.read(USUAL).said

    def _readings(self) -> list[tuple[str, str, str]]:
        """Return (words, part, their phrase), the longest first: "under a moonless sky" holds the kind "sky" and does not
        mean it."""
        whole: dict[str, tuple[str, str]] = {}
        ends: dict[str, tuple[str, str]] = {}
        for part, options in self.parts.items():
            for option in options:
                whole |= {phrase: (part, phrase) for phrase in option if phrase != ARTICLE}
                if part not in BEFORE_NOUN:
                    # Alone, the last word of a phrase means it: a lake, whatever stands before it. Of two options that share one
                    # the later is used, so that a moon is a moon unless the prompt denies it.
                    ends |= {phrase.split()[-1]: (part, phrase) for phrase in reversed(option)}
        found = {**ends, **whole}
        return [(words, *found[words]) for words in sorted(found, key=lambda words: -len(words.split()))]

    def read(self, prompt: str) -> Reading:
        """Return the requests of a prompt, as far as its words are known."""
        tokens = [word for word, _ in Whitespace().pre_tokenize_str(unicodedata.normalize("NFKC", prompt).lower())]
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
        """Return the nearest prompt that has known phrases alone, and enough of them to be drawn surely."""
        said = self.read(prompt).said
        return worded(said if Reading(True, said).sure else {**self.usual, **said})

    def view(self) -> dict[str, Any]:
        """The same as the page's script takes it."""
        return {
            "words": sorted(self.words),
            "nouns": NOUNS,
            "number": NUMBER,
            "singular": SINGULAR,
            "before": BEFORE_NOUN,
            "allButTheMoon": ALL_BUT_THE_MOON,
            "gap": GAP,
            "usual": self.usual,
            "parts": self.parts,
            "readings": self.readings,
        }


def phrasebook(info: ModelInfo) -> Phrasebook | None:
    """That of a model on offer; None for one that reads any text, and for one that does not know what these phrases are about."""
    return None if info.vocabulary is None else _of(info.vocabulary)


@cache
def _of(words: frozenset[str]) -> Phrasebook | None:
    return Phrasebook(words) if words.issuperset(NOUNS) else None


def cannot_draw(info: ModelInfo, prompt: str) -> tuple[str, str] | None:
    """Why a model of few words would only make mush of a prompt, and the nearest prompt that it can draw; None where it can draw
    this one."""
    book = phrasebook(info)
    if book is None or (reading := book.read(prompt)).drawable:
        return None
    if not reading.named:
        return f"This model draws only {NOUNS[1]}, and the prompt asks for none.", book.nearest(prompt)
    return f"This model draws one to four {NOUNS[1]}. Add a colour, kind, place or time.", book.nearest(prompt)


def warning(info: ModelInfo, prompt: str) -> str | None:
    """Return the warning with the picture of a prompt that the model cannot draw."""
    lacking = cannot_draw(info, prompt)
    return None if lacking is None else f"The picture does not show the prompt. {lacking[0]} Try: {lacking[1]}"
