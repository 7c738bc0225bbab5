"""Anole and its drafter for accelerators: what `fused` is for LlamaGen.

Against the modules in `anole` and `anole_drafter`: query, key and value in one product, gate and up in one, queries and keys normalised
together and turned by one complex product, residual sums inside the products that they follow. The joined weights take the place of the
modules' own, and keys lie in the cache as the modules write them, so that a prompt may be read by the original.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from lantern_demo.models.anole.drafter import AnoleDrafter
from lantern_demo.models.anole.target import FIRST, Anole, AnoleCache, AnoleLayer
from lantern_demo.models.common import Condition
from lantern_demo.models.cuda import join, product


@dataclass(frozen=True)
class FusedAnoleLayer:
    """One decoder layer, of the target and of its drafter alike. Products are by weights [outputs, inputs]."""

    before: Tensor  # [D] weight of the norm before attention
    qkv: Tensor
    scale: Tensor  # [2, heads, d] float32 of the norms of queries and of keys
    shift: Tensor  # [2, heads, d] float32
    out: Tensor
    after: Tensor  # [D] weight of the norm before the feed-forward half
    gate_up: Tensor
    down: Tensor
    heads: int
    eps: float

    @classmethod
    def of(cls, layer: AnoleLayer, eps: float) -> FusedAnoleLayer:
        """The twin of a layer, whose weights become those of the twin."""
        a, m = layer.self_attn, layer.mlp
        norms = (a.q_norm, a.k_norm)
        return cls(
            layer.input_layernorm.weight, join(a, "q_proj", "k_proj", "v_proj"),
            torch.stack([n.weight.float() for n in norms]), torch.stack([n.bias.float() for n in norms]),
            a.o_proj.weight, layer.post_attention_layernorm.weight, join(m, "gate_proj", "up_proj"), m.down_proj.weight,
            a.heads, eps,
        )  # fmt: skip

    def __call__(self, x: Tensor, turn: Tensor, slots: Tensor, bias: Tensor, both: Tensor) -> Tensor:
        """x [R * n, D], which is overwritten with the layer's output and returned.

        turn [R, n or 1, 1, 1, d / 2] complex64, slots [n] int64, bias [R or 1, 1, n, S], both [R, 2 heads, slots, d] the keys and
        values of this layer.
        """
        heads, seen, d = self.heads, bias.shape[-1], both.shape[-1]
        qkv = product(F.rms_norm(x, x.shape[-1:], self.before, self.eps), self.qkv).view(both.shape[0], -1, 3, heads, d)
        normed = torch.addcmul(self.shift, F.layer_norm(qkv[:, :, :2], (d,), eps=1e-5), self.scale)
        # pairs are (i, i + d / 2)
        turned = torch.view_as_real(torch.complex(*normed.chunk(2, -1)) * turn)
        new = x.new_empty(qkv.shape)
        new[:, :, :2].unflatten(-1, (2, -1)).copy_(turned.transpose(-1, -2))
        new[:, :, 2].copy_(qkv[:, :, 2])
        both.index_copy_(2, slots, new[:, :, 1:].flatten(2, 3).transpose(1, 2))
        attended = F.scaled_dot_product_attention(
            new[:, :, 0].transpose(1, 2), both[:, :heads, :seen], both[:, heads:, :seen], attn_mask=bias
        )
        x.addmm_(attended.transpose(1, 2).reshape(x.shape), self.out.t())
        gate, up = F.linear(F.rms_norm(x, x.shape[-1:], self.after, self.eps), self.gate_up).chunk(2, -1)
        return x.addmm_(F.silu(gate).mul_(up), self.down.t())


def turns(rope: Tensor) -> Tensor:
    """A rotary table [P, d / 2, 2] (cos, sin) -> [P, 1, 1, d / 2] complex64."""
    return torch.view_as_complex(rope.float().contiguous())[:, None, None]


class FusedAnole:
    """An Anole target on an accelerator; implements `decoding.protocols.FixedTarget`. What runs once per image, the prompt, and what
    steps of changing shapes ask for is left to the original."""

    def __init__(self, target: Anole) -> None:
        self.original, self.vocab_size = target, target.config.vocab
        self.turns = turns(target.rope)
        self.layers = [FusedAnoleLayer.of(block, target.config.eps) for block in target.blocks]

    def new_cache(self, rows: int, length: int) -> AnoleCache:
        return self.original.new_cache(rows, length)

    def prefill(self, condition: Condition, cache: AnoleCache) -> Tensor:
        """As `Anole.prefill`."""
        return self.original.prefill(condition, cache)

    def forward(self, tokens: Tensor, depths: Tensor, mask: Tensor, cache: AnoleCache) -> Tensor:
        """As `Anole.forward`."""
        return self.original.forward(tokens, depths, mask, cache)

    def head(self, hidden: Tensor) -> Tensor:
        """hidden [R, n, H] -> logits [R, n, V] float32 of the image tokens."""
        return product(hidden.flatten(0, 1), self.original.lm_head.weight).view(*hidden.shape[:2], -1)

    def forward_at(self, tokens: Tensor, positions: Tensor, slots: Tensor, bias: Tensor, cache: AnoleCache) -> Tensor:
        """n tree nodes -> hidden [R, n, H]; see `decoding.protocols.FixedTarget.forward_at`."""
        rows, n = cache.both.shape[1], tokens.shape[0]
        target = self.original
        x = target.embed_tokens(tokens + FIRST).repeat(rows, 1)
        turn = self.turns[cache.positions(positions)]
        for layer, both in zip(self.layers, cache.both.unbind(0), strict=True):
            layer(x, turn, slots, bias, both)
        return F.rms_norm(x, x.shape[-1:], target.norm.weight, target.config.eps).view(rows, n, -1)


class FusedAnoleDrafter:
    """A drafter of Anole on an accelerator; implements `decoding.protocols.FixedDrafter`."""

    guided = False

    def __init__(self, drafter: AnoleDrafter) -> None:
        self.original = drafter
        self.turns = turns(drafter.rope)
        self.layer = FusedAnoleLayer.of(drafter.layer, drafter.config.eps)

    def new_cache(self, rows: int, length: int) -> AnoleCache:
        return self.original.new_cache(rows, length)

    def start(self, hidden: Tensor, token: Tensor, cache: AnoleCache, condition: Condition) -> Tensor:
        """As `AnoleDrafter.start`."""
        return self.original.start(hidden, token, cache, condition)

    def extend(self, tokens: Tensor, hidden: Tensor, cache: AnoleCache) -> Tensor:
        """As `AnoleDrafter.extend`."""
        return self.original.extend(tokens, hidden, cache)

    def expand(self, tokens: Tensor, hidden: Tensor, depth: int, mask: Tensor, cache: AnoleCache) -> Tensor:
        """As `AnoleDrafter.expand`."""
        return self.original.expand(tokens, hidden, depth, mask, cache)

    def turns_at(self, positions: Tensor, cache: AnoleCache) -> Tensor:
        """[R, m, 1, 1, d / 2] complex64; see `decoding.protocols.FixedDrafter.turns_at`."""
        return self.turns[cache.positions(positions)]

    def run_at(self, tokens: Tensor, hidden: Tensor, turn: Tensor, slots: Tensor, bias: Tensor, cache: AnoleCache) -> Tensor:
        """m slots -> outputs [R, m, H]; see `decoding.protocols.FixedDrafter.run_at`. Padding is left out here."""
        original = self.original
        mask = bias if cache.padding is None else bias + cache.padding[..., : bias.shape[-1]]
        embedded = original.embed_tokens(tokens + FIRST).expand(hidden.shape[0], -1, -1)
        x = original.fc(torch.cat((embedded, hidden), -1)).flatten(0, 1)
        return self.layer(x, turn, slots, mask, cache.both[0]).view(hidden.shape)
