"""Read what a prompt asks of a model with a small vocabulary, and complete it to what is drawn."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from tokenizers.pre_tokenizers import Whitespace

from lantern_demo.models.registry import ModelInfo
from lantern_demo.scenes import (
    LANTERN,
    MOST_LANTERNS,
    NOUNS,
    OF_LANTERNS,
    SHOWN,
    SINGULAR,
    SURE,
    THING_PLACES,
    WORDINGS,
    worded,
)

# offered for a prompt that names nothing that the model draws; the page begins with it
USUAL = "three red round lanterns over a lake at dusk"
NUMBER, THING, PLACE, TIME = "count", "thing", "place", "time"
NEEDED = (NUMBER, "shape", THING, PLACE, TIME)  # what a prompt of lanterns must say
ARTICLE = "a"  # a number in captions, but mostly not in other sentences
# replaces words that have been read, so that the words around them do not become neighbours
GAP = "|"
FOLLOW_NOUN = ("place", "time", "moon")
# words for more than MOST_LANTERNS
MANY = "five six seven eight nine ten eleven twelve twenty dozen hundred thousand many"

AT_MOST = f"This model draws at most {WORDINGS['count'][-1][0]} lanterns."
ONE_KIND = "This model draws one kind of thing in a picture."
ONE_THING = "This model draws one of a thing, without a colour or kind."

# What people ask for, by the thing that comes nearest. A refusal offers that thing.
MEANT = {
    "lantern": "lamp light candle fire torch bulb star sun moon lampion festival",
    "cat": "kitty tiger lion leopard panther pet",
    "dog": "wolf hound doggy corgi husky pug animal",
    "fox": "squirrel raccoon rabbit bunny hare",
    "bear": "panda koala teddy toy monkey gorilla",
    "elephant": "rhino hippo mammoth giraffe",
    "horse": "zebra donkey cow bull sheep goat pig deer farm unicorn rider",
    "penguin": "snowman snow ice",
    "owl": "bird eagle parrot raven moth bee insect",
    "duck": "goose swan chicken hen boat ship sailboat",
    "turtle": "frog snail lizard dinosaur dragon crocodile snake fish",
    "apple": "pear cherry tomato fruit orange peach food",
    "strawberry": "berry raspberry cake dessert mushroom pizza flower rose",
    "car": "truck vehicle taxi motorcycle motorbike bicycle bike",
    "bus": "train van tram rocket plane airplane spaceship",
    "castle": "house home palace tower city building church fortress",
    "balloon": "kite ball bubble",
    "umbrella": "parasol rain tree",
    "crown": "king queen princess ring gold portrait guitar",
}


@dataclass(frozen=True)
class Completed:
    """What a model draws for a prompt: a caption, and why it lacks something that was asked.

    `seeds` are those with which every method draws the thing, where some are known.
    """

    prompt: str
    why: str | None = None
    seeds: tuple[int, ...] = ()


class NotDrawn(ValueError):
    """A prompt names nothing that the model draws. `prompts` has one for each thing that it draws,
    the nearest first.
    """

    def __init__(self, things: Sequence[str], prompts: list[str]) -> None:
        named = [with_article(thing) for thing in things]
        known = f"lanterns, {', '.join(named[:-1])} or {named[-1]}" if named else "only lanterns"
        super().__init__(f"prompt names nothing that this model draws: {known}. Try: {prompts[0]}")
        self.prompts = prompts


def with_article(thing: str) -> str:
    """Return the name of a thing with "a" or "an"."""
    return f"{'an' if thing[0] in 'aeiou' else 'a'} {thing}"


@dataclass(frozen=True)
class Reading:
    """The requests of a prompt: a phrase for each part that it has, and the kinds of its things.

    The first thing that the model is asked for counts.
    """

    said: Mapping[str, str]
    kinds: frozenset[int]

    @property
    def lanterns(self) -> bool:
        """Return whether the prompt asks for lanterns first."""
        return self.said.get(THING) in WORDINGS[THING][0]


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

    @property
    def things(self) -> list[str]:
        """Return the plain names of the things that the model is asked for, without lanterns."""
        return [phrases[0] for phrases in self.parts[THING] if phrases[0] != LANTERN]

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
        text = f" {' '.join(_words(prompt))} "
        said: dict[str, str] = {}
        for words, part, phrase in self.readings:
            if part not in said and f" {words} " in text:
                said[part], text = phrase, text.replace(f" {words} ", f" {GAP} ")
        found = sorted((text.find(f" {form} "), form) for form in self.forms if f" {form} " in text)
        for _, form in found:
            kind, name = self.forms[form]
            if kind in SHOWN:
                said[THING] = name
                if form == name:
                    said.setdefault(NUMBER, SINGULAR[0])
                break
        ordered = {part: said[part] for part in WORDINGS if part in said}
        return Reading(ordered, frozenset(self.forms[form][0] for _, form in found))

    def completed(self, prompt: str) -> Completed:
        """Return what is drawn for a prompt.

        Lanterns get what they lack of a number, a kind, a place and a time. A thing gets a place
        and a time where it is drawn surely, and the plainest wording. Raises NotDrawn for a prompt
        that names nothing of both.
        """
        reading = self.read(prompt)
        if THING not in reading.said:
            raise NotDrawn(self.things, self._offers(prompt, reading.said))
        if not reading.lanterns:
            return self._thing(reading)
        several = len(reading.kinds) > 1
        if not several and reading.said.keys() >= set(NEEDED):
            return Completed(prompt)
        said = {**{part: self.usual[part] for part in NEEDED}, **reading.said}
        why = [ONE_KIND] if several else []
        if NUMBER not in reading.said and (many := _number(prompt)):
            said[NUMBER] = self.parts[NUMBER][:many][:MOST_LANTERNS][-1][0]
            why += [AT_MOST] if many > MOST_LANTERNS else []
        return Completed(self._lanterns(said), " ".join(why) or None)

    def sure(self, said: Mapping[str, str]) -> dict[str, list[str]]:
        """Return the places of a thing, and its times at the place that is asked for."""
        at = SURE[NOUNS[self.forms[said[THING]][0]][0][0]].at
        place = _class_of(PLACE, said)
        places = dict.fromkeys(THING_PLACES[one][0] for one, _ in at)
        times = [WORDINGS[TIME][time][0] for one, time in at if one == place]
        return {PLACE: list(places), TIME: times}

    def _lanterns(self, said: Mapping[str, str]) -> str:
        """Return the caption of lanterns that comes nearest."""
        said = dict(said)
        place = _class_of(PLACE, said)
        if place is not None and said[PLACE] not in WORDINGS[PLACE][place]:
            said[PLACE] = WORDINGS[PLACE][place][0]
        return worded(said)

    def _thing(self, reading: Reading) -> Completed:
        said = reading.said
        kind = self.forms[said[THING]][0]
        name = NOUNS[kind][0][0]
        place, time = _class_of(PLACE, said), _class_of(TIME, said)
        moon = _class_of("moon", said)
        # of equals the first, which is the surest
        at = min(SURE[name].at, key=lambda one: (one[0] != place, one[1] != time))
        caption = {
            NUMBER: SINGULAR[0],
            THING: name,
            PLACE: THING_PLACES[at[0]][0],
            TIME: WORDINGS[TIME][at[1]][0],
        }
        why = []
        if len(reading.kinds) > 1:
            why.append(ONE_KIND)
        if said.get(NUMBER) not in SINGULAR or said.keys() & set(OF_LANTERNS):
            why.append(ONE_THING)
        if place not in (None, at[0]) or time not in (None, at[1]):
            why.append(f"This model draws no {name} surely at that place and time.")
        if moon is not None:
            caption["moon"] = WORDINGS["moon"][moon][0]
        usual = at == SURE[name].at[0] and moon is None
        seeds = SURE[name].seeds if usual else ()
        return Completed(worded(caption), " ".join(why) or None, seeds)

    def _offers(self, prompt: str, said: Mapping[str, str]) -> list[str]:
        """Return prompts for one that names nothing that is drawn, the nearest by meaning first."""
        words = set(_words(prompt))
        words |= {word.removesuffix("s") for word in words} | {
            word.removesuffix("es") for word in words
        }
        near = [name for name, meant in MEANT.items() if not words.isdisjoint(meant.split())]
        names = [name for name in dict.fromkeys([*near, LANTERN, *SURE]) if name in self.forms]
        offers = []
        for name in names:
            if name == LANTERN:
                offers.append(self._lanterns({**self.usual, **said}))
            elif name in self.things:
                offers.append(self._thing(Reading({**said, THING: name}, frozenset())).prompt)
        return offers


def _words(prompt: str) -> list[str]:
    plain = unicodedata.normalize("NFKC", prompt).lower()
    return [word for word, _ in Whitespace().pre_tokenize_str(plain)]


def _number(prompt: str) -> int:
    """Return the number in a prompt that is no phrase of captions; 0 for none."""
    words = _words(prompt)
    more = 0 if set(MANY.split()).isdisjoint(words) else MOST_LANTERNS + 1
    return next((int(word[:9]) for word in words if word.isdecimal()), more)


def _class_of(part: str, said: Mapping[str, str]) -> int | None:
    """Return the class index of a phrase of place, time or moon, or None if there is none."""
    classes = list(WORDINGS[part])
    if part == PLACE:
        classes = [a + b for a, b in zip(classes, THING_PLACES, strict=True)]
    return next((kind for kind, phrases in enumerate(classes) if said.get(part) in phrases), None)


def phrasebook(info: ModelInfo) -> Phrasebook | None:
    """Return a model's phrasebook, or None if it reads any text or lacks the plain phrases."""
    return None if info.vocabulary is None else _of(info.vocabulary)


@cache
def _of(words: frozenset[str]) -> Phrasebook | None:
    plain = {*USUAL.split(), LANTERN, SINGULAR[0]}
    return Phrasebook(words) if words.issuperset(plain) else None


def completed(info: ModelInfo, prompt: str) -> Completed:
    """Return what a model draws for a prompt: the prompt itself for a model that reads any text.

    Raises NotDrawn for a prompt that names nothing that the model draws.
    """
    book = phrasebook(info)
    return Completed(prompt) if book is None else book.completed(prompt)
