"""The exact twin of a relaxed run: the same tree and random numbers, and no relaxation."""

import copy
from itertools import product
from typing import Any

import pytest

from lantern_demo.runs.pipeline import Pipeline

PROMPT = "two red lanterns"
# A node's probability and its score are one sum where nothing is lent.
LENT = 1e-6
TREES: dict[str, list[dict[str, Any]]] = {
    "lantern": [
        {"draft_top_k": 2, "draft_depth": 1, "draft_nodes": 4},
        {"draft_top_k": 4, "draft_depth": 2, "draft_nodes": 8},
    ],
    "lantern++": [{"tree": "0 00 000"}, {"tree": "0 1 2 00 01 10 000"}],
}


@pytest.mark.parametrize("method", TREES)
def test_a_twin_is_the_run_up_to_the_first_loan(method: str, pipe: Pipeline) -> None:
    shared = []
    for settings, seed in product(TREES[method], range(3)):
        done = pipe.generate(PROMPT, method, seed=seed, **settings)
        before = copy.deepcopy(done.record)
        twin = pipe.twin(done.record, method)
        assert done.record == before and twin.changed == 0
        assert twin.noise == done.noise == "independent"
        assert twin.tree_settings == done.tree_settings
        events = done.record["methods"][method]["events"]
        lent = [any(score > p + LENT for _, p, score, _ in trials) for trials in events["trials"]]
        safe = events["committed"][lent.index(True) - 1] if any(lent) else len(done.tokens)
        assert twin.tokens[:safe] == done.tokens[:safe]
        pairs = zip(twin.tokens, done.tokens, strict=True)
        shared.append(next((i for i, (a, b) in enumerate(pairs) if a != b), len(done.tokens)))
    assert 1 <= min(shared) < 16 and max(shared) > 1, "else the relaxation did not matter"


def test_the_twin_of_a_run_that_relaxed_nothing_is_that_run(pipe: Pipeline) -> None:
    """Its rule is exact, so it had vanilla's random numbers."""
    done = pipe.generate(PROMPT, "lantern", lantern_delta=0)
    twin = pipe.twin(done, "lantern")
    assert twin.noise == done.noise == "shared" and twin.tokens == done.tokens


def test_what_has_no_twin_is_refused(pipe: Pipeline) -> None:
    record = pipe.generate(PROMPT, "lantern", tree="small").record
    for method, why in (("eagle1", "a relaxed one"), ("lantern++", "one of the record's")):
        with pytest.raises(ValueError, match=why):
            pipe.twin(record, method)
    other = record | {"model": {"id": "another"}}
    with pytest.raises(ValueError, match="record must be of tiny, which draws here, got 'another'"):
        pipe.twin(other, "lantern")
