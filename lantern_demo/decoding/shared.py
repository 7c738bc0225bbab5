"""Shared noise: everybody draws with the same numbers, and verification is a comparison. Of each place i of the picture, with one vector
of Gumbel noise G_i (see `noise`):

    target     its own draw there is y_i = argmax(logits / T + G_i) over what top-k and top-p leave; at temperature 0 there is no noise
    vanilla    draws y_i
    drafter    a node's children are the top of its own logits / T + G_i; a dynamic tree's, and a window's guesses, are what they are
    exact      a child that equals y_i is accepted, else y_i is the bonus token
    relaxed    the first child x in whose set near(x) y_i lies is accepted; near(x) is that of `acceptance`, and each token belongs to
               the first child's set that has it

So the tokens of every exact method are vanilla's, whatever the tree and the drafter: speculative decoding that does not depend on its
drafter (Daliri and others, arXiv 2408.07978), with several drafts (Gumbel-max list sampling, arXiv 2506.05632). Relaxed rules draw
by LANTERN's own law from children that the prefix fixes; where children are drawn it is another rule than LANTERN++'s published one.

The other way, `dice="own"`, is the papers' rejection sampling: see `acceptance` and `verify`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .acceptance import Met, Rule, decide_shared
from .config import Config
from .noise import gumbel_
from .sampling import NO_LAW, scores
from .trees import Draft
from .verify import Compared, Outcome, Walk, likeliest, onward, walk


class Drawn(NamedTuple):
    """What the target drew at the nodes of a tree."""

    own: Tensor  # [n] int64, its own draws; -2 where there is no law to draw from
    following: Tensor  # [n] int64, the child that was accepted at each node, or the node itself
    met: Met | None = None  # by its children; None for the root alone


class SharedNoise:
    """How a run with shared noise draws and judges. All its tensors stay where they are, so that a captured step may hold on to them."""

    def __init__(self, config: Config, vocabulary: int) -> None:
        self.rule = config.rule if config.rule.columns else Rule()
        self.sampling, self.neighbours = config.sampling, config.neighbours
        # drafts may reach behind the picture's end
        places = 0 if self.sampling.greedy else (config.room or config.num_tokens) + config.tree.deepest + 1
        self.noise = torch.empty(places, vocabulary, device=config.place)
        self.next = torch.ones(1, dtype=torch.int64, device=config.place)  # the place that the root draws
        self.state: tuple[Tensor, ...] = (self.next,)
        self.judged = 0, 0

    def begin(self, seed: int) -> None:
        """A run starts; its first token is there."""
        self.next.fill_(1)
        gumbel_(self.noise, seed)

    def first(self, logits: Tensor, uniforms: Tensor, seed: int) -> Tensor:
        """The picture's first token [1], from guided logits [1, V]."""
        scored = scores(logits, self.sampling)
        return likeliest(scored if self.sampling.greedy else scored + gumbel_(torch.empty_like(scored), seed))

    def look(self, logits: Tensor) -> Tensor:
        """What is drawn from: scores [n, V] of guided logits [n, V], which nobody reads again."""
        return scores(logits, self.sampling, spent=True)

    def law(self, scored: Tensor) -> Tensor:
        """The probabilities [n, V] of scores [n, V]."""
        return scored.softmax(-1)

    def noisy(self, scored: Tensor, depths: Tensor | int) -> Tensor:
        """Scores [m, V] of nodes at these depths, with the noise of the places that they draw."""
        return scored if self.sampling.greedy else scored + self.noise.index_select(0, self.next + depths)

    def each(self, scored: Tensor, places: Tensor, uniforms: Tensor) -> Tensor:
        """Tokens [n] of n places, each drawn for itself."""
        return likeliest(scored if self.sampling.greedy else scored + self.noise.index_select(0, places))

    def judge(self, draft: Draft, scored: Tensor, uniforms: Tensor) -> Drawn:
        """Hold a draft against the target's own draws."""
        tree = draft.tree
        if tree.size == 1:
            return Drawn(self.each(scored, self.next, uniforms), tree.parents)
        own = likeliest(self.noisy(scored, tree.depths))
        at_inner = own if tree.whole else own.index_select(0, tree.inner)
        p = None
        if self.rule.relaxes:
            p = self.law(scored if tree.whole else scored.index_select(0, tree.inner))
        met = decide_shared(self.rule, p, draft.drawn, at_inner, self.neighbours)
        return Drawn(own, onward(tree, met.rank), met)

    def walk(self, draft: Draft, found: Drawn) -> Walk:
        """The accepted path, on the device."""
        if draft.tree.size == 1:
            return Walk(draft.tree.parents, draft.tree.depths, found.own)
        path = walk(draft.tree, found.following)
        last = path[-1:]
        return Walk(path, draft.tree.depths.index_select(0, last), found.own.index_select(0, last))

    def seen(self, found: Drawn) -> Tensor:
        """The target's own draws."""
        return found.own

    def report(self, draft: Draft, found: Drawn) -> Tensor:
        """All that the host wants to know of a step, [4 n] int64, to be read at once by `read`."""
        return torch.cat([found.own, found.following, draft.tokens, draft.tree.parents])

    def read(self, row: list[int], size: int, depth: int, laws: int) -> Outcome:
        """A `report` of a tree of `size` nodes; what is behind it does not count. Raises FloatingPointError where a law was none."""
        own, following, tokens, parents = (row[i * size : (i + 1) * size] for i in range(4))
        path = [0]
        while (node := following[path[-1]]) != path[-1]:
            path.append(node)
        drawn = [own[node] for node in path]
        if min(drawn) < 0:
            raise FloatingPointError(NO_LAW)
        accepted = [tokens[node] for node in path[1:]]
        relaxed = [token != y for token, y in zip(accepted, drawn, strict=False)]
        return Outcome(path, [*accepted, drawn[-1]], relaxed, tokens, parents)

    def evidence(self, outcome: Outcome, draft: Draft, found: Drawn) -> Outcome:
        """The outcome with what was compared along its path, in order; reads it back to the host."""
        if found.met is None:
            return outcome
        rows, children, own = draft.tree.inner_rows.tolist(), draft.tree.children.tolist(), found.own.tolist()
        compared = []
        for node, chosen in zip(outcome.path, [*outcome.path[1:], -1], strict=True):
            if rows[node] < 0:
                break
            ids, drafts = found.met.ids[rows[node]], draft.drawn[rows[node]].tolist()
            inside = torch.ones_like(ids) if found.met.outside is None else found.met.outside[rows[node]] == 0
            for child, token, near, counts in zip(children[node], drafts, ids.tolist(), inside.tolist(), strict=True):
                if child >= 0 and token >= 0:
                    near = [one for one, counted in zip(near, counts, strict=True) if counted]
                    compared.append(Compared(child, own[node], near.index(own[node]) if own[node] in near else -1, len(near)))
                if child == chosen >= 0:
                    break
        return outcome._replace(compared=compared)

    def move(self, depth: Tensor) -> None:
        """A step has committed the nodes down to a depth [1], and a token behind them."""
        self.next.add_(depth).add_(1)
