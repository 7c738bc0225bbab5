"""What Hugging Face's `generate` takes for a token of Janus-Pro: transformers' own model of the same sizes, with random weights.

Timed are whole steps of its loop, from one token's logits to the next one's: a pass of both rows of the guidance over a static
cache as long as the prompt and the picture, the head, the guidance, the draw. What reads pictures takes no part in that and is
small here.
"""

from __future__ import annotations

from itertools import pairwise
from time import perf_counter

import torch
import transformers
from torch import Tensor
from transformers import JanusConfig as LibraryConfig
from transformers import (
    JanusForConditionalGeneration,
    JanusVisionConfig,
    JanusVQVAEConfig,
    LlamaConfig,
    LogitsProcessor,
    LogitsProcessorList,
)

from lantern_demo.decoding.sampling import Sampling
from lantern_demo.models.janus.target import JanusConfig

NAME = f"JanusForConditionalGeneration.generate of transformers {transformers.__version__}"


class Clock(LogitsProcessor):
    """Notes when logits come by, and leaves them as they are."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.times.append(perf_counter())
        return scores


def library_of(sizes: JanusConfig, dtype: torch.dtype) -> JanusForConditionalGeneration:
    """transformers' model of a target's sizes, weights as it initialises them."""
    text = LlamaConfig(
        vocab_size=sizes.embeddings,
        hidden_size=sizes.dim,
        intermediate_size=sizes.ffn,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.heads,
        rms_norm_eps=sizes.eps,
        pad_token_id=sizes.pad,
        max_position_embeddings=sizes.prefix + sizes.tokens,
    )
    vision = JanusVisionConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=32, mlp_ratio=1.0, projection_dim=sizes.dim
    )
    pictures = JanusVQVAEConfig(
        base_channels=32,
        channel_multiplier=[1],
        num_res_blocks=1,
        latent_channels=32,
        embed_dim=sizes.code,
        num_embeddings=sizes.vocab,
        projection_dim=sizes.dim,
        image_token_embed_dim=sizes.dim,
    )
    config = LibraryConfig(text_config=text, vision_config=vision, vq_config=pictures, tie_word_embeddings=True)
    model = JanusForConditionalGeneration._from_config(config, dtype=dtype)
    return model.requires_grad_(False).eval()


@torch.inference_mode()
def step_times(sizes: JanusConfig, dtype: torch.dtype, ids: Tensor, sampling: Sampling, steps: int) -> list[float]:
    """Milliseconds of so many tokens, one by one, that `generate` draws behind the first two after a prompt's ids [1, T]
    int64."""
    model, clock = library_of(sizes, dtype), Clock()
    model.model.vision_model.config.num_image_tokens = steps + 2  # it draws so many
    model.generation_config.generation_kwargs = {"boi_token_id": int(ids[0, -1])}
    model.generation_config.bos_token_id, model.generation_config.pad_token_id = int(ids[0, 0]), sizes.pad
    model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        generation_mode="image",
        guidance_scale=sampling.cfg_scale,
        do_sample=True,
        temperature=sampling.temperature,
        top_k=sampling.top_k,
        top_p=sampling.top_p,
        max_length=ids.shape[1] + sizes.tokens,
        logits_processor=LogitsProcessorList([clock]),
    )
    return [1000 * (after - before) for before, after in pairwise(clock.times[1:])]
