"""The loop on table models: one engine for every method, the image's ends, cache and clock."""

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import Any

import pytest
import torch
from runs import decode, small
from tables import TableDrafter, TableTarget, neighbour_table

from lantern_demo.decoding.cache import KVCache
from lantern_demo.decoding.drafting import DynamicTree
from lantern_demo.decoding.loop import Decoded, Step
from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.rules import Lantern, LanternPlusPlus
from lantern_demo.decoding.sampling import Sampling
from lantern_demo.decoding.window import Window

VOCAB = 12
TARGET = TableTarget(VOCAB, seed=1)
DRAFTER = TableDrafter(TARGET)
NEIGHBOURS = neighbour_table(VOCAB)
PREFIX = torch.tensor([1, 2, 3])
SETTINGS = {method: small(method) for method in METHODS}
ALL = list(METHODS)


def start(name: str, tokens: int = 30, seed: int = 0, **changes: Any) -> Iterator[Step | Decoded]:
    settings = {"sampling": Sampling(cfg_scale=2.0), "neighbours": NEIGHBOURS, "drafter": DRAFTER}
    settings |= SETTINGS[name] | changes
    return decode(TARGET, condition=PREFIX, num_tokens=tokens, seed=seed, **settings)


def run(name: str, tokens: int = 30, seed: int = 0, **changes: Any) -> tuple[list[Step], Decoded]:
    *steps, result = start(name, tokens, seed, **changes)
    assert isinstance(result, Decoded) and all(isinstance(step, Step) for step in steps)
    return steps, result


@pytest.mark.parametrize("scale", [1.0, 2.0])
@pytest.mark.parametrize("method", ALL)
def test_events_add_up(method: str, scale: float) -> None:
    steps, result = run(method, sampling=Sampling(cfg_scale=scale))
    assert len(result.tokens) == 30 and all(0 <= token < VOCAB for token in result.tokens)
    assert [step.index for step in steps] == list(range(len(steps)))
    assert result.tokens == [token for step in steps for token in step.tokens]
    assert steps[-1].committed == 30
    assert result.steps == len(steps) - 1
    assert result.accepted_lengths == [step.accepted_length for step in steps[1:]]
    assert result.mean_accepted_length == pytest.approx(29 / result.steps)
    seconds = [step.seconds for step in steps]
    assert seconds == sorted(seconds) and result.decode_seconds == pytest.approx(seconds[-1])
    assert result.tokens_per_second == pytest.approx(30 / result.decode_seconds)
    for step in steps[1:]:
        assert len(step.kinds) == len(step.tokens)
        assert len(step.path) == step.accepted_length and step.path[0] == 0
        assert all(step.parents[child] == parent for parent, child in pairwise(step.path))
        accepted = [step.tree_tokens[node] for node in step.path[1:]]
        assert step.tokens[: len(accepted)] == accepted[: len(step.tokens)]
        if METHODS[method].lossless:
            assert "relaxed" not in step.kinds
    if METHODS[method].alone:
        assert result.steps == 29 and set(result.accepted_lengths) == {1} and result.nodes == 1
    else:
        assert result.mean_accepted_length > (1.2 if METHODS[method].needs_drafter else 1.0)


def test_a_path_counts_no_padding() -> None:
    """Where only one token may be drawn, a dynamic tree is a chain and padding."""
    steps, result = run("eagle2", sampling=Sampling(top_k=1))
    assert max(result.accepted_lengths) > 2
    for step in steps[1:]:
        assert step.path == list(range(step.accepted_length))
        assert step.parents == [0, *range(len(step.tree_tokens) - 1)]


@pytest.mark.parametrize("method", ALL)
@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_ends_of_the_image(method: str, count: int) -> None:
    found = []
    for seed in range(8):
        steps, result = run(method, count, seed)
        found.append(result)
        assert len(result.tokens) == count and steps[-1].committed == count
        lengths = result.accepted_lengths
        assert sum(lengths[:-1]) < count - 1 <= sum(lengths) or not lengths
    if count == 4 and METHODS[method].needs_drafter:
        assert any(sum(result.accepted_lengths) > 3 for result in found), "some run overshot"
    if count == 1:
        assert result.steps == 0 and result.mean_accepted_length == 0
    if count == 2:
        assert len(steps[1].tree_tokens) == 1, "nothing to draft for the last token"


def test_every_bit_of_a_seed_counts() -> None:
    seeds = [0, *(2**bit for bit in range(32))]
    sequences = [tuple(run("vanilla", 12, seed)[1].tokens) for seed in seeds]
    assert len(set(sequences)) == len(seeds)


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (partial(start, "lantern++", drafts=Window(4)), "Window needs the exact rule"),
        (partial(start, "lantern", neighbours=NEIGHBOURS[:, :3]), r"has shape \[12, 3\]"),
        (partial(start, "eagle2", drafts=DynamicTree(20, 1, 30)), "20 children per node"),
        (partial(start, "eagle1", drafter=None), "drafter is None; StaticTree needs one"),
        (partial(Sampling, float("nan")), "temperature is nan"),
        (partial(DynamicTree, 2, 1, 8), "between 2 and 7"),
        (partial(Window, 0), "window is 0"),
        (partial(Lantern, -1, 0.1), "k is -1"),
        (partial(LanternPlusPlus, 1, 0.5), "lambda is 0.5"),
    ],
)
def test_bad_arguments_are_refused_at_the_call(call: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        call()


def test_cache_writes_moves_and_limits() -> None:
    cache = KVCache(1, 2, 1, 6, 2)
    entry = torch.ones(2, 1, 2, 2)
    (store,) = cache.stores(torch.tensor([4, 3]), 5)
    k, v = store(torch.cat((entry, 2 * entry), 1))
    assert k.shape == v.shape == (2, 1, 5, 2)
    assert k[0, 0, :, 0].tolist() == [0, 0, 0, 1, 1] and v[0, 0, 3:, 1].tolist() == [2, 2]
    cache.move(torch.tensor([4, 5]), torch.tensor([1, 4]))
    assert cache.v[0, 1, 0, :, 0].tolist() == [0, 2, 0, 2, 0, 0]


def test_cache_hides_a_prompts_padding_where_it_stays() -> None:
    """What a captured step reads stays in its place and holds the next prompt's numbers."""
    cache = KVCache(1, 2, 1, 6, 2)
    place = cache.padding.data_ptr()
    for padded in (2, 0, 1):
        cache.start(3, torch.tensor([[True] * 3, [False] * padded + [True] * (3 - padded)]))
        assert cache.length == 3 and cache.padded == (padded > 0)
        assert cache.padding.data_ptr() == place
        hidden = [True] * padded + [False] * (6 - padded)
        assert cache.padding.isinf().flatten(1).tolist() == [[False] * 6, hidden]
        assert (cache.bias(None, 4) is None) == (padded == 0)


def test_neither_the_clock_nor_the_mode_of_a_run_reaches_its_consumer() -> None:
    for event in start("vanilla", 4):
        assert not torch.is_inference_mode_enabled(), event
        since = perf_counter()
        while perf_counter() - since < 0.05:
            pass
    assert isinstance(event, Decoded) and event.decode_seconds < 0.15
