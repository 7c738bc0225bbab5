"""Compute the likelihood of a picture's tokens under the target."""

from __future__ import annotations

import torch
from torch import Tensor

from examples.train_drafter.own import encode_prompts
from examples.train_drafter.teaching import train_hidden
from lantern_demo.decoding.sampling import Sampling, guide, probabilities
from lantern_demo.models.llamagen import LlamaGen
from lantern_demo.models.text import PromptEncoder

# least probability of a token, 20.7 nats: one impossible token must not make a picture's mean
# infinite
FLOOR = 1e-9
POSITIONS = 2048  # rows of logits in memory at once


@torch.inference_mode()
def nll(
    target: LlamaGen,
    encoder: PromptEncoder,
    prompts: list[str],
    tokens: Tensor,
    sampling: Sampling,
    batch: int = 16,
) -> Tensor:
    """Compute the mean -log p per token, in nats, of pictures of B prompts with token ids [B, N] ->
    [B] float64 on the CPU.

    p is the sampling distribution: guided, after temperature, top-k and top-p, or the plain softmax
    for a greedy `sampling`. Probabilities below FLOOR count as FLOOR.
    """
    config = target.config
    device, guided = target.rope.device, sampling.cfg_scale != 1
    p = torch.zeros(tokens.shape, dtype=torch.float64)
    for rows in torch.arange(len(prompts)).split(batch):
        condition = target.condition(
            *encode_prompts(encoder, [prompts[i] for i in rows], device), guided
        )
        features = condition.features.to(target.lm_head.weight.dtype)
        ids = tokens[rows].to(device).long()
        # The last token predicts nothing.
        hidden = train_hidden(target, ids[:, :-1].repeat(1 + guided, 1), features, condition.mask)[
            :, config.prefix - 1 :
        ]
        for columns in torch.arange(config.tokens).split(max(1, POSITIONS // len(hidden))):
            logits = target.head(hidden[:, columns]).unflatten(0, (1 + guided, -1))
            probs = probabilities(guide(logits, sampling.cfg_scale), sampling)
            found = probs.gather(2, ids[:, columns, None])[..., 0]
            p[rows[:, None], columns] = found.double().cpu()
    return -p.clamp(min=FLOOR).log().mean(1)
