"""Read a prompt for a model with a small vocabulary, and complete it to a caption."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from tokenizers.pre_tokenizers import Whitespace

from lantern_demo.faults import NotAllowed
from lantern_demo.models.registry import ModelInfo
from lantern_demo.scenes import (
    LANTERN,
    LANTERNS,
    MOST_LANTERNS,
    SINGULAR,
    THING_PLACES,
    THINGS,
    WORDINGS,
    plural,
    with_article,
    worded,
)

# offered for a prompt that names nothing that the model draws; the page begins with it
USUAL = "three red round lanterns over a lake at dusk"
NUMBER, THING, PLACE, TIME = "count", "thing", "place", "time"
NEEDED = (NUMBER, "shape", THING, PLACE, TIME)  # parts that a prompt of lanterns must name
LIMITED = (NUMBER, "colour")  # parts that a thing but lanterns lacks, and that people ask for
ARTICLE = "a"  # a number in captions, but mostly not in other sentences
# replaces words that have been read, so that the words around them do not become neighbours
GAP = "|"
FOLLOW_NOUN = ("place", "time", "moon")
# numbers in words that no caption has; those of MANY are more than MOST_LANTERNS
NUMBERS = {"couple": 2, "pair": 2, "both": 2, "twin": 2, "trio": 3, "few": 3}
TIMES = "dozen hundred thousand million"  # which also follow another number
MANY = "five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen"
MANY += " eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety"
MANY += f" dozens hundreds thousands many lots countless {TIMES}"
# words that deny the next ones
NONE = "no not without zero 0 minus except never don avoid exclude lacking"
# words that nobody misses in a picture
SMALL = {
    *("a", "an", "and", "are", "as", "at", "by", "draw", "drawing", "for", "from", "i", "in"),
    *("into", "is", "it", "its", "me", "my", "of", "on", "or", "over", "photo", "picture"),
    *("please", "show", "some", "t", "that", "the", "their", "there", "this", "to", "under"),
    *("with", "without"),
}
# words for places and the moon that no caption has, with the phrase that a caption has
ALSO = {
    "full moon": "with a full moon",
    "moonless": "without a moon",
    "mountain": "in the mountains",
    "field": "in a field",
    "fields": "in a field",
    "meadow": "over a meadow",
    "meadows": "over a meadow",
}
MOST_WORDS = 8  # words that are named
LONGEST_WORD = 16  # letters of a word that can be a slip
# words that one letter parts from a thing, and that mean themselves
OWN = (
    "act ample apply beard boast booster burner candies carrots clown coaches couches courses "
    "crowd ditches elegant ferries fishy flights flowed gallons handles harem hart hear heard "
    "hears hearth hearty heat hoarse horde hose housed inserts inspect lockets loin mittens "
    "money noodles perches pitches planets pockets poisons porches praises rabbi racket "
    "rackets reaches regards rewards rocked rocker root showman singers singles skaters "
    "sockets strains switches teaches tier timer tomatoes torture touches trail trait "
    "twitches wardens watches while whole winners wizards"
)
# words that give way to another one beside them, as in "fire truck"
WEAK = "light fire snow ice sea sun moon star monster toy pet love king queen gold food space music"
STYLE = "\ufe0f"  # after a sign: as a picture, not as a letter
GLUED = re.compile(r"%20|[_+]")  # which programs write for a blank

AT_MOST = f"This model draws at most {WORDINGS['count'][-1][0]} lanterns."
NOT_LEFT_OUT = "This model cannot leave a thing out."
ONE_KIND = "This model draws one kind of thing in a picture."
ONE_THING = "This model draws one of a thing, in its own colour. Lanterns come in several."
KNOWS_NONE = "This model knows none of these words; it draws what the chips name."

# What people ask for, by the thing that comes nearest; also its names in German, French and
# Spanish.
# The Unicode name of a sign, such as "cat face", is looked up, too.
MEANT = {
    LANTERN: "lamp light candle fire torch bulb star sun moon lampion festival laterne lanterne "
    "linterna farol",
    "cat": "pet animal lynx kat katze kater chat gato",
    "dog": "wolf wolves hound corgi husky pug poodle hund chien perro",
    "rabbit": "squirrel hamster mouse mice rat hedgehog hase kaninchen lapin conejo",
    "fox": "raccoon otter badger fuchs renard zorro",
    "bear": "teddy koala sloth bär ours oso",
    "panda": "pandabär",
    "lion": "lioness löwe león",
    "tiger": "leopard panther cheetah jaguar tigre",
    "monkey": "ape gorilla chimpanzee affe singe mono",
    "pig": "boar schwein cochon cerdo",
    "cow": "bull buffalo cattle sheep goat farm kuh vache vaca",
    "frog": "tadpole frosch grenouille rana",
    "horse": "zebra donkey mule deer camel giraffe pferd cheval caballo",
    "unicorn": "pegasus fairy rainbow einhorn licorne unicornio",
    "owl": "eule uhu hibou búho",
    "penguin": "pinguin manchot pingüino",
    "bird": "chicken hen rooster crow eagle parrot pigeon raven vogel oiseau pájaro",
    "duck": "swan goose geese ente canard pato",
    "elephant": "rhino hippo mammoth elefant éléphant elefante",
    "turtle": "snail crab shell schildkröte tortue tortuga",
    "fish": "salmon fisch poisson pez",
    "whale": "shark dolphin orca seal sea ocean wal baleine ballena",
    "octopus": "squid jellyfish krake pieuvre pulpo",
    "butterfly": "moth bee insect dragonfly ladybug schmetterling papillon mariposa",
    "dragon": "crocodile snake lizard monster drache dragón",
    "dinosaur": "rex sauropod dinosaurier dinosaure dinosaurio",
    "robot": "android alien machine toy roboter",
    "ghost": "skeleton zombie vampire witch skull geist gespenst fantôme fantasma",
    "snowman": "snow ice winter christmas schneemann",
    "pumpkin": "halloween melon kürbis citrouille calabaza 🎃",
    "heart": "love herz cœur corazón",
    "flower": "rose tulip daisy lily poppy peony garden blume fleur flor",
    "cactus": "cacti desert kaktus",
    "tree": "forest leaf bush palm baum arbre árbol",
    "mushroom": "fungus fungi pilz champignon seta",
    "apple": "pear cherry tomato fruit orange peach lemon food apfel pomme manzana",
    "strawberry": "berry raspberry erdbeere fraise fresa",
    "cake": "cupcake pie cookie donut dessert birthday kuchen torte gâteau pastel",
    "burger": "pizza sandwich hotdog",
    "car": "truck taxi van motorcycle motorbike bicycle bike vehicle wagen voiture coche",
    "bus": "tram autobus",
    "train": "locomotive railway zug tren",
    "boat": "ship canoe yacht boot schiff bateau barco",
    "rocket": "plane airplane jet helicopter ufo space rakete fusée cohete",
    "balloon": "kite ball bubble ballon globo",
    "house": "hut cabin barn church building city haus maison casa",
    "castle": "palace tower fortress temple schloss burg château castillo",
    "crown": "king queen prince princess ring gold krone couronne corona",
    "guitar": "violin piano banjo music gitarre guitare guitarra",
    "umbrella": "parasol rain regenschirm parapluie paraguas",
}
# offers of a refusal after the nearest, and how much in all
OFTEN = "cat dog rabbit panda owl dragon robot castle rocket balloon strawberry"
MOST_OFFERS = 12


@dataclass(frozen=True)
class Completed:
    """The caption that a model draws for a prompt, and why it lacks something that was asked."""

    prompt: str
    why: str | None = None


class NotDrawn(NotAllowed):
    """A prompt names nothing that the model draws. `offers` has prompts that it draws by the name
    of their thing, the `nearest` first. It draws `more` other things.
    """

    def __init__(self, offers: Mapping[str, str], more: int) -> None:
        *names, last = [*offers, f"{more} more things"] if more else offers
        known = f"{', '.join(names)} and {last}" if names else f"only {last}"
        first = next(iter(offers.values()))
        super().__init__("prompt", f"names nothing that this model draws: {known}. Try: {first}")
        self.offers = offers
        self.nearest = first


@dataclass(frozen=True)
class Reading:
    """The requests of a prompt: a phrase for each part that it has, and the kinds of its things.

    `words` are the prompt's own for each phrase but the thing's. The first thing counts.
    `denies`: whether the prompt also denies something.
    """

    wording: Mapping[str, str]
    words: Mapping[str, str]
    things: frozenset[int]
    denies: bool

    @property
    def lanterns(self) -> bool:
        """Return whether the prompt asks for lanterns first."""
        return self.wording.get(THING) in WORDINGS[THING][0]


@dataclass(frozen=True)
class Heard:
    """The reading of a prompt.

    drawn: the caption. why: the reason if it lacks something. parts: the plainest phrase of each
    part that the prompt names, and of a thing read for others. left_out: words that the picture
    does not show, each with the nearest thing. meant: words read as the thing that is drawn, where
    the prompt names none.
    """

    drawn: str
    why: str | None
    parts: Mapping[str, str]
    left_out: Mapping[str, str | None]
    meant: list[str]


class Phrasebook:
    """The phrases of a vocabulary, by part of a prompt and option, the plainest first.

    Prompts may also have other names of the things, plurals, and other words for where they stand.
    """

    def __init__(self, words: frozenset[str]) -> None:
        self.words = words
        self.parts: dict[str, list[list[str]]] = {}
        for part, classes in WORDINGS.items():
            options = [self._known(phrases) for phrases in classes]
            self.parts[part] = [phrases for phrases in options if phrases]
        # by every name of a thing: its index, its name in captions, whether it is no plural
        self.forms: dict[str, tuple[int, str, bool]] = {}
        for index, phrases in enumerate(WORDINGS[THING]):
            for phrase in self._known(phrases):
                for name in (phrase, *THINGS.get(phrase, ())):
                    self.forms[name] = index, phrase, True
                    self.forms.setdefault(plural(name), (index, phrase, False))
        self.readings = self._readings()
        read = [*self.forms, *(words for words, *_ in self.readings)]
        self.read_words = {word for words in read for word in words.split()}
        self.meanings = self._meanings()
        self.letters = sorted({letter for word in self.meanings for letter in word})
        self.usual = self.read(USUAL).wording

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
        of_things = [phrase for one in THING_PLACES if self._known(one[:1]) for phrase in one]
        places = {phrase: (PLACE, phrase) for phrase in of_things}
        # The last word of a phrase alone has its meaning, as in "a lake". If two options share
        # their last word, the later one applies, so that "moon" means a moon unless the prompt
        # denies it.
        ends = {phrase.split()[-1]: places[phrase] for phrase in reversed(of_things)}
        for part, options in self.parts.items():
            for option in options if part != THING else ():
                whole |= {phrase: (part, phrase) for phrase in option if phrase != ARTICLE}
                if part in FOLLOW_NOUN:
                    ends |= {phrase.split()[-1]: (part, phrase) for phrase in reversed(option)}
        ends.pop("plain", None)  # mostly no place: "a plain red lantern"
        also = {words: whole[phrase] for words, phrase in ALSO.items() if phrase in whole}
        found = {**ends, **also, **places, **whole}
        return [
            (words, *found[words]) for words in sorted(found, key=lambda words: -len(words.split()))
        ]

    def _meanings(self) -> dict[str, str]:
        """Return the name in captions of the thing that a word means, by the word."""
        found = {form: name for form, (_, name, _) in self.forms.items()}
        for name, meant in MEANT.items():
            if name in self.forms:
                for word in meant.split():
                    found |= {word: name, plural(word): name}
        return found

    def read(self, prompt: str) -> Reading:
        """Return the requests that the known words of a prompt make."""
        text = f" {' '.join(_words(prompt))} "
        wording, own = dict[str, str](), dict[str, str]()
        for words, part, phrase in self.readings:
            if part not in wording and f" {words} " in text:
                wording[part], own[part] = phrase, words
                text = text.replace(f" {words} ", f" {GAP} ")
        found = sorted((text.find(f" {form} "), form) for form in self.forms if f" {form} " in text)
        named = [self.forms[form] for _, form in found]
        if named:
            _, wording[THING], one = named[0]
            if one:
                wording.setdefault(NUMBER, SINGULAR[0])
        ordered = {part: wording[part] for part in WORDINGS if part in wording}
        denies = not set(NONE.split()).isdisjoint(text.split())
        return Reading(ordered, own, frozenset(index for index, *_ in named), denies)

    def unread(self, words: Iterable[str]) -> list[str]:
        """Return those of some words that are part of no phrase and name no thing."""
        return [word for word in words if not self.read_words.issuperset(_words(word))]

    def near(self, word: str) -> str | None:
        """Return the thing that a word comes nearest to, by its meaning or but for one slip of the
        keys, or None.
        """
        return self._meant(word) or self._slipped(word)

    def _meant(self, word: str) -> str | None:
        """Return the thing that a word, or the name of a sign in it, means."""
        if word.isalnum() or word in self.meanings:
            return self.meanings.get(word)
        names = " ".join(unicodedata.name(sign, "") for sign in word).lower()
        words = set(re.findall(r"\w+", names))
        return next((thing for known, thing in self.meanings.items() if known in words), None)

    def _slipped(self, word: str) -> str | None:
        """Return the thing that a word means but for one letter.

        A short word is a thing's own name, with its first letter right or with two letters swapped:
        "hat" is no cat.
        """
        known = word in SMALL or word in OWN.split() or word in self.read_words or _number(word)
        if known or not 2 < len(word) <= LONGEST_WORD:
            return None
        slips = _slips(word, self.letters) if len(word) > 4 else _small_slips(word, self.letters)
        whole = {name for name, (_, _, one) in self.forms.items() if one}
        found = [
            slip
            for slip in slips
            if (slip in self.meanings if len(word) > 6 or slip == word[:-1] else slip in whole)
            if slip[0] == word[0] or not 4 < len(word) < 7
        ]
        best = min(found, key=lambda slip: slip not in self.forms, default="")
        return self.meanings.get(best)

    def heard(self, prompt: str) -> Heard:
        """Return the reading of a prompt. One that names nothing drawable comes to the nearest."""
        reading = self.read(prompt)
        try:
            done = self.completed(prompt)
        except NotDrawn as error:
            why = [NOT_LEFT_OUT] if reading.denies else []
            # an orange is a colour first
            several = [
                word for word in map(reading.words.get, LIMITED) if word and not self._meant(word)
            ]
            if several and not self.read(error.nearest).lanterns:
                why.append(ONE_THING)
            done = Completed(error.nearest, " ".join(why) or None)
        drawn = self.read(done.prompt)
        parts = {part: _plain(part, reading.wording) for part in reading.wording}
        if drawn.lanterns and (NUMBER in parts or _number(prompt)):
            parts[NUMBER] = _plain(NUMBER, drawn.wording)
        shown = [
            reading.words.get(part, "")
            for part, phrase in parts.items()
            if part in drawn.wording and _plain(part, drawn.wording) == phrase
        ]
        shown += [
            form for form, (_, name, _) in self.forms.items() if name == reading.wording.get(THING)
        ]
        words = {word for phrase in shown for word in phrase.split()}
        left_out = {
            word: None if word.lower() in self.forms else self.near(word.lower())
            for word in named_words(_words(prompt, lower=False))
            if word.lower() not in words and not (drawn.lanterns and _number(word))
        }
        thing, meant = _plain(THING, drawn.wording), list[str]()
        if THING not in reading.wording:
            meant = [word for word, near in left_out.items() if near == thing]
        if meant:
            parts[THING] = thing
            left_out = {word: near for word, near in left_out.items() if word not in meant}
        none_known = KNOWS_NONE if left_out and not parts else None
        return Heard(done.prompt, done.why or none_known, parts, left_out, meant)

    def edited(self, prompt: str, part: str, phrase: str) -> str:
        """Return the caption of a prompt with another phrase for a part of it.

        The phrase that a prompt has is left out, unless it is the thing. Lanterns after a thing are
        the usual ones at its place and time.
        """
        reading = self.read(prompt)
        wording = self._counted(prompt, reading.wording)
        if THING not in wording and THING in (known := self.heard(prompt).parts):
            wording[THING] = known[THING]
        if part != THING and part in wording and _plain(part, wording) == phrase:
            del wording[part]
        elif phrase == LANTERN and not reading.lanterns:
            kept = FOLLOW_NOUN if THING in wording else tuple(wording)
            wording = {**self.usual, **{one: wording[one] for one in kept if one in wording}}
        else:
            wording[part] = phrase
        lanterns = wording.get(THING, LANTERN) in WORDINGS[THING][0]
        return self._lanterns(wording) if lanterns else self._thing(wording)

    def completed(self, prompt: str) -> Completed:
        """Return the caption drawn for a prompt.

        Lanterns get the missing ones of a number, a kind, a place and a time. A thing gets nothing,
        but its caption has the plainest wording. Raises NotDrawn for a prompt that names nothing
        of both.
        """
        reading, prompt = self.read(prompt), unglued(visible(prompt))
        if THING not in reading.wording:
            offers = self._offers(prompt, reading.wording)
            raise NotDrawn(offers, len(self.parts[THING]) - len(offers))
        why = [NOT_LEFT_OUT] if reading.denies else []
        why += [ONE_KIND] if len(reading.things) > 1 else []
        wording, many = reading.wording, _number(prompt)
        if not reading.lanterns:
            if many > 1 or wording.get(NUMBER) not in SINGULAR or "colour" in wording:
                why.append(ONE_THING)
            return Completed(self._thing(wording), " ".join(why) or None)
        if not why and wording.keys() >= set(NEEDED) and self._known((wording[PLACE],)):
            return Completed(prompt)
        wording = {**{part: self.usual[part] for part in NEEDED}, **self._counted(prompt, wording)}
        why += [AT_MOST] if many > MOST_LANTERNS else []
        return Completed(self._lanterns(wording), " ".join(why) or None)

    def _counted(self, prompt: str, wording: Mapping[str, str]) -> dict[str, str]:
        """Return a wording with the number that a prompt has in words that no caption has."""
        many = _number(prompt)
        if many and (NUMBER not in wording or set(TIMES.split()) & set(_words(prompt))):
            return {**wording, NUMBER: self.parts[NUMBER][:many][:MOST_LANTERNS][-1][0]}
        return dict(wording)

    def _lanterns(self, wording: Mapping[str, str]) -> str:
        """Return the caption of lanterns that comes nearest."""
        wording = dict(wording)
        place = _class_of(PLACE, wording)
        if place is not None and wording[PLACE] not in WORDINGS[PLACE][place]:
            wording[PLACE] = WORDINGS[PLACE][place][0]
        return worded(wording)

    def _thing(self, wording: Mapping[str, str]) -> str:
        """Return the caption of a thing, in the plainest words."""
        caption = {THING: wording[THING]}
        for part in FOLLOW_NOUN:
            if (index := _class_of(part, wording)) is not None:
                caption[part] = (THING_PLACES if part == PLACE else WORDINGS[part])[index][0]
        return worded(caption)

    def _offers(self, prompt: str, wording: Mapping[str, str]) -> dict[str, str]:
        """Return prompts for one that names nothing that is drawn, by the names of their things:
        the nearest by meaning first, then lanterns.
        """
        words = _words(prompt)
        unread = [word for word in words if word not in self.read_words]
        unread.sort(key=WEAK.split().__contains__)
        near = [self._meant(word) for word in unread]
        near += [self._slipped(word) for word in unread]
        near += [self._meant(word) for word in words]  # such as an orange, which is a colour first
        offers = {}
        for name in dict.fromkeys([*filter(None, near), LANTERN, *OFTEN.split()]):
            if name == LANTERN:
                offers[LANTERNS] = self._lanterns({**self.usual, **self._counted(prompt, wording)})
            elif name in self.forms:
                offers[with_article(name)] = self._thing({**wording, THING: name})
        return dict(list(offers.items())[:MOST_OFFERS])


def visible(prompt: str) -> str:
    """Return a prompt without the characters that nobody sees, such as a blank of no width."""
    return "".join(
        letter for letter in prompt if unicodedata.category(letter) != "Cf" and letter != STYLE
    )


def unglued(prompt: str) -> str:
    """Return a prompt with blanks where another program wrote signs for them."""
    return GLUED.sub(" ", prompt)


def _words(prompt: str, lower: bool = True) -> list[str]:
    plain = unicodedata.normalize("NFKC", unglued(visible(prompt)))
    return [word for word, _ in Whitespace().pre_tokenize_str(plain.lower() if lower else plain)]


def named_words(words: Iterable[str]) -> list[str]:
    """Return the words to show, at most MOST_WORDS.

    Punctuation, signs of mathematics and small words are left out; pictures in a text are not.
    """
    named = [
        word
        for word in dict.fromkeys(words)
        if word.lower() not in SMALL
        and any(letter.isalnum() or unicodedata.category(letter) == "So" for letter in word)
    ]
    return named[:MOST_WORDS]


def _slips(word: str, letters: Iterable[str]) -> Iterator[str]:
    """Yield the words that differ from another one by a letter too many, too few, wrong, or swapped
    with the next.
    """
    for place in range(len(word) + 1):
        before, after = word[:place], word[place:]
        yield before + after[1:]
        yield before + after[1:2] + after[:1] + after[2:]
        for letter in letters:
            yield before + letter + after
            yield before + letter + after[1:]


def _small_slips(word: str, letters: Iterable[str]) -> Iterator[str]:
    """Yield the words of which one has two letters swapped, a letter twice, or a fourth one too
    few.
    """
    for place in range(len(word) - 1):
        before, first, second, after = word[:place], *word[place : place + 2], word[place + 2 :]
        yield before + second + first + after
        if first == second:
            yield before + first + after
    if len(word) == 4:
        for place in range(1, 5):
            yield from (word[:place] + letter + word[place:] for letter in letters)


def _number(prompt: str) -> int:
    """Return the number in a prompt that is no phrase of captions; 0 for none."""
    words = _words(prompt)
    many = dict.fromkeys(MANY.split(), MOST_LANTERNS + 1)
    found = [int(word[:9]) if word.isdecimal() else (NUMBERS | many).get(word, 0) for word in words]
    return next(filter(None, found), 0)


def _class_of(part: str, wording: Mapping[str, str]) -> int | None:
    """Return the class index of a part's phrase, or None if the part has none."""
    classes = list(WORDINGS[part])
    if part == PLACE:
        classes = [a + b for a, b in zip(classes, THING_PLACES, strict=True)]
    return next(
        (index for index, phrases in enumerate(classes) if wording.get(part) in phrases), None
    )


def _plain(part: str, wording: Mapping[str, str]) -> str:
    """Return the plainest phrase for a part. A place is that of lanterns."""
    index = _class_of(part, wording)
    return wording[part] if index is None else WORDINGS[part][index][0]


def phrasebook(info: ModelInfo) -> Phrasebook | None:
    """Return a model's phrasebook, or None if it reads any text or lacks the plain phrases."""
    return None if info.vocabulary is None else _of(info.vocabulary)


@cache
def _of(words: frozenset[str]) -> Phrasebook | None:
    plain = {*USUAL.split(), LANTERN, SINGULAR[0]}
    return Phrasebook(words) if words.issuperset(plain) else None


def check_length(info: ModelInfo, prompt: str) -> None:
    """Raise NotAllowed for a prompt of more characters than a model takes."""
    if len(prompt) > info.max_prompt:
        allowed = f"at most {info.max_prompt} are allowed"
        raise NotAllowed("prompt", f"has {len(prompt)} characters, {allowed}")


def completed(info: ModelInfo, prompt: str) -> Completed:
    """Return the caption drawn for a prompt: the prompt itself for a model that reads any text.

    Raises NotDrawn for a prompt that names nothing that the model draws.
    """
    book = phrasebook(info)
    return Completed(prompt) if book is None else book.completed(prompt)
