"""Shared noise: whatever is drafted, exact methods draw vanilla's tokens."""

from typing import Any

import pytest
import torch
from runs import exact_ways
from test_loop import ALL, NEIGHBOURS, SETTINGS, run

from lantern_demo.decoding import reference
from lantern_demo.decoding.config import Config
from lantern_demo.decoding.drafting import StaticTree
from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.rules import LanternPlusPlus
from lantern_demo.decoding.sampling import Sampling
from lantern_demo.decoding.trees import Draft, static_tree
from lantern_demo.decoding.verify import SharedNoiseVerifier

SAMPLINGS = {
    "guided": Sampling(cfg_scale=2.0),
    "unguided": Sampling(),
    "filtered": Sampling(0.8, 6, 0.9, 2.0),
    "hot": Sampling(1.7, 0, 0.8, 1.5),
    "cold": Sampling(0.05, cfg_scale=2.0),
    "greedy": Sampling(0, cfg_scale=2.0),
}
EXACT = exact_ways()
SEEDS = [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 9))]


def used(noise: str = "shared", **changes: Any) -> str:
    return Config(num_tokens=8, noise=noise, **{"neighbours": NEIGHBOURS, **changes}).noise_used


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=list(SAMPLINGS))
@pytest.mark.parametrize("seed", SEEDS)
def test_exact_methods_draw_vanillas_tokens(sampling: Sampling, seed: int) -> None:
    shared = {"sampling": sampling, "noise": "shared"}

    def tokens_of(way: dict[str, Any], count: int) -> list[int]:
        return run("vanilla", count, seed, **way, **shared)[1].tokens

    wanted = tokens_of(EXACT["vanilla"], 18)
    ways = [way for way in EXACT.values() if used(**shared, **way) != "independent"]
    for number, way in enumerate(ways):
        assert tokens_of(way, 18) == wanted, way
        # at a picture's end
        for count in range(1, 6) if way is EXACT["vanilla"] else [1 + (number + seed) % 5]:
            assert tokens_of(way, count) == wanted[:count], way


@pytest.mark.parametrize(
    "method", [name for name in METHODS if name in EXACT and not METHODS[name].alone]
)
def test_drafts_are_accepted_all_the_same(method: str) -> None:
    """Or the identity would hold of a method that refuses everything."""
    lengths = [run(method, 30, seed, noise="shared")[1].mean_accepted_length for seed in range(5)]
    assert sum(lengths) / 5 > (1.4 if METHODS[method].needs_drafter else 1.05)


def test_a_second_child_is_kept_in_its_place() -> None:
    """In trees of a width of two: the nodes of a chain need no move."""
    drafts, seconds = StaticTree([(0,), (1,), (0, 0), (1, 0)]), 0
    for seed in range(8):
        steps, done = run("eagle1", 30, seed, noise="shared", drafts=drafts)
        assert done.tokens == run("vanilla", 30, seed, noise="shared")[1].tokens
        seconds += sum(step.path[:2] == [0, 2] for step in steps)
    assert seconds > 8


def test_which_noise_a_run_has() -> None:
    """Exact rules share it; relaxed ones run as published, and a window has no other."""
    lossless = {name for name in ALL if METHODS[name].lossless}
    assert {name for name in ALL if used(**SETTINGS[name]) == "shared"} == lossless
    exact = {**SETTINGS["lantern++"], "rule": LanternPlusPlus(4, 1.0)}
    assert used(**exact) == "shared", "it relaxes nothing"
    assert {name for name in ALL if used("independent", **SETTINGS[name]) == "shared"} == {"sjd"}
    assert {used(**SETTINGS[name], sampling=Sampling(0)) for name in ALL} == {"none"}


def test_acceptance_with_shared_noise_equals_its_reference() -> None:
    """At a root with three children, for every token that the target may draw."""
    tree, children = static_tree([(0,), (1,), (2,)]), [4, 1, 7]
    draft = Draft(tree, torch.tensor([0, *children]), torch.tensor([children]))
    verifier = SharedNoiseVerifier(Config(1, Sampling(0)), 12)
    for own in range(12):
        scores = torch.zeros(4, 12)
        scores[0, own] = 1.0
        out = verifier.verify(draft, scores, torch.zeros(1).long(), torch.empty(0))
        rank = reference.shared(children, own)
        assert out.path.tolist() == [0, 0 if rank is None else 1 + rank]
        assert out.tokens[0] == own and out.relaxed is None
