"""The words of the emoji scenes: what a caption says of a scene, and what a prompt asks for.

A scene shows one to three things of one kind, or two different ones, on a lake, hills or a plain, at dusk, night or dawn, with
or without a moon. Its attributes are class indices by the names of ATTRIBUTES. No picture is needed here.
"""

from __future__ import annotations

import random
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from examples.make_bundled_model.emoji_nouns import TABLE

MAX_COUNT = 3


@dataclass(frozen=True)
class Noun:
    """A thing that scenes show."""

    file: str  # of its picture, without the suffix
    phrases: tuple[tuple[str, str], ...]  # singular and plural of the name, then of each keyword
    mass: bool = False  # said without a number and drawn once
    air: bool = False  # hangs in the air
    glow: bool = False  # shines of itself
    crop: float = 0.0  # share of the picture's height that is cut off at its foot

    @property
    def name(self) -> str:
        return self.phrases[0][0]


def plural_of(phrase: str) -> str:
    """The regular plural of the last word of a phrase."""
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


NOUNS = tuple(_noun(line) for line in TABLE.strip().splitlines())
NONE = len(NOUNS)  # the class of `second` where there is no second kind

PLACES = ("lake", "hills", "plain")
TIMES = ("dusk", "night", "dawn")
# The classes of every attribute, in the order of their indices.
ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "noun": tuple(noun.name for noun in NOUNS),
    "second": (*(noun.name for noun in NOUNS), "none"),
    "count": tuple(str(n + 1) for n in range(MAX_COUNT)),
    "place": PLACES,
    "time": TIMES,
    "moon": ("no", "yes"),
}

# By attribute, for each of its classes the wordings that captions choose from, the plainest first; one that is there twice is
# chosen twice as often.
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
AND = ("and", "and", "and", "with", "beside", "next to")
SOME = ("", "", "some")  # before a mass noun
LEADS = ("", "", "", "a picture of", "a photo of", "a drawing of", "an image of")
TAILS = ("", "", "", "", ", softly lit")
AFTER_NOUN = ("place", "time", "moon")


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
    """One wording of a scene, given by class indices; place, time and moon are each left unsaid with probability `omit`.

    A keyword stands for a noun's name with probability `keywords`, where it has any. Two kinds are said from left to right.
    """

    def thing(index: int, count: int) -> str:
        noun = NOUNS[index]
        named = len(noun.phrases) == 1 or rng.random() >= keywords
        phrase = noun.phrases[0] if named else rng.choice(noun.phrases[1:])
        return _things(noun, count, rng.choice(WORDINGS["count"][count]), rng.choice(SOME), phrase)

    subject = thing(scene["noun"], scene["count"])
    if scene["second"] != NONE:
        subject = f"{subject} {rng.choice(AND)} {thing(scene['second'], 0)}"
    place, time, moon = ("" if rng.random() < omit else rng.choice(WORDINGS[part][scene[part]]) for part in AFTER_NOUN)
    parts = [subject, time, place] if rng.random() < 0.25 else [subject, place, time]
    parts += ["and", moon] if moon == "no moon" else [moon]
    text = " ".join(filter(None, (rng.choice(LEADS), *parts)))
    return text + rng.choice(TAILS)


def full_caption(scene: Mapping[str, int]) -> str:
    """The plainest wording of a scene that says every attribute."""
    things = [(scene["noun"], scene["count"])] + [(scene["second"], 0)] * (scene["second"] != NONE)
    said = [_things(NOUNS[n], count, WORDINGS["count"][count][0], "", NOUNS[n].phrases[0]) for n, count in things]
    return " ".join((" and ".join(said), *(WORDINGS[part][scene[part]][0] for part in AFTER_NOUN)))


@cache
def vocabulary() -> tuple[str, ...]:
    """Every word a caption can hold, sorted."""
    phrases = [phrase for noun in NOUNS for forms in noun.phrases for phrase in forms]
    phrases += [phrase for classes in WORDINGS.values() for wordings in classes for phrase in wordings]
    return tuple(sorted({*" ".join((*phrases, *AND, *SOME, *LEADS)).split(), "an", ",", "softly", "lit"}))


@dataclass(frozen=True)
class Reading:
    """What a prompt asks for: class indices of the attributes that it says, and its words that no caption holds."""

    said: Mapping[str, int]
    unknown: tuple[str, ...]

    @property
    def drawable(self) -> bool:
        """Whether the prompt names a thing that scenes show."""
        return "noun" in self.said


@cache
def _phrases() -> dict[tuple[str, ...], tuple[str, int, int]]:
    """By its words, what a phrase says: an attribute, a class index, and for nouns how many at least (0: not said)."""
    found: dict[tuple[str, ...], tuple[str, int, int]] = {}
    for index, noun in enumerate(NOUNS):
        for singular, plural in noun.phrases:
            found[tuple(plural.split())] = ("noun", index, 0 if noun.mass or plural == singular else 2)
            found[tuple(singular.split())] = ("noun", index, 0)
    for part, classes in WORDINGS.items():
        for index, wordings in enumerate(classes):
            found |= {tuple(phrase.split()): (part, index, 0) for phrase in wordings}
    return {**found, ("an",): ("count", 0, 0)}


def read(prompt: str) -> Reading:
    """What a prompt asks for, as far as its words are known.

    The longest phrase counts: a fire truck is no fire. A noun right before another qualifies it: an orange cat is a cat. The
    first two nouns are what is to be seen; of two different ones there is one each.
    """
    words = re.findall(r"\w+|[^\w\s]+", unicodedata.normalize("NFKC", prompt).lower())
    phrases, known = _phrases(), frozenset(vocabulary())
    longest = max(map(len, phrases))
    said: dict[str, int] = {}
    nouns: list[tuple[int, int]] = []  # class, count
    at, number, after_noun = 0, None, False
    while at < len(words):
        length = next((n for n in range(longest, 0, -1) if tuple(words[at : at + n]) in phrases), 0)
        part, index, least = phrases[tuple(words[at : at + length])] if length else ("", 0, 0)
        if part == "noun":
            if after_noun:
                nouns.pop()
            count = number if number is not None else min(least, 2) - 1 if least else 0
            nouns.append((index, 0 if NOUNS[index].mass else count))
        elif part == "count":
            number = index
        elif part:
            said.setdefault(part, index)
        if part not in ("count", "noun"):
            number = None
        after_noun = part == "noun"
        at += max(length, 1)
    if nouns:
        said["noun"], said["count"] = nouns[0]
        said["second"] = NONE
        others = [index for index, _ in nouns[1:] if index != nouns[0][0]]
        if others:
            said["second"], said["count"] = others[0], 0
    return Reading(said, tuple(word for word in words if word not in known))


# What stands in for what a prompt leaves unsaid: a cat on a lake at dusk under the moon.
USUAL = {
    "noun": ATTRIBUTES["noun"].index("cat"),
    "second": NONE,
    "count": 0,
    "place": PLACES.index("lake"),
    "time": TIMES.index("dusk"),
    "moon": 1,
}


def nearest(prompt: str) -> str:
    """The prompt nearest to another that is of known words alone and says every attribute."""
    return full_caption({**USUAL, **read(prompt).said})
