"""The acceptance of LANTERN's authors' code, by our reading, as rules on top of the package's own.

All k + 1 nearest tokens leave p (fixed children) or q (sampled children) once any of them was
counted, and an empty residual becomes uniform. Greedy, the longest accepted path wins. The last
token is drafted too. Where nothing is relaxed it is the exact rule all the same.
"""

from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import pytest
import runs
import torch
from torch import Tensor

from lantern_demo.decoding import loop, verify
from lantern_demo.decoding.config import Config
from lantern_demo.decoding.rules import Lantern, LanternPlusPlus, Members, Rule, without
from lantern_demo.decoding.trees import Draft
from lantern_demo.decoding.verify import RejectionVerifier, VerifyOutput


class Released(Lantern):
    """What both released rules have. They read one neighbour more, which never counts."""

    def members(self, p: Tensor, ids: Tensor, drafted: Tensor) -> Members:
        found = super().members(p, ids, drafted)
        read, last = found.member[..., :-1], found.member[..., -1:]
        return found._replace(member=torch.cat([read, last & False], -1))

    def reject(self, p: Tensor, q: Tensor | None, members: Members, depth: Any) -> Tensor:
        if not self.relaxes:
            return super().reject(p, q, members, depth)
        counted = members.member[..., 1:].any(-1, keepdim=True)
        all_or_none = counted.expand(members.ids[..., 1:].shape)
        gone = members._replace(member=torch.cat([members.member[..., :1], all_or_none], -1))
        if q is None:
            left = without(p, gone)
        else:  # they leave q instead, but x itself
            others = gone.ids[:, 0, 1:]
            left = (p - q.scatter(1, others, q.gather(1, others) * ~counted[:, 0])).clamp(min=0.0)
        return left.masked_fill(left.sum(-1, keepdim=True) <= 0, 1.0 / p.shape[1])


@dataclass(frozen=True)
class ReleasedLantern(Released):
    """LANTERN's."""


@dataclass(frozen=True)
class ReleasedLanternPlusPlus(Released, LanternPlusPlus):
    """LANTERN++'s."""


def released_rule(about: dict[str, Any]) -> Rule:
    """Return the rule of a golden header; above 1 the released code reads delta as lambda."""
    if not about["lantern"]:
        return Rule()
    kind = ReleasedLanternPlusPlus if about["lantern_delta"] > 1 else ReleasedLantern
    return kind(about["lantern_k"] + 1, about["lantern_delta"])


class ReleasedVerifier(RejectionVerifier):
    """Greedy, the longest accepted path wins."""

    def verify(self, draft: Draft, *given: Any) -> VerifyOutput:
        if not (self.greedy and isinstance(self.rule, Released) and self.rule.relaxes):
            return super().verify(draft, *given)
        with patch.object(verify, "first", lambda accepted: longest(draft, accepted)):
            return super().verify(draft, *given)


class ReleasedConfig(Config):
    """The last token is drafted too."""

    def no_draft(self, missing: int) -> bool:
        relaxes = isinstance(self.rule, Released) and self.rule.relaxes
        return super().no_draft(2 if relaxes else missing)


def as_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs and their parts (see `runs`) do with released rules what the released code does."""
    monkeypatch.setattr(loop, "RejectionVerifier", ReleasedVerifier)
    monkeypatch.setattr(runs, "RejectionVerifier", ReleasedVerifier)
    monkeypatch.setattr(runs, "Config", ReleasedConfig)


def longest(draft: Draft, accepted: Tensor) -> Tensor:
    """Draw numbers [I], C for none, that lead to the longest path of accepted [I, C] children; of
    equals to the one that the released code lists first: sorted for static trees, where it goes
    like the node numbers, and by leaf for dynamic ones.
    """
    tree, node = draft.tree, torch.arange(draft.tree.size)
    children = tree.children.index_select(0, tree.inner)
    by_itself = torch.zeros(tree.size + 1, dtype=torch.bool)
    # what is no child goes to the end, which is cut off
    by_itself[torch.where(children < 0, tree.size, children)] = accepted
    by_itself[0] = True
    alive = ~(tree.mask & ~by_itself[:-1]).any(1)
    listed = node
    if not tree.levels:
        leaf_below = tree.mask & (tree.children < 0).all(1).unsqueeze(1)
        listed = torch.where(leaf_below, node.unsqueeze(1), tree.size).amin(0)
        listed = listed.clamp(max=tree.size - 1)
    end = torch.where(alive, tree.depths * tree.size - listed, -tree.size).argmax().view(1)
    on_the_way = tree.mask.index_select(0, end)[0][children.clamp(min=0)] & (children >= 0)
    return torch.where(on_the_way.any(1), on_the_way.int().argmax(1), tree.width)
