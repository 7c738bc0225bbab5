"""Sources of drafts, static trees, dynamic growth against a slow reference."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from lantern_demo.decoding import drafting
from lantern_demo.decoding.drafting import DynamicTree, RunContext, StaticTree, check_sizes
from lantern_demo.decoding.interfaces import DEEPEST
from lantern_demo.decoding.sampling import Sampling
from lantern_demo.decoding.trees import Tree, static_tree


def test_the_drawn_tree_has_the_numbers_beside_it() -> None:
    tree, told = static_tree([(0,), (1,), (0, 0)], torch.device("cpu")), Tree.__doc__
    assert told is not None
    for name in ("parents", "depths", "inner", "rows", "drawn_at"):
        assert f"{name} {' '.join(map(str, getattr(tree, name).tolist()))}" in told
    for name in ("children", "onward"):
        rows = (" ".join(map(str, row)) for row in getattr(tree, name).tolist())
        assert f"{name} [{'] ['.join(rows)}]" in told


@pytest.mark.parametrize(
    ("paths", "complaint"),
    [
        ([], "no paths"),
        ([(0,), (0,)], "twice"),
        ([(0,), ()], "root"),
        ([(0,), (1, 0)], r"not its parent \(1,\)"),
        ([(-1,)], r"\(-1,\)"),
        ([(0,), (2,)], r"not its sibling \(1,\)"),
    ],
)
def test_paths_that_make_no_tree(paths: object, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        StaticTree(paths)


def slow_growth(probs: PathProbs, drafts: DynamicTree) -> dict[tuple[int, ...], float]:
    """Obvious reference: all proposals by their token path, the best ones with their scores."""
    pool: dict[tuple[int, ...], float] = {}
    beam: dict[tuple[int, ...], float] = {(): 0.0}
    for _ in range(drafts.depth + 1):
        proposals = {}
        for path, score in beam.items():
            top = probs(path).topk(drafts.top_k)
            for step, token in zip(top.values, top.indices, strict=True):
                proposals[(*path, int(token))] = score + float(step)
        pool.update(proposals)
        beam = dict(sorted(proposals.items(), key=lambda item: -item[1])[: drafts.top_k])
    return dict(sorted(pool.items(), key=lambda item: -item[1])[: drafts.nodes - 1])


class PathProbs:
    """Random log-probabilities by token path, and passes whose outputs are places in `paths`."""

    def __init__(self, vocab: int, seed: int, kept: int | None = None) -> None:
        self.vocab, self.seed, self.kept = vocab, seed, kept
        self.paths: list[tuple[int, ...]] = [()]

    def __call__(self, path: tuple[int, ...]) -> Tensor:
        generator = torch.Generator().manual_seed(hash((self.seed, path)) % 2**31)
        logits = torch.randn(self.vocab, generator=generator)
        if self.kept is not None:
            logits[logits < logits.topk(self.kept).values[-1]] = -math.inf
        return logits.log_softmax(-1)

    def sync(self) -> Tensor:
        return torch.zeros(1, 1, 1)

    def expand(self, tokens: Tensor, hidden: Tensor, depth: int, mask: Tensor) -> Tensor:
        above, first = hidden[0, :, 0].long().tolist(), len(self.paths)
        beam = [(*self.paths[p], int(token)) for p, token in zip(above, tokens, strict=True)]
        assert all(len(path) == depth for path in beam)
        self.paths += beam
        for path, row in zip(beam, mask.tolist(), strict=True):
            seen = [slot for slot, visible in zip(self.paths[1:], row, strict=True) if visible]
            assert seen == [path[: i + 1] for i in range(depth)]
        return torch.arange(first, len(self.paths)).float().view(1, -1, 1)

    def head(self, hidden: Tensor) -> Tensor:
        return torch.stack([self(self.paths[at]) for at in hidden[0, :, 0].long().tolist()])[None]


def context(vocab: int) -> RunContext:
    return RunContext(Sampling(), torch.device("cpu"), vocab, 8)


def grown(probs: PathProbs, drafts: DynamicTree) -> tuple[Tree, Tensor]:
    proposer = drafts.proposer(context(probs.vocab))
    draft = proposer.propose(torch.zeros(1).long(), probs, probs.head, torch.empty(0))
    return draft.tree, draft.tokens


def paths_of(tree: Tree, tokens: Tensor) -> list[tuple[int, ...]]:
    """The nodes' token paths. All see their ancestors; but for padding all are children."""
    paths: list[tuple[int, ...]] = [()]
    for node in range(1, tree.size):
        *above, parent, itself = tree.mask[node].nonzero()[:, 0].tolist()
        assert [*above, parent] == tree.mask[parent].nonzero()[:, 0].tolist()
        assert parent < itself == node and int(tree.parents[node]) in (parent, node)
        paths.append((*paths[parent], int(tokens[node])))
    assert tree.depths.tolist() == [len(path) for path in paths]
    for node in range(tree.size):
        below = [child for child in range(1, tree.size) if tree.parents[child] == node != child]
        assert [child for child in tree.children[node].tolist() if child >= 0] == below
    return paths


GROWN = [(DynamicTree(*shape), 16, None) for shape in ((4, 3, 20), (3, 0, 3), (1, 4, 6))]
GROWN += [(DynamicTree(*shape), 16, None) for shape in ((10, 4, 59), (5, 2, 56))]
GROWN += [(DynamicTree(4, 3, 30), 8, kept) for kept in (1, 2)]  # so few tokens have mass


@pytest.mark.parametrize(("drafts", "vocab", "kept"), GROWN)
def test_growth_equals_its_slow_reference(
    drafts: DynamicTree, vocab: int, kept: int | None
) -> None:
    """Where too few tokens have mass, padding nodes are well-formed and cannot be reached."""
    for seed in range(5):
        probs = PathProbs(vocab, seed, kept)
        tree, tokens = grown(probs, drafts)
        paths = paths_of(tree, tokens)
        scores = slow_growth(probs, drafts)
        wanted = {(), *(path for path, score in scores.items() if math.isfinite(score))}
        assert wanted <= set(paths)
        padding = [node for node in range(1, tree.size) if tree.parents[node] == node]
        assert padding == [node for node, path in enumerate(paths) if path not in wanted]
        assert bool(((tokens >= 0) & (tokens < vocab)).all())
        for node in range(tree.size):  # siblings: most likely first
            children = [int(child) for child in tree.children[node] if child >= 0]
            steps = [float(probs(paths[node])[tokens[child]]) for child in children]
            assert steps == sorted(steps, reverse=True)


def test_tied_scores_keep_parents(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every log-probability 0: ties everywhere, yet each kept node's parent is kept."""
    monkeypatch.setattr(drafting, "probabilities", lambda logits, *_, **__: torch.ones_like(logits))
    tree, tokens = grown(PathProbs(5, 0), DynamicTree(3, 3, 12))
    assert len(set(paths_of(tree, tokens))) == 12
    assert not any(int(tree.parents[node]) == node for node in range(1, 12))


def test_vocabulary_smaller_than_the_beam() -> None:
    with pytest.raises(ValueError, match=r"top_k is 6.*at most the vocabulary size 5"):
        grown(PathProbs(5, 0), DynamicTree(6, 1, 5))


def check_chain(deepest: int, /, **wrong: int) -> None:
    """Check the shape of a chain of drafts, which may say something wrong of itself."""
    drafts = type("Chain", (StaticTree,), wrong)((0,) * depth for depth in range(1, deepest + 1))
    check_sizes(drafts, drafts.proposer(context(8)))


@pytest.mark.parametrize("wrong", [{"nodes": 2}, {"width": 0}, {"deepest": 1}])
def test_a_shape_unlike_its_drafts_is_refused(wrong: dict[str, int]) -> None:
    """With too small a width a draft and the bonus token would share a random number."""
    with pytest.raises(ValueError, match="Chain has nodes, width and deepest"):
        check_chain(2, **wrong)


def test_drafts_deeper_than_the_models_positions_are_refused() -> None:
    """On a GPU they would end the process."""
    check_chain(DEEPEST)
    with pytest.raises(ValueError, match=rf"Chain.deepest is {DEEPEST + 1}.*at most {DEEPEST}"):
        check_chain(DEEPEST + 1)
