"""LANTERN's drafter: outputs of its stable slots, dynamic trees, static trees."""

from __future__ import annotations

from typing import Any

import passes
import pytest
import torch
from released import (
    Golden,
    cases,
    close,
    lantern_drafter,
    lantern_probabilities,
    lantern_target,
    listed_paths,
    parts_like,
)
from runs import dynamic_draft, static_draft
from torch import Tensor

from lantern_demo.decoding import drafting
from lantern_demo.decoding.cache import KVCache
from lantern_demo.decoding.drafting import DynamicTree, StaticProposer, StaticTree
from lantern_demo.decoding.ops import Ops
from lantern_demo.decoding.sampling import Sampling, guide
from lantern_demo.decoding.trees import Draft, static_tree
from lantern_demo.models.llamagen import Drafter
from lantern_demo.settings.named_trees import STATIC_TREES


@pytest.fixture(autouse=True)
def _released_order_of_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafting, "probabilities", lantern_probabilities)


class Spy:
    """A drafter that writes down its tree passes."""

    def __init__(self, drafter: Any) -> None:
        self.drafter = drafter
        self.tokens: list[Tensor] = []  # [m] of each pass
        self.slots: list[int] = []
        self.outputs: list[Tensor] = []  # [R, m, H]

    def node_pass(
        self, tokens: Tensor, hidden: Tensor, depth: int, mask: Tensor, cache: KVCache
    ) -> Tensor:
        self.tokens.append(tokens)
        self.slots.append(cache.length + depth - 1)
        self.outputs.append(passes.node_pass(self.drafter, tokens, hidden, depth, mask, cache))
        return self.outputs[-1]


def stable_pass(
    drafter: Drafter, tokens: Tensor, hidden: Tensor, cache: KVCache
) -> tuple[Tensor, Tensor]:
    """The output [R, 1, H] that a tree starts from, and those of all new slots [R, m, H]; the first
    pass has one new token.
    """
    if cache.length == 0:
        last = passes.begin(drafter, hidden, tokens, cache)
        cache.length = 0
        tokens = torch.cat([tokens.new_zeros(hidden.shape[1] - 1), tokens])
    else:
        last = passes.stable_pass(drafter, tokens, hidden, cache)
        cache.length -= len(tokens)
    every = passes.stable_pass(drafter, tokens, hidden, cache, outputs=len(tokens))
    close(last, every[:, -1:])
    return last, every


def sampling_of(processor: dict[str, Any] | None, golden: dict[str, Tensor]) -> Sampling:
    scale = float(golden["cfg_scale"])
    return (
        Sampling(temperature=0, cfg_scale=scale)
        if processor is None
        else Sampling(**processor, cfg_scale=scale)
    )


def same_for_both_rows(tokens: Tensor, wanted: Tensor) -> None:
    """The conditional and the unconditional row are fed the same tokens."""
    assert wanted.tolist() == [tokens.tolist()] * 2


@pytest.mark.parametrize(
    ("case", "probs"), cases("dynamic trees", parts_like("c1_([^_]+)_draft_tokens"))
)
def test_dynamic_trees(case: Golden, probs: str) -> None:
    """Two calls: from a fresh cache, then behind some accepted nodes. "greedy" has no processor,
    "proc" the header's.
    """
    golden, header = case.tensors, case.about
    target, drafter = lantern_target(case), lantern_drafter(case)
    sampling = sampling_of(None if probs == "greedy" else header["processor"], golden)
    drafts = DynamicTree(header["top_k"], header["depth"], header["total_tokens_argument"])
    accepted = golden[f"c2_{probs}_hidden_states"]
    close(drafter.rope[: len(golden["drafter_freqs_cis"])], golden["drafter_freqs_cis"])

    cache = drafter.new_cache(2, accepted.shape[1] + drafts.depth * drafts.top_k)
    token = golden["input_ids"][0, -1:]
    output, outputs = stable_pass(drafter, token, golden["hidden_states"], cache)
    close(outputs, golden["c1_greedy_out_hidden_0"])
    assert cache.length == golden["input_ids"].shape[1] - 1
    spy = Spy(drafter)
    same_tree(
        dynamic_draft(drafts, token, output, spy, target, cache, sampling), golden, f"c1_{probs}"
    )
    assert len(spy.outputs) == drafts.depth
    if probs == "greedy":  # the other distribution's passes were not recorded
        for level in range(1, drafts.depth + 1):
            same_for_both_rows(spy.tokens[level - 1], golden[f"c1_greedy_in_ids_{level}"])
            assert set(golden[f"c1_greedy_pos_{level}"].tolist()) == {spy.slots[level - 1]}
            close(spy.outputs[level - 1], golden[f"c1_greedy_out_hidden_{level}"])

    tokens = golden[f"c2_{probs}_input_ids"][0, -accepted.shape[1] :]
    output, outputs = stable_pass(drafter, tokens, accepted, cache)
    close(outputs, golden[f"c2_{probs}_out_hidden_0"])
    same_tree(
        dynamic_draft(drafts, tokens[-1:], output, spy, target, cache, sampling),
        golden,
        f"c2_{probs}",
    )


def same_tree(draft: Draft, golden: dict[str, Tensor], call: str) -> None:
    assert draft.tokens.tolist() == golden[f"{call}_draft_tokens"][0].tolist()
    assert draft.tree.depths.tolist() == golden[f"{call}_tree_position_ids"].tolist()
    assert torch.equal(draft.tree.mask, golden[f"{call}_tree_mask"][0, 0].bool())
    paths = listed_paths(draft.tree.parents.tolist(), ordered=not call.endswith("greedy"))
    assert paths.tolist() == golden[f"{call}_retrieve_indices"].tolist()


def drafted(
    case: Golden, name: str, processor: dict[str, Any] | None = None
) -> tuple[dict[str, Tensor], Draft, Tensor, Spy]:
    """What was recorded of a static tree, with a processor or greedy, what is drafted here, which
    is the same, from which output and by which passes.
    """
    start = f"{name}_{'greedy' if processor is None else 'sample'}_"
    golden = {key.removeprefix(start): value for key, value in case.tensors.items()}
    drafter, tree = lantern_drafter(case), static_tree(StaticTree(STATIC_TREES[name]).paths)
    cache, spy = drafter.new_cache(2, tree.size), Spy(drafter)
    token, sampling = golden["input_ids"][0, -1:], sampling_of(processor, golden)
    output, _ = stable_pass(drafter, token, golden["hidden_states"], cache)
    uniforms = torch.rand(StaticProposer(tree, sampling).draws)
    draft = static_draft(tree, token, output, spy, lantern_target(case), cache, sampling, uniforms)
    assert draft.tokens.tolist() == golden["tree_candidates"][0].tolist()
    padded = torch.cat([draft.tokens, torch.tensor([-1])])
    assert (
        padded[listed_paths(tree.parents.tolist(), ordered=True)].tolist()
        == golden["cart_candidates"].tolist()
    )
    return golden, draft, output, spy


@pytest.mark.parametrize(
    ("case", "name"), cases("static trees", parts_like("(.*)_greedy_tree_candidates"))
)
def test_static_tree_greedy(case: Golden, name: str) -> None:
    golden, draft, output, spy = drafted(case, name)
    assert len(spy.outputs) == len(draft.tree.levels) - 1
    for level, outputs in enumerate(spy.outputs, start=1):
        same_for_both_rows(spy.tokens[level - 1], golden[f"level{level}_in_ids"])
        close(outputs, golden[f"level{level}_out_hidden"])
    # What all nodes that have children propose, also what did not become a node.
    logits = guide(
        lantern_target(case).head(torch.cat([output, *spy.outputs], 1)), float(golden["cfg_scale"])
    )
    best = logits.topk(golden["ss_token"].shape[1])
    assert best.indices.tolist() == golden["ss_token"].tolist()
    close(best.values, golden["ss_value"])


@pytest.mark.parametrize(
    ("case", "name"), cases("static trees", parts_like("(.*)_sample_tree_candidates"))
)
def test_static_tree_sampled(case: Golden, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the recorded draws in the place of ours: the distributions they came from."""
    rest = list(case.tensors[f"{name}_sample_ss_token"])

    def recorded(q: Tensor, uniforms: Tensor) -> Tensor:
        return torch.stack([rest.pop(0)[: uniforms.shape[1]] for _ in range(len(q))])

    monkeypatch.setattr(Ops, "draw_in_turn", staticmethod(recorded))
    golden, draft, *_ = drafted(case, name, case.about["sample_processor"])
    assert not rest
    close(
        draft.q,
        torch.cat([golden[f"level{level}_dist"] for level in range(len(draft.tree.levels))]),
    )
