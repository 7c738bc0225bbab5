"""Pictures whose upper rows are kept: with their seed exact methods draw the rest again."""

import json
import re
from functools import partial
from itertools import product
from typing import Any

import pytest
from runs import exact_ways
from small_models import FIELDS, MODELS, model_of
from test_loop import ALL, NEIGHBOURS, run

from lantern_demo.decoding.config import Config
from lantern_demo.decoding.loop import Step
from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.sampling import Sampling
from lantern_demo.faults import NotAllowed
from lantern_demo.runs.pipeline import Pipeline
from lantern_demo.runs.record import kept_of
from lantern_demo.runs.result import Result, record_of
from lantern_demo.settings.knobs import bound_of

PROMPT = "two red box lanterns over a lake"
SAMPLINGS = {
    "guided": Sampling(cfg_scale=2.0),
    "filtered": Sampling(0.8, 6, 0.9, 2.0),
    "unguided": Sampling(),
    "greedy": Sampling(0, cfg_scale=2.0),
}
EXACT = [method.id for method in METHODS.values() if method.lossless]


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=list(SAMPLINGS))
def test_exact_ways_draw_the_same_rest_again(sampling: Sampling) -> None:
    shared = {"sampling": sampling, "neighbours": NEIGHBOURS, "noise": "shared"}
    config = partial(Config, num_tokens=18, **shared)
    ways = [way for way in exact_ways().values() if config(**way).noise_used != "independent"]
    whole = run("vanilla", 18, 5, **shared)[1].tokens
    for number, way in enumerate(ways):
        for kept in {0, 1 + number % 4, 8, 16, 17}:
            keep = tuple(whole[:kept])
            assert run("vanilla", 18, 5, **shared, **way, keep=keep)[1].tokens == whole, (way, kept)


def test_vanilla_with_its_own_noise_draws_the_same_rest_again() -> None:
    whole = run("vanilla", 18, 5, noise="independent")[1].tokens
    for kept in (1, 8, 17):
        again = run("vanilla", 18, 5, noise="independent", keep=tuple(whole[:kept]))[1]
        assert again.tokens == whole


@pytest.mark.parametrize("method", ALL)
def test_only_what_is_drawn_counts(method: str) -> None:
    whole = run(method, 30, 5)[1].tokens
    steps, done = run(method, 30, 6, keep=tuple(whole[:12]))
    assert done.tokens[:12] == whole[:12] and len(done.tokens) == 30
    assert (done.kept, done.drawn) == (12, 18)
    assert [token for step in steps for token in step.tokens] == done.tokens[12:]
    assert (steps[0].committed, steps[-1].committed) == (13, 30)
    assert done.mean_accepted_length == pytest.approx(17 / done.steps)
    assert done.tokens_per_second == pytest.approx(18 / done.decode_seconds)


@pytest.mark.parametrize("model", MODELS)
def test_a_kept_run_takes_the_steps_of_the_run_that_it_goes_on_with(model: str) -> None:
    """The states that target and drafter have of kept tokens are those of a run that drew them."""
    of = model_of(model)
    for runner, method in product(of.runners, ("eagle1", "eagle2")):
        *steps, done = of.run(runner, method, noise="shared")
        middle = len(steps) // 2
        keep = tuple(done.tokens[: steps[middle].committed - 1])
        *again, last = of.run(runner, method, noise="shared", keep=keep)
        assert last.tokens == done.tokens and len(again) > 1
        pairs = zip(again[1:], steps[middle + 1 :], strict=True)
        for one, other in pairs:
            for name in FIELDS.split()[1:]:
                assert getattr(one, name) == getattr(other, name), (method, name)


def test_every_method_draws_on_from_the_kept_rows(pipe: Pipeline) -> None:
    whole = pipe.generate(PROMPT, "vanilla", seed=5)
    for rows in (0, 1, 3):
        keep, count = whole.upper(rows), 4 * rows
        done = {}
        for method, event in pipe.compare(PROMPT, list(METHODS), seed=5, keep=keep):
            if isinstance(event, Step) and event.index == 0:
                assert event.committed == count + 1
            if isinstance(event, Result):
                done[method] = event
        assert all(done[method].tokens == whole.tokens for method in EXACT)
        record = json.loads(json.dumps(record_of(done.values())))
        for method, entry in record["methods"].items():
            assert kept_of(entry) == keep == entry["token_ids"][:count], method
            kinds = entry["events"]["kinds"]
            assert len(kinds) == entry["tokens"] == 16 and kinds.count("k") == count
            assert entry["events"]["committed"][0] == count + 1
            assert entry["changed"] == kinds.count("r") / (16 - count)
    for rows in (-1, 4, "x"):
        with pytest.raises(ValueError, match=r"rows must be a whole number from 0 to 3, got"):
            whole.upper(rows)  # type: ignore[arg-type]
    other = pipe.generate(PROMPT, "vanilla", seed=6, keep=whole.upper(2)).tokens
    assert other[:8] == whole.tokens[:8] and other[8:] != whole.tokens[8:]


def test_a_twin_keeps_what_its_method_kept(pipe: Pipeline) -> None:
    keep = pipe.generate(PROMPT, "vanilla", seed=5).upper(2)
    relaxed = [name for name, method in METHODS.items() if bound_of(method)]
    for method in relaxed:
        record = pipe.generate(PROMPT, method, seed=6, tree="small", keep=keep).record
        twin = pipe.twin(record, method)
        assert twin.upper(2) == keep and twin.kept == len(keep) and twin.changed == 0


IDS = "must be token ids from 0 to 63, got"
ROWS = "must be whole rows of 4 token ids, at most 3 rows, got"


@pytest.mark.parametrize(
    ("keep", "why"),
    [
        ("1234", "must be a list of token ids, got '1234'"),
        *(([1] * count, f"{ROWS} {count} ids") for count in (6, 16)),
        *(([1, 2, 3, wrong], f"{IDS} {wrong}") for wrong in (64, True, -1, 4.0)),
    ],
)
def test_what_cannot_be_kept_is_refused_by_a_sentence(keep: Any, why: str, pipe: Pipeline) -> None:
    with pytest.raises(NotAllowed, match=f"^{re.escape(f'keep {why}')}$"):
        pipe.generate(PROMPT, keep=keep)
