"""OPT-Tree (arXiv 2406.17276): a draft tree chosen in every step. It grows where the drafter is confident, and stops where the
next guess is not worth a node.

The chance that a guess is the target's own draw is estimated before verification. With shared noise both models add the same
noise to their own scores. The more the drafter's winner stands out, the likelier it is the target's winner too. `SHARPNESS`
divides the noisy scores so that their softmax is that chance. The chance that verification reaches a guess is the product along
its path (section 3 of the paper). A guess is kept if that is at least `chance`, the cost of a node in tokens on a machine.
Expected tokens and cost are sums over nodes, so each node is decided separately. The drafter continues after the likeliest
guess alone, for as long as the guesses expected there are worth a pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from .drafting import DraftConfig, Head, Passes, Proposer, RunContext
from .sampling import NO_DRAFT_PROBS, guide, scores
from .trees import Draft, Tree, whole_tree

# The divisor, of 0.4 to 4, under which the softmax of noisy scores best predicts, by likelihood, whether the first guess is
# accepted. Measured on 841 steps of chains of six guesses of the bundled model (8 pictures). Of the guesses predicted at 0.4 to
# 0.6, 4 in 10 were accepted; of those above 0.8, 9 in 10.
SHARPNESS = 0.9
WIDTH, DEPTH = 3, 7  # children of a node, and levels, at most
CHANCE = 0.15  # the default, if nothing is fitted
# The drafter continues after a guess with this many times `chance`. Its pass costs about as much as a node, so that the two
# need twice `chance`, and 6 in 10 of its first guesses are right.
WORTH_A_PASS = 3.2


@dataclass(frozen=True)
class OptTree(DraftConfig):
    """Guesses that verification reaches with a chance of at least `chance`. Raises ValueError for a chance outside (0, 1)."""

    chance: float = CHANCE

    needs_drafter: ClassVar[bool] = True

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

    def proposer(self, run: RunContext) -> Proposer:
        return OptTreeProposer(self, run)


class OptTreeProposer(Proposer):
    """Fills an `OptTree`. The host reads back each level's chances, and decides on the next level."""

    needs_host_sync = True
    slots = DEPTH - 1

    def __init__(self, policy: OptTree, run: RunContext) -> None:
        """Without shared noise, as at temperature 0, children are the drafter's likeliest tokens, fixed by the prefix."""
        super().__init__(run.device)
        self.policy, self.sampling, self.add_noise, self.depth = policy, run.sampling, run.add_noise, policy.deepest
        self.seen = [torch.ones(1, depth, dtype=torch.bool, device=run.device) for depth in range(policy.deepest)]

    def propose(self, root: Tensor, passes: Passes, head: Head, uniforms: Tensor) -> Draft:
        policy, output, reached = self.policy, passes.sync(), 1.0
        tokens, counts = [root], list[int]()
        for depth in range(policy.deepest):
            if depth > 0:
                output = passes.expand(tokens[-1][:1], output, depth, self.seen[depth])
            scored = scores(guide(head(output), self.sampling.cfg_scale), self.sampling, overwrite=True)
            if self.add_noise is not None:
                scored = self.add_noise(scored, passes.position + depth) / SHARPNESS
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
            return super().propose(root, passes, head, uniforms)
        tree, nodes = comb(tuple(counts), policy.width, root.device), torch.cat(tokens)
        return Draft(tree, nodes, nodes[tree.children.clamp(min=0)].masked_fill_(tree.children < 0, -1))


@lru_cache(maxsize=1024)
def comb(counts: tuple[int, ...], width: int, device: torch.device) -> Tree:
    """Return the tree in which the first node of level d has counts[d] children; its child table has `width` columns."""
    parents, depths, above = [0], [0], 0
    for depth, count in enumerate(counts, 1):
        first = len(parents)
        parents += [above] * count
        depths += [depth] * count
        above = first
    nodes = torch.arange(len(parents), device=device)
    parent_of, depth_of = torch.tensor(parents, device=device), torch.tensor(depths, device=device)
    return whole_tree(parent_of, depth_of, nodes, nodes >= 0, len(counts), width)
