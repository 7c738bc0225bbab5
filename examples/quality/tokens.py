"""Compute the likelihood of a picture's tokens under the target."""

from __future__ import annotations

import torch
from torch import Tensor

from examples.train_drafter.own import encode_prompts
from examples.train_drafter.teaching import train_hidden
from lantern_demo.decoding.sampling import Sampling, probabilities
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
    for a greedy `sampling`. Probabilities below FLOOR count as FLOOR. Raises ValueError if the
    number of prompts and pictures differs, or a picture's length differs from the model's.
    """
    config = target.config
    if tokens.shape != (len(prompts), config.tokens):
        raise ValueError(
            f"tokens must be [{len(prompts)} prompts, {config.tokens}], got the shape "
            f"{tuple(tokens.shape)}"
        )
    device, guided = target.rope.device, sampling.cfg_scale != 1
    p = torch.zeros(tokens.shape, dtype=torch.float64)
    for rows in torch.arange(len(prompts)).split(batch):
        condition = target.condition(
            *encode_prompts(encoder, [prompts[i] for i in rows], device), guided
        )
        features = condition.features.to(target.lm_head.weight.dtype)
        ids = tokens[rows].to(device).long()
        # The last token predicts nothing.
        hidden = train_hidden(
            target, ids[:, :-1].repeat(2 if guided else 1, 1), features, condition.mask
        )[:, config.prefix - 1 :]
        for columns in torch.arange(config.tokens).split(max(1, POSITIONS // len(hidden))):
            logits = target.head(hidden[:, columns])
            if guided:
                cond, uncond = logits.chunk(2)
                logits = torch.add(uncond, cond - uncond, alpha=sampling.cfg_scale)
            probs = probabilities(logits, sampling)
            found = probs.gather(2, ids[:, columns, None])[..., 0]
            p[rows[:, None], columns] = found.double().cpu()
    return -p.clamp(min=FLOOR).log().mean(1)
