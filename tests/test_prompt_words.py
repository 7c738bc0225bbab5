"""Prompts as a model of few words reads them, and the seed of a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.make_bundled_model.scenes import sample
from examples.make_bundled_model.world import Captions, vocabulary
from examples.quality.scenes import truth
from lantern_demo.bench.speed import PROMPTS
from lantern_demo.models.registry import REGISTRY
from lantern_demo.prompt_words import MEANT, NotDrawn, completed, phrasebook
from lantern_demo.runs.load import info_of
from lantern_demo.scenes import (
    ATTRIBUTES,
    LANTERN,
    NOUNS,
    OF_LANTERNS,
    SHOWN,
    SURE,
    THING_PLACES,
    WORDINGS,
)
from lantern_demo.ui import texts

INFO = REGISTRY["lantern-scenes"]
BOOK = phrasebook(INFO)
assert BOOK is not None


def test_the_phrases_are_those_of_the_models_own_vocabulary() -> None:
    assert INFO.vocabulary is not None and INFO.vocabulary >= set(vocabulary())
    things = [WORDINGS["thing"][kind] for kind in SHOWN]
    for part, classes in {**WORDINGS, "thing": things}.items():
        assert [set(option) for option in BOOK.parts[part]] == [set(option) for option in classes]
    assert set(BOOK.forms) == {form for nouns in NOUNS for names in nouns for form in names}
    assert {
        word for words, _, phrase in BOOK.readings for word in (words + " " + phrase).split()
    } <= INFO.vocabulary


def test_full_captions_are_read_and_written_as_they_are() -> None:
    for prompt in (*PROMPTS, *truth(400).captions):
        reading = BOOK.read(prompt)
        lacks = set() if reading.lanterns else set(OF_LANTERNS)
        assert reading.said.keys() == WORDINGS.keys() - lacks
        assert BOOK.completed(prompt).prompt == prompt


@pytest.mark.parametrize("omit", [False, True])
def test_captions_of_every_wording_are_read(omit: bool) -> None:
    """In other orders, and with attributes left unsaid: what is read is what the caption was made
    from, and no more.
    """
    scenes = sample(600, 5).attributes()
    captions = Captions({word: number for number, word in enumerate(vocabulary(), 1)})
    places = [a + b for a, b in zip(WORDINGS["place"], THING_PLACES, strict=True)]
    wordings = {**WORDINGS, "place": places}
    for row, text in enumerate(captions.text(captions(scenes, 1, omit))):
        values = {name: int(tensor[row]) for name, tensor in scenes.items()}
        reading = BOOK.read(text)
        assert reading.kinds == {values["thing"]}
        if values["thing"] not in SHOWN:
            assert "thing" not in reading.said
            continue
        for part, phrase in reading.said.items():
            assert phrase in wordings[part][values[part]], (text, part, phrase)
        bare = {part for part in OF_LANTERNS if not ATTRIBUTES[part][values[part]]}
        there = values.keys() - bare
        assert reading.said.keys() <= there and (omit or reading.said.keys() == there), text
        heard = f" {text} ".replace(",", " ,").replace("moonless sky", "moonless")
        for part in there:
            phrases = set(wordings[part][values[part]]) - {"a"}
            if any(f" {phrase} " in heard for phrase in phrases):
                assert part in reading.said, (text, part)


# The words of each class, written down here by themselves so that a slip in the wordings is seen.
WORDS = {
    "count": "a one|two pair|three|four",
    "colour": "red scarlet crimson|orange amber|yellow golden|green jade|blue azure|purple violet",
    "shape": "round globe|box square|sky floating",
    "place": "lake water|hill hills mountains|plain field fields meadow",
    "time": "dusk sunset evening|night midnight|dawn sunrise morning",
    "moon": "no without moonless|the with",
}


@pytest.mark.parametrize("part", WORDS)
def test_a_wording_has_a_word_of_its_own_class_alone(part: str) -> None:
    own = [set(words.split()) for words in WORDS[part].split("|")]
    assert len(own) == len(WORDINGS[part])
    for number, wordings in enumerate(WORDINGS[part]):
        for wording in wordings + (THING_PLACES[number] if part == "place" else ()):
            words = set(wording.replace("a pair", "pair").split())
            assert [n for n, some in enumerate(own) if some & words] == [number], wording


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        (
            "A Golden\tLANTERN, near the Hills!",
            "count one, colour golden, thing lantern, place over the hills",
        ),
        (
            "two sky lanterns under a moonless sky",
            "count two, shape sky, thing lantern, moon under a moonless sky",
        ),
        ("red lanterns and the moon", "colour red, thing lantern, moon with a full moon"),
        ("a lantern and four more lanterns", "count four, thing lantern"),
        ("redder lanterns of the nighttime", "thing lantern"),
        ("a fluffy cat", "count one, thing cat"),
        ("Two teddy bears on the water", "count two, thing teddy bear, place on the water"),
        ("an apple and a castle on a hill", "count one, thing apple, place on a hill"),
        ("a rocket over a lake", "place over a lake"),
        ("redder nights", ""),
    ],
)
def test_what_a_prompt_says(prompt: str, said: str) -> None:
    found = BOOK.read(prompt).said
    assert {f"{part} {phrase}" for part, phrase in found.items()} == set(said.split(", ")) - {""}


MOON = "with a full moon"
ONE_KIND, ONE_THING, AT_MOST = "one kind of thing", "one of a thing", "at most four lanterns"


@pytest.mark.parametrize(
    ("prompt", "drawn", "why"),
    [
        ("five red lanterns", "four red round lanterns over a lake at dusk", AT_MOST),
        ("12 lanterns at night", "four round lanterns over a lake at night", AT_MOST),
        ("2 jade lanterns", "two jade round lanterns over a lake at dusk", ""),
        ("red lanterns and the moon", "three red round lanterns over a lake at dusk " + MOON, ""),
        ("two red zebra sky lanterns by the lake", "two red sky lanterns by the lake at dusk", ""),
        ("four box lanterns in a field at dawn!", "four box lanterns in a field at dawn!", ""),
        ("a green box lantern and an apple", "one green box lantern over a lake at dusk", ONE_KIND),
        ("a lantern and a cat on a hill", "one round lantern over the hills at dusk", ONE_KIND),
        ("a cat", "one cat on a plain at dusk", ""),
        ("The kitten!", "one cat on a plain at dusk", ""),
        ("a fluffy cat with a moon", "one cat on a plain at dusk with a full moon", ""),
        ("an apple", "one apple on a lake at dusk", ""),
        ("apple in a field in the morning", "one apple on a plain at dawn", ""),
        ("a cat at midnight", "one cat on a plain at dusk", "no cat surely"),
        ("a fox on a plain at night", "one fox on a plain at dusk", "no fox surely"),
        ("two blue cats", "one cat on a plain at dusk", ONE_THING),
        ("cats", "one cat on a plain at dusk", ONE_THING),
        ("a cat in a tree", "one cat on a plain at dusk", ONE_KIND),
        ("two frogs and a car over a lake at dusk", "one car on a lake at dusk", ONE_KIND),
    ],
)
def test_a_prompt_is_completed(prompt: str, drawn: str, why: str) -> None:
    found = completed(INFO, prompt)
    assert found.prompt == drawn
    assert why in found.why if why and found.why else not why and found.why is None
    again = completed(INFO, drawn)
    assert (again.prompt, again.why) == (drawn, None), "what is drawn needs no completion"


def test_a_thing_has_a_seed_where_it_is_drawn_most_surely() -> None:
    for name, sure in SURE.items():
        assert completed(INFO, f"a {name}").seeds == sure.seeds
        assert len(set(sure.seeds)) == 6
    assert completed(INFO, "a cat in the moonlight").seeds == ()
    assert completed(INFO, "a car in the hills").seeds == ()
    assert completed(INFO, "two lanterns").seeds == ()


@pytest.mark.parametrize(
    ("prompt", "offers"),
    [
        ("", ["three red round lanterns over a lake at dusk"]),
        ("\u7ea2\u706f\u7b3c", ["three red round lanterns over a lake at dusk"]),
        ("Cows at night", ["one horse on a lake at night"]),
        ("lamps at night", ["three red round lanterns over a lake at night"]),
        ("a rocket in the hills", ["one bus in the hills at dusk"]),
    ],
)
def test_a_refusal_names_what_is_nearest_by_meaning(prompt: str, offers: list[str]) -> None:
    with pytest.raises(
        NotDrawn, match=r"^prompt names nothing that this .*: lanterns, a .*\. Try: "
    ) as refused:
        completed(INFO, prompt)
    prompts = refused.value.prompts
    assert len(set(prompts)) == len(SHOWN) and prompts[0] in str(refused.value)
    for offer, found in zip(offers, prompts, strict=False):
        assert found.startswith(offer)
    for found in prompts:
        assert completed(INFO, found).prompt == found


def test_the_table_of_meanings_is_of_things_on_offer() -> None:
    assert set(MEANT) == {LANTERN, *SURE}
    meant = [word for words in MEANT.values() for word in words.split()]
    assert len(set(meant)) == len(meant), "a word has one meaning"
    shown = {form for kind in SHOWN for names in NOUNS[kind] for form in names}
    assert shown.isdisjoint(meant), "what is drawn needs no meaning"


def test_only_a_model_of_few_words_completes(tmp_path: Path) -> None:
    for info in REGISTRY.values():
        assert (phrasebook(info) is None) == (info.published is not None), info.id
        assert info.published is None or completed(info, "a zebra").prompt == "a zebra"
    for number, text in enumerate(("{", "[]", '{"model": {"vocab": {"cat": 1}}}')):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "words.json").write_text(text, encoding="utf-8")
        info = info_of(folder)
        assert info.vocabulary == (frozenset({"cat"}) if "cat" in text else None)
        assert completed(info, "a cat").prompt == "a cat"


def test_words_that_are_left_out_are_named_once_and_few() -> None:
    told = ["cat", "and", "cat", ".", "?!", "\U0001f3ee"]
    assert texts.named_words(told) == ["cat", "\U0001f3ee"]
    assert texts.named_words(f"w{number}" for number in range(50))[-1] == "w7"
