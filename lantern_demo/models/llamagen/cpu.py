"""LlamaGen and its drafter as they run on a CPU: see `models.cpu`.

Besides, the token half of the drafter's first layer is a table. The target's weights stay what they are, so that a product may read them
in the format that they were stored in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from math import prod
from time import perf_counter
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lantern_demo.decoding.cache import KVCache
from lantern_demo.models.common import Condition, prefix_mask, with_tapped
from lantern_demo.models.cpu import Layer, LeanCache, Norm, Place, Sight, bias_of, complex_rope
from lantern_demo.models.llamagen.drafter import Drafter
from lantern_demo.models.llamagen.target import LlamaGen
from lantern_demo.models.products import KINDS, Product, exact_kinds, product, supported

PROBED_NODES = (1, 6)  # of the forwards that decide between kinds of products: what vanilla and a small tree run
PROBES = 12  # forwards each
PROBED_BYTES = 2**26  # of layers' weights in float32 that these forwards go through: more than caches hold, and soon packed

Found = TypeVar("Found")


class LeanTarget:
    """A LlamaGen target on a CPU; implements `decoding.protocols.FixedTarget` and keeps the original for its conditions.

    spent: the original gives up all weights but those that conditions are made with, each as it is packed, so that no more than one is
    in memory twice.
    """

    def __init__(self, target: LlamaGen, kind: str = "plain", spent: bool = False, layers: int | None = None) -> None:
        """layers: only the first so many, for a look at what passes take."""
        c = target.config
        self.original, self.config, self.vocab_size = target, c, c.vocab
        # of the mask's sums, on which padding "released" depends
        self.format = torch.bfloat16 if kind == "bfloat16" else torch.float32

        def packed(*parts: nn.Linear) -> Product:
            found = product(torch.cat([part.weight for part in parts]) if len(parts) > 1 else parts[0].weight, kind)
            return taken(found, *parts)

        def taken(found: Found, *parts: nn.Linear | nn.Embedding) -> Found:
            for part in parts if spent else ():
                part.weight = nn.Parameter(part.weight.to("meta"), requires_grad=False)
            return found

        self.layers = []
        for block in target.blocks[:layers]:
            a, f = block.attention, block.feed_forward
            norm = Norm(block.ffn_norm.weight, c.eps)
            layer = Layer(packed(a.wqkv), packed(a.wo), norm, packed(f.w1, f.w3), packed(f.w2), c.heads)
            self.layers.append((Norm(block.attention_norm.weight, c.eps), layer))
        self.norm = Norm(target.norm.weight, c.eps)
        self.output = packed(target.output)
        self.embeddings = taken(target.tok_embeddings.weight.float(), target.tok_embeddings)
        self.rope = complex_rope(target.rope, c.heads)
        if spent:
            target.cls_embedding.float()

    def new_cache(self, rows: int, length: int) -> LeanCache:
        c = self.config
        return LeanCache(c.layers, rows, c.heads, c.prefix + length, c.dim // c.heads)

    def prefill(self, condition: Condition, cache: LeanCache) -> Tensor:
        """The T prefix positions -> hidden [R, T, H]; padded ones too, which drafters read."""
        x = self.original.embed_condition(condition).float()
        n = x.shape[1]
        cache.visible = None if condition.mask is None or bool(condition.mask.all()) else condition.mask[:, None, None]
        mask = prefix_mask(condition.mask, n, x.device, self.config.padding, self.format)
        hidden = self._run(x, self.rope[:n], cache.sight(n, n, bias_of(mask)), cache.places(0, n))
        cache.advance(n)
        return hidden

    def forward(self, tokens: Tensor, depths: Tensor, mask: Tensor, cache: LeanCache) -> Tensor:
        """n tree nodes -> hidden [R, n, H]; see `decoding.protocols.Target.forward`."""
        x = self.embeddings[tokens].expand(cache.k.shape[1], -1, -1)
        places = cache.places(0, len(tokens))
        return self._run(x, self.rope[depths + cache.length], cache.sight_of(depths, mask), places)

    def forward_at(self, tokens: Tensor, positions: Tensor, slots: Tensor, bias: Tensor, cache: LeanCache) -> Tensor:
        """n nodes -> hidden [R, n, H]; see `decoding.protocols.FixedTarget.forward_at`."""
        x = self.embeddings[tokens].expand(cache.k.shape[1], -1, -1)
        seen = bias.shape[-1]
        sight = cache.sight(len(tokens), seen, bias.transpose(1, 2))
        return self._run(x, self.rope[positions], sight, cache.places_anywhere(seen), slots)

    def head(self, hidden: Tensor) -> Tensor:
        """hidden [R, n, H] -> logits [R, n, V] float32."""
        return self.output(self.original.final(hidden).flatten(0, 1)).view(*hidden.shape[:2], -1)

    def _run(self, x: Tensor, rope: Tensor, sight: Sight, places: Iterable[Place], slots: Tensor | None = None) -> Tensor:
        r, n, dim = x.shape
        x, taps = x.reshape(r * n, dim), self.original.taps
        tapped: list[Tensor] = []
        for i, ((norm, layer), place) in enumerate(zip(self.layers, places, strict=True)):
            x = layer.finish(x, layer.attention(norm(x), rope, sight, place, slots))
            if i + 1 in taps:
                tapped.append(x)
        return with_tapped(self.norm(x), tapped).view(r, n, -1)


class LeanDrafter:
    """A drafter on a CPU; implements `decoding.protocols.Drafter`. Its rows need not be exact, since what it drafts decides on no token by
    itself: attention and norms are the library's."""

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
        norm = partial(F.rms_norm, normalized_shape=(c.dim,), weight=layer.post_attention_layernorm.weight.float(), eps=c.eps)
        self.layer = Layer(
            product(torch.cat((a.q_proj.weight, a.k_proj.weight, a.v_proj.weight)), kind),
            product(a.o_proj.weight, kind),
            norm,
            product(torch.cat((m.gate_proj.weight, m.up_proj.weight)), kind),
            product(m.down_proj.weight, kind),
            c.heads,
        )  # fmt: skip
        self.rope = complex_rope(drafter.rope, c.heads)

    def new_cache(self, rows: int, length: int) -> KVCache:
        c = self.config
        return KVCache(1, rows, c.heads, c.prefix + length, c.dim // c.heads)

    def start(self, hidden: Tensor, token: Tensor, cache: KVCache, condition: object = None) -> Tensor:
        """As `Drafter.start`."""
        self.config.check_states(hidden)
        return self.extend(F.pad(token, (hidden.shape[1] - 1, 0)), hidden, cache)

    def extend(self, tokens: Tensor, hidden: Tensor, cache: KVCache) -> Tensor:
        """As `Drafter.extend`. Only the last slot's output is computed, which sees all others."""
        m, first = tokens.shape[0], cache.length
        out = self._run(tokens, hidden, self.rope[first : first + m], None, cache, 0, asked=1)
        cache.advance(m)
        return out

    def expand(self, tokens: Tensor, hidden: Tensor, depth: int, mask: Tensor, cache: KVCache) -> Tensor:
        """As `Drafter.expand`."""
        m, w = len(tokens), mask.shape[1] - len(tokens)
        slot = cache.length + depth - 1
        chain = m == 1 and w == depth - 1  # one node at each depth, all of which the next one sees
        seen = None if chain else F.pad(mask, (cache.length, 0), value=True)
        return self._run(tokens, hidden, self.rope[slot : slot + 1].expand(m, -1), seen, cache, w, asked=m)

    def _run(
        self, tokens: Tensor, hidden: Tensor, rope: Tensor, seen: Tensor | None, cache: KVCache, offset: int, asked: int
    ) -> Tensor:
        """Outputs [R, asked, H] of the last so many of n slots; seen [asked, S] bool, which slots each sees, None: all."""
        r, n, width = hidden.shape
        dim, before = self.config.dim, hidden.reshape(r * n, width)
        known = self.own(before) if width == dim else self._stable(before)
        x = (known.view(r, n, dim) + F.embedding(tokens, self.embeddings)).view(r * n, dim)
        q, k, v = (part.transpose(1, 2) for part in self.layer.turned(x, rope, r))
        k, v = cache.write(0, offset, k, v)
        if asked < n:
            q, x = q[:, :, n - asked :], x.view(r, n, dim)[:, n - asked :].reshape(r * asked, dim)
        attended = F.scaled_dot_product_attention(q, k, v, seen, scale=1.0)  # queries are scaled already
        return self.layer.finish(x, attended.transpose(1, 2).reshape(r * asked, dim)).view(r, asked, dim)

    def _stable(self, hidden: Tensor) -> Tensor:
        """What the target's states with tapped ones behind them [M, (1 + taps) D] come to in the layer's input [M, D]."""
        dim = self.config.dim
        tapped = F.rms_norm(hidden[:, dim:].unflatten(1, (-1, dim)), (dim,), eps=self.config.eps).flatten(1)
        return self.states(torch.cat((hidden[:, :dim], tapped), 1))


def fastest_kind(target: LlamaGen) -> str:
    """The kind of float32 products that makes forwards of this target fastest here, found in well under a second."""
    calls: dict[tuple[str, int], Callable[[], object]] = {}
    kinds = exact_kinds(target.parameters())
    layers = max(1, PROBED_BYTES // (4 * sum(p.numel() for p in target.blocks[0].parameters())))
    for kind in kinds if len(kinds) > 1 else ():
        twin = LeanTarget(target, kind, layers=layers)
        cache = twin.new_cache(2, max(PROBED_NODES))
        cache.length = target.config.prefix
        for n in PROBED_NODES:
            tokens, mask = torch.zeros(n, dtype=torch.int64), torch.eye(n, dtype=torch.bool)
            calls[kind, n] = partial(_verification, twin, tokens, mask, cache)
    return _quickest(calls) if calls else kinds[0]


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
