"""What a CPU's twins compute for a node is the same to the bit, however many nodes are in the pass and wherever its ancestors lie."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from runs import decode
from test_fixed import settings
from test_lean import TEXT, strong
from torch import Tensor

from lantern_demo.decoding.sampling import Sampling, guide
from lantern_demo.decoding.trees import Tree, static_tree
from lantern_demo.models import bundled
from lantern_demo.models.common import Condition
from lantern_demo.models.cpu import SERIAL, LeanCache, Norm, by_rows
from lantern_demo.models.llamagen.cpu import LeanDrafter, LeanTarget
from lantern_demo.models.llamagen.drafter import Drafter, DrafterConfig
from lantern_demo.models.llamagen.target import LlamaGen
from lantern_demo.models.products import ROW_EXACT, product, supported
from lantern_demo.models.registry import BUNDLED

MOST = 58  # nodes of the largest pass
SCALE = 7.5  # of the guidance
KINDS = [kind for kind in ROW_EXACT if supported(kind)]
SMALL = replace(TEXT, layers=2, ffn=320, vocab=96, grid=12)  # room for the largest pass at a few places
GENERATOR = torch.Generator()


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    GENERATOR.manual_seed(0)
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def small() -> LlamaGen:
    torch.manual_seed(0)
    return strong(LlamaGen(SMALL))


@pytest.fixture(scope="module")
def networks() -> Any:
    return bundled.load(BUNDLED / "lantern-scenes", torch.device("cpu"))


class Picture:
    """A picture's tokens, read one by one: what every other way of reading them must come to."""

    def __init__(self, twin: LeanTarget, rows: int, padded: int) -> None:
        c = twin.config
        self.twin, self.rows = twin, rows
        features = torch.randn(rows, c.prefix, c.caption_dim, generator=GENERATOR)
        self.condition = Condition(features, (torch.arange(c.prefix) >= padded).expand(rows, -1) if padded else None)
        self.tokens = torch.randint(c.vocab, (c.tokens,), generator=GENERATOR)
        cache, alone = self.cache(), static_tree(())
        self.logits = []  # behind each token
        for token in self.tokens.split(1):
            self.logits.append(self.read(token, alone, cache)[0])
            cache.advance(1)

    def cache(self) -> LeanCache:
        cache = self.twin.new_cache(self.rows, len(self.tokens) + MOST)
        self.twin.prefill(self.condition, cache)
        return cache

    def read(self, tokens: Tensor, tree: Tree, cache: LeanCache) -> Tensor:
        """Guided logits [n, V] of a tree's nodes."""
        hidden = self.twin.forward(tokens, tree.depths, tree.mask, cache)
        return guide(self.twin.head(hidden), SCALE)

    def read_chain(self, committed: int, count: int, cache: LeanCache) -> None:
        """Read tokens of the picture as a chain behind so many committed ones, and look at what comes of it."""
        found = self.read(self.tokens[committed : committed + count], chain(count), cache)
        for node in range(count):
            assert torch.equal(found[node], self.logits[committed + node]), (committed, count, node)


def chain(count: int) -> Tree:
    return static_tree([(0,) * depth for depth in range(1, count)])


def branching(size: int, draw: random.Random) -> Tree:
    """A tree of so many nodes that branches at random."""
    children = {(): 0}
    while len(children) < size:
        parent = draw.choice([path for path in children if len(path) < 6])
        children[(*parent, children[parent])] = 0
        children[parent] += 1
    return static_tree([path for path in children if path])


def path_to(node: int, tree: Tree) -> list[int]:
    """The nodes from the root to a node, these included."""
    path = [node]
    while path[0]:
        path.insert(0, int(tree.parents[path[0]]))
    return path


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("rows", "padded", "prefix"), [(2, 0, 7), (2, 3, 7), (1, 0, 7), (2, 0, 1)], ids=["guided", "padded", "alone", "short"]
)
def test_chains_of_every_size(kind: str, rows: int, padded: int, prefix: int) -> None:
    picture = Picture(LeanTarget(strong(LlamaGen(replace(SMALL, prefix=prefix))), kind), rows, padded)
    cache = picture.cache()
    for committed, following in ((0, 33), (33, 82), (82, None)):
        for count in range(1, MOST + 1):
            picture.read_chain(committed, count, cache)
        if following:
            picture.read_chain(committed, following - committed, cache)
            cache.advance(following - committed)


@pytest.mark.parametrize("kind", KINDS)
def test_branching_trees(small: LlamaGen, kind: str) -> None:
    """The picture's tokens lie along some path of each tree; others hang beside it. Its nodes have what was read one by one, and so has
    what comes after they have moved up."""
    picture, draw, committed = Picture(LeanTarget(small, kind), 2, 3), random.Random(0), 0
    cache = picture.cache()
    for size in (5, 2, 16, 58, 9, 30, 3, 43, 24, 58):
        tree = branching(size, draw)
        path = path_to(max(range(size), key=lambda node: (int(tree.depths[node]), draw.random())), tree)
        tokens = torch.randint(SMALL.vocab, (size,), generator=GENERATOR)
        tokens[path] = picture.tokens[committed : committed + len(path)]
        found = picture.read(tokens, tree, cache)
        for place, node in enumerate(path, start=committed):
            assert torch.equal(found[node], picture.logits[place]), (size, path, node)
        cache.commit(torch.tensor(path))
        committed += len(path)


@pytest.mark.parametrize("kind", KINDS)
def test_any_node_is_as_at_the_end_of_a_chain(small: LlamaGen, kind: str) -> None:
    picture, draw = Picture(LeanTarget(small, kind), 2, 0), random.Random(1)
    cache = picture.cache()
    tree = branching(40, draw)
    tokens = torch.randint(SMALL.vocab, (40,), generator=GENERATOR)
    found = picture.read(tokens, tree, cache)
    for node in range(40):
        path = path_to(node, tree)
        assert torch.equal(found[node], picture.read(tokens[path], chain(len(path)), cache)[-1]), path


@pytest.mark.parametrize("kind", KINDS)
def test_places_out_of_order(small: LlamaGen, kind: str) -> None:
    """As a wavefront reads them: the slots are given, and the bias hides what has not been read."""
    picture = Picture(LeanTarget(small, kind), 2, 0)
    cache, first = picture.cache(), SMALL.prefix
    for places in ([0], [1], [2, 3], [4, 5, 6, 7, 8, 9, 10, 11, 12, 13]):
        slots = first + torch.tensor(places)
        end = first + places[-1] + 1 + 5  # and some that nobody sees
        bias = torch.where(torch.arange(end) <= slots[:, None], 0.0, -torch.inf)[None, None]
        hidden = picture.twin.forward_at(picture.tokens[places], slots, slots, bias, cache)
        found = guide(picture.twin.head(hidden), SCALE)
        for node, place in enumerate(places):
            assert torch.equal(found[node], picture.logits[place])


@pytest.mark.parametrize("kind", KINDS)
def test_the_bundled_model(networks: Any, kind: str) -> None:
    """Its picture in passes of many sizes, every other one a tree that branches."""
    picture, draw, committed = Picture(LeanTarget(networks.target, kind), 2, 5), random.Random(2), 0
    cache, vocabulary = picture.cache(), picture.twin.config.vocab
    for size in (2, 4, 58, 6, 3, 16, 29, 44, 8, 58, 13, 5, 37, 21, 11):
        if size % 2:
            tree = branching(size, draw)
            path = path_to(size - 1, tree)
            tokens = torch.randint(vocabulary, (size,), generator=GENERATOR)
            tokens[path] = picture.tokens[committed : committed + len(path)]
            found = picture.read(tokens, tree, cache)
            for place, node in enumerate(path, start=committed):
                assert torch.equal(found[node], picture.logits[place])
            cache.commit(torch.tensor(path))
            committed += len(path)
        else:
            size = min(size, len(picture.tokens) - committed)
            picture.read_chain(committed, size, cache)
            cache.advance(size)
            committed += size
    assert committed > 200


@pytest.mark.parametrize("method", ["eagle1", "eagle2", "sjd", "scd"])
@pytest.mark.parametrize("kind", KINDS)
def test_greedy_lossless_methods_draw_what_vanilla_draws(small: LlamaGen, kind: str, method: str) -> None:
    sizes = {name: getattr(SMALL, name) for name in ("dim", "heads", "vocab", "grid", "prefix")}
    target, drafter = LeanTarget(small, kind), LeanDrafter(strong(Drafter(DrafterConfig(**sizes, ffn=96))), kind)
    features = torch.randn(1, SMALL.prefix, SMALL.caption_dim, generator=GENERATOR)
    condition = small.condition(features, None, True)
    sampling = Sampling(temperature=0, cfg_scale=2.0)
    drawn = [
        [*decode(target, drafter, condition, num_tokens=40, seed=5, sampling=sampling, **settings(name, vocab=96))][-1]
        for name in ("vanilla", method)
    ]
    assert drawn[1].tokens == drawn[0].tokens


@pytest.mark.parametrize("shape", [(256, 768), (768, 2048), (1280, 1280), (160, 3584)])
@pytest.mark.parametrize("kind", KINDS)
def test_products(kind: str, shape: tuple[int, int]) -> None:
    """At widths of published models too, where libraries change their ways of summing."""
    run = product(torch.randn(shape, generator=GENERATOR).half().float(), kind)
    x = torch.randn(2 * MOST, shape[1], generator=GENERATOR)
    whole = run(x)
    for rows in (*range(1, 34), 2 * MOST - 1):
        assert torch.equal(run(x[:rows].clone()), whole[:rows]), rows
        assert torch.equal(run(x[-rows:].clone()), whole[-rows:]), rows


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_what_lies_between_products(threads: int) -> None:
    """Norms, gates and rotations of so many rows that threads share them, against those of one row."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        x, weight = torch.randn(2 * MOST, 3584, generator=GENERATOR), torch.rand(3584, generator=GENERATOR)
        norm = Norm(weight, 1e-5)
        turn = torch.view_as_complex(torch.randn(MOST, 1792, 2, generator=GENERATOR))
        pairs = torch.view_as_complex(x.view(2, MOST, 1792, 2))
        assert x.numel() > 3 * SERIAL
        normed, gated, turned = norm(x), by_rows(F.silu, x), by_rows(torch.mul, pairs, turn)
        for row in range(2 * MOST):
            assert torch.equal(normed[row], norm(x[row : row + 1])[0])
            assert torch.equal(gated[row], F.silu(x[row : row + 1])[0])
        for row in range(MOST):
            assert torch.equal(turned[:, row], (pairs[:, row : row + 1] * turn[row : row + 1])[:, 0])
    finally:
        torch.set_num_threads(before)
