"""The drafter of a Janus-Pro: one layer of its target's kind that predicts the target's next hidden
state, over the picture alone.

It follows a published drafter for the 7B (selinyldrm/Deepseek-JanusPro-EAGLE,
models/drafters/cnets_januspro.py): the state before a token and the token's vector, in this order,
pass one linear layer and a SiLU into a LLaMA layer, then a norm. It never sees the prompt: its
slots begin with the picture's first token, at position 0, in training too. Image tokens enter as in
its target, by its own copy of the target's codebook and aligner. The target's head turns outputs
into logits. That head is not linear, so the outputs of the conditional and the unconditional row
pass it separately, and only then are mixed. `guided`, one row of mixed states, is not possible.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lantern_demo.models.common import Condition, DrafterSizes, RMSNorm
from lantern_demo.models.decoder import PaddedCache, SequenceDrafter, SequenceLayer
from lantern_demo.models.janus.target import ImageEmbedding, Janus, JanusSizes


@dataclass(frozen=True)
class JanusDrafterConfig(JanusSizes["JanusDrafter"], DrafterSizes["JanusDrafter"]):
    """Sizes of a Janus drafter; all but ffn and bias are its target's."""

    bias: bool = True  # of fusion

    def build(self) -> JanusDrafter:
        return JanusDrafter(self)


class JanusDrafter(SequenceDrafter):
    """Implements `decoding.interfaces.Drafter`.

    Slots of the prompt exist, as the protocol counts them, and are never seen.
    """

    config: JanusDrafterConfig

    def __init__(self, config: JanusDrafterConfig) -> None:
        super().__init__(config, SequenceLayer)
        self.image_embedding = ImageEmbedding(config.vocab, config.code, config.dim)
        self.fusion = nn.Linear(2 * config.dim, config.dim, bias=config.bias)
        self.norm = RMSNorm(config.dim, config.eps)

    def embed(self, tokens: Tensor) -> Tensor:
        return self.image_embedding(tokens)

    def fuse(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        return F.silu(self.fusion(torch.cat((hidden, embedded), -1)))

    def finish(self, x: Tensor) -> Tensor:
        return self.norm(x)

    def prefill(
        self, hidden: Tensor, token: Tensor, cache: PaddedCache, condition: Condition
    ) -> None:
        """As `decoding.interfaces.Drafter.prefill`: of the T slots only the last one counts, which
        the next pass writes.
        """
        rows, n = hidden.shape[:2]
        real = torch.zeros(rows, n, dtype=torch.bool, device=hidden.device)
        real[:, -1] = True
        cache.start(n, real)

    # -- training: see `Learner` in `examples/train_drafter/teaching.py`

    lead = 0  # it reads only the picture's slots

    def learn_from(self, target: Janus) -> None:
        """As `Learner.learn_from`: image tokens permanently enter as in its target, and the norm
        starts as the target's.
        """
        self.image_embedding.load_state_dict(target.image_embedding.state_dict())
        self.image_embedding.requires_grad_(False)
        self.norm.weight.data.copy_(target.norm.weight)
