"""Shared noise: whatever is drafted, exact methods draw vanilla's tokens; LANTERN follows its definition."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from runs import exact_ways
from tables import chi_square_p, near_of, neighbour_table, random_probs
from test_loop import ALL, NEIGHBOURS, SETTINGS, run
from torch import Tensor

from examples.quality.tvd import fixed_shift
from lantern_demo import load
from lantern_demo.decoding import reference
from lantern_demo.decoding.config import Config
from lantern_demo.decoding.drafting import StaticTree
from lantern_demo.decoding.methods import METHODS, Method
from lantern_demo.decoding.noise import gumbel_
from lantern_demo.decoding.rules import Lantern, LanternPlusPlus, Rule
from lantern_demo.decoding.sampling import Sampling
from lantern_demo.decoding.verify import SharedNoiseVerifier, first
from lantern_demo.runs.pipeline import Pipeline
from lantern_demo.runs.record import parsed

SAMPLINGS = {
    "guided": Sampling(cfg_scale=2.0),
    "unguided": Sampling(),
    "filtered": Sampling(0.8, 6, 0.9, 2.0),
    "hot": Sampling(1.7, 0, 0.8, 1.5),
    "cold": Sampling(0.05, cfg_scale=2.0),
    "greedy": Sampling(0, cfg_scale=2.0),
}
EXACT = exact_ways()


def tokens_of(way: dict[str, Any], tokens: int, seed: int, **changes: Any) -> list[int]:
    return run(way["method"].id, tokens, seed, **way, noise="shared", **changes)[1].tokens


@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(4, 34), marks=pytest.mark.slow)], ids=["few", "204 in all"])
@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=list(SAMPLINGS))
def test_exact_methods_draw_vanillas_tokens(sampling: Sampling, seeds: range) -> None:
    for seed in seeds:
        wanted = tokens_of(EXACT["vanilla"], 18, seed, sampling=sampling)
        assert all(tokens_of(EXACT["vanilla"], count, seed, sampling=sampling) == wanted[:count] for count in range(1, 6))
        for number, (name, way) in enumerate(EXACT.items()):
            if Config(num_tokens=18, sampling=sampling, neighbours=NEIGHBOURS, noise="shared", **way).noise_used != "independent":
                assert tokens_of(way, 18, seed, sampling=sampling) == wanted, (name, seed)
                count = 1 + (number + seed) % 5
                assert tokens_of(way, count, seed, sampling=sampling) == wanted[:count], (name, seed, "at a picture's end")


@pytest.mark.parametrize("method", [name for name in METHODS if name in EXACT and not METHODS[name].alone])
def test_drafts_are_accepted_all_the_same(method: str) -> None:
    """Or the identity would hold of a method that refuses everything."""
    lengths = [run(method, 30, seed, noise="shared")[1].mean_accepted_length for seed in range(5)]
    assert sum(lengths) / 5 > (1.4 if METHODS[method].needs_drafter else 1.05)


def test_noise_of_another_place_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: below the root the target draws with the noise of the place before."""
    add_noise = SharedNoiseVerifier.add_noise
    monkeypatch.setattr(
        SharedNoiseVerifier,
        "add_noise",
        lambda self, scores, at: add_noise(self, scores, at - (torch.arange(len(at)) > 0).long()),
    )
    wanted = [tokens_of(EXACT["vanilla"], 18, seed) for seed in range(5)]
    assert wanted != [tokens_of(EXACT["eagle1"], 18, seed) for seed in range(5)]


def test_which_noise_a_run_has() -> None:
    """Exact rules share it, and LANTERN's where the prefix fixes the drafts; LANTERN++ has its published rule and no other."""

    def used(method: str, noise: str = "shared", **changes: Any) -> str:
        return Config(num_tokens=8, **{"neighbours": NEIGHBOURS, **SETTINGS[method], "noise": noise, **changes}).noise_used

    assert {method: used(method) for method in ALL} == {name: "independent" if name == "lantern++" else "shared" for name in ALL}
    assert used("lantern++", rule=LanternPlusPlus(4, 1.0)) == "shared", "it relaxes nothing"
    drawn = Method("mine", "Mine", StaticTree, Lantern(4, 0.3), False, "")
    config = Config(drawn, 8, rule=drawn.rule, tree=SETTINGS["eagle1"]["tree"], neighbours=NEIGHBOURS, noise="shared")
    assert not config.shared, "its children are drawn"
    assert {used(method, "independent") for method in ALL} == {"independent"}
    assert {used(method, sampling=Sampling(0)) for method in ALL} == {"none"}
    with pytest.raises(ValueError, match="noise is 'odd'; allowed are shared, independent"):
        used("vanilla", "odd")


@pytest.mark.parametrize("method", ALL)
def test_where_noise_is_not_shared_nothing_has_changed(method: str) -> None:
    """Of methods that have no other way, and at temperature 0."""
    shared = run(method, 30, 3, noise="shared")[1].tokens
    assert (shared == run(method, 30, 3, noise="independent")[1].tokens) == (method == "lantern++")
    greedy = {noise: run(method, 30, 3, sampling=Sampling(0), noise=noise)[1] for noise in ("shared", "independent")}
    assert greedy["shared"].tokens == greedy["independent"].tokens
    assert greedy["shared"].accepted_lengths == greedy["independent"].accepted_lengths


@pytest.mark.slow
def test_the_bundled_models_pictures_are_vanillas() -> None:
    pipe = load("lantern-scenes", "cpu")
    lossless = [method.id for method in METHODS.values() if method.lossless]
    knobs = {"seed": 3, "noise": "shared", "tree": "small", "window": 8}
    drawn = {tuple(pipe.generate("three red round lanterns over a lake at dusk", name, **knobs).tokens) for name in lossless}
    assert len(drawn) == 1 and len(lossless) > 4


def compared(rule: Rule, p: Tensor, tokens: Tensor, own: Tensor, table: Tensor) -> Tensor:
    """The draw numbers of the children tokens [P, C] that are accepted where the target drew own [P]."""
    verifier = SharedNoiseVerifier(Config(METHODS["vanilla"], 1, noise="shared"), p.shape[1])
    vars(verifier).update(rule=rule, neighbours=table)
    members = verifier.members(tokens, p.log())
    return first(((members.ids == own.view(-1, 1, 1)) & members.member).any(-1))


@pytest.mark.parametrize(
    "rule", [Rule(), Lantern(4, 0.2), Lantern(9, 0.6), LanternPlusPlus(4, 3.0), LanternPlusPlus(9, 8.0)], ids=str
)
def test_acceptance_with_shared_noise_equals_its_reference(rule: Rule) -> None:
    vocabulary, count, nodes = 12, 4, 1000
    generator, table = torch.Generator().manual_seed(4), neighbour_table(vocabulary)
    p = random_probs(nodes, vocabulary, 3)
    tokens = torch.rand(nodes, vocabulary, generator=generator).argsort(-1)[:, :count]
    tokens[torch.rand(nodes, count, generator=generator) < 0.2] = -1
    near, seen = near_of(rule, table), set[int]()
    for own in range(vocabulary):  # every token that the target may draw: all of every set
        rank = compared(rule, p, tokens, torch.full((nodes,), own), table).tolist()
        for node, (probs, children) in enumerate(zip(p.double().tolist(), tokens.tolist(), strict=True)):
            if probs[own] > 0:
                columns = [column for column, x in enumerate(children) if x >= 0]
                wanted = reference.shared(probs, [children[column] for column in columns], own, near)
                assert rank[node] == (count if wanted is None else columns[wanted])
                seen.add(rank[node])
    assert seen == set(range(count + 1))


@pytest.mark.parametrize("rule", [Lantern(4, 0.3), LanternPlusPlus(3, 4.0)], ids=str)
def test_of_children_that_the_prefix_fixes_the_distribution_is_lanterns_own(rule: Rule) -> None:
    p, table, count = random_probs(1, 7, 1)[0], neighbour_table(7), 400_000
    children = torch.tensor([3, 0, 5])
    own = (p.log() + gumbel_(torch.empty(count, len(p)), 1)).argmax(-1)
    rank = compared(rule, p.expand(count, -1), children.expand(count, -1), own, table)
    found = torch.cat([children.expand(count, -1), own.unsqueeze(1)], 1).gather(1, rank.unsqueeze(1))[:, 0]
    probs = p + fixed_shift(rule, p, children, table)
    assert chi_square_p(found.bincount(minlength=len(p)), probs) > 1e-4
    assert float((probs - p).abs().sum()) > 0.1, "a rule that moves nothing shows nothing"


def test_records_say_it(pipe: Pipeline) -> None:
    written = json.loads(json.dumps(pipe.generate("a lantern", "lantern", tree="small", lantern_k=10, noise="shared").record))
    entry = written["methods"]["lantern"]
    assert pipe.generate("a lantern", "vanilla", temperature=0.0, noise="shared").stats.noise == "none"
    assert written["settings"]["noise"] == entry["noise"] == "shared" and any(entry["events"]["compared"])
    assert parsed(written) == written
    for spoilt in ([[99, 1, 0, 1]], [[1, 1, 0]], [[1, 1, -2, 1]], [[1, 1, 0, 0]], [[1, 1.5, 0, 1]], 3):
        entry["events"]["compared"][1] = spoilt
        with pytest.raises(ValueError, match="compared"):
            parsed(written)
    del entry["events"]["compared"]
    entry["noise"] = "odd"
    with pytest.raises(ValueError, match="noise: must be 'shared', 'independent' or 'none'"):
        parsed(written)
