"""The fields of the page: what they show for a model, a prompt and a link."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import gradio as gr
import pytest
from tiny import page_of

from examples.more_rules import MORE
from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.trees import checked_paths
from lantern_demo.faults import NotAllowed
from lantern_demo.models.registry import REGISTRY
from lantern_demo.prompt_words import MOST_OFFERS, USUAL, completed
from lantern_demo.runs.load import info_of
from lantern_demo.runs.race import Request
from lantern_demo.scenes import THINGS, worded
from lantern_demo.settings.knobs import DEFAULT_SEED
from lantern_demo.settings.settings import Settings, choice_of, planned
from lantern_demo.ui import limits, link, texts
from lantern_demo.ui.api import answers
from lantern_demo.ui.ask import (
    LISTED,
    TYPE,
    chosen,
    filled,
    listed,
    nearest,
    prompt_of,
    surprised,
)
from lantern_demo.ui.compare import NEW_SEEDS, draw, settle
from lantern_demo.ui.components import Updates, Widgets, hand_out, record_file, sheet_file
from lantern_demo.ui.form import FIELDS, OTHERS, Form, add_numbers, choose, preset
from lantern_demo.ui.link import query, query_of
from lantern_demo.ui.page import _top
from lantern_demo.ui.recorded import Recorded, recorded_runs
from lantern_demo.ui.restore import BACK, RELOAD, Visits, from_link, show_first, show_run
from lantern_demo.ui.run_state import Shown
from lantern_demo.ui.service import Refused, Service

INFO = REGISTRY["lantern-scenes"]
PLACES = ("tree/main", "blob/main/README.md")
TYPICAL = next(method for method in MORE if method.id == "typical")


@pytest.fixture(scope="module")
def demo(folder: Path) -> tuple[Service, Widgets, Form]:
    service, w, event = page_of(folder, draw)
    service.wait()
    return service, w, event.fn.args[3]


@pytest.fixture(scope="module")
def form(demo: tuple[Service, Widgets, Form]) -> Form:
    return demo[2]


# -- prompts


def shown(form: Form, updates: Updates) -> dict[str, Any]:
    """The updates of the lists and of the line of text, by name."""
    s = form.sentence
    return {"prompt": updates[s.prompt], "typing": updates[s.typing]} | {
        part: updates[one] for part, one in s.lists.items()
    }


def picked(form: Form, before: str = USUAL, **said: str) -> dict[str, Any]:
    """What is shown after a choice. before: the sentence that was shown."""
    s = form.sentence
    return shown(form, chosen(s, INFO, says(form, **said) | {s.prompt: before}))


def says(form: Form, typing: bool = False, **said: str) -> dict[Any, Any]:
    """The values of the fields, by component."""
    s = form.sentence
    return {s.typing: typing} | {one: said.get(part, "") for part, one in s.lists.items()}


def sentence_of(found: dict[str, Any]) -> str:
    said = {part: found[part]["value"] for part in LISTED if found[part]["visible"]}
    return worded({part: phrase for part, phrase in said.items() if phrase})


CAT = "a cat on a plain at dusk"


@pytest.mark.parametrize(
    ("said", "drawn"),
    [
        ({"count": "one", "place": "on a lake", "time": "at dawn"}, "an apple on a lake at dawn"),
        ({"count": "one", "place": "on a plain"}, "an apple on a plain"),
        ({"count": "two", "colour": "red", "place": "over a lake"}, "an apple on a lake"),
        ({"count": "two", "shape": "sky", "time": "at night"}, "an apple at night"),
        ({}, "an apple"),
    ],
)
def test_a_chosen_thing_stands_where_the_lists_say(
    form: Form, said: dict[str, str], drawn: str
) -> None:
    """If anywhere, whatever was there before it."""
    for before in (USUAL, CAT, drawn):
        found = picked(form, before, thing="apple", **said)
        assert sentence_of(found) == found["prompt"]["value"] == drawn and not found["typing"]
        now = says(form, thing="apple", **said) | {form.sentence.prompt: before}
        at_once = completed(INFO, prompt_of(form.sentence, now))
        assert (at_once.prompt, at_once.why) == (drawn, None), "Draw before the answer"


def test_of_a_thing_there_is_one_at_any_place_and_time(form: Form) -> None:
    found = picked(form, count="three", colour="red", thing="fox", place="over a lake")
    assert not found["colour"]["visible"] and not found["prompt"]["visible"]
    options = {part: [value for _, value in found[part]["choices"]] for part in LISTED}
    assert options["count"] == ["one"]
    assert options["place"] == ["", "on a lake", "in the hills", "on a plain"]
    assert options["time"] == ["", "at dusk", "at night", "at dawn"]
    assert {*THINGS, "lantern", TYPE} >= set(options["thing"]) > {"lantern", "cat", "umbrella"}
    assert options["thing"][-1] == TYPE


def test_surprise_shows_lanterns_and_things_with_or_without_a_place_and_a_time(form: Form) -> None:
    shows = [shown(form, surprised(form.sentence, INFO)) for _ in range(300)]
    for found in shows:
        assert sentence_of(found) == found["prompt"]["value"] and not found["typing"]
        assert nearest(INFO, sentence_of(found)) == sentence_of(found)
    things = [found for found in shows if found["thing"]["value"] != "lantern"]
    assert 100 < len(things) < 200
    for part in ("place", "time"):
        assert len({found[part]["value"] for found in things}) == 4, "none and the three"
    lanterns = [found for found in shows if found["thing"]["value"] == "lantern"]
    assert len({found["colour"]["value"] for found in lanterns}) >= 6


def test_back_to_lanterns_all_is_offered_again(form: Form) -> None:
    """In the usual sentence. Other lanterns stay as they are."""
    said = {"count": "one", "thing": "lantern", "place": "on a plain", "time": "at dusk"}
    found = picked(form, CAT, **said)
    assert all(found[part]["visible"] for part in LISTED) and sentence_of(found) == USUAL
    assert len(found["place"]["choices"]) == 1 + 3, "any and the three"
    found = picked(form, "one golden lantern", **said)
    assert found["prompt"]["value"] == "one lantern on a plain at dusk"
    assert len(found["place"]["choices"]) == 1 + 3 + 1, "and the one that is shown"


@pytest.mark.parametrize(
    ("before", "said"),
    [
        ("two lanterns at night", {"count": "two", "time": "at night"}),
        (CAT, {"count": "one", "place": "on a plain", "time": "at dusk"}),
    ],
)
def test_type_is_an_entry_of_the_things(form: Form, before: str, said: dict[str, str]) -> None:
    """The line of text has the sentence as it stood."""
    found = picked(form, before, thing=TYPE, **said)
    assert found["typing"] and found["prompt"]["visible"]
    assert found["prompt"]["value"] == before
    assert not any(found[part]["visible"] for part in LISTED)


def test_what_no_list_has_is_left_out(form: Form) -> None:
    """A late choice may be of a list that is replaced. A stranger can send anything."""
    s = form.sentence
    late = says(form, thing="cat", count="three", colour="red", place="over a lake")
    assert s.said(late) == {
        "count": "three", "colour": "red", "thing": "cat", "place": "over a lake"
    }  # fmt: skip
    for value in ("red", "../..", "<img src=x>", "x" * 9999, None):
        strange = {one: value for part, one in s.lists.items() if part != "colour"}
        assert s.said(says(form) | strange) == {}
        given = {s.typing: False, s.prompt: CAT, s.lists["colour"]: value} | strange
        assert sentence_of(shown(form, chosen(s, INFO, given))) == USUAL == prompt_of(s, given)


def test_a_prompt_with_a_moon_is_shown_as_text(form: Form) -> None:
    """So is one with a number, which no list of things has."""
    moon = "a fox on a plain at dusk with a full moon"
    for prompt, typing in (
        ("a fox on a plain at dusk", False),
        ("a fox", False),
        (moon, True),
        ("two foxes on a plain", True),
        ("one fox on a plain", True),
    ):
        assert shown(form, filled(form.sentence, INFO, prompt))["typing"] == typing, prompt
    assert nearest(INFO, "one fox on a plain") == "a fox on a plain"


def test_lists_show_what_is_drawn_for_a_typed_prompt() -> None:
    """Also one with a number or a moon that no list has."""
    for prompt, lists in (
        ("five red lanterns", "four red round lanterns over a lake at dusk"),
        ("two foxes at night with a moon", "a fox at night"),
        ("a zebra", "a horse"),
    ):
        assert listed(INFO, prompt) == lists


def test_what_a_list_says_late_leaves_the_line_of_text(form: Form) -> None:
    s, late = form.sentence, says(form, typing=True, thing="lantern")
    assert chosen(s, INFO, late) == {s.typing: True}
    assert prompt_of(s, {s.prompt: "a fox", **says(form, thing=TYPE)}) == "a fox"


def test_paper_settings_fill_the_fields_and_the_rest(demo: tuple[Service, Widgets, Form]) -> None:
    service, _, form = demo
    found = preset(service, form, form.seed, True)  # type: ignore[arg-type]
    assert set(form.knobs) == set(FIELDS)
    assert found[form.knobs["tree"]] == "paper" and found[form.others]["neighbours"] == "raw"
    assert set(found[form.others]) == set(OTHERS)
    assert texts.PAPER_SLOW in str(found[form.seed]), "before Draw"


def test_a_space_has_addresses_of_code_and_docs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere nobody knows them. The papers are always there."""
    for space in ("someone/lantern", None):
        monkeypatch.setenv("SPACE_ID", space) if space else monkeypatch.delenv("SPACE_ID")
        found = re.findall('href="([^"]+)"', _top())
        assert found[:2] == list(texts.PAPERS.values())
        own = [f"https://huggingface.co/spaces/{space}/{path}" for path in PLACES]
        assert found[2:] == (own if space else [])


# -- Draw, and its seed


class Visitor:
    """Presses Draw as the page does: with what the results are of."""

    def __init__(self, service: Service, w: Widgets, form: Form) -> None:
        self.service, self.w, self.form = service, w, form
        self.seed: Any = DEFAULT_SEED
        self.result = Shown()

    def fills(self, updates: dict[Any, Any]) -> None:
        self.seed = updates.get(self.w.seed, self.seed)
        self.result = updates.get(self.w.result, self.result)

    def presses(self, prompt: str, k: int, *methods: str, **fields: Any) -> Iterator[Updates]:
        """Press Draw with a typed prompt, some methods, and what else some fields have."""
        form, settings = self.form, Settings(lantern_k=k).as_dict() | fields
        seed = fields.get("seed", self.seed)
        given = {form.methods: methods, form.seed: seed, form.sentence.prompt: prompt}
        given |= {knob: settings[name] for name, knob in form.knobs.items()}
        given |= {
            form.others: {name: settings[name] for name in OTHERS},
            self.w.result: self.result,
        }
        given |= says(form, typing=True)
        return draw(self.service, self.w, self.w.status, form, given)

    def draws(
        self,
        prompt: str = "two red lanterns",
        k: int = 10,
        also: str = "vanilla",
        visited: list[Recorded] | None = None,
    ) -> tuple[int, str]:
        """The seed of the run, and all that the status said."""
        answers = list(self.presses(prompt, k, "vanilla", also))
        (shown,) = [answer[self.w.shown] for answer in answers if self.w.shown in answer]
        self.fills(settle(self.service, self.w, shown, [] if visited is None else visited))
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


@pytest.mark.parametrize("prompt", ["two red lanterns", "a cat"])
def test_draw_with_nothing_changed_takes_a_new_seed(visitor: Visitor, prompt: str) -> None:
    seed, told = visitor.draws(prompt)
    assert seed == 7 and "Drawing with seed 7." in told
    seed, told = visitor.draws(prompt)
    assert seed == 1000 and "Drawing with a new seed 1000." in told
    spaced = f"  {prompt.replace(' ', '   ')} "
    assert visitor.draws(spaced)[0] == 1001, "white space changes nothing"


def test_what_is_changed_is_drawn_with_the_seed_that_is_shown(visitor: Visitor) -> None:
    assert visitor.draws()[0] == 7
    assert visitor.draws("two blue lanterns")[0] == 7
    assert visitor.draws("two blue lanterns", k=50)[0] == 7
    visitor.seed = 9
    assert visitor.draws("two blue lanterns", k=50)[0] == 9
    assert visitor.draws("two blue lanterns", k=50)[0] == 1000


def test_a_recording_is_drawn_with_its_seed_and_a_run_of_this_visit_with_a_new_one(
    visitor: Visitor,
) -> None:
    service, w, form = visitor.service, visitor.w, visitor.form
    prompt, seed = texts.EXAMPLES[0]
    visitor.fills(show_first(w))
    visitor.seed = seed
    assert visitor.draws(prompt)[0] == seed
    drawn = visitor.result
    assert drawn.record is not None
    visited = [Recorded(drawn.record, drawn.pictures, drawn.request)]
    visitor.fills(show_run(service, w, form, Shown(), visited, 0))
    assert visitor.seed == seed and visitor.draws(prompt)[0] == 1000


def test_a_method_that_is_registered_after_the_page_was_imported(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It draws. No setting makes its rule exact, so that it is offered no exact twin."""
    monkeypatch.setitem(METHODS, TYPICAL.id, TYPICAL)
    visitor.draws(also=TYPICAL.id)
    assert visitor.result.record is not None
    assert visitor.result.record["order"] == ["vanilla", TYPICAL.id]
    with gr.Blocks():
        offered = add_numbers().twin_of.choices
    assert [method for _, method in offered] == ["lantern", "lantern++"]


def calls_of(function: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls of a function from now on, by whichever module, as a list that grows."""
    calls: list[Any] = []

    def noted(*given: Any, **named: Any) -> Any:
        calls.append(given)
        return function(*given, **named)

    for module in list(sys.modules.values()):
        if vars(module).get(function.__name__) is function:
            monkeypatch.setattr(module, function.__name__, noted)
    return calls


@pytest.mark.parametrize("way", ["page", "API"])
def test_the_drafts_of_a_method_are_chosen_once(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """When the request is checked, and not by whoever reads the record."""
    five = [method.id for method in METHODS.values() if method.default]
    chosen, checked = calls_of(choice_of, monkeypatch), calls_of(checked_paths, monkeypatch)
    tree = {"tree": "0 1 2 00 01 10 20 000"}
    if way == "page":
        begun = list(visitor.presses("two red lanterns", 10, *five, **tree))
        (shown,) = [answer[visitor.w.shown] for answer in begun if visitor.w.shown in answer]
        visitor.fills(settle(visitor.service, visitor.w, shown, []))
        record = visitor.result.record
    else:
        *_, (_, record) = answers(visitor.service, "two red lanterns", five, settings=tree)
    assert record is not None and record["order"] == five
    assert len(chosen) == len(five) and 0 < len(checked) <= 6


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("seed", 1.5, "Seed must be a whole number between 0 and 2147483647, got 1.5"),
        ("lantern_k", 2.5, "LANTERN k must be a whole number between 0 and 1000, got 2.5"),
        ("lantern_k", None, "LANTERN k must be a whole number between 0 and 1000, got nothing."),
        ("tree", None, "Draft tree must be one of default, small, "),
    ],
)
def test_a_number_that_is_not_whole_and_an_empty_field_are_refused(
    visitor: Visitor, field: str, value: Any, told: str
) -> None:
    """Nothing else is drawn instead. An empty seed is a new one."""
    form, w = visitor.form, visitor.w
    box = form.seed if field == "seed" else form.knobs[field]
    typed = box.preprocess(value) if isinstance(box, gr.Number) else value
    *_, refused = visitor.presses("a lantern", 10, "vanilla", **{field: typed})
    assert told in refused[w.status]
    visitor.seed = None
    assert visitor.draws()[0] == 1000


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (NotAllowed("cfg_scale", "must be less"), "Guidance (CFG scale) must be less."),
        (NotAllowed("prompt", "is empty; say what!"), "The prompt is empty; say what!"),
        (NotAllowed("methods", "must be a list"), "Methods must be a list."),
        (Refused("seed and tree are gone"), "Seed and tree are gone."),
    ],
)
def test_a_refusal_has_the_label_of_its_parameter(error: ValueError, told: str) -> None:
    """And whatever word another sentence begins with, it is none."""
    assert texts.to_visitor(error) == told


def test_a_refused_prompt_is_no_run_and_has_a_way_out(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    visitor.draws()
    w = visitor.w
    monkeypatch.setattr(visitor.service, "info", INFO)
    monkeypatch.setattr(visitor.service.wait(), "info", INFO)
    begun, _, offers, refused = visitor.presses("a zebra", 10, "vanilla")
    assert begun[w.waits] is False and texts.NOT_DRAWN in refused[w.status]
    named = re.findall('title="([^"]+)">([^<]+)<', offers[w.offers])
    assert named[0] == ("a horse", "a horse") and 5 < len(named) <= MOST_OFFERS
    assert ("three red round lanterns over a lake at dusk", "lanterns") in named


# -- links


def test_a_link_is_drawn_and_a_reload_is_not(demo: tuple[Service, Widgets, Form]) -> None:
    service, w, form = demo
    asked = {"prompt": "two blue lanterns", "seed": "9", "top_p": "0.5"}
    for came_by, go, words in (
        ("navigate", "draw", texts.READY_LINK),
        (BACK, "draw", texts.READY_LINK),
        (RELOAD, "", texts.RELOADED),
    ):
        found = from_link(service, w, form, asked, came_by, []) or {}
        assert (found[w.go], found[form.seed]) == (go, 9) and words in found[w.status]
        assert found[form.others]["top_p"] == 0.5
        assert texts.NOT_DRAWN_YET in found[w.stage], "an example would look like the answer"
    assert from_link(service, w, form, {"utm_source": "x"}, "navigate", []) is None


@pytest.mark.parametrize("came_by", [RELOAD, BACK])
def test_a_run_of_this_visit_comes_back(visitor: Visitor, came_by: str) -> None:
    """With its own link, and with the one that it began with. Elsewhere the link draws."""
    service, w, form = visitor.service, visitor.w, visitor.form
    visited: list[Recorded] = []
    visitor.draws(visited=visited)
    record, preset = visitor.result.record, Settings(**service.info.preset)
    assert record is not None and visitor.result.request is not None
    for address in (query(record, preset), query_of(visitor.result.request, preset)):
        asked = dict(parse_qsl(address[1:]))
        found = from_link(service, w, form, asked, came_by, visited) or {}
        assert found[w.result].record is record and w.go not in found
        assert texts.SOURCES["kept"].split(" {")[0] in found[w.status]
        drawn = from_link(service, w, form, asked, "navigate", visited) or {}
        assert drawn[w.go] == "draw"


def test_a_run_that_was_left_is_not_answered_by_a_recording_of_its_prompt(
    demo: tuple[Service, Widgets, Form], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The recording's own link, which has its draft trees, still shows it."""
    service, w, form = demo
    monkeypatch.setattr(service, "info", INFO)
    record, preset = recorded_runs()[0].record, Settings(**INFO.preset)
    plans = {name: planned(METHODS[name], preset) for name in record["order"]}
    request = Request(INFO.id, record["prompt"], plans)
    request = request.with_seed(record["settings"]["seed"])
    addresses = query_of(request, preset), query(record, preset)
    begun, own = (dict(parse_qsl(address[1:])) for address in addresses)
    sent = from_link(service, w, form, begun, "navigate", []) or {}
    assert sent[w.result].record == record, "to others it is the recording"
    for came_by, go in ((RELOAD, ""), (BACK, "draw")):
        found = from_link(service, w, form, begun, came_by, []) or {}
        assert found[w.go] == go and texts.NOT_DRAWN_YET in found[w.stage]
        found = from_link(service, w, form, own, came_by, []) or {}
        assert found[w.result].record == record


def test_a_tab_has_its_runs_until_many_others_came() -> None:
    visits, run = Visits(), Recorded({}, {})
    visits.of("mine").append(run)
    for number in range(limits.SESSIONS - 1):
        visits.of(f"{number}")
    assert visits.of("mine") == [run]
    for number in range(limits.SESSIONS):
        visits.of(f"{number}")
    assert visits.of("mine") == visits.of("") == visits.of("x" * 65) == []


def test_a_link_of_a_folder_that_is_still_loaded_has_lanes_of_its_grid(
    demo: tuple[Service, Widgets, Form], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lanes of no pieces would be done at once."""
    service, w, form = demo
    monkeypatch.setattr(service, "info", info_of(folder))
    found = from_link(service, w, form, {"prompt": "two blue lanterns"}, "navigate", []) or {}
    stage = json.loads(found[w.stage])
    assert stage["grid"] == 4 and {lane["total"] for lane in stage["lanes"]} == {16}


def test_the_files_of_a_run_are_drawn_when_they_are_asked_for(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not by a visit, nor by the end of a run."""
    service, w, form = visitor.service, visitor.w, visitor.form
    written: list[str] = []

    def noted(path: Path, data: bytes) -> str:
        written.append(path.name)
        path.write_bytes(data)
        return str(path)

    monkeypatch.setattr("lantern_demo.ui.files.write", noted)
    visitor.fills(show_first(w))
    visitor.fills(show_run(service, w, form, Shown(), [], 1))
    visitor.draws()
    assert written == ["vanilla.png"], "which its lane offers"
    for write, name in ((record_file, "run.json"), (sheet_file, "pictures.png")):
        found = hand_out(w, write, visitor.result)
        assert Path(found[w.file]).name == f"lantern-demo-{name}" == written[-1]
    assert hand_out(w, sheet_file, Shown()) == {w.file: None}


def test_a_link_to_what_is_not_drawn_shows_the_example_beside_the_refusal(
    demo: tuple[Service, Widgets, Form],
) -> None:
    service, w, form = demo
    updates = from_link(service, w, form, {"prompt": "pizza"}, "navigate", [])
    assert updates is not None and w.stage not in updates, "the example stays on the stage"
    assert updates[w.go] == "draw" and updates[w.result].record is not None


LINK = {"prompt": "a cat", "methods": "vanilla,foo", "seed": "9"}


def test_a_bad_link_shows_the_recording_and_a_sentence(
    demo: tuple[Service, Widgets, Form],
) -> None:
    """And fills in what else it has."""
    service, w, form = demo
    evil = "[Log in](https://example.org)"
    found = from_link(service, w, form, {"tree": evil}, "navigate", []) or {}
    assert "Draft tree must be one of" in found[w.status] and w.go not in found
    found = from_link(service, w, form, LINK, "navigate", []) or {}
    assert "Method must be one of" in found[w.status] and "foo" in found[w.status]
    assert found[form.sentence.prompt]["value"] == "a cat" and found[form.seed] == 9
    assert not found[w.go] and found[w.result].record is not None
    gone = from_link(service, w, form, {"run": "3f2a"}, "navigate", []) or {}
    assert texts.OLD_LINK in gone[w.status] and gone[w.result].record is not None


def test_names_that_no_link_has_are_not_read(
    demo: tuple[Service, Widgets, Form], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside timed runs they would take seconds: strangers may send thousands."""
    read, reads = link.read, list[int]()
    monkeypatch.setattr(link, "read", lambda *given: reads.append(1) or read(*given))
    foreign = {f"utm_{number}": "x" for number in range(16_000)}
    found = from_link(*demo, LINK | foreign, "navigate", []) or {}
    assert "Method must be one of" in found[demo[1].status] and len(reads) <= len(link.KNOWN) + 2


def test_a_recordings_link_shows_the_recording(
    demo: tuple[Service, Widgets, Form], monkeypatch: pytest.MonkeyPatch
) -> None:
    service, w, form = demo
    record = recorded_runs()[1].record
    asked = dict(parse_qsl(query(record, Settings(**INFO.preset))[1:]))
    monkeypatch.setattr(service, "info", INFO)
    found = from_link(service, w, form, asked, "navigate", []) or {}
    assert found[w.result].record == record and w.go not in found
    changed = from_link(service, w, form, asked | {"seed": "99"}, "navigate", [])
    assert changed is not None and changed[w.go] == "draw"


def test_a_model_without_a_drafter_offers_the_methods_that_it_has(
    demo: tuple[Service, Widgets, Form], monkeypatch: pytest.MonkeyPatch
) -> None:
    service, _, form = demo
    drafting = [name for name in METHODS if name not in ("vanilla", "sjd")]
    monkeypatch.setattr(Service, "unavailable", drafting)
    found = choose(service, form)[form.methods]
    assert [value for _, value in found["choices"]] == ["vanilla", "sjd"] and found["value"]
