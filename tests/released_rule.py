"""The acceptance of LANTERN's authors' code, by our reading, as rules on top of the package's own.

All k + 1 nearest tokens leave p (fixed children) or q (sampled children) once any of them was counted, and an empty residual
becomes uniform. Greedy, the longest accepted path wins. The last token is drafted too. Where nothing is relaxed it is the exact
rule all the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import runs
import torch
from torch import Tensor

from lantern_demo.decoding import loop
from lantern_demo.decoding.config import Config
from lantern_demo.decoding.deciding import decide_greedy
from lantern_demo.decoding.rules import Children, Lantern, LanternPlusPlus, Near, Rule
from lantern_demo.decoding.trees import Draft
from lantern_demo.decoding.verify import RejectionVerifier, VerifyOutput, accepted_tokens, argmax_or_invalid, next_node, walk


class Released(Lantern):
    """What both released rules have beside the package's."""

    shares = False  # what leaves p is more than the set that was counted

    @property
    def thins(self) -> bool:  # type: ignore[override]
        return self.relaxes

    @property
    def table_columns(self) -> int:
        return self.k + 1 if self.relaxes else 0

    def reject(self, residual: Tensor, near: Near, share: Tensor | None, children: Children) -> None:
        q, neighbours = children.q, children.neighbours
        if not self.relaxes or neighbours is None:
            return super().reject(residual, near, share, children)
        x = near.ids[:, :1]
        gone = torch.cat([near.ids[:, 1:], neighbours[:, self.k : self.k + 1][x[:, 0]].long()], 1)
        kept = near.kept_mask[:, 1:].amin(-1, keepdim=True)
        if q is None or share is None:
            untried = near.kept_mask[:, :1]
            residual.scatter_(1, x, near.mass[:, :1] * untried)
            residual.scatter_(1, gone, residual.gather(1, gone) * kept.maximum(untried))
        else:
            residual.addcmul_(q.scatter(1, gone, q.gather(1, gone) * kept), share, value=-1.0).clamp_(min=0.0)
        residual.masked_fill_(residual.sum(-1, keepdim=True) <= 0, 1.0 / residual.shape[1])


@dataclass(frozen=True)
class ReleasedLantern(Released):
    """LANTERN's."""


@dataclass(frozen=True)
class ReleasedLanternPlusPlus(Released, LanternPlusPlus):
    """LANTERN++'s."""


def released_rule(about: dict[str, Any]) -> Rule:
    """The acceptance rule of a golden header; above 1 the released code reads its delta as lambda."""
    if not about["lantern"]:
        return Rule()
    kind = ReleasedLanternPlusPlus if about["lantern_delta"] > 1 else ReleasedLantern
    return kind(about["lantern_k"], about["lantern_delta"])


class ReleasedVerifier(RejectionVerifier):
    """Greedy, the longest accepted path wins."""

    def verify(self, draft: Draft, scores: Tensor, position: Tensor, uniforms: Tensor) -> VerifyOutput:
        tree = draft.tree
        if tree.size == 1 or not (self.greedy and isinstance(self.rule, Released) and self.rule.relaxes):
            return super().verify(draft, scores, position, uniforms)
        p = scores.softmax(-1)
        verdict = decide_greedy(self.rule, p.index_select(0, tree.inner), Children(draft.drawn, None, self.neighbours))
        assert verdict.relaxed is not None
        rank = longest(draft, verdict.accepted)
        path = walk(tree, next_node(tree, rank))
        bonus = argmax_or_invalid(p.index_select(0, path[-1:]))
        flags = verdict.relaxed.gather(1, rank.unsqueeze(1).clamp(max=tree.width - 1))[:, 0].index_select(0, tree.rows)
        depth, tokens = accepted_tokens(draft, path, bonus)
        return VerifyOutput(path, depth, tokens, bonus, flags.index_select(0, path[:-1]), bonus.expand(tree.size))


class ReleasedConfig(Config):
    """The last token is drafted too."""

    def no_draft(self, missing: int) -> bool:
        return super().no_draft(2 if isinstance(self.rule, Released) and self.rule.relaxes else missing)


def as_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs and their parts (see `runs`) do with released rules what the released code does."""
    monkeypatch.setattr(loop, "RejectionVerifier", ReleasedVerifier)
    monkeypatch.setattr(runs, "RejectionVerifier", ReleasedVerifier)
    monkeypatch.setattr(runs, "Config", ReleasedConfig)


def longest(draft: Draft, accepted: Tensor) -> Tensor:
    """Draw numbers [I], C for none, that lead to the longest path of accepted [I, C] children, as the released code takes it; of
    equals the one that it lists first: sorted for static trees, where it goes like the node numbers, and by leaf for dynamic
    ones."""
    tree, node = draft.tree, draft.tree.nodes
    children = tree.children.index_select(0, tree.inner)
    by_itself = torch.zeros(tree.size + 1, dtype=torch.bool, device=accepted.device)
    by_itself[torch.where(children < 0, tree.size, children)] = accepted  # what is no child goes to the end, which is cut off
    by_itself[0] = True
    alive = ~(tree.mask & ~by_itself[:-1]).any(1)
    listed = node
    if not tree.levels:
        leaf_below = tree.mask & (tree.children < 0).all(1).unsqueeze(1)
        listed = torch.where(leaf_below, node.unsqueeze(1), tree.size).amin(0).clamp(max=tree.size - 1)
    end = torch.where(alive, tree.depths * tree.size - listed, -tree.size).argmax().view(1)
    on_the_way = tree.mask.index_select(0, end)[0][children.clamp(min=0)] & (children >= 0)
    return torch.where(on_the_way.any(1), on_the_way.int().argmax(1), tree.width)
