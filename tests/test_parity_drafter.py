"""LANTERN's drafter: outputs of its stable slots, dynamic trees, static trees."""

from typing import Any

import passes
import pytest
import released
import torch
from released import Golden, cases, close, lantern_drafter, lantern_target, parts_like
from torch import Tensor

from lantern_demo.decoding import drafting
from lantern_demo.decoding.cache import KVCache
from lantern_demo.decoding.drafting import DynamicProposer, DynamicTree, StaticProposer, StaticTree
from lantern_demo.decoding.ops import Ops
from lantern_demo.decoding.sampling import Sampling
from lantern_demo.decoding.trees import Draft, static_tree
from lantern_demo.models.llamagen import Drafter
from lantern_demo.settings.named_trees import STATIC_TREES


@pytest.fixture(autouse=True)
def _released_order_of_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drafting, "probabilities", released.lantern_probabilities)


class Behind:
    """A drafter's passes behind its stable one; `levels` has the outputs [R, m, H] of each."""

    position = torch.ones(1, dtype=torch.int64)

    def __init__(self, output: Tensor, drafter: Any, cache: Any) -> None:
        self.output, self.drafter, self.cache = output, drafter, cache
        self.levels = list[Tensor]()

    def sync(self) -> Tensor:
        return self.output

    def expand(self, *nodes: Any) -> Tensor:
        self.levels.append(passes.node_pass(self.drafter, *nodes, self.cache))
        return self.levels[-1]


def stable_pass(
    drafter: Drafter, tokens: Tensor, hidden: Tensor, cache: KVCache
) -> tuple[Tensor, Tensor]:
    """The output [R, 1, H] that a tree starts from, and those of all new slots [R, m, H]."""
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


def sampling_of(processor: dict[str, Any], golden: dict[str, Tensor]) -> Sampling:
    return Sampling(**processor, cfg_scale=float(golden["cfg_scale"]))


GREEDY = {"temperature": 0}
NO_UNIFORMS = torch.empty(0)  # a dynamic tree needs none


def same_tree(
    draft: Draft, golden: dict[str, Tensor], call: str, ordered: bool = False, first: int = 0
) -> None:
    """A draft is the recorded one of a call, whose tokens count from `first`."""
    assert (draft.tokens + first).tolist() == golden[f"{call}draft_tokens"][0].tolist()
    assert draft.tree.depths.tolist() == golden[f"{call}tree_position_ids"].tolist()
    paths = released.listed_paths(draft.tree.parents.tolist(), ordered)
    assert paths.tolist() == golden[f"{call}retrieve_indices"].tolist()


@pytest.mark.parametrize(
    ("case", "probs"), cases("dynamic trees", parts_like("c1_([^_]+)_draft_tokens"))
)
def test_dynamic_trees(case: Golden, probs: str) -> None:
    """Two calls: from a fresh cache, then behind some accepted nodes. "greedy" filters nothing."""
    golden, header, greedy = case.tensors, case.about, probs == "greedy"
    target, drafter = lantern_target(), lantern_drafter()
    sampling = sampling_of(GREEDY if greedy else header["processor"], golden)
    drafts = DynamicTree(header["top_k"], header["depth"], header["total_tokens_argument"])
    propose = DynamicProposer(drafts, sampling).propose
    accepted = golden[f"c2_{probs}_hidden_states"]
    close(drafter.rope[: len(golden["drafter_freqs_cis"])], golden["drafter_freqs_cis"])

    cache = drafter.new_cache(2, accepted.shape[1] + drafts.depth * drafts.top_k)
    token = golden["input_ids"][0, -1:]
    output, outputs = stable_pass(drafter, token, golden["hidden_states"], cache)
    close(outputs, golden["c1_greedy_out_hidden_0"])
    behind = Behind(output, drafter, cache)
    draft = propose(token, behind, target.head, NO_UNIFORMS)
    same_tree(draft, golden, f"c1_{probs}_", not greedy)
    assert torch.equal(draft.tree.mask, golden[f"c1_{probs}_tree_mask"][0, 0].bool())
    assert len(behind.levels) == drafts.depth
    if greedy:  # the other distribution's passes were not recorded
        for level, found in enumerate(behind.levels, 1):
            close(found, golden[f"c1_greedy_out_hidden_{level}"])

    tokens = golden[f"c2_{probs}_input_ids"][0, -accepted.shape[1] :]
    output, outputs = stable_pass(drafter, tokens, accepted, cache)
    close(outputs, golden[f"c2_{probs}_out_hidden_0"])
    draft = propose(tokens[-1:], Behind(output, drafter, cache), target.head, NO_UNIFORMS)
    same_tree(draft, golden, f"c2_{probs}_", not greedy)


@pytest.mark.parametrize(
    ("case", "name"), cases("static trees", parts_like("(.*)_tree_candidates"))
)
def test_static_trees(case: Golden, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Greedy ones, and with the recorded draws in the place of ours, which have these laws."""
    golden = {key.removeprefix(f"{name}_"): value for key, value in case.tensors.items()}
    rest = list(golden["ss_token"])

    def recorded(q: Tensor, uniforms: Tensor) -> Tensor:
        return torch.stack([rest.pop(0)[: uniforms.shape[1]] for _ in range(len(q))])

    monkeypatch.setattr(Ops, "draw_in_turn", staticmethod(recorded))
    of, kind = name.rsplit("_", 1)
    sampling = sampling_of(GREEDY if kind == "greedy" else case.about["sample_processor"], golden)
    drafter, tree = lantern_drafter(), static_tree(StaticTree(STATIC_TREES[of]).paths)
    cache, token = drafter.new_cache(2, tree.size), golden["input_ids"][0, -1:]
    output, _ = stable_pass(drafter, token, golden["hidden_states"], cache)
    proposer, behind = StaticProposer(tree, sampling), Behind(output, drafter, cache)
    draft = proposer.propose(token, behind, lantern_target().head, torch.rand(proposer.draws))
    assert draft.tokens.tolist() == golden["tree_candidates"][0].tolist()
    assert len(behind.levels) == len(tree.levels) - 1
    if kind == "greedy":
        for level, found in enumerate(behind.levels, 1):
            close(found, golden[f"level{level}_out_hidden"])
    else:
        dists = [golden[f"level{level}_dist"] for level in range(len(tree.levels))]
        close(draft.q, torch.cat(dists))
        assert not rest
