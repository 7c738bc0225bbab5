"""A tree that is chosen anew in every step (OPT-Tree, arXiv 2406.17276): it grows where the drafter is sure, and stops where the
next guess is not worth a node.

How likely a guess is to be the target's own draw is known before it is checked. With shared noise the drafter draws by its own
scores with the noise of the place, and the target by its own: the more the winner stands out among the drafter's, the likelier it
is the target's winner too. `SHARPNESS` is what makes the softmax of the noisy scores that chance. The chance that verification
reaches a guess is the product along its path (section 3 of the paper). A guess is kept where that is at least `chance`, which is
what a node costs in tokens on a machine: expected tokens and cost are sums over nodes, so that each is worth its own or not. The
drafter goes on behind the likeliest guess alone, as long as what it may find there is worth a pass of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import torch
from torch import Tensor

from .sampling import NO_DRAFT_PROBS, guide, scores
from .trees import Asked, Draft, Drafts, Head, Noisy, Passes, Source, Tree, whole_tree

# Of 0.4 to 4 the divisor under which the softmax of noisy scores tells best, by likelihood, whether the first guess is accepted:
# 841 steps of chains of six guesses of the bundled model (8 pictures). 4 in 10 of the guesses said to have 0.4 to 0.6 were, 9 in
# 10 of those above 0.8.
SHARPNESS = 0.9
WIDTH, DEPTH = 3, 7  # children of a node, and levels, at most
CHANCE = 0.15  # where nothing is fitted
# The drafter goes on behind a guess with so many times `chance`: a pass of it costs about what a node does, so that the two must
# come to twice that, and of its first guesses 6 in 10 are right.
WORTH_A_PASS = 3.2


@dataclass(frozen=True)
class OptTree(Drafts):
    """Guesses that verification reaches with a chance of at least `chance`. Raises ValueError for one that is none."""

    chance: float = CHANCE

    name: ClassVar[str] = "opt"
    needs_drafter: ClassVar[bool] = True
    reads_back: ClassVar[bool] = True
    asks: ClassVar[dict[str, str]] = {"chance": "opt_chance"}

    def __post_init__(self) -> None:
        if not 0 < self.chance < 1:
            raise ValueError(f"opt_chance is {self.chance}; it must be between 0 and 1, both excluded")

    @property
    def nodes(self) -> int:
        return 1 + self.width * self.deepest

    @property
    def width(self) -> int:
        return min(WIDTH, int(1 / self.chance))  # the chances of children sum to 1 at most

    @property
    def deepest(self) -> int:
        return DEPTH

    @property
    def expanded(self) -> int:
        return DEPTH - 1

    def source(self, asked: Asked, vocabulary: int, noisy: Noisy | None) -> Source:
        return OptSource(self, asked, noisy)

    @classmethod
    def of(cls, settings: Any) -> OptTree:
        return cls(settings.opt_chance or CHANCE)

    def words(self) -> str:
        return f"OPT-Tree, chance {self.chance:g} or more"


class OptSource(Source):
    """An `OptTree`. Each level's chances are read back to the host, which decides on the next one."""

    def __init__(self, policy: OptTree, asked: Asked, noisy: Noisy | None) -> None:
        """noisy: where noise is shared. Without it, as at temperature 0, children are the drafter's likeliest tokens, fixed by
        the prefix."""
        super().__init__(asked.torch_device)
        self.policy, self.sampling, self.noisy, self.depth = policy, asked.sampling, noisy, policy.deepest
        self.seen = [torch.ones(1, depth, dtype=torch.bool, device=asked.torch_device) for depth in range(policy.deepest)]

    def draft(self, root: Tensor, passes: Passes, head: Head, uniforms: Tensor) -> Draft:
        policy, output, reached = self.policy, passes.stable(), 1.0
        tokens, counts = [root], list[int]()
        for depth in range(policy.deepest):
            if depth > 0:
                output = passes.expand(tokens[-1][:1], output, depth, self.seen[depth])
            scored = scores(guide(head(output), self.sampling.cfg_scale), self.sampling, spent=True)
            if self.noisy is not None:
                scored = self.noisy(scored, passes.position + depth) / SHARPNESS
            likeliest = scored.softmax(-1)[0].topk(policy.width)
            chances = [reached * chance for chance in likeliest.values.tolist()]
            if not chances[0] > 0:
                raise FloatingPointError(NO_DRAFT_PROBS)
            count = sum(chance >= policy.chance for chance in chances)
            if count == 0:
                break
            tokens.append(likeliest.indices[:count])
            counts.append(count)
            reached = chances[0]
            if reached < WORTH_A_PASS * policy.chance:
                break
        if not counts:
            return super().draft(root, passes, head, uniforms)
        tree, nodes = comb(tuple(counts), policy.width, root.device), torch.cat(tokens)
        return Draft(tree, nodes, nodes[tree.children.clamp(min=0)].masked_fill_(tree.children < 0, -1))


@lru_cache(maxsize=1024)
def comb(counts: tuple[int, ...], width: int, device: torch.device) -> Tree:
    """The tree whose node at depth d, the first of its level, has counts[d] children; its child table has `width` columns."""
    parents, depths, above = [0], [0], 0
    for depth, count in enumerate(counts, 1):
        first = len(parents)
        parents += [above] * count
        depths += [depth] * count
        above = first
    nodes = torch.arange(len(parents), device=device)
    parent_of, depth_of = torch.tensor(parents, device=device), torch.tensor(depths, device=device)
    return whole_tree(parent_of, depth_of, nodes, nodes >= 0, len(counts), width)
