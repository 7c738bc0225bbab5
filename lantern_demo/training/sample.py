"""Vanilla samples in batches: for training a drafter on what the target itself draws, and for measuring what it draws."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lantern_demo.decoding.sampling import Sampling, draw, probabilities
from lantern_demo.models.text import PromptEncoder, TextEncoder
from lantern_demo.training.teaching import Teacher


def encode_prompts(encoder: PromptEncoder, prompts: list[str], device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Prompts as conditions of a target: features [B, T, C] and their mask [B, T] bool, class ids [B] and None, or ids [B, T]
    with padding in front and their mask."""
    if isinstance(encoder, TextEncoder):
        ids, mask = encoder.ids(prompts)
        return encoder(ids.to(device), mask.to(device))
    encoded = [encoder.encode(prompt) for prompt in prompts]
    if encoded[0].mask is None and encoded[0].features.dim() == 2:  # ids, of as many tokens as each prompt has
        longest = max(e.features.shape[1] for e in encoded)
        missing = torch.tensor([longest - e.features.shape[1] for e in encoded])
        ids = torch.cat([F.pad(e.features, (longest - e.features.shape[1], 0)) for e in encoded])
        return ids.to(device), (torch.arange(longest) >= missing[:, None]).to(device)
    features = torch.cat([e.features for e in encoded]).to(device)
    masks = [e.mask for e in encoded if e.mask is not None]
    return features, torch.cat(masks).to(device) if masks else None


@torch.inference_mode()
def sample_batch(target: Teacher, features: Tensor, mask: Tensor | None, sampling: Sampling, seed: int) -> Tensor:
    """One picture per prompt -> token ids [B, N] int64 on the CPU; features and mask as `encode_prompts` gives them.

    The distribution is that of decoding each alone; guidance doubles the batch, conditional rows first.
    """
    device, count, b = target.rope.device, target.config.tokens, len(features)
    cache = target.new_cache(2 * b, count)
    hidden = target.prefill(target.condition(features, mask, True), cache)
    g = torch.Generator(device).manual_seed(seed)
    itself, ahead = torch.ones(1, 1, dtype=torch.bool, device=device), torch.zeros(1, dtype=torch.int64, device=device)
    tokens: list[Tensor] = []
    for j in range(count):
        cond, uncond = target.head(hidden[:, -1:])[:, 0].chunk(2)
        p = probabilities(uncond + sampling.cfg_scale * (cond - uncond), sampling)
        tokens.append(draw(p, torch.rand(b, generator=g, device=device)))
        if j + 1 < count:
            hidden = target.forward(tokens[-1].repeat(2)[:, None], ahead, itself, cache)
            cache.advance(1)
    return torch.stack(tokens, 1).cpu()
