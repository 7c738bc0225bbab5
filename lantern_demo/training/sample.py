"""Vanilla samples in batches: for training a drafter on what the target itself draws, and for measuring what it draws."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lantern_demo.decoding.sampling import Sampling, draw, probabilities
from lantern_demo.models.common import Condition, prefix_mask
from lantern_demo.models.llamagen.target import LlamaGen
from lantern_demo.models.text import PromptEncoder, TextEncoder


def encode_prompts(encoder: PromptEncoder, prompts: list[str], device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Prompts as conditions of a target: features [B, T, C] and their mask [B, T] bool, or class ids [B] and None."""
    if isinstance(encoder, TextEncoder):
        ids, mask = encoder.ids(prompts)
        return encoder(ids.to(device), mask.to(device))
    encoded = [encoder.encode(prompt) for prompt in prompts]
    features = torch.cat([e.features for e in encoded]).to(device)
    masks = [e.mask for e in encoded if e.mask is not None]
    return features, torch.cat(masks).to(device) if masks else None


@torch.inference_mode()
def sample_batch(target: LlamaGen, features: Tensor, mask: Tensor | None, sampling: Sampling, seed: int) -> Tensor:
    """One picture per prompt -> token ids [B, N] int64 on the CPU; features and mask as `encode_prompts` gives them.

    The law is that of decoding each alone; guidance doubles the batch, conditional rows first.
    """
    device, config, b = target.rope.device, target.config, len(features)
    condition: Condition = target.condition(features, mask, True)
    x = target.embed_condition(condition)
    cache = target.new_cache(2 * b, config.tokens)
    t = config.prefix
    hidden = target.run(x, target.rope[:t], prefix_mask(condition.mask, t, device, config.padding, x.dtype), cache)
    cache.advance(t)
    g = torch.Generator(device).manual_seed(seed)
    tokens: list[Tensor] = []
    for j in range(config.tokens):
        cond, uncond = target.head(hidden[:, -1:])[:, 0].chunk(2)
        p = probabilities(uncond + sampling.cfg_scale * (cond - uncond), sampling)
        tokens.append(draw(p, torch.rand(b, generator=g, device=device)))
        if j + 1 < config.tokens:
            seen = None if condition.mask is None else F.pad(condition.mask, (0, j + 1), value=True)[:, None, None]
            x = target.tok_embeddings(tokens[-1].repeat(2))[:, None]
            hidden = target.run(x, target.rope[t + j : t + j + 1], seen, cache)
            cache.advance(1)
    return torch.stack(tokens, 1).cpu()
