"""LlamaGen and its drafter for accelerators: the modules' own weights in fewer kernels, with positions, slots and masks that are
tensors, so that a step can be captured once and replayed.

Against the modules in `llamagen` and `drafter`: query, key and value in one product, gate and up in one, queries and keys turned
by one complex product, keys and values written by one copy, residual sums inside the products that they follow. The joined weights
take the place of the modules' own, which use their rows: nothing is in memory twice.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lantern_demo.decoding.cache import KVCache
from lantern_demo.models.common import Condition
from lantern_demo.models.cuda import join, product
from lantern_demo.models.llamagen.drafter import Drafter
from lantern_demo.models.llamagen.target import LlamaGen


def turns(rope: Tensor) -> Tensor:
    """A rotary table [P, d / 2, 2] (cos, sin) -> [P, 3, 1, d / 2] complex64 for queries, keys and values, which stay as they are."""
    turn = torch.view_as_complex(rope.float().contiguous())
    return torch.stack((turn, turn, torch.ones_like(turn)), 1).unsqueeze(2)


@dataclass(frozen=True)
class FusedLayer:
    """One decoder layer: what `Block` and `DrafterLayer` compute. Products are by weights [outputs, inputs]."""

    before: Tensor | None  # [D] weight of the norm before attention; drafters have none
    qkv: Tensor
    out: Tensor
    after: Tensor  # [D] weight of the norm before the feed-forward half
    gate_up: Tensor
    down: Tensor
    heads: int
    eps: float

    def __call__(self, x: Tensor, turn: Tensor, slots: Tensor, bias: Tensor, both: Tensor) -> Tensor:
        """x [R * n, D], which is overwritten with the layer's output and returned.

        turn [n, 3, 1, d / 2] or [1, n or 1, 3, 1, d / 2] complex64, slots [n] int64, bias [R or 1, 1, n, S], both [R, 2 heads, slots, d] the
        keys and values of this layer.
        """
        heads, seen = self.heads, bias.shape[-1]
        normed = x if self.before is None else F.rms_norm(x, x.shape[-1:], self.before, self.eps)
        # complex products exist in float32 only; turning values by 1 keeps them as they are
        qkv = product(normed, self.qkv).view(both.shape[0], -1, 3, heads, both.shape[-1])
        pairs = torch.view_as_complex(qkv.unflatten(-1, (-1, 2)))
        turned = torch.view_as_real(pairs * turn).flatten(-2).type_as(x)
        both.index_copy_(2, slots, turned[:, :, 1:].flatten(2, 3).transpose(1, 2))
        attended = F.scaled_dot_product_attention(
            turned[:, :, 0].transpose(1, 2), both[:, :heads, :seen], both[:, heads:, :seen], attn_mask=bias
        )
        x.addmm_(attended.transpose(1, 2).reshape(x.shape), self.out.t())
        gate, up = F.linear(F.rms_norm(x, x.shape[-1:], self.after, self.eps), self.gate_up).chunk(2, -1)
        return x.addmm_(F.silu(gate).mul_(up), self.down.t())


class FusedTarget:
    """A LlamaGen target on an accelerator; implements `decoding.protocols.FixedTarget`. What runs once per image, the prefix, and
    what steps of changing shapes ask for is left to the original."""

    def __init__(self, target: LlamaGen) -> None:
        c = target.config
        self.original, self.vocab_size = target, c.vocab
        self.turns = turns(target.rope)
        self.layers = [
            FusedLayer(
                b.attention_norm.weight, b.attention.wqkv.weight, b.attention.wo.weight, b.ffn_norm.weight,
                join(b.feed_forward, "w1", "w3"), b.feed_forward.w2.weight, c.heads, c.eps,
            )
            for b in target.blocks
        ]  # fmt: skip

    def new_cache(self, rows: int, length: int) -> KVCache:
        return self.original.new_cache(rows, length)

    def prefill(self, condition: Condition, cache: KVCache) -> Tensor:
        """As `LlamaGen.prefill`."""
        return self.original.prefill(condition, cache)

    def forward(self, tokens: Tensor, depths: Tensor, mask: Tensor, cache: KVCache) -> Tensor:
        """As `LlamaGen.forward`."""
        return self.original.forward(tokens, depths, mask, cache)

    def head(self, hidden: Tensor) -> Tensor:
        """hidden [R, n, H] -> logits [R, n, V] float32."""
        return product(hidden.flatten(0, 1), self.original.output.weight).view(*hidden.shape[:2], -1)

    def forward_at(self, tokens: Tensor, positions: Tensor, slots: Tensor, bias: Tensor, cache: KVCache) -> Tensor:
        """n tree nodes -> hidden [R, n, H]; see `decoding.protocols.FixedTarget.forward_at`."""
        rows, n = cache.both.shape[1], tokens.shape[0]
        target = self.original
        x = target.tok_embeddings(tokens).repeat(rows, 1)
        turn = self.turns.index_select(0, positions)
        for layer, both in zip(self.layers, cache.both.unbind(0), strict=True):
            layer(x, turn, slots, bias, both)
        return F.rms_norm(x, x.shape[-1:], target.norm.weight, target.config.eps).view(rows, n, -1)


class FusedDrafter:
    """A drafter on an accelerator; implements `decoding.protocols.FixedDrafter`."""

    def __init__(self, drafter: Drafter) -> None:
        c, layer = drafter.config, drafter.layer
        self.original, self.guided = drafter, c.guided
        self.turns = turns(drafter.rope)
        a, m = layer.self_attn, layer.mlp
        self.layer = FusedLayer(
            None, join(a, "q_proj", "k_proj", "v_proj"), a.o_proj.weight, layer.post_attention_layernorm.weight,
            join(m, "gate_proj", "up_proj"), m.down_proj.weight, c.heads, c.eps,
        )  # fmt: skip

    def new_cache(self, rows: int, length: int) -> KVCache:
        return self.original.new_cache(rows, length)

    def start(self, hidden: Tensor, token: Tensor, cache: KVCache, condition: object = None) -> Tensor:
        """As `Drafter.start`."""
        return self.original.start(hidden, token, cache)

    def extend(self, tokens: Tensor, hidden: Tensor, cache: KVCache) -> Tensor:
        """As `Drafter.extend`."""
        return self.original.extend(tokens, hidden, cache)

    def expand(self, tokens: Tensor, hidden: Tensor, depth: int, mask: Tensor, cache: KVCache) -> Tensor:
        """As `Drafter.expand`."""
        return self.original.expand(tokens, hidden, depth, mask, cache)

    def turns_at(self, positions: Tensor, cache: KVCache) -> Tensor:
        """[1, m, 3, 1, d / 2] complex64; see `decoding.protocols.FixedDrafter.turns_at`."""
        return self.turns.index_select(0, positions)[None]

    def run_at(self, tokens: Tensor, hidden: Tensor, turn: Tensor, slots: Tensor, bias: Tensor, cache: KVCache) -> Tensor:
        """m slots -> outputs [R, m, H]; see `decoding.protocols.FixedDrafter.run_at`."""
        original = self.original
        embedded = original.embed_tokens(tokens).expand(hidden.shape[0], -1, -1)
        x = original.fc(torch.cat((embedded, hidden), -1)).flatten(0, 1)
        return self.layer(x, turn, slots, bias, cache.both[0]).view(hidden.shape)
