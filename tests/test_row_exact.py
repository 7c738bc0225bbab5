"""What a CPU's fused models compute for a node is the same to the bit, in whatever pass and wherever its ancestors lie."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from passes import commit, tree_pass
from small_models import ANOLE, JANUS, TEXT, strong
from torch import Tensor

from lantern_demo.decoding.sampling import guide
from lantern_demo.decoding.trees import Tree, static_tree
from lantern_demo.models import bundled
from lantern_demo.models.anole.cpu import LeanAnole, NormedHeads
from lantern_demo.models.anole.target import Anole, AnoleAttention
from lantern_demo.models.common import Condition
from lantern_demo.models.cpu import SERIAL, LeanCache, Norm, by_rows
from lantern_demo.models.janus.cpu import LeanJanus
from lantern_demo.models.janus.target import Janus
from lantern_demo.models.lean import LeanDecoder
from lantern_demo.models.llamagen.cpu import LeanTarget
from lantern_demo.models.llamagen.target import LlamaGen
from lantern_demo.models.machine import matmul as products
from lantern_demo.models.machine.matmul import ROW_EXACT, matmul, supported
from lantern_demo.models.registry import BUNDLED

MOST = 58  # nodes of the largest pass
SCALE = 7.5  # of the guidance
KINDS = [kind for kind in ROW_EXACT if supported(kind)]
WIDER: dict[str, Any] = {"ffn": 320, "vocab": 96, "grid": 12}  # room for the largest pass at a few places
SMALL = replace(TEXT, layers=2, **WIDER)
GENERATOR = torch.Generator()


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    GENERATOR.manual_seed(0)
    with torch.inference_mode():
        yield


@dataclass(frozen=True)
class Small:
    """A small target, and what makes a fused one of it."""

    target: Any
    fused: Any = LeanTarget

    def condition(self, rows: int = 2, padded: int = 0) -> Condition:
        """Something to draw from; of its first row, for a caption of both, so many positions are padding."""
        c = self.target.config
        real = (torch.arange(c.prefix) >= padded)[None] if padded else None
        if isinstance(self.target, LlamaGen):
            features = torch.randn(rows, c.prefix, c.caption_dim, generator=GENERATOR)
            return Condition(features, None if real is None else real.expand(rows, -1))
        return self.target.condition(torch.randint(c.embeddings, (1, c.prefix), generator=GENERATOR), real, rows == 2)


@pytest.fixture(scope="module", params=["llamagen", "anole", "janus"])
def small(request: pytest.FixtureRequest) -> Small:
    torch.manual_seed(0)
    if request.param == "anole":
        return Small(strong(Anole(replace(ANOLE, layers=2, **WIDER, embeddings=110))), LeanAnole)
    if request.param == "janus":
        return Small(strong(Janus(replace(JANUS, layers=2, **WIDER))), LeanJanus)
    return Small(strong(LlamaGen(SMALL)))


class Picture:
    """A picture's tokens, read one by one: what every other way of reading them must come to."""

    def __init__(self, fused: LeanDecoder, condition: Condition) -> None:
        c = fused.config
        self.fused, self.rows, self.condition = fused, len(condition.features), condition
        self.tokens = torch.randint(c.vocab, (c.tokens,), generator=GENERATOR)
        cache, alone = self.cache(), static_tree(())
        self.logits = []  # behind each token
        for token in self.tokens.split(1):
            self.logits.append(self.read(token, alone, cache)[0])
            cache.length += 1

    def cache(self) -> LeanCache:
        cache = self.fused.new_cache(self.rows, len(self.tokens) + MOST)
        self.fused.prefill(self.condition, cache)
        return cache

    def read(self, tokens: Tensor, tree: Tree, cache: LeanCache) -> Tensor:
        """Guided logits [n, V] of a tree's nodes."""
        hidden = tree_pass(self.fused, tokens, tree.depths, tree.mask, cache)
        return guide(self.fused.head(hidden), SCALE)

    def read_chain(self, committed: int, count: int, cache: LeanCache) -> None:
        """Read tokens of the picture as a chain behind so many committed ones, and look at what comes of it."""
        chain = static_tree([(0,) * depth for depth in range(1, count)])
        found = self.read(self.tokens[committed : committed + count], chain, cache)
        for node in range(count):
            assert torch.equal(found[node], self.logits[committed + node]), (committed, count, node)


def branching(size: int, draw: random.Random) -> Tree:
    """A tree of so many nodes that branches at random."""
    children = {(): 0}
    while len(children) < size:
        parent = draw.choice([path for path in children if len(path) < 6])
        children[(*parent, children[parent])] = 0
        children[parent] += 1
    return static_tree([path for path in children if path])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "padded"), [(2, 0), (2, 3), (1, 0)], ids=["guided", "padded", "alone"])
def test_chains_of_every_size(small: Small, kind: str, rows: int, padded: int) -> None:
    read_chains(Picture(small.fused(small.target, kind), small.condition(rows, padded)))


@pytest.mark.parametrize("kind", KINDS)
def test_chains_behind_a_prefix_of_one(kind: str) -> None:
    target = strong(LlamaGen(replace(SMALL, prefix=1)))
    read_chains(Picture(LeanTarget(target, kind), Small(target).condition()))


def read_chains(picture: Picture) -> None:
    """Of every size at the beginning, of some of them further on."""
    cache, some = picture.cache(), (1, 2, 3, 4, 5, 8, 9, 16, 17, 32, 33, MOST)
    for committed, following in ((0, 33), (33, 82), (82, None)):
        for count in range(1, MOST + 1) if committed == 0 else some:
            picture.read_chain(committed, count, cache)
        if following:
            picture.read_chain(committed, following - committed, cache)
            cache.length += following - committed


def read_trees(picture: Picture, sizes: tuple[int, ...]) -> None:
    """The picture's tokens lie along a path of each tree, others beside it; the path's nodes have what was read one by one."""
    draw, committed, cache = random.Random(0), 0, picture.cache()
    for size in sizes:
        tree = branching(size, draw)
        end = max(range(size), key=lambda node: (int(tree.depths[node]), draw.random()))
        path = tree.mask[end].nonzero()[:, 0].tolist()
        tokens = torch.randint(picture.fused.config.vocab, (size,), generator=GENERATOR)
        tokens[path] = picture.tokens[committed : committed + len(path)]
        found = picture.read(tokens, tree, cache)
        for place, node in enumerate(path, start=committed):
            assert torch.equal(found[node], picture.logits[place]), (size, path, node)
        commit(cache, torch.tensor(path))
        committed += len(path)


@pytest.mark.parametrize("kind", KINDS)
def test_branching_trees(small: Small, kind: str) -> None:
    read_trees(Picture(small.fused(small.target, kind), small.condition(2, 3)), (5, 2, 16, 58, 9, 30, 3, 43, 24, 58))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_the_bundled_model(kind: str) -> None:
    of = Small(bundled.load(BUNDLED / "lantern-scenes", torch.device("cpu")).target)
    picture = Picture(of.fused(of.target, kind), of.condition(2, 5))
    read_trees(picture, (2, 4, 58, 6, 3, 16, 29, 44, 8, 13))
    cache = picture.cache()
    for committed, count in ((0, 58), (58, 37), (95, 3), (98, 58), (156, 21), (177, 44), (221, 35)):
        picture.read_chain(committed, count, cache)
        cache.length += count


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_filled_once_for_all_products_of_a_pass(small: Small, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a processor without AVX-512, for which FBGEMM's products of one or two rows are filled up to three."""
    monkeypatch.setattr(products, "_rows_to_fill", lambda: (0, 2, 1, 0, 0, 0))
    picture = Picture(small.fused(small.target, kind), small.condition())
    cache, layers = picture.cache(), picture.fused.layers
    asked: list[int] = []
    for layer in layers:
        run = layer.qkv
        layer.qkv = lambda x, run=run: (asked.append(len(x)), run(x))[1]
    picture.read_chain(0, 1, cache)
    assert asked == [products.filled(2, kind)] * len(layers) and asked[0] > 2


@pytest.mark.parametrize("kind", KINDS)
def test_places_out_of_order(small: Small, kind: str) -> None:
    """As a wavefront reads them: the slots are given, and the bias hides what has not been read."""
    picture = Picture(small.fused(small.target, kind), small.condition())
    cache, first = picture.cache(), SMALL.prefix
    for places in ([0], [1], [2, 3], [4, 5, 6, 7, 8, 9, 10, 11, 12, 13]):
        slots = first + torch.tensor(places)
        end = first + places[-1] + 1 + 5  # and some that nobody sees
        hidden = picture.fused.forward(picture.tokens[places], slots, slots, torch.arange(end) <= slots[:, None], cache)
        found = guide(picture.fused.head(hidden), SCALE)
        for node, place in enumerate(places):
            assert torch.equal(found[node], picture.logits[place])


@pytest.mark.parametrize("shape", [(256, 768), (768, 2048), (1280, 1280), (160, 3584), (128, 4096), (2048, 8)])
@pytest.mark.parametrize("kind", KINDS)
def test_products(kind: str, shape: tuple[int, int]) -> None:
    """At widths of published models too, where libraries change their ways of summing."""
    run = matmul(torch.randn(shape, generator=GENERATOR).half().float(), kind)
    x = torch.randn(2 * MOST, shape[1], generator=GENERATOR)
    whole = run(x)
    for rows in (*range(1, 34), 2 * MOST - 1):
        assert torch.equal(run(x[:rows].clone()), whole[:rows]), rows
        assert torch.equal(run(x[-rows:].clone()), whole[-rows:]), rows


@pytest.mark.usefixtures("same_threads")
@pytest.mark.parametrize("kind", KINDS)
def test_products_on_any_number_of_threads(kind: str) -> None:
    """They share out the columns of a product, not its sums."""
    run = matmul(torch.randn(768, 1280, generator=GENERATOR).half().float(), kind)
    x, found = torch.randn(7, 1280, generator=GENERATOR), []
    for count in (1, 2, 3, 5):
        torch.set_num_threads(count)
        found.append(run(x))
    assert all(torch.equal(other, found[0]) for other in found)


@pytest.mark.usefixtures("same_threads")
@pytest.mark.parametrize("count", [1, 2, 3])
def test_what_lies_between_products(count: int) -> None:
    """Norms, also those of heads, gates and rotations of so many rows that threads share them, against those of one row."""
    torch.set_num_threads(count)
    x, weight = torch.randn(2 * MOST, 3584, generator=GENERATOR), torch.rand(3584, generator=GENERATOR)
    norm = Norm(weight, 1e-5)
    turn = torch.view_as_complex(torch.randn(MOST, 1792, 2, generator=GENERATOR))
    pairs = torch.view_as_complex(x.view(2, MOST, 1792, 2))
    attention = strong(AnoleAttention(1024, 8))
    assert x.numel() > 3 * SERIAL
    normed, gated, turned = norm(x), by_rows(F.silu, x), by_rows(torch.mul, pairs, turn)
    bent, heads = by_rows(F.gelu, x), NormedHeads(torch.clone, attention)
    whole = heads(x[:, :3072])
    for row in range(2 * MOST):
        assert torch.equal(normed[row], norm(x[row : row + 1])[0])
        assert torch.equal(gated[row], F.silu(x[row : row + 1])[0])
        assert torch.equal(bent[row], F.gelu(x[row : row + 1])[0])
        assert torch.equal(whole[row], heads(x[row : row + 1, :3072])[0])
    for row in range(MOST):
        assert torch.equal(turned[:, row], (pairs[:, row : row + 1] * turn[row : row + 1])[:, 0])
