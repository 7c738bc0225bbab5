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
from lantern_demo.bench.speed import prompts_for
from lantern_demo.models.registry import REGISTRY
from lantern_demo.prompt_words import phrasebook, warning
from lantern_demo.runs.pipeline import info_of
from lantern_demo.scenes import ATTRIBUTES, NOUNS, OF_LANTERNS, SHOWN, THING_PLACES, WORDINGS
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
    for prompt in prompts_for(INFO, 200):
        reading = BOOK.read(prompt)
        lacks = set() if reading.lanterns else set(OF_LANTERNS)
        assert reading.said.keys() == WORDINGS.keys() - lacks and reading.drawable
        assert BOOK.nearest(prompt) == prompt


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
            assert "thing" not in reading.said and not reading.drawable
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


@pytest.mark.parametrize(
    ("prompt", "drawable", "nearest"),
    [
        ("\u7ea2\u706f\u7b3c", False, "three red round lanterns over a lake at dusk"),
        ("four lanterns", True, "four lanterns"),
        ("a red lantern", True, "one red lantern"),
        ("golden lanterns", True, "golden lanterns"),
        ("the cat", False, "one cat"),
        ("cat in a meadow", False, "one cat in a meadow"),
        ("a cat over still water", True, "one cat on a lake"),
        ("a cat above still water", True, "one cat on a lake"),
        ("a lantern in the mountains", True, "one lantern in the mountains"),
        ("one lantern on a hill", True, "one lantern over the hills"),
        ("a cat in a tree", False, "one cat"),
        ("two red zebra sky lanterns by the lake", True, "two red sky lanterns by the lake"),
        ("a fluffy cat", True, "one cat"),
        ("two blue cats at night", False, "one cat at night"),
        ("cats", False, "one cat"),
        ("kittens in a meadow", False, "one kitten in a meadow"),
        ("an apple and a castle", False, "one apple"),
        ("two owls and a car", False, "one car"),
        ("a rocket at night", False, "three red round lanterns over a lake at night"),
        ("a green box lantern and a cat", False, "one green box lantern"),
    ],
)
def test_what_is_drawn_and_what_is_offered(prompt: str, drawable: bool, nearest: str) -> None:
    assert BOOK.read(prompt).drawable == drawable
    assert BOOK.nearest(prompt) == nearest
    offered = BOOK.read(nearest)
    assert offered.drawable and set(nearest.split()) <= BOOK.words, "what is offered can be drawn"
    assert BOOK.nearest(nearest) == nearest


def test_only_a_model_of_few_words_warns(tmp_path: Path) -> None:
    for info in REGISTRY.values():
        assert (phrasebook(info) is None) == (info.published is not None), info.id
        assert info.published is None or warning(info, "a zebra") is None
    for number, text in enumerate(("{", "[]", '{"model": {"vocab": {"cat": 1}}}')):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "words.json").write_text(text, encoding="utf-8")
        info = info_of(folder)
        assert info.vocabulary == (frozenset({"cat"}) if "cat" in text else None)
        assert warning(info, "a cat") is None


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
