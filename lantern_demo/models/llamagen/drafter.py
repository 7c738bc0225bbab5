"""The EAGLE drafter of the LANTERN models: one decoder layer that predicts the target's next hidden
state.

Input is fc([embedding of the next token ; the target's hidden state]); there is no norm before
attention or at the end. The target's own head turns outputs into logits (jadohu/LANTERN,
models/drafters/cnets_llamagen.py). Tensor names are those of the published pytorch_model.bin.

A drafter may also read the outputs of some of the target's blocks, after EAGLE-3 (Li et al. 2025):
see `DrafterConfig.feature_layers`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lantern_demo.decoding.cache import KVCache
from lantern_demo.models.common import DrafterSizes, RMSNorm
from lantern_demo.models.decoder import DecoderDrafter
from lantern_demo.models.llama import FeedForward, Layer, SplitAttention
from lantern_demo.models.llamagen.target import LlamaGen, rope_table, rotate_pairs


@dataclass(frozen=True)
class DrafterConfig(DrafterSizes["Drafter"]):
    """Sizes of a drafter; dim, heads, vocab, grid and prefix are its target's."""

    dim: int = 256
    heads: int = 4
    ffn: int = 768
    vocab: int = 2048
    grid: int = 16
    prefix: int = 24
    bias: bool = True  # of fc
    rope_base: float = 10000.0
    eps: float = 1e-6
    # Whether it drafts one row, from guided states `uncond + scale (cond - uncond)`, instead of the
    # two published rows. The head is linear, so the logits of such a state are the guided ones.
    # Half the work, but it must be trained so.
    guided: bool = False
    # Blocks of the target, counted from 1, whose normalised outputs it reads with the final states;
    # published: empty. The target has not seen a node of a draft tree, which therefore reads its
    # parent's output again instead.
    feature_layers: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        # JSON only has lists
        object.__setattr__(self, "feature_layers", tuple(self.feature_layers))

    def build(self) -> Drafter:
        return Drafter(self)

    def rope_table(self) -> Tensor:
        """As `DrafterSizes.rope_table`.

        Slot i carries the token at position i + 1, so the table begins one position later.
        """
        return rope_table(self.prefix - 1, self.grid, self.head_dim, self.rope_base)

    def check_states(self, hidden: Tensor) -> None:
        """Raise ValueError for hidden states [R, n, *] without the feature layers' outputs."""
        width = (1 + len(self.feature_layers)) * self.dim
        if hidden.shape[-1] != width:
            raise ValueError(
                f"hidden states are {hidden.shape[-1]} wide; a drafter with feature layers {list(self.feature_layers)} reads "
                f"{width}: the target's `feature_layers` must be its own"
            )


class DrafterLayer(Layer):
    """A decoder layer without a norm before its attention."""

    def __init__(self, config: DrafterConfig) -> None:
        attention = SplitAttention(config.dim, config.heads, rotate_pairs)
        super().__init__(
            None, attention, RMSNorm(config.dim, config.eps), FeedForward(config.dim, config.ffn)
        )


class Drafter(DecoderDrafter):
    """Implements `decoding.interfaces.Drafter`.

    Slot i pairs the target's hidden state at position i with the token at position i + 1. So slot
    prefix - 1 + j carries image token j, at its position of the target's rotary grid. Slots of the
    prefix carry token id 0. There is no prompt mask: padded rows of the prefix are read like the
    others, as published.
    """

    config: DrafterConfig

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__()
        self.config = config
        self.guided = config.guided
        self.embed_tokens = nn.Embedding(config.vocab, config.dim)
        self.fc = nn.Linear(2 * config.dim, config.dim, bias=config.bias)
        if config.feature_layers:
            # Terms added to fc's output at a stable slot and at a node. They start at zero, so that
            # training may continue from a drafter without them.
            self.fc_taps = nn.Linear(
                len(config.feature_layers) * config.dim, config.dim, bias=False
            )
            self.fc_own = nn.Linear(config.dim, config.dim, bias=False)
            nn.init.zeros_(self.fc_taps.weight)
            nn.init.zeros_(self.fc_own.weight)
        # one layer, published under the name of a list
        self.layers = nn.ModuleList([DrafterLayer(config)])
        self.register_buffer("rope", config.rope_table(), persistent=False)

    def prefill(
        self, hidden: Tensor, token: Tensor, cache: KVCache, condition: object = None
    ) -> None:
        """As `decoding.interfaces.Drafter.prefill`. The prompt itself is not read."""
        self.config.check_states(hidden)
        n = hidden.shape[1]
        cache.start(n)
        slots = torch.arange(n, device=hidden.device)
        self.forward(F.pad(token, (n - 1, 0)), hidden, slots, slots, None, cache)

    def embed(self, tokens: Tensor) -> Tensor:
        return self.embed_tokens(tokens)

    def fuse(self, embedded: Tensor, before: Tensor) -> Tensor:
        """Join tokens' vectors [R, m, H] with the states before them to the layer's input [R, m,
        H]: the target's hidden states [R, m, (1 + F) H] at stable slots, the drafter's own outputs
        [R, m, H] at nodes.
        """
        dim = self.config.dim
        if not self.config.feature_layers:
            return self.fc(torch.cat((embedded, before), -1))
        x = self.fc(torch.cat((embedded, before[..., :dim]), -1))
        if before.shape[-1] == dim:
            return x + self.fc_own(before)
        features = F.rms_norm(
            before[..., dim:].unflatten(-1, (-1, dim)), (dim,), eps=self.config.eps
        )
        return x + self.fc_taps(features.flatten(-2))

    # -- training: see `Learner` in `examples/train_drafter/teaching.py`

    @property
    def lead(self) -> int:
        """As `Learner.lead`: the whole prefix is read."""
        return self.config.prefix - 1

    def learn_from(self, target: LlamaGen) -> None:
        """As `Learner.learn_from`: it starts with its target's embeddings."""
        self.embed_tokens.weight.data.copy_(target.tok_embeddings.weight)
