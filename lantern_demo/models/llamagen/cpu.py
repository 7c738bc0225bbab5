"""LlamaGen and its drafter on a CPU: see `models.lean`.

The token half of the drafter's first layer becomes a table. The target's weights stay unchanged, so
that a matmul may read them in their stored format.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from lantern_demo.decoding.cache import KVCache, end_of
from lantern_demo.models.cpu import LeanLayer, Norm, complex_rope
from lantern_demo.models.lean import LeanDecoder
from lantern_demo.models.llamagen.drafter import Drafter
from lantern_demo.models.llamagen.target import Block, LlamaGen
from lantern_demo.models.machine.matmul import matmul


class LeanTarget(LeanDecoder):
    """A LlamaGen target on a CPU.

    A released original keeps the weights that build conditions, in float32.
    """

    original: LlamaGen

    def __init__(
        self,
        target: LlamaGen,
        kind: str = "plain",
        release: bool = False,
        layers: int | None = None,
    ) -> None:
        super().__init__(target, kind, release, layers)
        self.output = self.packing.matmul(target.output)
        self.embeddings = target.tok_embeddings.weight.float()
        self.packing.take(target.tok_embeddings)
        if release:
            target.cls_embedding.float()

    def layer(self, block: Block) -> LeanLayer:
        a, f, eps, packing = block.attention, block.feed_forward, self.config.eps, self.packing
        return LeanLayer(
            Norm(block.attention_norm.weight, eps),
            packing.matmul(a.wqkv),
            packing.matmul(a.wo),
            Norm(block.ffn_norm.weight, eps),
            packing.matmul(f.w1, f.w3),
            packing.matmul(f.w2),
            self.config.heads,
        )

    def embed(self, tokens: Tensor) -> Tensor:
        return self.embeddings[tokens]

    def logits(self, hidden: Tensor) -> Tensor:
        return self.output(self.original.final(hidden))


class LeanDrafter:
    """A drafter on a CPU; implements `decoding.interfaces.Drafter`. Norms are the library's."""

    def __init__(self, drafter: Drafter, kind: str = "plain") -> None:
        c, layer = drafter.config, drafter.layer
        self.config, self.guided = c, c.guided
        a, m = layer.self_attn, layer.mlp
        token_half, state_half = drafter.fc.weight.float().split(c.dim, 1)
        # Half of the first matmul only ever reads one of V vectors.
        bias = None if drafter.fc.bias is None else drafter.fc.bias.float()
        self.embeddings = F.linear(drafter.embed_tokens.weight.float(), token_half, bias)
        # The terms of feature layers and of a node's own output share a matmul with the rest.
        self.own = matmul(
            state_half + drafter.fc_own.weight.float() if c.feature_layers else state_half, kind
        )
        if c.feature_layers:
            self.states = matmul(torch.cat((state_half, drafter.fc_taps.weight.float()), 1), kind)
        norm = partial(
            F.rms_norm,
            normalized_shape=(c.dim,),
            weight=layer.post_attention_layernorm.weight.float(),
            eps=c.eps,
        )
        self.layer = LeanLayer(
            None,
            matmul(torch.cat((a.q_proj.weight, a.k_proj.weight, a.v_proj.weight)), kind),
            matmul(a.o_proj.weight, kind),
            norm,
            matmul(torch.cat((m.gate_proj.weight, m.up_proj.weight)), kind),
            matmul(m.down_proj.weight, kind),
            c.heads,
        )
        self.rope = complex_rope(drafter.rope, c.heads)

    def new_cache(self, rows: int, length: int) -> KVCache:
        c = self.config
        return KVCache(1, rows, c.heads, c.prefix + length, c.dim // c.heads)

    def prefill(
        self, hidden: Tensor, token: Tensor, cache: KVCache, condition: object = None
    ) -> None:
        self.config.check_states(hidden)
        n = hidden.shape[1]
        cache.start(n)
        slots = torch.arange(n)
        self.forward(F.pad(token, (n - 1, 0)), hidden, slots, slots, None, cache)

    def forward(
        self,
        tokens: Tensor,
        hidden: Tensor,
        positions: Tensor,
        slots: Tensor,
        visible: Tensor | None,
        cache: KVCache,
    ) -> Tensor:
        """Read n slots -> outputs [R, m, H] of the last m; see
        `decoding.interfaces.Drafter.forward`.
        """
        r, n, width = hidden.shape
        dim, before = self.config.dim, hidden.reshape(r * n, width)
        known = self.own(before) if width == dim else self._stable(before)
        x = (known.view(r, n, dim) + F.embedding(tokens, self.embeddings)).view(r * n, dim)
        rotated = self.layer.rotated(x, self.rope[positions], r)
        end, asked = end_of(slots, visible), 1 if visible is None else len(visible)
        k, v = cache.write(0, slots, end, rotated[:, :, 1:])
        q = rotated[:, :, 0] if asked == n else rotated[:, n - asked :, 0]
        x = x if asked == n else x.view(r, n, dim)[:, n - asked :].reshape(r * asked, dim)
        attended = F.scaled_dot_product_attention(
            q.transpose(1, 2), k, v, cache.bias(visible, end), scale=1.0
        )  # queries are scaled already
        return self.layer.finish(x, attended.transpose(1, 2).reshape(r * asked, dim)).view(
            r, asked, dim
        )

    def _stable(self, hidden: Tensor) -> Tensor:
        """Map the target's states with features [M, (1 + F) D] to their share of the layer's input
        [M, D].
        """
        dim = self.config.dim
        features = F.rms_norm(
            hidden[:, dim:].unflatten(1, (-1, dim)), (dim,), eps=self.config.eps
        ).flatten(1)
        return self.states(torch.cat((hidden[:, :dim], features), 1))
