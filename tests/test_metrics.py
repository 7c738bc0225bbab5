"""Acceptance under the names of serving engines: by hand, and of true runs."""

from __future__ import annotations

import pytest

from lantern_demo.decoding.results import Step
from lantern_demo.runs.metrics import acceptance, of_steps, pooled
from lantern_demo.runs.pipeline import Pipeline

# By hand: a chain of three drafts in five steps, and a last step without drafts.
DRAFTED, ACCEPTED = [3, 3, 3, 3, 3, 0], [0, 3, 1, 0, 1, 0]
BY_HAND = {
    "mean_acceptance_length": 2.0,
    "draft_acceptance_rate": 1 / 3,
    "acceptance_histogram": [2, 2, 0, 1],
    "num_spec_steps": 5,
    "num_accepted_draft_tokens": 5,
    "num_draft_tokens": 15,
    "num_spec_tokens": 3,
    "num_accepted_tokens_per_pos": [3, 1, 1],
}


def test_metrics_are_those_by_hand() -> None:
    assert acceptance(DRAFTED, ACCEPTED, 3) == BY_HAND
    halves = [acceptance(DRAFTED[part], ACCEPTED[part], 3) for part in (slice(2), slice(2, 6))]
    assert pooled(halves) == BY_HAND


def test_where_nothing_is_drafted_there_is_no_rate() -> None:
    told = acceptance([0, 0], [0, 0], 0)
    assert told["mean_acceptance_length"] is None and told["draft_acceptance_rate"] is None
    assert told["acceptance_histogram"] == [0] and told["num_accepted_tokens_per_pos"] == []
    assert pooled([]) == told


def test_a_trees_drafts_are_all_its_nodes_but_the_root() -> None:
    tree = {"tree_tokens": [7, 1, 2, 3], "parents": [0, 0, 0, 1]}
    told = of_steps(
        [
            Step(0, [7], 1),  # the prefill
            Step(1, [1, 3, 4], 3, path=[0, 1, 3], **tree),
            Step(2, [5], 1, path=[0], **tree),
            Step(3, [6], 1, tree_tokens=[7], parents=[0], path=[0]),
        ]
    )
    assert (told["num_spec_steps"], told["num_draft_tokens"]) == (2, 6)
    assert told["num_spec_tokens"] == 2 and told["acceptance_histogram"] == [1, 0, 1]


@pytest.mark.parametrize("method", ["vanilla", "lantern++", "sjd"])
def test_a_runs_metrics_agree_with_its_stats(pipe: Pipeline, method: str) -> None:
    done = pipe.generate("a red lantern", method, seed=1, tree="small", lantern_k=10)
    entry = done.record["methods"][method]
    told = entry["speculative_decoding"]
    # each step commits its accepted drafts and a bonus token, the last one uncut
    whole = sum(entry["accepted_lengths"])
    if method == "vanilla":
        assert told["num_spec_steps"] == 0
    else:
        assert told["num_accepted_draft_tokens"] == whole - entry["steps"] > 0
        assert told["num_spec_steps"] in (entry["steps"], entry["steps"] - 1)
        assert 1 < told["mean_acceptance_length"] <= 1 + told["num_spec_tokens"]
