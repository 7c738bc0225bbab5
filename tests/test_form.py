"""The fields of the page: what they show for a model, a prompt and a link."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import parse_qsl

import gradio as gr
import pytest
from PIL import Image
from tiny import awaited, page_of, write_tiny_model

from examples.more_rules import MORE
from lantern_demo.decoding.methods import METHODS
from lantern_demo.models.registry import REGISTRY
from lantern_demo.prompt_words import KNOWS_NONE, NOT_LEFT_OUT, ONE_THING, USUAL, phrasebook
from lantern_demo.runs.load import info_of
from lantern_demo.runs.race import Request
from lantern_demo.runs.record import kept_of
from lantern_demo.runs.result import MethodFailed
from lantern_demo.scenes import THINGS
from lantern_demo.settings.knobs import DEFAULT_SEED, KNOBS
from lantern_demo.settings.settings import Settings, planned
from lantern_demo.ui import files, limits, link, texts
from lantern_demo.ui.actions import begin, hand_out, hand_out_sheet, idle, offer_stop, record_file
from lantern_demo.ui.ask import add_chips, add_prompt, chips_html, hearing, left_out
from lantern_demo.ui.compare import FRAMES_TOLD, draw, repeat, settle, upper_of
from lantern_demo.ui.components import OVER, RUNS, WAITS, Updates, Widgets, status_html
from lantern_demo.ui.form import FIELDS, OTHERS, Form, add_numbers, choose, preset
from lantern_demo.ui.recorded import CHIP, Recorded, recorded_runs
from lantern_demo.ui.recorded import THINGS as THINGS_PICTURES
from lantern_demo.ui.restore import BACK, RELOAD, Visits, from_link, show_first, show_run
from lantern_demo.ui.run_state import Lane, PageRun
from lantern_demo.ui.run_view import live_view, results_view
from lantern_demo.ui.service import Service
from lantern_demo.ui.twin import compare_twins

INFO = REGISTRY["lantern-scenes"]
TYPICAL = next(method for method in MORE if method.id == "typical")


@pytest.fixture(scope="module")
def demo(folder: Path) -> tuple[Service, Widgets, Form]:
    service, w, event = page_of(folder, draw)
    service.wait()
    return service, w, event.fn.args[3]


# -- prompts


BOOK = phrasebook(INFO)


def hear(asked: Any) -> dict[str, Any]:
    """What the page's script is told of a prompt."""
    return awaited(hearing(INFO, BOOK)(asked))  # type: ignore[arg-type]


def test_a_prompt_is_heard_while_it_is_typed() -> None:
    found = hear({"prompt": "two blue katzen at night"})
    parts = {"count": "two", "colour": "blue", "thing": "cat", "time": "at night"}
    assert found["parts"] == parts
    assert found["drawn"] == "a cat at night" and not found["lanterns"]
    assert found["leftOut"] == [("two", None), ("blue", None)]
    assert found["why"] == f"Read as cat: katzen. {ONE_THING}"
    assert hear({"prompt": "eine Katze"})["why"] == "Read as cat: Katze."
    none = hear({"prompt": "coffee on a table"})
    assert (none["why"], none["drawn"]) == (KNOWS_NONE, USUAL)
    assert hear({"prompt": "no cat"})["why"] == NOT_LEFT_OUT
    whole = hear({"prompt": f" {USUAL} "})
    assert (whole["drawn"], whole["leftOut"], whole["why"]) == ("", [], ""), "nothing to tell"
    found = hear({"prompt": "eine Katze at night", "part": "thing", "phrase": "cat"})
    assert found["prompt"] == "a cat at night" and found["parts"]["thing"] == "cat"


@pytest.mark.parametrize("asked", [None, [], "x", {"prompt": None}, {"prompt": ["<b>"]}])
def test_a_stranger_who_asks_what_is_heard_gets_an_answer(asked: Any) -> None:
    assert hear(asked)["lanterns"]
    for part, phrase in (({"x": 1}, "../.."), ("time", "cat")):
        assert hear({"prompt": "a fox", "part": part, "phrase": phrase})["prompt"] == "a fox"
    long = "x" + " x" * INFO.max_prompt
    told = hear({"prompt": long, "part": "thing", "phrase": "cat"})
    assert (told["prompt"], told["drawn"], told["leftOut"]) == (long, "", [])
    assert told["why"] == "The prompt has 401 characters, at most 200 are allowed."


def test_the_chips_are_what_the_model_knows() -> None:
    """The pictures are the bundled model's own: others' chips have none."""
    html = chips_html(BOOK, USUAL, True)
    assert re.findall('data-part="thing" data-phrase="([^"]+)"', html) == ["lantern", *THINGS]
    assert re.findall("--at:([0-9]+)", html) == [f"{place}" for place in range(1 + len(THINGS))]
    assert "<i" not in chips_html(BOOK, USUAL, False)
    with Image.open(THINGS_PICTURES) as row:
        assert row.size == ((1 + len(THINGS)) * CHIP, CHIP)
    assert THINGS_PICTURES.stat().st_size < 40_000, "every visit downloads it"


def test_a_model_of_any_text_names_the_words_that_it_lacks() -> None:
    text = REGISTRY["llamagen-t2i-256"]
    assert left_out(text, "two zebras", ["zebras", "."]) == (["zebras"], "")
    assert left_out(INFO, "two zebras", []) == (["two"], "Read as horse: zebras.")
    with gr.Blocks() as page:
        add_chips(text, add_prompt(), gr.Button())
    assert not any(isinstance(one, gr.HTML) for one in page.blocks.values()), "nor has it chips"


# -- Draw, and its seed


class Visitor:
    """Opens links and presses Draw as the page does: with what the results are of."""

    def __init__(self, service: Service, w: Widgets, form: Form) -> None:
        self.service, self.w, self.form = service, w, form
        self.seed: Any = DEFAULT_SEED
        self.result = PageRun()
        self.keep: dict[str, Any] = {}
        self.visited = list[Recorded]()

    def fills(self, updates: dict[Any, Any]) -> None:
        self.seed = updates.get(self.w.seed, self.seed)
        self.result = updates.get(self.w.result, self.result)
        self.keep = updates.get(self.w.keep, self.keep)

    def comes(self, asked: dict[str, str], came_by: str = "navigate") -> Updates:
        """Open a link -> what it changes on the page."""
        return from_link(self.service, self.w, self.form, asked, came_by, self.visited) or {}

    def presses(self, prompt: str, *methods: str, **fields: Any) -> Iterator[Updates]:
        """Press Draw with a typed prompt, some methods, and what else some fields have."""
        form, settings = self.form, Settings(lantern_k=10).as_dict() | fields
        seed = fields.get("seed", self.seed)
        given: dict[Any, Any] = {knob: settings[name] for name, knob in form.knobs.items()}
        given |= {form.methods: methods, form.seed: seed, form.prompt: prompt}
        given |= {form.others: {name: settings[name] for name in OTHERS}}
        given |= {self.w.result: self.result, self.w.keep: self.keep}
        return draw(self.service, self.w, self.w.status, form, given)

    def draws(self, prompt: str = "a cat", *methods: str, **fields: Any) -> tuple[int, str]:
        """The seed of the run, and all that the status said."""
        answers = list(self.presses(prompt, "vanilla", *methods, **fields))
        (opening,) = [answer for answer in answers if self.w.page_run in answer]
        self.fills(opening)
        page_run = opening[self.w.page_run]
        settled = settle(self.service, self.w, OVER, page_run, self.visited)
        assert self.w.seed not in settled, "a visitor may have typed another meanwhile"
        self.fills(settled)
        assert page_run.record["settings"]["seed"] == self.seed == page_run.request.seed
        return self.seed, " ".join(str(answer.get(self.w.status)) for answer in answers)

    def repeats(self, others: bool = False) -> str:
        """Press Run again -> what is told last."""
        return self.told(repeat(self.service, self.w, self.w.status, self.result, others=others))

    def told(self, answers: Iterable[Updates]) -> str:
        return [answer[self.w.status] for answer in answers if self.w.status in answer][-1]


def test_what_a_prompt_became_is_told_from_the_first_answer_on(visitor: Visitor) -> None:
    w = visitor.w
    answers = list(visitor.presses("a zebra <b>tango</b> at night", "vanilla"))
    (page_run,) = [answer[w.page_run] for answer in answers if w.page_run in answer]
    assert page_run.record["prompt"] == "a horse at night"
    told = [answer[w.status] for answer in answers if answer.get(w.status)]
    assert len(told) > 2 and all("<s>tango</s>" in one for one in told)
    assert all("Read as horse: zebra." in one for one in told)


@pytest.fixture
def visitor(demo: tuple[Service, Widgets, Form], monkeypatch: pytest.MonkeyPatch) -> Visitor:
    """A visitor whose new seeds are 1000, 1001 and so on, and whose repeats are one."""
    new = iter(range(1000, 2000))
    monkeypatch.setattr("lantern_demo.ui.compare.REPEATS", 1)
    monkeypatch.setattr("lantern_demo.ui.compare.secrets.randbelow", lambda _: next(new))
    return Visitor(*demo)


def test_draw_takes_a_new_seed_where_nothing_changed(visitor: Visitor) -> None:
    seed, told = visitor.draws("a cat")
    assert seed == 7 and "seed 7" in told and "new" not in told
    seed, told = visitor.draws("a cat")
    assert seed == 1000 and "new seed 1000" in told
    assert visitor.draws("  a   cat ")[0] == 1001, "white space changes nothing"
    assert visitor.draws("a dog")[0] == visitor.draws("a dog", lantern_k=50)[0] == 1001
    visitor.seed = 9
    assert visitor.draws("a dog", lantern_k=50)[0] == 9
    assert visitor.draws("a dog", lantern_k=50)[0] == 1002
    visitor.seed = None
    assert visitor.draws("a dog")[0] == 1003, "an empty seed is a new one"


def test_the_rest_of_a_picture_is_drawn_with_a_new_seed(visitor: Visitor) -> None:
    visitor.draws("a cat")
    upper = visitor.result.record["methods"]["vanilla"]["token_ids"][:8]
    visitor.keep = upper_of(visitor.result, "vanilla", 2)
    seed, told = visitor.draws("a cat", "lantern++")
    record, sentence = visitor.result.record, "Kept: the upper 2 of 4 rows."
    assert seed == 1000 and sentence in told and visitor.keep == {}
    assert all(kept_of(entry) == upper for entry in record["methods"].values())
    assert texts.of_run(texts.SOURCES["live"], record).endswith(sentence)
    (lane, _) = results_view(record, {}, "live")["lanes"]
    assert (lane["kept"], lane["tokens"][:8], lane["total"]) == (8, upper, 8)
    assert live_view(visitor.result)["kept"] == tuple(upper)
    assert "keep" not in link.query(record, Settings()), "a link draws all rows"
    assert texts.REPRODUCED in visitor.repeats()
    assert visitor.draws("a cat", "lantern++")[0] == 1000, "the one that is shown"
    assert not kept_of(visitor.result.record["methods"]["vanilla"]), "Draw keeps nothing"


def test_rows_that_are_not_there_or_another_models_are_not_kept(visitor: Visitor) -> None:
    visitor.fills(show_first(visitor.w))
    for asked in (("vanilla", 16), ("medusa", 3), ("vanilla", "3"), ([], None)):
        assert upper_of(visitor.result, *asked) == {}
    visitor.keep = upper_of(visitor.result, "vanilla", 3)
    told = visitor.told(visitor.presses("a cat", "vanilla"))
    assert "refused" in told and "lantern-scenes" in told


def test_a_recording_is_drawn_with_its_seed_and_a_run_with_a_new_one(visitor: Visitor) -> None:
    service, w, form = visitor.service, visitor.w, visitor.form
    visitor.fills(show_first(w))
    assert visitor.draws(texts.EXAMPLES[0])[0] == DEFAULT_SEED
    visitor.fills(show_run(service, w, form, OVER, visitor.visited, visitor.visited[0].key))
    assert visitor.seed == DEFAULT_SEED and visitor.draws(texts.EXAMPLES[0])[0] == 1000


def test_the_strip_waits_for_a_run_and_says_what_is_gone(visitor: Visitor) -> None:
    """Repeat would write its numbers under the other run's pictures. Another tab's strip is old."""
    service, w, form = visitor.service, visitor.w, visitor.form
    key = recorded_runs()[0].key
    busy, gone = texts.STILL_RUNNING, texts.NO_LONGER_KEPT
    for asked, one, told in ((RUNS, key, busy), (WAITS, key, busy), (OVER, "x", gone)):
        found = show_run(service, w, form, asked, [], one)
        assert list(found) == [w.status] and told in found[w.status]


def test_a_run_is_shown_again_as_it_ended_and_another_models_without_a_promise(
    visitor: Visitor,
) -> None:
    """A lane that did not finish is there again. Draw cannot run another model's recording."""
    service, w, form = visitor.service, visitor.w, visitor.form
    visitor.draws("a cat", "vanilla")
    now = replace(visitor.result, lanes={"eagle1": Lane("eagle1", "stopped", 16)}, files={"x": "y"})
    kept = Recorded.of(now)
    view = json.loads(show_run(service, w, form, OVER, [kept], kept.key)[w.stage])
    assert [(lane["id"], lane["phase"]) for lane in view["rest"]] == [("eagle1", "stopped")]
    assert view["files"] == now.files
    other = deepcopy(kept.record)
    other["model"]["id"] = "anole-7b"
    found = show_run(service, w, form, OVER, [replace(kept, record=other)], kept.key)
    assert "with anole-7b. Here another model draws." in found[w.status]
    assert form.prompt not in found


def test_a_run_that_is_stopped_says_so_where_its_words_are(visitor: Visitor) -> None:
    w = visitor.w
    for asked, told in ((RUNS, texts.STOPPED), (WAITS, texts.STOPPED), (OVER, None)):
        settled = settle(visitor.service, w, asked, PageRun(), [])
        for end in (idle(w, w.status, asked, PageRun(), []), settled):
            assert end.get(w.status) == (told and status_html(told)) and end[w.asked] == OVER
    page_run = PageRun({"vanilla": Lane("vanilla", "drawing", 16)})
    for _ in range(2):  # Gradio tells it twice: as a failure, and as an end
        assert texts.STOPPED_RUN in settle(visitor.service, w, RUNS, page_run, [])[w.status]


def test_a_method_registered_later(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    """It draws. No setting makes its rule exact, so that it is offered no exact twin."""
    monkeypatch.setitem(METHODS, TYPICAL.id, TYPICAL)
    visitor.draws("two red lanterns", TYPICAL.id)
    assert visitor.result.record["order"] == ["vanilla", TYPICAL.id]
    with gr.Blocks():
        offered = {method for _, method in add_numbers().twin_of.choices}
    assert {"lantern", "lantern++"} <= offered and TYPICAL.id not in offered


@pytest.mark.parametrize(
    ("field", "value"), [("seed", 1.5), ("lantern_k", 2.5), ("lantern_k", None), ("tree", None)]
)
def test_broken_numbers_and_no_value_are_refused(visitor: Visitor, field: str, value: Any) -> None:
    form = visitor.form
    box = form.seed if field == "seed" else form.knobs[field]
    typed = box.preprocess(value) if isinstance(box, gr.Number) else value
    told = visitor.told(visitor.presses("a lantern", "vanilla", **{field: typed}))
    assert f"{KNOBS[field].label} must be" in told


def test_faults_end_in_a_sentence(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    w, says = visitor.w, "The run failed on the server. KeyError"
    assert texts.NO_METHODS in visitor.told(visitor.presses("a cat"))
    visitor.draws("a cat", "lantern")
    monkeypatch.setattr(Service, "request", lambda *_, **__: {}["type"])
    twin = compare_twins(visitor.service, w, w.status, "lantern", visitor.result)
    for answers in (visitor.presses("a cat", "vanilla"), twin):
        assert says in visitor.told(answers)
    assert says in visitor.repeats()


@pytest.mark.slow
def test_a_frame_holds_only_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = write_tiny_model(tmp_path / "guided") / "config.json"
    own = json.loads(config.read_text(encoding="utf-8")) | {"preset": {"cfg_scale": 1.5}}
    config.write_text(json.dumps(own), encoding="utf-8")
    monkeypatch.setattr("lantern_demo.ui.frames.FRAME_SECONDS", 0.0)
    service, w, event = page_of(config.parent, draw)
    service.wait()
    methods = [method.id for method in METHODS.values() if method.default]
    pressed = Visitor(service, w, event.fn.args[3]).presses("a cat", *methods, cfg_scale=1.5)
    opening, *frames = [answer for answer in pressed if w.stage in answer]
    assert [w.page_run in answer for answer in (opening, *frames)].count(True) == 1
    views = [json.loads(answer[w.stage]) for answer in frames]
    assert len(views) > 50 and not any("pictures" in view for view in views)
    fresh = [told for view in views for told in view["fresh"].items()]
    marks = Counter((method, *mark) for method, new in fresh for mark in new)
    assert 0 < max(marks.values()) <= FRAMES_TOLD, "told again a few times alone"
    page_run = opening[w.page_run]
    for method, entry in page_run.record["methods"].items():
        told = {place: token for name, place, _, token in marks if name == method}
        assert [told[place] for place in range(entry["tokens"])] == entry["token_ids"]
    assert set(page_run.files) == set(methods)
    final = json.loads(settle(service, w, OVER, page_run, [])[w.stage])
    assert all(lane["picture"] for lane in final["lanes"]), "what a browser skipped is there"
    for lane in [*views[-1]["lanes"], *final["lanes"]]:
        assert "guidance" not in lane["ran"], "the folder's own preset needs no words"


def test_what_cannot_be_repeated_is_told(visitor: Visitor) -> None:
    assert visitor.repeats() == status_html(texts.NO_RUN, "refused")
    visitor.draws("a cat", "eagle1")
    visitor.result.record["methods"]["eagle1"]["token_ids"][2] += 1
    assert "EAGLE-1: other pieces, from piece 3 on." in visitor.repeats()


@pytest.mark.parametrize("others", [False, True])
def test_a_repeat_in_which_a_method_fails_says_so(
    visitor: Visitor, monkeypatch: pytest.MonkeyPatch, others: bool
) -> None:
    visitor.draws("a cat", "eagle1")
    failed, frames = MethodFailed("eagle1", "It took too long."), Service.frames

    def half(self: Service, request: Request) -> Iterator[Any]:
        found = frames(self, request)
        return (failed if getattr(one, "method", "") == "eagle1" else one for one in found)

    monkeypatch.setattr(Service, "frames", half)
    told = visitor.repeats(others)
    assert f"{texts.NOT_ALL_REPEATED} EAGLE-1: It took too long." in told
    assert "median of" not in told and texts.REPRODUCED not in told


def test_methods_that_did_not_race(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lantern_demo.runs.pipeline.no_room_to_race", lambda *_: "no room")
    _, told = visitor.draws("a cat", "eagle1")
    assert "one after the other, not as a race: no room." in told


def test_the_place_in_the_queue_is_told(visitor: Visitor) -> None:
    service, w = visitor.service, visitor.w
    for place, turn in ((3, service.wait().turn()), (2, nullcontext())):
        with turn:
            found = begin(service, lambda: 2, w, w.status)
        assert found[w.status] == status_html(texts.waits(place, service.last_seconds), "waits")
    assert not any(found[one]["interactive"] for one in w.buttons()), "nothing can be stopped yet"
    for asked in (WAITS, RUNS, OVER):
        assert offer_stop(w, asked)[w.stop]["interactive"] == (asked != OVER)


# -- links


def test_a_link_is_drawn_and_a_reload_is_not(
    visitor: Visitor, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while the model is still loaded. Lanes of no pieces would be done at once."""
    monkeypatch.setattr(visitor.service, "info", info_of(folder))
    w, form = visitor.w, visitor.form
    asked = {"prompt": "pizza", "seed": "9", "top_p": "0.5"}
    ready, told = ("draw", texts.READY_LINK), ("", texts.RELOADED)
    for came_by, (go, words) in {"navigate": ready, BACK: ready, RELOAD: told}.items():
        found = visitor.comes(asked, came_by)
        assert (found[w.go], found[form.seed]) == (go, 9) and words in found[w.status]
        assert found[form.prompt] == "pizza" and found[form.others]["top_p"] == 0.5
        assert texts.NOT_DRAWN_YET in found[w.stage], "an example would look like the answer"
        assert {lane["total"] for lane in json.loads(found[w.stage])["lanes"]} == {16}
    assert not visitor.comes({"utm_source": "x"})


@pytest.mark.parametrize("came_by", [RELOAD, BACK])
def test_a_run_of_this_visit_comes_back(visitor: Visitor, came_by: str) -> None:
    w, preset = visitor.w, Settings(**visitor.service.info.preset)
    visitor.draws()
    record, request = visitor.result.record, visitor.result.request
    for address in (link.query(record, preset), link.query_of(request, preset)):
        asked = dict(parse_qsl(address[1:]))
        found = visitor.comes(asked, came_by)
        assert found[w.result].record is record and w.go not in found
        assert texts.SOURCES["kept"].split(" {")[0] in found[w.status]
        assert visitor.comes(asked)[w.go] == "draw"


def test_a_run_that_was_left(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recording's own link, which has its draft trees, shows it; another seed draws."""
    w = visitor.w
    monkeypatch.setattr(visitor.service, "info", INFO)
    record, preset = recorded_runs()[0].record, Settings(**INFO.preset)
    plans = {name: planned(METHODS[name], preset) for name in record["order"]}
    request = Request(INFO.id, record["prompt"], plans)
    request = request.with_seed(record["settings"]["seed"])
    addresses = link.query_of(request, preset), link.query(record, preset)
    begun, own = (dict(parse_qsl(address[1:])) for address in addresses)
    assert visitor.comes(begun)[w.result].record == record, "to others it is the recording"
    for came_by, go in ((RELOAD, ""), (BACK, "draw")):
        found = visitor.comes(begun, came_by)
        assert found[w.go] == go and texts.NOT_DRAWN_YET in found[w.stage]
    for came_by in ("navigate", RELOAD, BACK):
        found = visitor.comes(own, came_by)
        assert found[w.result].record == record and w.go not in found
    assert visitor.comes(own | {"seed": "99"})[w.go] == "draw"


def test_a_tab_has_its_runs_until_many_others_came() -> None:
    visits, run = Visits(), Recorded({}, {})
    visits.of("mine").append(run)
    for number in range(limits.SESSIONS - 1):
        visits.of(f"{number}")
    assert visits.of("mine") == [run]
    for number in range(limits.SESSIONS):
        visits.of(f"{number}")
    assert visits.of("mine") == visits.of("") == visits.of("x" * 65) == []


def test_the_files_of_a_run_are_drawn_when_they_are_asked_for(visitor: Visitor) -> None:
    w = visitor.w
    with patch("lantern_demo.ui.files.write", wraps=files.write) as writes:

        def last() -> str:
            return Path(writes.call_args.args[0]).name

        visitor.fills(show_first(w))
        visitor.fills(show_run(visitor.service, w, visitor.form, OVER, [], recorded_runs()[1].key))
        visitor.draws()
        assert writes.call_count == 1 and last() == "vanilla.png", "which its lane offers"
        found = hand_out(w, record_file, visitor.result)
        assert Path(found[w.file]).name == "lantern-demo-run.json" == last()
        found = hand_out_sheet(w, visitor.result, "a.host")
        assert Path(found[w.file]).name == "lantern-demo-pictures.png" == last()
    found = hand_out_sheet(w, PageRun(), "a.host")
    assert found[w.file] is None and texts.NO_RUN in found[w.status], "a session was lost"


def test_a_bad_link_shows_the_recording_and_a_sentence(visitor: Visitor) -> None:
    """And fills in what else it has. Of thousands of names that no link has, none is read."""
    w, form = visitor.w, visitor.form
    asked = {"prompt": "a cat", "methods": "vanilla,foo", "seed": "9"}
    asked |= {f"utm_{number}": "x" for number in range(16_000)}
    with patch.object(link, "read", wraps=link.read) as reads:
        found = visitor.comes(asked)
    assert reads.call_count <= len(link.KNOWN) + 2
    assert "Methods must be one or more of" in found[w.status]
    assert "foo" in found[w.status]
    assert found[form.prompt] == "a cat" and found[form.seed] == 9
    assert not found[w.go] and found[w.result].record is not None
    found = visitor.comes({"tree": "[Log in](https://example.org)"})
    assert "Draft tree must be one of" in found[w.status] and w.go not in found
    gone = visitor.comes({"run": "3f2a"})
    assert texts.OLD_LINK in gone[w.status] and gone[w.result].record is not None


# -- what depends on the model and the place


def test_paper_settings_fill_the_fields_and_the_rest(visitor: Visitor) -> None:
    form = visitor.form
    linked = visitor.comes({"temperature": "0.5", "top_p": "0.7"})
    assert linked[form.knobs["temperature"]] == 0.5 and "top_p 0.7" in linked[form.note]
    papers, reset = (preset(visitor.service, form, form.seed, paper) for paper in (True, False))  # type: ignore[arg-type]
    assert set(form.knobs) == set(FIELDS) and set(papers[form.others]) == set(OTHERS)
    assert papers[form.knobs["tree"]] == "paper" and papers[form.others]["neighbours"] == "raw"
    assert papers[form.knobs["lantern_k"]] == 63, "the codebook has 64 tokens"
    assert texts.PAPER_SLOW in str(papers[form.seed]), "before Draw"
    assert "top_p" not in reset[form.note]


def test_methods_without_a_drafter(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    drafting = [name for name in METHODS if name not in ("vanilla", "sjd")]
    monkeypatch.setattr(Service, "unavailable", drafting)
    found = choose(visitor.service, visitor.form)[visitor.form.methods]
    assert [value for _, value in found["choices"]] == ["vanilla", "sjd"] and found["value"]
