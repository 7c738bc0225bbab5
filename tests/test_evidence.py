"""What is kept and said of every draft that was tried, and how often drafts were kept."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from test_loop import run

from lantern_demo.decoding.config import Config
from lantern_demo.decoding.evidence import with_evidence
from lantern_demo.decoding.methods import METHODS, Method
from lantern_demo.decoding.results import Judged
from lantern_demo.decoding.rules import Lantern, Rule
from lantern_demo.runs.acceptance import acceptance_of
from lantern_demo.runs.pipeline import Pipeline
from lantern_demo.runs.result import trial_of
from lantern_demo.settings.settings import Settings, planned
from lantern_demo.ui.decisions import Decision, decision_of

SMALL: dict[str, Any] = {"tree": "small", "window": 4, "lantern_k": 10, "seed": 3}
ASKED: dict[str, dict[str, Any]] = {
    "sampled": SMALL,
    "greedy": SMALL | {"temperature": 0.0},
    "sharp": SMALL | {"top_k": 2, "top_p": 0.9},
    "loose": SMALL | {"lantern_delta": 1.0, "lanternpp_lambda": 10.0},
    "tight": SMALL | {"lantern_delta": 0.0, "lanternpp_lambda": 1.0},
    "loose, greedy": SMALL | {"temperature": 0.0, "lantern_delta": 0.5, "lanternpp_lambda": 10.0},
}
OWN, SAME = {"noise": "independent"}, {"noise": "shared"}
FIRST: dict[str, Any] = {"tokens": [], "parents": [], "path": []}  # the prefill's tree
DRAFTING = [method for method in METHODS.values() if not method.alone]


def held_against_draws(method: Method, noise: str, asked: str) -> bool:
    """Whether drafts are held against the model's own draws; greedy, all without neighbours are."""
    settings = Settings(**ASKED[asked] | {"noise": noise})
    plan, sampling = planned(method, settings), settings.sampling()
    return Config(4, sampling, plan.rule, plan.drafts, torch.zeros(1), noise=noise).shared


PAIRS = [(method, asked) for method in DRAFTING for asked in ASKED]
TRIED = [pair for pair in PAIRS if not held_against_draws(pair[0], "independent", pair[1])]
HELD = [pair for pair in PAIRS if held_against_draws(pair[0], "shared", pair[1])]


def named(value: Any) -> str:
    return value.id if isinstance(value, Method) else value


def drawn(
    pipe: Pipeline, method: Method, asked: str, noise: dict[str, str]
) -> tuple[dict[str, Any], Decision]:
    """A run's part of its record, and the words for it."""
    settings = ASKED[asked] | noise
    entry = pipe.generate("a red lantern", method.id, **settings).record["methods"][method.id]
    return entry, decision_of(Settings(**settings), method, entry)


def agree(accepted: bool, counted: float, limit: float, greedy: bool) -> bool:
    """Whether a verdict follows. Greedy, a draft as likely as the favourite may be refused."""
    if not greedy:
        return accepted == (counted > limit)
    return counted >= limit if accepted else counted <= limit


@pytest.mark.parametrize(("method", "asked"), TRIED, ids=named)
def test_what_was_counted_beats_its_limit(pipe: Pipeline, method: Method, asked: str) -> None:
    entry, decision = drawn(pipe, method, asked, OWN)
    events, greedy = entry["events"], "greedy" in asked
    columns = events["committed"], events["trees"], events["trials"], decision.trials(entry)
    before = 0
    for after, tree, tried, rows in zip(*columns, strict=True):
        for node, p, counted, limit in tried:
            assert agree(node in tree["path"], counted, limit, greedy), (node, p, counted, limit)
            assert limit > 0, "what was not tried is no trial"
        kept = dict(zip(tree["path"][1:], events["kinds"][before:after], strict=False))
        for node, own, counted, limit in rows:
            assert agree(node in kept, counted, limit, greedy) and own >= 0
            assert counted == own or kept.get(node) != "e" or not decision.words()["lends"]
        assert set(kept) - {0} <= {row[0] for row in rows}, "every accepted draft has its trial"
        before = after
    assert any(events["trials"])
    fared, kinds = acceptance_of(events), events["kinds"]
    assert sum(fared.sizes) == entry["steps"]
    assert sum(n * steps for n, steps in enumerate(fared.sizes, 1)) == entry["tokens"] - 1
    assert sum(depth.kept for depth in fared.depths) == len(kinds) - kinds.count("t")
    assert all(of.places <= before.kept for before, of in pairwise(fared.depths))


@pytest.mark.parametrize(("method", "asked"), HELD, ids=named)
def test_with_shared_noise_draws_are_compared(pipe: Pipeline, method: Method, asked: str) -> None:
    entry, decision = drawn(pipe, method, asked, SAME)
    assert decision.name == ("likeliest" if "greedy" in asked else "drawn")
    events, tokens = entry["events"], entry["token_ids"]
    before, found = 0, 0
    columns = events["committed"], events["trees"], decision.trials(entry)
    for after, tree, rows in zip(*columns, strict=True):
        path, parents = tree["path"], tree["parents"]
        drawn_after = dict(zip(path, tokens[before:after], strict=False))
        for (node,) in rows:
            assert (tree["tokens"][node] == drawn_after[parents[node]]) == (node in path)
            found += 1
        accepted = {parents[node]: node for node in path[1:]}
        below = [(n, above) for n, above in enumerate(parents) if n and above in drawn_after]
        compared = {n for n, above in below if n <= accepted.get(above, n)}
        assert {node for (node,) in rows} == compared, "each child up to the accepted one"
        before = after
    assert found and not any(events["trials"])


def test_what_is_behind_the_end_of_the_picture_is_not_told() -> None:
    """Without numbers the rows follow from the tree, as on a GPU."""
    tree = {"tokens": [1, 2, 3], "parents": [0, 0, 1], "path": [0, 1, 2]}
    rows = [[1, 0.5, 0.5, 0.4], [2, 0.5, 0.5, 0.1]]
    events = {"committed": [1, 2], "kinds": "te", "trees": [FIRST, tree], "trials": [[], rows]}
    entry = {"noise": "independent", "events": events, "token_ids": [1, 2]}
    decision = decision_of(Settings(), METHODS["eagle1"], entry)
    assert decision.trials(entry) == [[], [rows[0]]]
    events["trials"] = [[], []]
    assert decision.trials(entry) == [[], [[1]]]


def test_digits_are_added_where_five_do_not_tell_two_numbers_apart() -> None:
    least = float(np.nextafter(np.float32(0.3), np.float32(1)))
    for counted, limit in ((least, float(np.float32(0.3))), (1.0000001e-9, 1e-9)):
        _, _, above, below = trial_of(Judged(1, 0.1, counted, limit))
        assert above > below
    assert trial_of(Judged(4, 0.123456789, 1 / 3, 0.25)) == [4, 0.12346, 0.33333, 0.25]
    assert trial_of(Judged(1, 0.5, 0.5, 0.5)) == [1, 0.5, 0.5, 0.5]


def test_every_rule_has_a_sentence_and_a_new_one_a_general_one() -> None:
    for method in METHODS.values():
        usual = "chance" if method.lossless else "relaxed"
        decision = decision_of(Settings(noise="independent"), method).name
        assert decision == ("lent" if isinstance(method.rule, Lantern) else usual)
    assert decision_of(Settings(temperature=0.0), METHODS["lantern"]).name == "lent, greedy"
    new = replace(METHODS["eagle1"], rule=type("New", (Rule,), {})())
    assert decision_of(Settings(), new).name == "relaxed"
    told = decision_of(Settings(lanternpp_lambda=4.0), METHODS["lantern++"]).words()
    assert "at most 3 times" in str(told["decides"])


NEAREST = (torch.arange(1, 12) + torch.arange(12).unsqueeze(1)) % 12


@pytest.mark.parametrize("noise", ["shared", "independent"])
@pytest.mark.parametrize("method", ["lantern", "lantern++"])
def test_a_changed_token_is_one_that_the_exact_rule_would_refuse(method: str, noise: str) -> None:
    """By the numbers that a draft was judged by: the uniform times q of it, and p of it alone."""
    seen = set()
    for seed in range(4):
        for step in run(method, seed=seed, noise=noise, neighbours=NEAREST)[0]:
            judged = {one.node: one for one in with_evidence(step).judged}
            for kind, node in zip(step.kinds, step.path[1:], strict=False):
                seen.add(kind)
                assert (kind == "relaxed") == (judged[node].threshold >= judged[node].p)
    assert {"exact", "relaxed"} <= seen


def test_records_have_the_share_of_look_alikes(pipe: Pipeline) -> None:
    for method in ("vanilla", "sjd", "lantern"):
        done = pipe.generate("two red lanterns", method, seed=1)
        entry = done.record["methods"][method]
        count = entry["events"]["kinds"].count("r")
        assert entry["changed"] == done.changed == count / len(done.tokens)
        assert (count == 0) == METHODS[method].lossless


CHAIN = [0, 0, 1, 2]  # parents
TREE = [0, 0, 0, 0, 1, 1, 4]  # three children, two below the first, one below the first of these
SOME = [[1, 0.1, 0.1, 0.2], [2, 0.1, 0.1, 0.2]]  # the rule's numbers of two of the three children


def events_of(parents: list[int], *steps: tuple[int, list[int]], trials: Any = ()) -> Any:
    """Events of steps, each with the tokens that it added and its path."""
    committed: list[int] = [1]
    trees: list[dict[str, Any]] = [FIRST]
    for added, path in steps:
        committed.append(committed[-1] + added)
        trees.append({"tokens": [7] * len(parents), "parents": parents, "path": path})
    return {"committed": committed, "trees": trees, "trials": [[], *[trials] * len(steps)]}


def test_siblings_are_tried_until_one_is_kept() -> None:
    # three steps keep the first draft, two of these the second, none the third
    steps = (1, [0]), (2, [0, 1]), (3, [0, 1, 2]), (3, [0, 1, 2]), (1, [0])
    found = acceptance_of(events_of(CHAIN, *steps))
    assert found == ([(5, 5, 3), (3, 3, 2), (2, 2, 0)], [2, 1, 2])
    # of the root's three children the second is kept, all are refused, the first is kept
    found = acceptance_of(events_of(TREE, (2, [0, 2]), (1, [0]), (3, [0, 1, 5])))
    assert found == ([(2 + 3 + 1, 3, 2), (2, 1, 1)], [1, 1, 1])
    assert (found.depths[0].chance, found.depths[0].of_places) == (2 / 6, 2 / 3)
    assert acceptance_of(events_of(TREE, (1, [0]), trials=SOME)) == ([(2, 1, 0)], [1])
    # the last step had room for one token, though it kept three drafts
    found = acceptance_of(events_of(CHAIN, (4, [0, 1, 2, 3]), (1, [0, 1, 2, 3])))
    assert found == ([(2, 2, 2), (1, 1, 1), (1, 1, 1)], [1, 0, 0, 1])
