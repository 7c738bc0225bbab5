"""Table models: a target and a drafter so small that their distributions can be written down.

The target's next token depends on the last two. It finds the one before last in its cache, by mask
and positions, and fails unless it is there once: no wrong mask, depth or commit passes unnoticed.
"""

import itertools
from typing import NamedTuple

import torch
from torch import Tensor

from lantern_demo.decoding import accept, reference, sampling, verify
from lantern_demo.decoding.accept import Children
from lantern_demo.decoding.cache import KVCache
from lantern_demo.decoding.interfaces import Pass
from lantern_demo.decoding.rules import Lantern, LanternPlusPlus, Rule


class TableTarget:
    """Logits [R, V * V, V] by state (token before last, last token); hidden states are one-hot."""

    def __init__(self, vocab: int, seed: int) -> None:
        self.vocab_size = vocab
        generator = torch.Generator().manual_seed(seed)
        self.table = 1.5 * torch.randn(2, vocab * vocab, vocab, generator=generator)

    def new_cache(self, rows: int, length: int) -> KVCache:
        return KVCache(1, rows, 1, length + 4, 2)

    def prefill(self, condition: Tensor, cache: KVCache) -> Tensor:
        rows, count = cache.k.shape[1], condition.shape[0]
        places = torch.arange(count)
        self._store(condition, places, places, cache)
        cache.start(count)
        before = torch.cat([condition[:1] * 0, condition[:-1]])
        return self._states(before, condition, rows)

    def forward(self, nodes: Pass, cache: KVCache) -> Tensor:
        tokens, positions, slots, visible = nodes
        self._store(tokens, positions, slots, cache)
        visible = torch.arange(nodes.end) <= slots.unsqueeze(1) if visible is None else visible
        seen, places = cache.k[0, 0, 0, : nodes.end].unbind(1)
        before = visible & (places == positions.unsqueeze(1) - 1)
        assert bool((before.sum(1) == 1).all()), "what is before a node is visible exactly once"
        assert bool((visible.sum(1) == positions + 1).all()), "a node sees its own past alone"
        return self._states((before * seen).sum(1).long(), tokens, cache.rows)

    def head(self, hidden: Tensor) -> Tensor:
        return hidden @ self.table[: hidden.shape[0]]

    def _store(self, tokens: Tensor, positions: Tensor, slots: Tensor, cache: KVCache) -> None:
        entry = torch.stack([tokens.float(), positions.float()], dim=1)
        (store,) = cache.stores(slots, cache.slots)
        store(entry.expand(cache.rows, 2, -1, 2))

    def _states(self, before: Tensor, last: Tensor, rows: int) -> Tensor:
        states = torch.nn.functional.one_hot(before * self.vocab_size + last, self.vocab_size**2)
        return states.float().expand(rows, -1, -1).clone()


class TableDrafter:
    """Sees the last two tokens, too, but blends their state's logits with another state's."""

    guided = False

    def __init__(self, target: TableTarget) -> None:
        self.vocab, self.new_cache = target.vocab_size, target.new_cache

    def prefill(self, hidden: Tensor, token: Tensor, cache: KVCache, _: object = None) -> None:
        cache.start(hidden.shape[1])

    def forward(self, nodes: Pass, hidden: Tensor, cache: KVCache) -> Tensor:
        tokens, positions, slots, visible = nodes
        count = tokens.shape[0]
        assert hidden.shape[:2] == (cache.rows, count) and len(positions) == len(slots) == count
        if visible is None:
            return self._blend(hidden[:, -1:], tokens[-1:])
        assert bool((visible.sum(1) == positions + 1).all()), "a slot sees its own past alone"
        return self._blend(hidden, tokens)

    def _blend(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        """Outputs for tokens behind hidden states: one-hot for the target's, blends for its own."""
        last = hidden[0].argmax(-1) % self.vocab
        states = torch.stack((last, last + 1)) % self.vocab * self.vocab + tokens
        here, other = torch.nn.functional.one_hot(states, self.vocab**2)
        return (0.6 * here + 0.4 * other).expand(hidden.shape[0], -1, -1)


def neighbour_table(vocab: int) -> Tensor:
    """[V, V - 1] int64: each token's others, in a random order that stands for distance."""
    generator = torch.Generator().manual_seed(5)
    order = torch.rand(vocab, vocab, generator=generator).fill_diagonal_(2.0).argsort(1)
    return order[:, :-1]


def random_probs(rows: int, vocab: int, seed: int) -> Tensor:
    """[rows, V] float32 random distributions."""
    generator = torch.Generator().manual_seed(seed)
    return (1.5 * torch.randn(rows, vocab, generator=generator)).softmax(-1)


def draw_without_replacement(q: Tensor, u: Tensor) -> Tensor:
    """Tokens [P, C] as `sampling.draw_in_turn` draws them from q [P, V]; -1 with nothing left."""
    exhausted = torch.arange(u.shape[1]) >= (q > 0).sum(1, keepdim=True)
    return sampling.draw_in_turn(q, u).masked_fill(exhausted, -1)


class Decision(NamedTuple):
    """What was decided at P nodes of C drafts, in plain numbers."""

    rank: Tensor  # [P] of the accepted draft, -1 for none
    residual: Tensor  # [P, V]
    relaxed: Tensor  # [P, C] bool, of the accepted draft alone


def decide(
    rule: Rule, p: Tensor, tokens: Tensor, q: Tensor | None, near: Tensor | None, u: Tensor
) -> Decision:
    """`accept.decide` in plain numbers."""
    verdict = accept.decide(rule, p, Children(tokens, q, near), u)
    rank = verify.first(verdict.accepted)
    taken = torch.arange(tokens.shape[1]) == rank.unsqueeze(1)
    relaxed = taken & False if verdict.relaxed is None else taken & verdict.relaxed
    return Decision(rank.masked_fill(~taken.any(1), -1), verdict.residual, relaxed)


def near_of(rule: Rule, neighbours: Tensor) -> reference.Near:
    if not isinstance(rule, Lantern):
        return reference.exact
    plus_plus = isinstance(rule, LanternPlusPlus)
    near = reference.lantern_plus_plus if plus_plus else reference.lantern
    return near(neighbours.tolist(), rule.k, rule.bound)


def orders_of(q: Tensor, draws: int) -> tuple[Tensor, Tensor]:
    """All orders [n, draws] in which the program can draw tokens from q, and their chances [n]."""
    tokens = (q > 0).nonzero()[:, 0].tolist()
    some = min(draws, len(tokens))  # further draws find nothing
    heights, chances, orders = [], [], []
    for order in itertools.permutations(tokens, some):
        left, row, chance = q.double(), [0.5] * draws, 1.0
        for i, x in enumerate(order):
            sums = left.cumsum(0)
            row[i] = float((sums[x] - left[x] / 2) / sums[-1])
            chance *= float(left[x] / sums[-1])
            left = left.index_fill(0, torch.tensor([x]), 0.0)
        if chance > 1e-15:
            heights, chances, orders = [*heights, row], [*chances, chance], [*orders, order]
    u = torch.tensor(heights, dtype=torch.float64)
    drawn = draw_without_replacement(q.expand(len(u), -1), u)
    assert drawn.tolist() == [[*order, *[-1] * (draws - some)] for order in orders]
    return drawn, torch.tensor(chances, dtype=torch.float64)


def emitted_at(
    rule: Rule,
    p: Tensor,
    q: Tensor | None,
    drawn: Tensor,
    reached: Tensor,
    neighbours: Tensor | None,
    depth: float = 0.0,
) -> Tensor:
    """The law of the first emitted token, by the program's verdicts on rows with their chances."""
    count, draws = drawn.shape
    children = Children(drawn, None if q is None else q.expand(count, -1), neighbours, depth)
    # a threshold rises evenly with its uniform, or not at all
    foot, verdict = (
        accept.decide(rule, p.expand(count, -1), children, torch.full((count, draws), u))
        for u in (0.0, 1.0)
    )
    score, low, height = verdict.score, foot.threshold, verdict.threshold - foot.threshold
    share = (score - low).double() / height.clamp(min=1e-30)
    accepted = torch.where(height > 0, share, (score > low) * 1.0)
    # behind a draft that is always accepted is no number
    accepted = accepted.nan_to_num().clamp(0.0, 1.0) * verdict.tried
    law = torch.zeros_like(p).double()
    for x, chance in zip(drawn.unbind(1), accepted.unbind(1), strict=True):
        law.index_add_(0, x.clamp(min=0), reached * chance)
        reached = reached * (1 - chance)
    residual = (verdict.residual / verdict.residual.sum(-1, keepdim=True)).nan_to_num()
    return law + (reached.unsqueeze(1) * residual.double()).sum(0)
