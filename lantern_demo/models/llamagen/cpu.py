"""LlamaGen and its drafter as they run on a CPU: the same numbers from fewer, larger operations.

Against the modules in `target` and `drafter`: query, key and value in one product, gate and up in one, the rotation as one complex
product, the token half of the drafter's first layer as a table, attention over the live part of the cache. The target's weights
stay what they are, so that a product may read them in the format that they were stored in. All of it is float32 but for the products
when `products.KINDS` says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from math import prod
from time import perf_counter

import torch
import torch.nn.functional as F
from torch import Tensor

from lantern_demo.decoding.cache import KVCache
from lantern_demo.models.common import Condition, prefix_mask, with_tapped
from lantern_demo.models.llamagen.drafter import Drafter
from lantern_demo.models.llamagen.target import LlamaGen
from lantern_demo.models.products import KINDS, Product, exact_kinds, product, supported

PROBED_NODES = (1, 6)  # of the forwards that decide between kinds of products: what vanilla and a small tree run
PROBES = 12  # forwards each


def complex_rope(rope: Tensor, heads: int) -> Tensor:
    """A rotary table [S, d / 2, 2] (cos, sin) -> [S, 3 heads, d / 2] complex64 for queries, keys and values; these do not turn."""
    turn = torch.view_as_complex(rope.float().contiguous()).unsqueeze(1).expand(-1, 2 * heads, -1)
    return torch.cat((turn, torch.ones(turn.shape[0], heads, turn.shape[2], dtype=turn.dtype)), 1)


class Norm:
    """x [M, D] -> x / sqrt(mean(x^2) + eps) times a weight [D]: RMSNorm in four small operations."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        dim = weight.shape[0]
        self.weight, self.floor = weight.float() * dim**0.5, torch.tensor((dim * eps) ** 0.5)

    def __call__(self, x: Tensor) -> Tensor:
        return (x / torch.hypot(torch.linalg.vector_norm(x, dim=-1, keepdim=True), self.floor)).mul_(self.weight)


Place = tuple[Tensor, Tensor, Tensor]  # where a layer writes, and all keys and values that it reads: see `LeanCache.places`


class LeanCache(KVCache):
    """A cache that hands out the places of all layers at once.

    `bias` [R, 1, nodes, slots] float32 is the mask of a tree: 0 where a node may look, -inf elsewhere.
    """

    def __init__(self, layers: int, rows: int, heads: int, slots: int, head_dim: int) -> None:
        super().__init__(layers, rows, heads, slots, head_dim)
        self.bias: Tensor | None = None
        self.written = (0, 0)  # the columns of the tree that is in `bias`

    def places(self, offset: int, count: int) -> Iterator[Place]:
        """By layer: `count` slots from length + offset on [R, 2 heads, count, d], and all keys and values up to their end."""
        self.reserve(offset + count)
        start = self.length + offset
        return self._places(self.both.narrow(3, start, count), start + count)

    def places_anywhere(self, seen: int) -> Iterator[Place]:
        """By layer: all slots [R, 2 heads, slots, d], and the first `seen` keys and values."""
        return self._places(self.both, seen)

    def _places(self, written: Tensor, end: int) -> Iterator[Place]:
        read = (part.narrow(3, 0, end).unbind(0) for part in (self.k, self.v))
        return zip(written.unbind(0), *read, strict=True)

    def bias_of(self, mask: Tensor) -> Tensor | None:
        """The mask of n tree nodes [n, n] bool over everything in the cache: [R, 1, n, length + n] float32, or None."""
        n = mask.shape[0]
        end = self.length + n
        if n == 1 and self.visible is None:
            return None
        if self.bias is None or self.bias.shape[2] < n:
            self.bias, self.written = torch.zeros(self.both.shape[1], 1, n, self.slots), (0, 0)
            if self.visible is not None:
                hidden = ~self.visible
                self.bias[..., : hidden.shape[-1]].masked_fill_(hidden, -torch.inf)
        first, last = self.written
        self.bias[..., first:last].zero_()
        if n > 1:
            self.bias[:, :, :n, self.length : end] = torch.where(mask, 0.0, -torch.inf)
        self.written = (self.length, end) if n > 1 else (0, 0)
        return self.bias[:, :, :n, :end]


class Layer:
    """One decoder layer of fused products: what `Block` and `DrafterLayer` compute."""

    def __init__(self, qkv: Product, out: Product, norm: Norm, gate_up: Product, down: Product, heads: int) -> None:
        self.qkv, self.out, self.norm, self.gate_up, self.down, self.heads = qkv, out, norm, gate_up, down, heads

    def attention(
        self, x: Tensor, r: int, rope: Tensor, mask: Tensor | None, place: Place, slots: Tensor | None = None
    ) -> Tensor:
        """Attention of x [R * n, D], whose keys and values are written to a place, at slots [n] of it if these are given -> [R * n, D]."""
        written, k, v = place
        turned = self.qkv(x).view(torch.complex64).view(r, -1, 3 * self.heads, rope.shape[-1]) * rope
        q, new = turned.view(torch.float32).transpose(1, 2).split((self.heads, 2 * self.heads), 1)
        if slots is None:
            written.copy_(new)
        else:
            written.index_copy_(2, slots, new)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).reshape(x.shape)

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """The output product and the feed-forward half; x and attended [M, D] -> [M, D]."""
        x = self.out(attended).add_(x)
        gate, up = self.gate_up(self.norm(x)).chunk(2, 1)
        return self.down(F.silu(gate).mul_(up)).add_(x)


class LeanTarget:
    """A LlamaGen target on a CPU; implements `decoding.protocols.FixedTarget` and keeps the original for its conditions."""

    def __init__(self, target: LlamaGen, kind: str = "plain") -> None:
        c = target.config
        self.original, self.config, self.vocab_size = target, c, c.vocab
        self.layers = []
        for block in target.blocks:
            a, f = block.attention, block.feed_forward
            layer = Layer(
                product(a.wqkv.weight, kind),
                product(a.wo.weight, kind),
                Norm(block.ffn_norm.weight, c.eps),
                product(torch.cat((f.w1.weight, f.w3.weight)), kind),
                product(f.w2.weight, kind),
                c.heads,
            )
            self.layers.append((Norm(block.attention_norm.weight, c.eps), layer))
        self.norm = Norm(target.norm.weight, c.eps)
        self.output = product(target.output.weight, kind)
        self.embeddings = target.tok_embeddings.weight.float()
        self.rope = complex_rope(target.rope, c.heads)

    def new_cache(self, rows: int, length: int) -> LeanCache:
        c = self.config
        return LeanCache(c.layers, rows, c.heads, c.prefix + length, c.dim // c.heads)

    def prefill(self, condition: Condition, cache: LeanCache) -> Tensor:
        """The T prefix positions -> hidden [R, T, H]; padded ones too, which drafters read."""
        x = self.original.embed_condition(condition).float()
        n = x.shape[1]
        cache.visible = None if condition.mask is None or bool(condition.mask.all()) else condition.mask[:, None, None]
        mask = prefix_mask(condition.mask, n, x.device, self.config.padding, self.original.output.weight.dtype)
        hidden = self._run(x, self.rope[:n], mask, cache.places(0, n))
        cache.advance(n)
        return hidden

    def forward(self, tokens: Tensor, depths: Tensor, mask: Tensor, cache: LeanCache) -> Tensor:
        """n tree nodes -> hidden [R, n, H]; see `decoding.protocols.Target.forward`."""
        x = self.embeddings[tokens].expand(cache.k.shape[1], -1, -1)
        places = cache.places(0, len(tokens))
        return self._run(x, self.rope[depths + cache.length], cache.bias_of(mask), places)

    def forward_at(self, tokens: Tensor, positions: Tensor, slots: Tensor, bias: Tensor, cache: LeanCache) -> Tensor:
        """n nodes -> hidden [R, n, H]; see `decoding.protocols.FixedTarget.forward_at`."""
        x = self.embeddings[tokens].expand(cache.k.shape[1], -1, -1)
        return self._run(x, self.rope[positions], bias, cache.places_anywhere(bias.shape[-1]), slots)

    def head(self, hidden: Tensor) -> Tensor:
        """hidden [R, n, H] -> logits [R, n, V] float32."""
        return self.output(self.original.final(hidden).flatten(0, 1)).view(*hidden.shape[:2], -1)

    def _run(self, x: Tensor, rope: Tensor, mask: Tensor | None, places: Iterable[Place], slots: Tensor | None = None) -> Tensor:
        r, n, dim = x.shape
        x, taps = x.reshape(r * n, dim), self.original.taps
        tapped: list[Tensor] = []
        for i, ((norm, layer), place) in enumerate(zip(self.layers, places, strict=True)):
            x = layer.finish(x, layer.attention(norm(x), r, rope, mask, place, slots))
            if i + 1 in taps:
                tapped.append(x)
        return with_tapped(self.norm(x), tapped).view(r, n, -1)


class LeanDrafter:
    """A drafter on a CPU; implements `decoding.protocols.Drafter`."""

    def __init__(self, drafter: Drafter, kind: str = "plain") -> None:
        c, layer = drafter.config, drafter.layer
        self.config, self.guided = c, c.guided
        a, m = layer.self_attn, layer.mlp
        token_half, state_half = drafter.fc.weight.float().split(c.dim, 1)
        # Half of the first product only ever sees one of V vectors.
        bias = None if drafter.fc.bias is None else drafter.fc.bias.float()
        self.embeddings = F.linear(drafter.embed_tokens.weight.float(), token_half, bias)
        # What tapped blocks and a node's own output add is one product with the rest.
        self.own = product(state_half + drafter.fc_own.weight.float() if c.taps else state_half, kind)
        if c.taps:
            self.states = product(torch.cat((state_half, drafter.fc_taps.weight.float()), 1), kind)
            self.norm = Norm(torch.ones(c.dim), c.eps)
        self.layer = Layer(
            product(torch.cat((a.q_proj.weight, a.k_proj.weight, a.v_proj.weight)), kind),
            product(a.o_proj.weight, kind),
            Norm(layer.post_attention_layernorm.weight, c.eps),
            product(torch.cat((m.gate_proj.weight, m.up_proj.weight)), kind),
            product(m.down_proj.weight, kind),
            c.heads,
        )  # fmt: skip
        self.rope = complex_rope(drafter.rope, c.heads)

    def new_cache(self, rows: int, length: int) -> LeanCache:
        c = self.config
        return LeanCache(1, rows, c.heads, c.prefix + length, c.dim // c.heads)

    def start(self, hidden: Tensor, token: Tensor, cache: LeanCache, condition: object = None) -> Tensor:
        """As `Drafter.start`."""
        self.config.check_states(hidden)
        return self.extend(F.pad(token, (hidden.shape[1] - 1, 0)), hidden, cache)

    def extend(self, tokens: Tensor, hidden: Tensor, cache: LeanCache) -> Tensor:
        """As `Drafter.extend`. Only the last slot's output is computed."""
        m, first = tokens.shape[0], cache.length
        mask = torch.ones(m, first + m, dtype=torch.bool).tril(first) if m > 1 else None
        out = self._run(tokens, hidden, self.rope[first : first + m], mask, cache, 0, only_last=True)
        cache.advance(m)
        return out

    def expand(self, tokens: Tensor, hidden: Tensor, depth: int, mask: Tensor, cache: LeanCache) -> Tensor:
        """As `Drafter.expand`."""
        w = mask.shape[1] - tokens.shape[0]
        full = None if len(mask) == 1 and bool(mask.all()) else F.pad(mask, (cache.length, 0), value=True)  # a chain sees all
        slot = cache.length + depth - 1
        return self._run(tokens, hidden, self.rope[slot : slot + 1], full, cache, w, only_last=False)

    def _run(
        self, tokens: Tensor, hidden: Tensor, rope: Tensor, mask: Tensor | None, cache: LeanCache, offset: int, only_last: bool
    ) -> Tensor:
        r, n, width = hidden.shape
        dim, before = self.config.dim, hidden.reshape(r * n, width)
        (place,) = cache.places(offset, n)
        known = self.own(before) if width == dim else self._stable(before)
        x = (known.view(r, n, dim) + self.embeddings[tokens]).view(r * n, dim)
        attended = self.layer.attention(x, r, rope, mask, place)
        if only_last:
            x, attended, n = x.view(r, n, dim)[:, -1], attended.view(r, n, dim)[:, -1], 1
        return self.layer.finish(x, attended).view(r, n, dim)

    def _stable(self, hidden: Tensor) -> Tensor:
        """What the target's states with tapped ones behind them [M, (1 + taps) D] come to in the layer's input [M, D]."""
        dim = self.config.dim
        tapped = self.norm(hidden[:, dim:].unflatten(1, (-1, dim))).flatten(1)
        return self.states(torch.cat((hidden[:, :dim], tapped), 1))


def fastest_kind(target: LlamaGen) -> str:
    """The kind of float32 products that makes forwards of this target fastest here, found in well under a second."""
    calls: dict[tuple[str, int], Callable[[], object]] = {}
    for kind in filter(supported, exact_kinds(target.parameters())):
        twin = LeanTarget(target, kind)
        cache = twin.new_cache(2, max(PROBED_NODES))
        cache.length = target.config.prefix
        for n in PROBED_NODES:
            tokens, mask = torch.zeros(n, dtype=torch.int64), torch.eye(n, dtype=torch.bool)
            calls[kind, n] = partial(_verification, twin, tokens, mask, cache)
    return _quickest(calls)


def fastest_drafter_kind(drafter: Drafter) -> str:
    """The kind of products, rounding ones too, that makes this drafter's passes fastest here. What it drafts need not be exact:
    the rules hold whatever law a draft was drawn from, as long as they are told that law."""
    calls: dict[tuple[str, int], Callable[[], object]] = {}
    rows = 1 if drafter.guided else 2
    for kind in filter(supported, KINDS):
        twin = LeanDrafter(drafter, kind)
        cache = twin.new_cache(rows, max(PROBED_NODES))
        cache.length = drafter.config.prefix
        for n in (1, 2):
            tokens, mask = torch.zeros(n, dtype=torch.int64), torch.eye(n, dtype=torch.bool)
            calls[kind, n] = partial(twin.expand, tokens, torch.ones(rows, n, drafter.config.dim), 1, mask, cache)
    return _quickest(calls)


def _verification(target: LeanTarget, tokens: Tensor, mask: Tensor, cache: LeanCache) -> Tensor:
    return target.head(target.forward(tokens, torch.zeros_like(tokens), mask, cache))


@torch.inference_mode()
def _quickest(calls: dict[tuple[str, int], Callable[[], object]]) -> str:
    """The kind whose calls, by kind and size, take the least time: the product of its best times."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(PROBES):
        for key, call in calls.items():  # in turn, so that what disturbs the machine disturbs all of them
            began = perf_counter()
            call()
            best[key] = min(best[key], perf_counter() - began)
    return min({kind for kind, _ in calls}, key=lambda kind: prod(time for (of, _), time in best.items() if of == kind))
