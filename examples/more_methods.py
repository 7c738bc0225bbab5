"""OPT-Tree (arXiv 2406.17276) from outside the package: a draft source is a `DraftConfig` and a
`Proposer`.

Run `python examples/more_methods.py` to race it against vanilla and EAGLE-1 on the bundled model.
Its options are those of `python -m lantern_demo.bench speed`, such as `--prompts 12`. `register`
adds it to one process, as in more_rules.py.

The tree is chosen in every step. It grows where the drafter is sure, and stops where a draft is not
worth a node. With shared noise both models add the same noise to their scores. The more the
drafter's best token stands out, the likelier it is the target's own draw. SHARPNESS divides the
noisy scores so that their softmax is that chance. The chance that verification reaches a draft is
the product along its path (section 3 of the paper). The tree keeps a draft whose chance is at least
`chance`, the cost of a node in tokens. The drafter goes on after the likeliest draft alone.

The host reads the chances in every step. So `needs_host_sync` is set, and no GPU captures these
steps.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from lantern_demo import Method, register
from lantern_demo.bench import __main__ as bench
from lantern_demo.decoding.drafting import DraftConfig, Head, Passes, Proposer, RunContext
from lantern_demo.decoding.rules import Rule
from lantern_demo.decoding.sampling import NO_DRAFT_PROBS, guide, scores
from lantern_demo.decoding.trees import Draft, Tree, whole_tree
from lantern_demo.shutdown import stoppable

# Of the divisors 0.4 to 4 this one best predicts, by likelihood, whether the first draft is
# accepted. Measured on 860 steps of the bundled model: of the drafts predicted at 0.4 to 0.6, 6 in
# 10 were accepted; of those above 0.8, 9 in 10.
SHARPNESS = 0.9
# The drafter goes on after a draft with this many times `chance`: its pass costs about as much as a
# node, so that the two need twice `chance`, and 6 in 10 of its first drafts are right.
WORTH_A_PASS = 3.2


@dataclass(frozen=True)
class OptTree(DraftConfig):
    """Drafts that verification reaches with a chance of at least `chance`.

    Raises ValueError outside (0, 1).
    """

    chance: float = 0.15

    needs_drafter: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 < self.chance < 1:
            raise ValueError(f"chance is {self.chance}; it must be between 0 and 1, both excluded")

    @property
    def nodes(self) -> int:
        return 1 + self.width * self.deepest

    @property
    def width(self) -> int:
        return min(3, int(1 / self.chance))  # the chances of children sum to 1 at most

    @property
    def deepest(self) -> int:
        return 7

    def proposer(self, run: RunContext) -> Proposer:
        return OptTreeProposer(self, run)


class OptTreeProposer(Proposer):
    """Fills an `OptTree`, level by level."""

    needs_host_sync = True

    def __init__(self, drafts: OptTree, run: RunContext) -> None:
        """Without shared noise, or at temperature 0, children are the drafter's likeliest."""
        super().__init__(run.device)
        self.drafts = drafts
        self.sampling = run.sampling
        self.add_noise = run.add_noise
        self.slots = drafts.deepest - 1
        self.device = run.device

    def propose(self, root: Tensor, passes: Passes, head: Head, uniforms: Tensor) -> Draft:
        drafts = self.drafts
        output = passes.sync()
        tokens = [root]
        counts = list[int]()
        reached = 1.0
        for depth in range(drafts.deepest):
            if depth > 0:
                seen = torch.ones(1, depth, dtype=torch.bool, device=self.device)
                output = passes.expand(tokens[-1][:1], output, depth, seen)
            scored = scores(guide(head(output), self.sampling.cfg_scale), self.sampling)
            if self.add_noise is not None:
                scored = self.add_noise(scored, passes.position + depth) / SHARPNESS
            likeliest = scored.softmax(-1)[0].topk(drafts.width)
            chances = [reached * chance for chance in likeliest.values.tolist()]
            if not chances[0] > 0:
                raise FloatingPointError(NO_DRAFT_PROBS)
            count = sum(chance >= drafts.chance for chance in chances)
            if count == 0:
                break
            tokens.append(likeliest.indices[:count])
            counts.append(count)
            reached = chances[0]
            if reached < WORTH_A_PASS * drafts.chance:
                break
        if not counts:
            return super().propose(root, passes, head, uniforms)
        tree = comb(tuple(counts), drafts.width, self.device)
        nodes = torch.cat(tokens)
        return Draft(
            tree, nodes, nodes[tree.children.clamp(min=0)].masked_fill_(tree.children < 0, -1)
        )


@lru_cache(maxsize=1024)
def comb(counts: tuple[int, ...], width: int, device: torch.device) -> Tree:
    """Return the tree whose first node of level d has counts[d] children, `width` at most."""
    parents, depths, above = [0], [0], 0
    for depth, count in enumerate(counts, 1):
        first = len(parents)
        parents += [above] * count
        depths += [depth] * count
        above = first
    nodes = torch.arange(len(parents), device=device)
    parent_of = torch.tensor(parents, device=device)
    depth_of = torch.tensor(depths, device=device)
    return whole_tree(parent_of, depth_of, nodes, nodes >= 0, len(counts), width)


OPT_TREE = Method(
    "opt-tree",
    "OPT-Tree",
    OptTree,
    Rule(),
    True,
    "A draft tree chosen in each step, exact acceptance.",
    False,
)


def main(argv: Sequence[str]) -> None:
    """Race it as `python -m lantern_demo.bench speed` does, with that command's options."""
    register(OPT_TREE)
    bench.main(["speed", "--methods", "vanilla", "eagle1", OPT_TREE.id, *argv])


if __name__ == "__main__":
    with stoppable():
        main(sys.argv[1:])
