"""Targets and drafters on a CPU, once for all families.

A target's layers are those of `models.cpu`. A drafter runs its module with packed matmuls.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from copy import deepcopy
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from lantern_demo.decoding.cache import KVCache, end_of
from lantern_demo.models import decoder
from lantern_demo.models.common import Condition, prefix_mask, with_features
from lantern_demo.models.cpu import LeanLayer, Norm, Where, complex_rope, paired
from lantern_demo.models.machine.matmul import Matmul, matmul

Network = TypeVar("Network", bound=nn.Module)


class Packing:
    """Makes matmuls of a kind (see `matmul.KINDS`) from a network's linear layers. release: each
    layer drops its weight when it is packed, so that only one weight at a time is in memory twice.
    """

    def __init__(self, kind: str, release: bool) -> None:
        self.kind, self.release = kind, release

    def matmul(self, *parts: nn.Linear) -> Matmul:
        """Make one matmul of linear layers without biases, their outputs side by side."""
        return self._of(
            torch.cat([part.weight for part in parts]) if len(parts) > 1 else parts[0].weight,
            *parts,
        )

    def half_rotated(self, q: nn.Linear, k: nn.Linear, v: nn.Linear, heads: int) -> Matmul:
        """Make one matmul to queries, keys and values of a family that rotates the pairs (i, i + d
        / 2): see `cpu.paired`.
        """
        return self._of(
            torch.cat((paired(q.weight, heads), paired(k.weight, heads), v.weight)), q, k, v
        )

    def affine(self, part: nn.Linear) -> Matmul:
        """Make a matmul that adds the linear layer's bias."""
        run, bias = self.matmul(part), part.bias.detach().float()
        return lambda x: run(x).add_(bias)

    def take(self, *parts: nn.Linear | nn.Embedding) -> None:
        """Drop the parts' weights if they are to be released: a copy exists."""
        for part in parts if self.release else ():
            part.weight = nn.Parameter(part.weight.to("meta"), requires_grad=False)

    def _of(self, weight: Tensor, *parts: nn.Linear) -> Matmul:
        found = matmul(weight, self.kind)
        self.take(*parts)
        return found


class LeanDecoder(ABC):
    """A target on a CPU; implements `decoding.interfaces.Target` and keeps the original for its
    conditions.

    A family adds the packing of its layers, the embedding of prompts and tokens, and its head.
    """

    def __init__(
        self, target: Any, kind: str = "plain", release: bool = False, layers: int | None = None
    ) -> None:
        """kind and release are those of `Packing`. layers: only the first `layers` ones, to time
        passes.
        """
        c = target.config
        self.original, self.config, self.vocab_size = target, c, c.vocab
        # dtype of the mask's sums, on which padding "released" depends
        self.format = torch.bfloat16 if kind == "bfloat16" else torch.float32
        self.kind, self.packing = kind, Packing(kind, release)
        self.layers = [self.layer(block) for block in target.blocks[:layers]]
        self.norm = Norm(target.norm.weight, c.eps)
        self.rope = complex_rope(target.rope, c.heads)

    @abstractmethod
    def layer(self, block: Any) -> LeanLayer:
        """Return a block as a layer of packed matmuls."""

    @abstractmethod
    def embed(self, tokens: Tensor) -> Tensor:
        """Map image tokens [n] int64 to their vectors [n, H] float32."""

    @abstractmethod
    def logits(self, hidden: Tensor) -> Tensor:
        """Map final states [M, H], or wider ones with features after them, to logits [M, V]
        float32.
        """

    def new_cache(self, rows: int, length: int) -> KVCache:
        c = self.config
        return KVCache(len(self.layers), rows, c.heads, c.prefix + length, c.dim // c.heads)

    def prefill(self, condition: Condition, cache: KVCache) -> Tensor:
        """Read the T prefix positions -> hidden [R, T, H]; padded ones too, which drafters may
        read.
        """
        x = self.original.read(condition).float()
        n = x.shape[1]
        cache.start(n, condition.mask)
        mask = prefix_mask(condition.mask, n, x.device, self.original.padding, self.format)
        return self._run(x, self.rope[:n], torch.arange(n), n, mask, cache)

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        slots: Tensor,
        visible: Tensor | None,
        cache: KVCache,
    ) -> Tensor:
        """Read n nodes -> hidden [R, n, H]; see `decoding.interfaces.Target.forward`."""
        x = self.embed(tokens).expand(cache.rows, -1, -1)
        end = end_of(slots, visible)
        return self._run(x, self.rope[positions], slots, end, cache.bias(visible, end), cache)

    def head(self, hidden: Tensor) -> Tensor:
        """Map hidden [R, n, H] to logits [R, n, V] float32."""
        return self.logits(hidden.flatten(0, 1)).view(*hidden.shape[:2], -1)

    def _run(
        self, x: Tensor, rope: Tensor, slots: Tensor, end: int, mask: Tensor | None, cache: KVCache
    ) -> Tensor:
        """Run the layers over x [R, n, H]; the last four are those of `cpu.Where`."""
        r, n, dim = x.shape
        x = x.reshape(r * n, dim)
        features: list[Tensor] = []
        for i, layer in enumerate(self.layers):
            x = layer.forward(x, rope, Where(cache, i, slots, end, mask))
            if i + 1 in self.original.feature_layers:
                features.append(x)
        return with_features(self.norm(x), features).view(r, n, -1)


class LeanSequence(LeanDecoder):
    """A target with the prompt in its sequence: see `models.decoder`.

    The vectors of words stay with the original.

    Positions count from the start of a row's padding, not from its end: attention depends on their
    differences alone.
    """

    original: decoder.SequenceTarget

    def layer(self, block: decoder.SequenceLayer) -> LeanLayer:
        a, m, eps, packing = block.self_attn, block.mlp, self.config.eps, self.packing
        return LeanLayer(
            Norm(block.input_layernorm.weight, eps),
            packing.half_rotated(a.q_proj, a.k_proj, a.v_proj, a.heads),
            packing.matmul(a.o_proj),
            Norm(block.post_attention_layernorm.weight, eps),
            packing.matmul(m.gate_proj, m.up_proj),
            packing.matmul(m.down_proj),
            a.heads,
        )


class Packed(nn.Module):
    """A linear layer with a matmul of a kind; inputs and outputs are float32."""

    def __init__(self, linear: nn.Linear, kind: str) -> None:
        super().__init__()
        self.run = matmul(linear.weight, kind)
        # a T5 of the library reads the number format of some
        self.register_parameter("weight", None)
        self.bias = None if linear.bias is None else linear.bias.detach().float()

    def forward(self, x: Tensor) -> Tensor:
        """x [..., D] -> [..., O] float32."""
        found = self.run(x.float().flatten(0, -2)).unflatten(0, x.shape[:-1])
        return found if self.bias is None else found.add_(self.bias)


def packed(network: Network, kind: str) -> Network:
    """Return a CPU copy of a network, such as a drafter of a `decoder.SequenceTarget`: the same
    module with packed matmuls, norms in float32, and the original's own vectors of tokens.
    """
    shared = {
        id(weight): nn.Parameter(weight.detach(), requires_grad=False)
        for weight in network.parameters()
    }
    fused = deepcopy(network, shared)
    for name, part in list(fused.named_modules()):
        if isinstance(part, nn.Linear):
            fused.set_submodule(name, Packed(part, kind))
        elif not isinstance(part, nn.Embedding):
            for weight in part.parameters(recurse=False):
                weight.data = weight.data.float()
    return fused
