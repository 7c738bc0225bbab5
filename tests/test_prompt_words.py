"""Prompts as a model of few words reads them, and the seed of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
from tiny import page_of

from examples.make_bundled_model.scenes import sample
from examples.make_bundled_model.world import Captions, vocabulary
from examples.quality.scenes import truth
from lantern_demo.bench.speed import PROMPTS
from lantern_demo.models.registry import REGISTRY
from lantern_demo.prompt_words import MEANT, NotDrawn, completed, phrasebook
from lantern_demo.runs.pipeline import info_of
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
from lantern_demo.settings.knobs import ON_THE_FORM
from lantern_demo.settings.settings import Settings
from lantern_demo.ui import texts
from lantern_demo.ui.compare import NEW_SEEDS, draw, settle
from lantern_demo.ui.components import Updates, Widgets
from lantern_demo.ui.link import query
from lantern_demo.ui.model_choice import Form
from lantern_demo.ui.recorded import recorded_runs
from lantern_demo.ui.restore import from_link, load_record, show_example, show_first
from lantern_demo.ui.run_state import Shown
from lantern_demo.ui.service import Service

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


def test_captions_of_every_wording_are_read() -> None:
    """With attributes left unsaid, in other orders: what is read is what the caption was made from,
    and no more.
    """
    scenes = sample(600, 5).attributes()
    captions = Captions({word: number for number, word in enumerate(vocabulary(), 1)})
    for row, text in enumerate(captions.text(captions(scenes, 1))):
        values = {name: int(tensor[row]) for name, tensor in scenes.items()}
        reading = BOOK.read(text)
        wordings = {
            **WORDINGS,
            "place": [a + b for a, b in zip(WORDINGS["place"], THING_PLACES, strict=True)],
        }
        assert reading.kinds == {values["thing"]}
        if values["thing"] not in SHOWN:
            assert "thing" not in reading.said
            continue
        for part, phrase in reading.said.items():
            assert phrase in wordings[part][values[part]], (text, part, phrase)
        for part, value in values.items():
            if part in OF_LANTERNS and not ATTRIBUTES[part][value]:
                assert part not in reading.said
                continue
            heard = f" {text} ".replace(",", " ,").replace("moonless sky", "moonless")
            if any(f" {phrase} " in heard for phrase in wordings[part][value] if phrase != "a"):
                assert part in reading.said, (text, part)


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


ONE_KIND, ONE_THING = "one kind of thing", "one of a thing"


@pytest.mark.parametrize(
    ("prompt", "drawn", "why"),
    [
        ("four lanterns", "four lanterns", ""),
        ("two red zebra sky lanterns by the lake", "two red zebra sky lanterns by the lake", ""),
        ("a green box lantern and an apple", "one green box lantern", ONE_KIND),
        ("a lantern and a cat on a hill", "one lantern over the hills", ONE_KIND),
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
        assert completed(INFO, f"a {name}").seed == sure.seed
    assert completed(INFO, "a cat in the moonlight").seed is None
    assert completed(INFO, "a car in the hills").seed is None
    assert completed(INFO, "two lanterns").seed is None


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
    with pytest.raises(NotDrawn, match=r"^This model draws lanterns and .*\. Try: ") as refused:
        completed(INFO, prompt)
    prompts = refused.value.prompts
    assert len(set(prompts)) == 4 and prompts[0] in str(refused.value)
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
    assert texts.named_words(["cat", "cat", ".", "?!", "\U0001f3ee"]) == ["cat", "\U0001f3ee"]
    assert texts.named_words(f"w{number}" for number in range(50))[-1] == "w7"


@pytest.fixture(scope="module")
def demo(folder: Path) -> tuple[Service, Widgets, Form]:
    service, w, event = page_of(folder, load_record)
    service.wait()
    return service, w, event.fn.args[2]


class Visitor:
    """Presses Draw as the page does: with what the results are of."""

    def __init__(self, service: Service, w: Widgets, form: Form) -> None:
        self.service, self.w, self.form = service, w, form
        self.seed: Any = 7
        self.drawn = ""  # the prompt of the latest run
        self.result = Shown()

    def fills(self, updates: dict[Any, Any]) -> None:
        self.seed = updates.get(self.w.seed, self.seed)
        self.result = updates.get(self.w.result, self.result)

    def presses(self, prompt: str, locked: bool, knobs: list[Any]) -> Iterator[Updates]:
        """Press Draw with a typed prompt and vanilla alone."""
        s, model = self.form.sentence, self.service.default
        asked = (self.seed, locked, self.result, True, prompt, *["" for _ in s.lists], *knobs)
        return draw(self.service, self.w, s, model, ["vanilla"], [], *asked)

    def draws(
        self, prompt: str = "two red lanterns", locked: bool = False, top_k: int | None = None
    ) -> tuple[int, str]:
        """The seed of the run, and all that the status said."""
        knobs = [top_k if name == "top_k" else None for name in ON_THE_FORM]
        answers = list(self.presses(prompt, locked, knobs))
        (shown,) = [answer[self.w.shown] for answer in answers if self.w.shown in answer]
        self.fills(settle(self.service, self.w, shown, []))
        self.drawn = shown.record["prompt"]
        assert shown.record["settings"]["seed"] == self.seed == shown.request.seed
        return self.seed, " ".join(str(answer.get(self.w.status)) for answer in answers)


@pytest.fixture
def visitor(demo: tuple[Service, Widgets, Form], monkeypatch: pytest.MonkeyPatch) -> Visitor:
    """A visitor whose new seeds are 1000, 1001 and so on."""
    new = iter(range(1000, 2000))
    monkeypatch.setattr(
        "lantern_demo.ui.compare.secrets.randbelow",
        lambda below: next(new) if below == NEW_SEEDS else 0,
    )
    return Visitor(*demo)


def test_draw_with_nothing_changed_takes_a_new_seed(visitor: Visitor) -> None:
    seed, told = visitor.draws()
    assert seed == 7 and "Drawing with seed 7." in told
    seed, told = visitor.draws()
    assert seed == 1000 and "Drawing with a new seed 1000." in told
    assert visitor.draws()[0] == 1001
    assert visitor.draws(locked=True)[0] == 1001
    assert visitor.draws("  two   red lanterns ")[0] == 1002, "white space changes nothing"


def test_what_is_changed_is_drawn_with_the_seed_that_is_shown(visitor: Visitor) -> None:
    assert visitor.draws()[0] == 7
    assert visitor.draws("two blue lanterns")[0] == 7
    assert visitor.draws("two blue lanterns", top_k=50)[0] == 7
    visitor.seed = 9
    assert visitor.draws("two blue lanterns", top_k=50)[0] == 9
    assert visitor.draws("two blue lanterns", top_k=50)[0] == 1000


def test_the_first_run_after_a_recording_takes_a_new_seed(visitor: Visitor) -> None:
    """Or its pictures would look as if nothing had happened, whatever model or settings the
    recording has.
    """
    prompt, _ = texts.EXAMPLES[0]
    visitor.fills(show_first(visitor.service, visitor.w))
    assert visitor.draws(prompt)[0] == 1000
    picked = show_example(visitor.service, visitor.w, visitor.form, 0)
    assert picked[visitor.w.seed] == 7 and visitor.form.locked not in picked
    visitor.fills(picked)
    assert visitor.draws(prompt, locked=True)[0] == 7
    visitor.fills(picked)
    assert visitor.draws("two blue lanterns")[0] == 7, "another prompt is another picture"
    visitor.fills(picked)
    visitor.seed = 8
    assert visitor.draws(prompt)[0] == 8


def test_a_link_begins_with_its_own_seed(visitor: Visitor) -> None:
    filled = from_link(
        visitor.service, visitor.w, visitor.form, {"prompt": "two blue lanterns", "seed": "7"}
    )
    visitor.fills(filled)
    assert visitor.draws("two blue lanterns")[0] == 7
    assert visitor.draws("two blue lanterns")[0] == 1000


def test_a_value_that_a_link_may_not_have_is_no_markup(visitor: Visitor) -> None:
    """Gradio reads Markdown beside a field; the line below the buttons is text."""
    evil = "[Log in](https://example.org)"
    updates = from_link(visitor.service, visitor.w, visitor.form, {"tree": evil}) or {}
    told = updates[visitor.form.knobs["tree"]]["info"]
    assert told.startswith(texts.NOT_AS_LINKED) and "example.org" not in told
    assert "example.org" in updates[visitor.w.status]


def test_a_refused_prompt_is_no_run(visitor: Visitor) -> None:
    visitor.draws()
    w, knobs = visitor.w, [None] * len(ON_THE_FORM)
    begun, answer = visitor.presses("a zebra", False, knobs)
    assert begun == {w.waits: False} and list(answer) == [w.status]
    assert visitor.draws()[0] == 1000, "a refusal in between is no change"


@pytest.mark.parametrize(("changes", "phase"), [({}, "done"), ({"seed": "9"}, "asked")])
def test_a_link_shows_no_recording_but_its_own(
    visitor: Visitor, changes: dict[str, str], phase: str
) -> None:
    service, w, form = visitor.service, visitor.w, visitor.form
    record = recorded_runs()[1].record
    asked = dict(parse_qsl(query(record, Settings(**INFO.preset))[1:])) | changes
    updates = from_link(service, w, form, asked) or {}
    lanes = json.loads(updates[w.stage])["lanes"]
    assert {lane["id"]: lane["phase"] for lane in lanes} == dict.fromkeys(record["order"], phase)
    assert (w.result in updates) == (phase == "done")
