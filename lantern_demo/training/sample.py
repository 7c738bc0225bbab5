"""Vanilla samples in batches: for training a drafter on what the target itself draws, and for measuring what it draws."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from lantern_demo.decoding.sampling import draw
from lantern_demo.models.llamagen import LlamaGen
from lantern_demo.models.text import TextEncoder


@torch.inference_mode()
def sample_batch(text: TextEncoder, target: LlamaGen, prompts: list[str], cfg_scale: float, seed: int) -> Tensor:
    """One picture per prompt at temperature 1 over the whole vocabulary -> token ids [B, N] int64 on the CPU.

    The law is that of decoding each alone; guidance doubles the batch, conditional rows first.
    """
    device, config, b = target.rope.device, target.config, len(prompts)
    ids, ids_mask = text.ids(prompts)
    features, mask = text(ids.to(device), ids_mask.to(device))
    nothing = target.no_caption().to(features.dtype).expand_as(features)
    dtype = target.output.weight.dtype
    x = target.cls_embedding(torch.cat((features, nothing)).to(dtype))
    both = mask.repeat(2, 1)
    cache = target.new_cache(2 * b, config.tokens)
    t = config.prefix
    causal = torch.ones(t, t, dtype=torch.bool, device=device).tril()
    eye = torch.eye(t, dtype=torch.bool, device=device)
    hidden = target.run(x, target.rope[:t], (causal & both[:, None, None]) | eye, cache)
    cache.advance(t)
    g = torch.Generator(device).manual_seed(seed)
    tokens: list[Tensor] = []
    for j in range(config.tokens):
        cond, uncond = target.head(hidden[:, -1:])[:, 0].chunk(2)
        p = (uncond + cfg_scale * (cond - uncond)).softmax(-1)
        tokens.append(draw(p, torch.rand(b, generator=g, device=device)))
        if j + 1 < config.tokens:
            seen = F.pad(both, (0, j + 1), value=True)[:, None, None]
            x = target.tok_embeddings(tokens[-1].repeat(2))[:, None]
            hidden = target.run(x, target.rope[t + j : t + j + 1], seen, cache)
            cache.advance(1)
    return torch.stack(tokens, 1).cpu()
