"""Prompts as a model of few words reads them, and the seed of a run."""

from pathlib import Path

import pytest

from examples.make_bundled_model.scenes import sample
from examples.make_bundled_model.world import Captions, vocabulary
from examples.quality.scenes import truth
from lantern_demo import prompt_words
from lantern_demo.bench.speed import KIND_OF
from lantern_demo.models.registry import REGISTRY
from lantern_demo.prompt_words import MEANT, USUAL, NotDrawn, Phrasebook, completed, named_words
from lantern_demo.runs.load import info_of
from lantern_demo.scenes import ATTRIBUTES, OF_LANTERNS, THING_PLACES, THINGS, WORDINGS, plural

BOOK = Phrasebook(frozenset(vocabulary()))
NAMES = ATTRIBUTES["thing"]  # that captions have, a lantern's first


def test_the_phrases_are_those_of_the_vocabulary() -> None:
    assert REGISTRY["lantern-scenes"].vocabulary >= set(vocabulary())
    for part, classes in WORDINGS.items():
        assert [set(option) for option in BOOK.parts[part]] == [set(option) for option in classes]
    read = {word for words, *_ in BOOK.readings for word in words.split()}
    assert read - BOOK.words == {"hill", "mountain", "meadows"}


def test_a_thing_has_more_names_than_the_vocabulary() -> None:
    """Its plain name must be there. Plurals are no words of it."""
    names = {*WORDINGS["thing"][0], *THINGS, *(name for some in THINGS.values() for name in some)}
    assert set(BOOK.forms) == names | {plural(name) for name in names}
    assert BOOK.forms.keys() > {"kitties", "foxes", "snowmen", "fish"} and "cats" not in BOOK.words
    assert not {"cat", "kitties"} & Phrasebook(BOOK.words - {"cat"}).forms.keys()
    assert BOOK.unread(["Hill", "KITTENS", "zebra"]) == ["zebra"]


@pytest.mark.parametrize("omit", [False, True])
def test_captions_of_every_wording_are_read(omit: bool) -> None:
    """In other orders, and with attributes unsaid. Full ones are drawn as they are."""
    scenes = sample(600, 5).attributes()
    captions = Captions({word: number for number, word in enumerate(vocabulary(), 1)})
    places = [a + b for a, b in zip(WORDINGS["place"], THING_PLACES, strict=True)]
    wordings = {**WORDINGS, "place": places}
    for row, text in enumerate(captions.text(captions(scenes, 1, omit))):
        values = {name: int(tensor[row]) for name, tensor in scenes.items()}
        reading = BOOK.read(text)
        assert reading.things == {values["thing"]}
        for part, phrase in reading.wording.items():
            assert phrase in wordings[part][values[part]], (text, part, phrase)
        bare = {part for part in OF_LANTERNS if not ATTRIBUTES[part][values[part]]}
        there = values.keys() - bare
        assert reading.wording.keys() <= there and (omit or reading.wording.keys() == there), text
    for prompt in (*KIND_OF, *truth(100).captions):
        assert BOOK.completed(prompt).prompt == prompt


ONE_KIND, ONE_THING, AT_MOST = "one kind of thing", "one of a thing", "at most four lanterns"
NOT_LEFT_OUT = "cannot leave a thing out"
SHY, NO_WIDTH, MARK = "\u00ad", "\u200b", "\ufeff"


@pytest.mark.parametrize(
    ("prompt", "drawn", "why"),
    [
        ("12 lanterns at night", "four round lanterns over a lake at night", AT_MOST),
        ("a lantern and four more lanterns", "four round lanterns over a lake at dusk", ""),
        ("red lanterns and the moon", f"{USUAL} with a full moon", ""),
        ("two red zebra sky lanterns by the lake", "two red sky lanterns by the lake at dusk", ""),
        ("Golden\tLANTERN near Hills!", "one golden round lantern over the hills at dusk", ""),
        ("redder lanterns of the nighttime", "three round lanterns over a lake at dusk", ""),
        ("four box lanterns in a field at dawn!", "four box lanterns in a field at dawn!", ""),
        ("a green box lantern and an apple", "one green box lantern over a lake at dusk", ONE_KIND),
        ("one apple up the hill under a moonless sky", "an apple in the hills without a moon", ""),
        ("two KITTENS by the lake at sunset", "a cat on a lake at dusk", ONE_THING),
        ("a red cat", "a cat", ONE_THING),
        ("5 fish", "a fish", ONE_THING),
        ("a cat and her kittens", "a cat", ""),
        ("a cat in a tree", "a cat", ONE_KIND),
        ("two dozen lanterns", "four round lanterns over a lake at dusk", AT_MOST),
        ("no cat", "a cat", NOT_LEFT_OUT),
        ("zero lanterns", "three round lanterns over a lake at dusk", NOT_LEFT_OUT),
        ("a cat at night, no moon", "a cat at night without a moon", ""),
        ("three_red_round+lanterns_over%20a_lake_at_dusk", USUAL, ""),
        (f"2 re{SHY}d lan{NO_WIDTH}terns{MARK}", "two red round lanterns over a lake at dusk", ""),
    ],
)
def test_a_prompt_is_completed(prompt: str, drawn: str, why: str) -> None:
    found = BOOK.completed(prompt)
    assert found.prompt == drawn
    assert why in found.why if why and found.why else not why and found.why is None
    again = BOOK.completed(drawn)
    assert (again.prompt, again.why) == (drawn, None), "what is drawn needs no completion"


@pytest.mark.parametrize(
    ("prompt", "thing", "offer"),
    [
        ("", "lanterns", USUAL),
        ("\u7ea2\u706f\u7b3c", "lanterns", USUAL),
        ("Wolves at night", "a dog", "a dog at night"),
        ("lamps at night", "lanterns", USUAL.replace("at dusk", "at night")),
    ],
)
def test_a_refusal_names_what_is_nearest_by_meaning(prompt: str, thing: str, offer: str) -> None:
    """Few of the things, and how many more there are."""
    with pytest.raises(NotDrawn) as refused:
        BOOK.completed(prompt)
    offers = refused.value.offers
    assert next(iter(offers.items())) == (thing, offer)
    most = prompt_words.MOST_OFFERS
    assert len(offers) == most and "lanterns" in offers and "a cat" in offers
    assert f"and {len(NAMES) - most} more" in str(refused.value)
    assert all(BOOK.completed(found).prompt == found for found in offers.values())


@pytest.mark.parametrize(
    ("prompt", "drawn", "left_out"),
    [
        (USUAL, USUAL, ""),
        ("eine Katze", "a cat", "eine; Katze"),
        ("\u2764\ufe0f", "a heart", "; \u2764"),
        ("\U0001f3e1", "a house", "; \U0001f3e1"),  # house with garden
        ("a castel, two catt", "a castle", "two, catt cat; castel"),
        ("fog over brown hills", USUAL.replace("a lake", "the hills"), "fog, brown"),
        ("a fire truck", "a car", "fire lantern; truck"),
        ("a boat under a full moon", "a boat with a full moon", ""),
        ("a plain white cat on a mountain", "a cat in the hills", "plain, white"),
        ("two candles", USUAL.replace("three", "two"), "; candles"),
        ("20 candles", USUAL.replace("three", "four"), "; candles"),
        ("a dog riding a bike", "a dog", "riding, bike car"),
        ("red and blue lanterns", USUAL, "blue"),
        ("five red lanterns", USUAL.replace("three", "four"), ""),
        ("a big hat for Maria", USUAL, "big, hat, Maria"),
    ],
)
def test_what_comes_of_a_prompt(prompt: str, drawn: str, left_out: str) -> None:
    """Every word that is left out is named with its nearest thing; and those read as the thing."""
    found = BOOK.heard(prompt)
    assert found.drawn == drawn and BOOK.completed(drawn).prompt == drawn
    named = [f"{word} {near}" if near else word for word, near in found.left_out.items()]
    assert "; ".join([", ".join(named), *found.meant]) == left_out


@pytest.mark.parametrize("thing", NAMES)
def test_a_slip_of_the_keys_is_the_thing(thing: str) -> None:
    """A letter twice, a letter less, two swapped; but a known word means itself."""
    known = BOOK.read_words | {*prompt_words.OWN.split()}
    for slip in (thing[0] + thing, thing[:2] + thing[3:], thing[:-2] + thing[-1] + thing[-2]):
        assert BOOK.near(slip) or slip in known or len(slip) < 4, slip
    assert BOOK.near(thing + thing[-1]) == thing


def test_what_is_denied_or_has_no_colour_is_told_of_the_nearest_too() -> None:
    for prompt, told in (
        ("no candles", NOT_LEFT_OUT),
        ("two red candles", None),
        ("an orange", None),
        ("a bird in the sky", None),
        ("two roses", ONE_THING),
    ):
        why = BOOK.heard(prompt).why
        assert why == told or (told and told in why), prompt


@pytest.mark.parametrize(
    ("before", "chip", "after"),
    [
        ("", "thing cat", "a cat"),
        ("", "colour red", "red lanterns"),
        (USUAL, "thing cat", "a cat on a lake at dusk"),
        (USUAL, "colour blue", USUAL.replace("red", "blue")),
        ("a cat on a lake at dusk", "thing lantern", USUAL),
        ("a cat at night", "thing cat", "a cat at night"),
        ("the kitten, please, at night", "place over the hills", "a cat in the hills at night"),
        ("a cat in the hills", "place over the hills", "a cat"),
        ("a lantern at dawn", "count three", "three lanterns at dawn"),
        ("a rose", "time at dawn", "a flower at dawn"),
        ("five red lanterns", "time at dawn", "four red lanterns at dawn"),
    ],
)
def test_a_chip_edits_a_prompt(before: str, chip: str, after: str) -> None:
    """The prompt then has it. One that it had is left out."""
    part, _, phrase = chip.partition(" ")
    assert BOOK.edited(before, part, phrase) == after
    assert phrase in BOOK.heard(after).parts.values() or phrase in BOOK.heard(before).parts.values()


def test_the_table_of_meanings_is_of_things_that_are_drawn() -> None:
    assert {*NAMES} >= {*MEANT, *prompt_words.OFTEN.split()}
    meant = [word for words in MEANT.values() for word in words.split()]
    assert len(set(meant)) == len(meant), "a word has one meaning"
    assert BOOK.forms.keys().isdisjoint(meant), "what is drawn needs no meaning"


def test_only_a_model_of_few_words_completes(tmp_path: Path) -> None:
    for info in REGISTRY.values():
        assert (prompt_words.phrasebook(info) is None) == (info.published is not None), info.id
        assert info.published is None or completed(info, "a zebra").prompt == "a zebra"
    for number, text in enumerate(("{", "[]", '{"model": {"vocab": {"cat": 1}}}')):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "words.json").write_text(text, encoding="utf-8")
        info = info_of(folder)
        assert info.vocabulary == (frozenset({"cat"}) if "cat" in text else None)
        assert completed(info, "a cat").prompt == "a cat"


def test_words_that_are_left_out_are_named_once_and_few() -> None:
    told = ["cat", "And", "cat", ".", "?!", "<", "</", "\U0001f3ee"]
    assert named_words(told) == ["cat", "\U0001f3ee"]
    assert named_words(f"w{number}" for number in range(50))[-1] == "w7"
