"""Shared noise: whatever is drafted, exact methods draw vanilla's tokens; LANTERN follows its definition, and so its own
distribution."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from launches import count_launches
from runs import OF_EACH_KIND, ON_BOTH, decode, exact_ways
from tables import ChainTarget, chi_square_p, neighbour_table, random_probs
from test_fixed import both
from test_launches import few_layers
from test_loop import ALL, NEIGHBOURS, SETTINGS, ran, run

from lantern_demo import load
from lantern_demo.bench.tvd import fixed_shift
from lantern_demo.decoding.config import Config
from lantern_demo.decoding.deciding import decide_shared
from lantern_demo.decoding.drafting import StaticTree
from lantern_demo.decoding.loop import Decoded
from lantern_demo.decoding.methods import METHODS, Method
from lantern_demo.decoding.noise import gumbel_
from lantern_demo.decoding.rules import Lantern, LanternPlusPlus, Rule
from lantern_demo.decoding.sampling import Sampling, scores
from lantern_demo.decoding.shared import SharedNoise
from lantern_demo.runs.pipeline import Generation
from lantern_demo.ui.record_reader import checked

SAMPLINGS = {
    "guided": Sampling(cfg_scale=2.0),
    "unguided": Sampling(),
    "filtered": Sampling(0.8, 6, 0.9, 2.0),
    "hot": Sampling(1.7, 0, 0.8, 1.5),
    "cold": Sampling(0.05, cfg_scale=2.0),
    "greedy": Sampling(0, cfg_scale=2.0),
}
EXACT = exact_ways(6)


def tokens_of(way: dict[str, Any], tokens: int, seed: int, **changes: Any) -> list[int]:
    return ran(tokens, seed, **way, dice="same", **changes)[1].tokens


# -- the identity


@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(4, 34), marks=pytest.mark.slow)], ids=["few", "204 in all"])
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=list(SAMPLINGS))
def test_exact_methods_draw_vanillas_tokens(sampling: Sampling, seeds: range) -> None:
    for seed in seeds:
        wanted = tokens_of(EXACT["vanilla"], 18, seed, sampling=sampling)
        for name, way in EXACT.items():
            if Config(num_tokens=18, sampling=sampling, neighbours=NEIGHBOURS, dice="same", **way).dice_used != "own":
                assert tokens_of(way, 18, seed, sampling=sampling) == wanted, (name, seed)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_also_at_the_end_of_a_picture(count: int) -> None:
    """Which begins like a longer one."""
    for seed in range(4):
        wanted = tokens_of(EXACT["vanilla"], 18, seed)[:count]
        for name in METHODS:
            if name in EXACT:
                assert tokens_of(EXACT[name], count, seed) == wanted, name


@pytest.mark.parametrize("method", [name for name in METHODS if name in EXACT and METHODS[name].guesses])
def test_drafts_are_accepted_all_the_same(method: str) -> None:
    """Or the identity would hold of a method that refuses everything."""
    lengths = [run(method, 30, seed, dice="same")[1].mean_accepted_length for seed in range(5)]
    assert sum(lengths) / 5 > (1.4 if METHODS[method].needs_drafter else 1.05)


def test_other_noise_gives_other_pictures() -> None:
    """Negative control."""
    assert len({tuple(tokens_of(EXACT["vanilla"], 18, seed)) for seed in range(20)}) == 20
    assert tokens_of(EXACT["vanilla"], 18, 1) != run("vanilla", 18, 1)[1].tokens, "the papers' way draws with other numbers"


def test_noise_of_another_place_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: below the root everything draws with the noise of the place before."""
    noisy = SharedNoise.noisy
    monkeypatch.setattr(
        SharedNoise, "noisy", lambda self, scored, depths: noisy(self, scored, (torch.as_tensor(depths) - 1).clamp(min=0))
    )
    wanted = [tokens_of(EXACT["vanilla"], 18, seed) for seed in range(5)]
    assert wanted != [tokens_of(EXACT["eagle1"], 18, seed) for seed in range(5)]


def test_which_noise_a_run_has() -> None:
    """Exact rules share it, and LANTERN's where the prefix fixes the drafts; LANTERN++ has its published rule and no other."""

    def used(method: str, dice: str = "same", **changes: Any) -> str:
        return Config(num_tokens=8, **{"neighbours": NEIGHBOURS, **SETTINGS[method], "dice": dice, **changes}).dice_used

    assert {method: used(method) for method in ALL} == {name: "own" if name == "lantern++" else "same" for name in ALL}
    assert used("lantern++", rule=LanternPlusPlus(4, 1.0)) == "same", "it relaxes nothing"
    drawn = Method("mine", "Mine", StaticTree, Lantern(4, 0.3), False, "")
    tree = SETTINGS["eagle1"]["tree"]
    assert not Config(drawn, 8, rule=drawn.rule, tree=tree, neighbours=NEIGHBOURS, dice="same").shared, "its children are drawn"
    assert {used(method, "own") for method in ALL} == {"own"}
    assert {used(method, sampling=Sampling(0)) for method in ALL} == {"none"}
    with pytest.raises(ValueError, match="dice is 'odd'; allowed are same, own"):
        used("vanilla", "odd")


@pytest.mark.parametrize("method", ALL)
def test_where_noise_is_not_shared_nothing_has_changed(method: str) -> None:
    """Of methods that have no other way, and at temperature 0."""
    shared = run(method, 30, 3, dice="same")[1].tokens
    assert (shared == run(method, 30, 3, dice="own")[1].tokens) == (method == "lantern++")
    greedy = {dice: run(method, 30, 3, sampling=Sampling(0), dice=dice)[1] for dice in ("same", "own")}
    assert greedy["same"].tokens == greedy["own"].tokens
    assert greedy["same"].accepted_lengths == greedy["own"].accepted_lengths


# -- engines, models, races


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1.0, 2.0])
def test_exact_methods_draw_vanillas_tokens_with_attention(scale: float) -> None:
    models, knobs = (
        both(guidance=scale != 1),
        {"sampling": Sampling(cfg_scale=scale), "dice": "same"},
    )
    for seed in range(10):
        lossless = [name for name in ON_BOTH if METHODS[name].lossless]
        found = {tuple(events[-1].tokens) for method in lossless for events in models(method, seed=seed, **knobs)}
        assert len(found) == 1, seed


def test_a_race_and_a_run_that_is_given_up(tiny_model: Path) -> None:
    """Slices change nothing, and who stops has seen the first of vanilla's tokens."""
    pipe = load(tiny_model, "cpu")
    knobs: dict[str, Any] = {"seed": 5, "tree": "small", "window": 4, "dice": "same"}
    exact = [name for name in ALL if METHODS[name].lossless]
    raced = {name: event for name, event in pipe.compare("a lantern", exact, **knobs) if isinstance(event, Generation)}
    assert len({tuple(event.tokens) for event in raced.values()}) == 1 and set(raced) == set(exact)
    assert {event.stats.dice for event in raced.values()} == {"same"}
    assert all(event.stats.changed == 0 for event in raced.values())
    events = pipe.stream("a lantern", "eagle1", **knobs)
    first = [token for step in islice(events, 5) for token in step.tokens]  # type: ignore[union-attr]
    events.close()  # type: ignore[attr-defined]
    assert first == raced["vanilla"].tokens[: len(first)]


@pytest.mark.slow
def test_the_bundled_models_pictures_are_vanillas() -> None:
    pipe = load("lantern-scenes", "cpu", fit_trees=False)
    lossless = [method.id for method in METHODS.values() if method.lossless]
    knobs = {"seed": 3, "dice": "same", "tree": "small", "window": 8}
    drawn = {tuple(pipe.generate("three red round lanterns over a lake at dusk", name, **knobs).tokens) for name in lossless}
    assert len(drawn) == 1 and len(lossless) > 4


@pytest.mark.parametrize("method", OF_EACH_KIND)
def test_steps_on_an_accelerator_wait_for_nothing(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    few_layers("llamagen-t2i-256", monkeypatch)
    for way in ({}, {"temperature": 0.7, "top_p": 0.9}):
        found = {dice: count_launches("llamagen-t2i-256", method, "paper", dice=dice, **way) for dice in ("same", "own")}
        assert found["same"].faults == []
        if METHODS[method].needs_drafter and method != "lantern++":  # which has one way
            assert found["same"].total < found["own"].total, way


# -- the distributions


def test_vanilla_follows_the_targets_distribution() -> None:
    logits = 1.5 * torch.randn(6, 6, generator=torch.Generator().manual_seed(2))
    target = ChainTarget(logits, logits)
    sampling, counts = Sampling(0.8, 5, 0.95), torch.zeros(6, 6)
    for seed in range(4):
        *_, last = decode(
            target,
            None,
            torch.tensor([1]),
            num_tokens=800,
            method=METHODS["vanilla"],
            sampling=sampling,
            seed=seed,
            dice="same",
        )
        assert isinstance(last, Decoded)
        for before, token in zip(last.tokens, last.tokens[1:], strict=False):
            counts[before, token] += 1
    probs = scores(logits, sampling).softmax(-1)
    seen = [token for token in range(6) if counts[token].sum() >= 100]
    assert len(seen) >= 3 and min(chi_square_p(counts[token], probs[token]) for token in seen) > 1e-4


def met_by(rule: Rule, p: list[float], children: list[int], own: int, table: list[list[int]]) -> tuple[int, list[set[int]]]:
    """The draw number of the accepted child, len(children) for none, and the sets, from the definition."""
    left, sets = list(p), []
    for x in children:
        near, mass = {x} if x >= 0 else set(), 0.0
        for z in table[x][: rule.table_columns] if x >= 0 else ():
            mass += left[z]
            if mass > ((rule.bound - 1) * left[x] if isinstance(rule, LanternPlusPlus) else rule.bound * sum(left)):
                break
            near.add(z)
        for z in near:
            left[z] = 0.0
        sets.append(near)
    return next((i for i, near in enumerate(sets) if own in near), len(children)), sets


@pytest.mark.parametrize(
    "rule", [Rule(), Lantern(4, 0.2), Lantern(9, 0.6), LanternPlusPlus(4, 3.0), LanternPlusPlus(9, 8.0)], ids=str
)
def test_relaxed_acceptance_by_its_definition(rule: Rule) -> None:
    vocabulary, count, nodes = 12, 4, 1500
    generator, table = torch.Generator().manual_seed(4), neighbour_table(vocabulary)
    p = random_probs(nodes, vocabulary, 3)
    tokens = torch.rand(nodes, vocabulary, generator=generator).argsort(-1)[:, :count]
    tokens[torch.rand(nodes, count, generator=generator) < 0.2] = -1
    own = torch.multinomial(p, 1, generator=generator)[:, 0]
    rank, near = decide_shared(rule, p, tokens, own, table)
    wanted = [
        met_by(rule, a, b, c, table.tolist()) for a, b, c in zip(p.double().tolist(), tokens.tolist(), own.tolist(), strict=True)
    ]
    assert rank.tolist() == [chosen for chosen, _ in wanted]
    assert len(set(rank.tolist())) == count + 1
    assert (near is not None) == rule.relaxes
    if near is not None:
        for node, (_, sets) in enumerate(wanted):
            for i, wanted_set in enumerate(sets):
                inside = near.ids[node, i][near.kept_mask[node, i] == 0].tolist()
                assert tokens[node, i] < 0 or set(inside) == wanted_set


@pytest.mark.parametrize("rule", [Lantern(4, 0.3), LanternPlusPlus(3, 4.0)], ids=str)
def test_of_children_that_the_prefix_fixes_the_distribution_is_lanterns_own(rule: Rule) -> None:
    p, table, count = random_probs(1, 7, 1)[0], neighbour_table(7), 400_000
    children = torch.tensor([3, 0, 5])
    own = (p.log() + gumbel_(torch.empty(count, len(p)), 1)).argmax(-1)
    rank, _ = decide_shared(rule, p.expand(count, -1), children.expand(count, -1), own, table)
    found = torch.cat([children.expand(count, -1), own.unsqueeze(1)], 1).gather(1, rank.unsqueeze(1))[:, 0]
    probs = p + fixed_shift(rule, p, children, table)
    assert chi_square_p(found.bincount(minlength=len(p)), probs) > 1e-4
    assert float((probs - p).abs().sum()) > 0.1, "a rule that moves nothing shows nothing"


# -- what is told


@pytest.mark.parametrize("method", ["eagle1", "eagle2", "lantern", "sjd"])
def test_the_evidence_is_what_was_compared(method: str) -> None:
    kinds = set()
    for step in run(method, 200, 3, dice="same")[0][1:]:
        assert not step.judged
        accepted = set(step.path[1:])
        for node, drawn, near, tokens in step.compared:
            draft = step.tree_tokens[node]
            assert (near >= 0) == (node in accepted) and (near == 0) == (drawn == draft)
            assert tokens >= 1 + max(near, 0) and (near <= 0 or drawn == int(NEIGHBOURS[draft, near - 1]))
            kinds.add(min(near, 1))
        for i, kind in enumerate(step.kinds[:-1] if len(step.kinds) == step.accepted_length else step.kinds):
            (held,) = [one for one in step.compared if one.node == step.path[i + 1]]
            assert kind == ("exact" if held.near == 0 else "relaxed")
        if len(step.tokens) == step.accepted_length and step.compared:
            last = [one.drawn for one in step.compared if step.parents[one.node] == step.path[-1]]
            assert set(last) <= {step.tokens[-1]}, "what was drawn where nothing was accepted is the token that came out"
    assert kinds == ({-1, 0} if METHODS[method].lossless else {-1, 0, 1})


def test_records_say_it_and_older_ones_are_read(tiny_model: Path) -> None:
    pipe = load(tiny_model, "cpu")
    written = json.loads(json.dumps(pipe.generate("a lantern", "lantern", tree="small", lantern_k=10, dice="same").record))
    entry = written["methods"]["lantern"]
    assert written["settings"]["dice"] == entry["dice"] == "same" and any(entry["events"]["compared"])
    assert checked(written) == written
    for spoilt in ([[99, 1, 0, 1]], [[1, 1, 0]], [[1, 1, -2, 1]], [[1, 1, 0, 0]], [[1, 1.5, 0, 1]], 3):
        entry["events"]["compared"][1] = spoilt
        with pytest.raises(ValueError, match="compared"):
            checked(written)
    del entry["events"]["compared"], entry["dice"], written["settings"]["dice"]
    read = checked(written)
    assert read["settings"]["dice"] == read["methods"]["lantern"]["dice"] == "own"
    entry["dice"] = "odd"
    with pytest.raises(ValueError, match="dice: must be 'same', 'own' or 'none'"):
        checked(written)


def test_what_each_method_used_is_in_its_entry(tiny_model: Path) -> None:
    pipe = load(tiny_model, "cpu")
    methods = ["vanilla", "lantern++"]
    found = {
        name: event.stats.dice
        for name, event in pipe.compare("a lantern", methods, tree="small", dice="same")
        if isinstance(event, Generation)
    }
    assert found == {"vanilla": "same", "lantern++": "own"}
    assert pipe.generate("a lantern", "vanilla", temperature=0.0, dice="same").stats.dice == "none"
    with pytest.raises(ValueError, match="dice must be one of same, own, got 'x'"):
        pipe.settings(dice="x")
