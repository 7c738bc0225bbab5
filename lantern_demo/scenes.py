"""The words of the bundled model's scenes: write captions, and read the requests of a prompt.

A scene shows one to three things of one kind on a lake, hills or a plain, at dusk, night or dawn, with or without a moon. Its
attributes are class indices by the names of ATTRIBUTES.
`examples/make_bundled_model/render.py` draws scenes.
"""

from __future__ import annotations

import random
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers.pre_tokenizers import Whitespace

MAX_COUNT = 3


@dataclass(frozen=True)
class Noun:
    """A kind of thing that scenes show, read from a line of nouns.txt."""

    file: str  # of its picture, without the suffix
    phrases: tuple[tuple[str, str], ...]  # singular and plural of the name, then of each keyword
    mass: bool = False  # written without a number and drawn once
    air: bool = False  # hangs in the air
    glow: bool = False  # shines
    crop: float = 0.0  # share of the picture's height that is cut off at its foot

    @property
    def name(self) -> str:
        return self.phrases[0][0]


def plural_of(phrase: str) -> str:
    """Return the regular plural of a phrase's last word."""
    if re.search(r"(s|x|z|ch|sh)$", phrase):
        return phrase + "es"
    if re.search(r"[^aeiou]y$", phrase):
        return phrase[:-1] + "ies"
    return phrase + "s"


def _noun(line: str) -> Noun:
    file, name, keywords, how = (part.strip() for part in line.split("|"))
    flags = how.split()
    phrases = []
    for word in (name, *filter(None, (k.strip() for k in keywords.split(",")))):
        singular, _, plural = word.partition("/")
        phrases.append((singular, singular if "mass" in flags else plural or plural_of(singular)))
    crop = [float(flag.removeprefix("crop=")) for flag in flags if flag.startswith("crop=")]
    return Noun(file, tuple(phrases), "mass" in flags, "air" in flags, "glow" in flags, sum(crop))


_LINES = Path(__file__).with_name("nouns.txt").read_text("utf-8").splitlines()
NOUNS = tuple(_noun(line) for line in _LINES if not line.startswith("#"))

PLACES = ("lake", "hills", "plain")
TIMES = ("dusk", "night", "dawn")
# The classes of every attribute, in the order of their indices.
ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "noun": tuple(noun.name for noun in NOUNS),
    "count": tuple(str(n + 1) for n in range(MAX_COUNT)),
    "place": PLACES,
    "time": TIMES,
    "moon": ("no", "yes"),
}

# For each class of an attribute, the wordings that captions choose from, the plainest first. A repeated one is chosen more
# often.
WORDINGS: dict[str, tuple[tuple[str, ...], ...]] = {
    "count": (
        ("a", "a", "a", "one", "1", "a single"),
        ("two", "two", "2", "a pair of", "a couple of"),
        ("three", "three", "3", "a group of three"),
    ),
    "place": (
        ("on a lake", "on a lake", "by a lake", "over a lake", "on the lake", "by the lake", "on the water", "on still water"),
        ("in the hills", "on the hills", "on a hill", "over the hills", "on rolling hills", "in the mountains"),
        ("on a plain", "on a plain", "on the plain", "over a plain", "in a field", "in a meadow", "on the grass"),
    ),
    "time": (
        ("at dusk", "at dusk", "at sunset", "in the evening"),
        ("at night", "at night", "at midnight", "in the night"),
        ("at dawn", "at dawn", "at sunrise", "in the morning"),
    ),
    "moon": (
        ("without a moon", "no moon", "under a moonless sky"),
        ("under the moon", "with a full moon", "with a moon", "in the moonlight"),
    ),
}
SOME = ("", "", "some")  # before a mass noun
LEADS = ("", "", "", "a picture of", "a photo of", "a drawing of", "an image of")
TAILS = ("", "", "", "", ", softly lit")
AFTER_NOUN = ("place", "time", "moon")
# Numbers that no scene has. `read` also finds digits.
OTHER_NUMBERS = ("zero", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "dozen", "many", "several")


def _article(number: str, phrase: str) -> str:
    if number != "a":
        return number
    vowel = phrase[0] in "aeiou" and not phrase.startswith(("uni", "ufo", "ewe"))
    return "an" if vowel or phrase.startswith(("hour", "suv")) else "a"


def _things(noun: Noun, count: int, number: str, some: str, phrase: tuple[str, str]) -> str:
    if noun.mass:
        return f"{some} {phrase[0]}".strip()
    return f"{_article(number, phrase[0])} {phrase[min(count, 1)]}"


def caption(scene: Mapping[str, int], rng: random.Random, omit: float = 0.0, keywords: float = 0.4) -> str:
    """Write a random caption of a scene, given by class indices.

    Place, time and moon are left out with probability `omit`, all together and then each alone. A keyword replaces a noun's
    name with probability `keywords`, if the noun has any. A caption has at most 27 words.
    """
    noun, count = NOUNS[scene["noun"]], scene["count"]
    named = len(noun.phrases) == 1 or rng.random() >= keywords
    phrase = noun.phrases[0] if named else rng.choice(noun.phrases[1:])
    subject = _things(noun, count, rng.choice(WORDINGS["count"][count]), rng.choice(SOME), phrase)
    bare = rng.random() < omit
    place, time, moon = ("" if bare or rng.random() < omit else rng.choice(WORDINGS[part][scene[part]]) for part in AFTER_NOUN)
    parts = [subject, time, place] if rng.random() < 0.25 else [subject, place, time]
    parts += ["and", moon] if moon == "no moon" else [moon]
    return " ".join(filter(None, (rng.choice(LEADS), *parts))) + rng.choice(TAILS)


def _plainly(noun: int, count: int) -> str:
    return _things(NOUNS[noun], count, WORDINGS["count"][count][0], "", NOUNS[noun].phrases[0])


def full_caption(scene: Mapping[str, int]) -> str:
    """Write the plainest caption that names every attribute of a scene."""
    return " ".join((_plainly(scene["noun"], scene["count"]), *(WORDINGS[part][scene[part]][0] for part in AFTER_NOUN)))


def some_scene(rng: random.Random) -> dict[str, int]:
    """Return the attributes of a random scene. Eight of ten show one thing."""
    noun = rng.randrange(len(NOUNS))
    count = rng.choices(range(MAX_COUNT), (80, 12, 8))[0]
    scene = {"noun": noun, "count": 0 if NOUNS[noun].mass else count}
    return scene | {part: rng.randrange(len(ATTRIBUTES[part])) for part in AFTER_NOUN}


@cache
def vocabulary() -> tuple[str, ...]:
    """Return every word that a caption can contain, sorted."""
    phrases = [phrase for noun in NOUNS for forms in noun.phrases for phrase in forms]
    phrases += [phrase for classes in WORDINGS.values() for wordings in classes for phrase in wordings]
    return tuple(sorted({*" ".join((*phrases, *SOME, *LEADS)).split(), "an", "and", ",", "softly", "lit"}))


@dataclass(frozen=True)
class Reading:
    """The requests of a prompt."""

    said: Mapping[str, int]  # class indices of the attributes that it names
    unknown: tuple[str, ...]  # words that mean nothing in it
    number: str | None  # the first number of things that no scene has
    second: str | None  # the name of a second kind of thing

    @property
    def drawable(self) -> bool:
        """Return whether the prompt names a thing that scenes show."""
        return "noun" in self.said


@cache
def _phrases() -> dict[tuple[str, ...], tuple[str, int, int]]:
    """Map the words of each phrase to its attribute, its class index and, for a noun, the least class index of its count.

    The last word of a place, a time or a moon means the same alone, unless it is a noun.
    """
    found: dict[tuple[str, ...], tuple[str, int, int]] = {}
    for index, noun in enumerate(NOUNS):
        for singular, plural in noun.phrases:
            found[tuple(plural.split())] = ("noun", index, 0 if noun.mass or plural == singular else 1)
            found[tuple(singular.split())] = ("noun", index, 0)
    lone = [(part, index) for part in AFTER_NOUN for index in range(len(WORDINGS[part])) if (part, index) != ("moon", 0)]
    for part, index in lone:
        for phrase in WORDINGS[part][index]:
            found.setdefault((phrase.split()[-1],), (part, index, 0))
    for part, classes in WORDINGS.items():
        for index, wordings in enumerate(classes):
            found |= {tuple(phrase.split()): (part, index, 0) for phrase in wordings}
    return {**found, ("an",): ("count", 0, 0)}


def read(prompt: str) -> Reading:
    """Read the requests of a prompt, as far as its words are known.

    The longest phrase counts: a fire truck is no fire. A noun right before another one qualifies it: an orange cat is a cat.
    `ui/web/phrases.js` reads a prompt in the same way.
    """
    plain = unicodedata.normalize("NFKC", prompt).lower().replace("-", " ")
    words = [word for word, _ in Whitespace().pre_tokenize_str(plain)]
    phrases, known = _phrases(), {*vocabulary()}.difference(OTHER_NUMBERS)
    longest = max(map(len, phrases))
    said: dict[str, int] = {}
    unknown: list[str] = []
    nouns: list[tuple[int, int]] = []  # class, count
    at, number, after_noun = 0, 0, False
    other = refused = None  # the last number that no scene has, and the first one before a noun
    while at < len(words):
        length = next((n for n in range(longest, 0, -1) if tuple(words[at : at + n]) in phrases), 0)
        part, index, least = phrases[tuple(words[at : at + length])] if length else ("", 0, 0)
        if after_noun and part != "noun":
            number = 0
        if part == "noun":
            if after_noun:
                nouns.pop()
            nouns.append((index, 0 if NOUNS[index].mass else max(number, least)))
            refused = refused or other
        elif part == "count":
            number = index
        elif part:
            said.setdefault(part, index)
        elif words[at] not in known:
            unknown.append(words[at])
        if length:
            other = None
        elif words[at] in OTHER_NUMBERS or words[at].isdecimal():
            other = words[at]
        after_noun = part == "noun"
        at += max(length, 1)
    if nouns:
        said["noun"], said["count"] = nouns[0]
    second = next((NOUNS[index].name for index, _ in nouns if index != nouns[0][0]), None)
    return Reading(said, tuple(unknown), refused, second)


USUAL = "a cat on a lake at dusk under the moon"  # supplies the attributes that a prompt lacks; the page begins with it


def nearest(prompt: str) -> str:
    """Return the nearest prompt that has only known words and names every attribute."""
    return full_caption({**read(USUAL).said, **read(prompt).said})


def view() -> dict[str, Any]:
    """Return the words in the form that the page's script reads: see `openBook` of ui/web/phrases.js.

    A noun is its plainest wording and its keywords, with commas between. A slash leads to an irregular plural.
    """

    def packed(index: int) -> str:
        noun = NOUNS[index]
        parts = [_plainly(index, 0), *(one for one, _ in noun.phrases[1:])]
        plurals = ["" if noun.mass or many == plural_of(one) else f"/{many}" for one, many in noun.phrases]
        return ",".join(map("".join, zip(parts, plurals, strict=True)))

    parts = {part: [tuple(dict.fromkeys(wordings)) for wordings in classes] for part, classes in WORDINGS.items()}
    known = " ".join(phrase for words in _phrases() for phrase in words).split()
    others = sorted({*vocabulary()}.difference(known))
    return {
        "nouns": [packed(i) for i in range(len(NOUNS))],
        "parts": parts,
        "words": others,
        "usual": read(USUAL).said,
        "numbers": OTHER_NUMBERS,
    }
