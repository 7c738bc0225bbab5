"""Acceptance rules and the walk over a tree against the plain reference, also at every edge."""

import random

import pytest
import torch
from runs import walked
from tables import decide, draw_without_replacement, near_of, neighbour_table, random_probs
from torch import Tensor

from lantern_demo.decoding import reference
from lantern_demo.decoding.accept import Children, decide_greedy
from lantern_demo.decoding.rules import Lantern, LanternPlusPlus, Rule
from lantern_demo.decoding.sampling import Sampling
from lantern_demo.decoding.trees import Draft, Tree, static_tree, whole_tree
from lantern_demo.models.tokenizer import neighbour_table as measured_neighbours

VOCAB = 10
RULES = [Lantern(3, 0.2), Lantern(9, 0.6), LanternPlusPlus(3, 2.0), LanternPlusPlus(9, 5.0)]
ENDS = [
    *(Lantern(k, delta) for k in (0, 1, VOCAB - 1) for delta in (0.0, 1e-30, 1.0)),
    *(LanternPlusPlus(k, bound) for k in (0, 1, VOCAB - 1) for bound in (1.0, 1 + 1e-12, 1e30)),
]


def edge_probs(seed: int) -> Tensor:
    """[nodes, V]: point masses, two tokens, tiny numbers beside large ones, and flat ones."""
    generator = torch.Generator().manual_seed(seed)
    eye = torch.eye(VOCAB)
    pairs = eye * 0.5 + eye.roll(1, 0) * 0.5
    logits = torch.randn(VOCAB, VOCAB, generator=generator)
    sharp = [(factor * logits).softmax(-1) for factor in (60, 200)]
    tiny = torch.full((VOCAB, VOCAB), 1e-40)  # subnormal beside 1
    tiny[:, seed % VOCAB] = 1.0
    return torch.cat([eye, pairs, *sharp, tiny, torch.full((VOCAB, VOCAB), 0.1)])


def tried(p: Tensor, q: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Four children of each node drawn from q [nodes, V], and uniforms away from rounding."""
    generator = torch.Generator().manual_seed(seed)
    tokens = draw_without_replacement(q, torch.rand(len(q), 4, generator=generator))
    return tokens, 0.05 + 0.9 * torch.rand(len(p), 4, generator=generator)


def plainly(
    near: reference.Near, p: list[float], tokens: list[int], q: list[float] | None, u: list[float]
) -> tuple[int, list[float], float]:
    """As `reference.relaxed`, and what an accepted child's verdict hangs on without its neighbours.
    Where nothing is left of p, p without the child stands in, or p itself.
    """
    p, found = [chance / sum(p) for chance in p], None
    for rank, x in enumerate(tokens):
        if x >= 0:
            found, left, rest = reference.relaxed(p, [x], q, u[rank : rank + 1], near)
            if found is not None:
                return rank, p, p[x] / (q[x] if q else 1.0)
            without = [0.0 if y == x else chance for y, chance in enumerate(p)]
            p = next((probs for probs in (left, without) if sum(probs) > 0), p)
            p, q = [chance / sum(p) for chance in p], rest
    return -1, p, 0.0


@pytest.mark.parametrize("sampled", [False, True], ids=["one-hot", "sampled"])
@pytest.mark.parametrize("rule", [Rule(), *RULES, *ENDS], ids=str)
def test_decide_equals_its_reference(
    rule: Rule, sampled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = lambda probs: [chance / (sum(probs) or 1.0) for chance in probs]  # noqa: E731
    monkeypatch.setattr(reference, "normalised", whole)
    neighbours = neighbour_table(VOCAB)
    p = torch.cat([random_probs(60, VOCAB, 1), edge_probs(1)])
    q = torch.cat([random_probs(60, VOCAB, 2), edge_probs(2).roll(3, 0)])
    tokens, uniforms = tried(p, q, 3)
    verdict = decide(rule, p, tokens, q if sampled else None, neighbours, uniforms)
    left = verdict.residual[verdict.rank < 0]
    assert bool((left >= 0).all()) and bool((left.sum(-1) > 0).all())
    residuals = verdict.residual / verdict.residual.sum(-1, keepdim=True)
    # Where p and q are equal but for rounding, what rounding leaves differs, and none is wrong.
    apart = (p - q).clamp(min=0).sum(1)
    compared = ((apart == 0) | (apart >= 1e-5) | (not sampled)).nonzero()[:, 0].tolist()
    assert len(compared) >= 60 + 30
    for i in compared:
        given = p[i].tolist(), tokens[i].tolist(), q[i].tolist() if sampled else None
        u = uniforms[i].tolist()
        rank, wanted, alone = plainly(near_of(rule, neighbours), *given, u)
        assert int(verdict.rank[i]) == rank
        if rank < 0:
            torch.testing.assert_close(residuals[i], torch.tensor(wanted), atol=2e-5, rtol=1e-3)
        else:
            assert (u[rank] >= alone) == bool(rule.relaxes and verdict.relaxed[i, rank])


@pytest.mark.parametrize("rule", [Rule(), *RULES, *ENDS], ids=str)
def test_greedy_a_draft_is_the_likeliest_or_would_be_with_its_neighbours(rule: Rule) -> None:
    p, neighbours = random_probs(100, VOCAB, 4), neighbour_table(VOCAB)
    tokens, _ = tried(p, random_probs(100, VOCAB, 5), 6)
    near = near_of(rule, neighbours)
    verdict = decide_greedy(rule, p, Children(tokens, None, neighbours))
    lists = (part.tolist() for part in (p, tokens, verdict.accepted, verdict.relaxed))
    for row, drafts, accepted, marked in zip(*lists, strict=True):
        top = row.index(max(row))
        lent = [x != top and row[x] + sum(row[y] for y in near(row, x)) > row[top] for x in drafts]
        assert marked == lent
        assert accepted == [x == top or more for x, more in zip(drafts, lent, strict=True)]


@pytest.mark.parametrize("sampled", [False, True], ids=["one-hot", "sampled"])
def test_a_draft_is_marked_where_the_exact_rule_refuses_it(sampled: bool) -> None:
    """Token 0, of p .25 and q .5 or 1: at a uniform of p / q it is refused."""
    p, x, near = torch.tensor([[0.25, 0.25, 0.5]]), torch.tensor([[0]]), neighbour_table(3)
    q, at = (torch.tensor([[0.5, 0.25, 0.25]]), 0.5) if sampled else (None, 0.25)
    for number in (at - 2.0**-25, at, at + 2.0**-24):
        u = torch.tensor([[number]])
        exact, relaxed = (decide(rule, p, x, q, near, u) for rule in (Rule(), Lantern(2, 0.75)))
        assert exact.rank.tolist() == [-1 if number >= at else 0] and relaxed.rank.tolist() == [0]
        assert relaxed.relaxed.tolist() == [[number >= at]]


def test_equal_vectors_are_nearest_and_none_is_its_own_neighbour() -> None:
    """Golden files have the tables of vectors that differ."""
    book = torch.randn(20, 8, generator=torch.Generator().manual_seed(0))
    equal = {2, 5, 11}
    book[list(equal)] = 1.0
    for k in (0, 3, 19):
        for vectors in (book, torch.ones(20, 8)):
            for token, row in enumerate(measured_neighbours(vectors, k).tolist()):
                assert token not in row and len(set(row)) == len(row) == k
    nearest = measured_neighbours(book, 3)[:, :2].tolist()
    assert all(set(nearest[token]) == equal - {token} for token in equal)


def grown(seed: int) -> Tree:
    """A random tree: up to three children a node, and three levels."""
    numbers = random.Random(seed)
    paths = [(choice,) for choice in range(numbers.randint(1, 3))]
    for path in paths:  # also those that it adds
        if len(path) < 3:
            paths += [(*path, choice) for choice in range(numbers.randint(0, 3))]
    return static_tree(paths)


def walk(
    near: reference.Near, draft: Draft, p: list[list[float]], u: list[list[float]]
) -> tuple[list[int], list[str]]:
    """The tokens that a walk commits by the reference, and their kinds."""
    tree, tokens, node = draft.tree, draft.tokens.tolist(), 0
    found: list[int] = []
    kinds: list[str] = []
    while True:
        children = [child for child in tree.children[node].tolist() if child >= 0]
        drafts = [tokens[child] for child in children]
        q = None if draft.q is None else draft.q[tree.rows[node]].tolist()
        rank, left, rest = reference.relaxed(p[node], drafts, q, u[node], near)
        if rank is None:
            return [*found, reference.vanilla(left, u[node][-1])], [*kinds, "target"]
        x = drafts[rank]
        exact = u[node][rank] * (rest[x] if rest else 1.0) < left[x]
        kinds.append("exact" if exact else "relaxed")
        found.append(x)
        node = children[rank]


@pytest.mark.parametrize("sampled", [False, True], ids=["one-hot", "sampled"])
@pytest.mark.parametrize("rule", [Rule(), RULES[0], RULES[2]], ids=str)
def test_a_walk_is_the_references(rule: Rule, sampled: bool) -> None:
    """Of static trees with drawn drafts, and of trees in which each node may have children."""
    generator, neighbours = torch.Generator().manual_seed(0), neighbour_table(VOCAB)
    seen = set()
    for seed in range(300):
        tree = grown(seed)
        if not sampled:
            nodes = torch.arange(tree.size)
            shape = tree.depth, tree.width
            tree = whole_tree(tree.parents, tree.depths, nodes, nodes >= 0, *shape)
        logits = 1.5 * torch.randn(tree.size, VOCAB, generator=generator)
        q = random_probs(len(tree.inner), VOCAB, seed)
        heights = torch.rand(len(q) + tree.size, tree.width + 1, generator=generator).double()
        drawn = draw_without_replacement(q, heights[: len(q), :-1])
        children = tree.of_inner(tree.children)
        drawn.masked_fill_(children < 0, -1)
        tokens = torch.zeros(tree.size, dtype=torch.int64)
        tokens[children[children >= 0]] = drawn[children >= 0]
        draft, u = Draft(tree, tokens, drawn, q if sampled else None), heights[len(q) :]
        step = walked(rule, draft, logits, Sampling(), neighbours, u)
        wanted = walk(near_of(rule, neighbours), draft, logits.softmax(-1).tolist(), u.tolist())
        assert (step.tokens, step.kinds) == wanted
        seen |= {len(step.tokens), *step.kinds}
    assert seen == {1, 2, 3, 4, "exact", "target"} | ({"relaxed"} if rule.relaxes else set())
