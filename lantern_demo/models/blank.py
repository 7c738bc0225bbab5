"""Networks without memory: built on the meta device for the names and shapes of their tensors, then filled one tensor at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import TypeVar, overload

import torch
from torch import Tensor, nn
from transformers import JanusVQVAEConfig, T5Config, T5EncoderModel, T5ForConditionalGeneration

from lantern_demo.models.anole.drafter import AnoleDrafter, AnoleDrafterConfig
from lantern_demo.models.anole.target import Anole, AnoleConfig, anole_angles
from lantern_demo.models.llamagen.drafter import Drafter, DrafterConfig
from lantern_demo.models.llamagen.target import LlamaGen, LlamaGenConfig, rope_table
from lantern_demo.models.registry import TextSizes, TokenizerSizes, Words
from lantern_demo.models.tokenizer import ChameleonTokenizer, ImageTokenizer

Sizes = LlamaGenConfig | AnoleConfig | DrafterConfig | AnoleDrafterConfig | TokenizerSizes | TextSizes | Words
Network = TypeVar("Network", bound=nn.Module)


@overload
def blank_target(config: LlamaGenConfig) -> LlamaGen: ...
@overload
def blank_target(config: AnoleConfig) -> Anole: ...
@overload
def blank_target(config: LlamaGenConfig | AnoleConfig) -> LlamaGen | Anole: ...
def blank_target(config: LlamaGenConfig | AnoleConfig) -> LlamaGen | Anole:
    """A target whose weights are on the meta device; its rotary table is real."""
    head_dim = config.dim // config.heads
    with torch.device("meta"):
        model = LlamaGen(config) if isinstance(config, LlamaGenConfig) else Anole(config)
    if isinstance(config, LlamaGenConfig):
        model.rope = rope_table(config.prefix, config.grid, head_dim, config.rope_base)
    else:
        model.rope = anole_angles(config.prefix, config.grid, head_dim, config.rope_base)
    return model


@overload
def blank_drafter(config: DrafterConfig) -> Drafter: ...
@overload
def blank_drafter(config: AnoleDrafterConfig) -> AnoleDrafter: ...
@overload
def blank_drafter(config: DrafterConfig | AnoleDrafterConfig) -> Drafter | AnoleDrafter: ...
def blank_drafter(config: DrafterConfig | AnoleDrafterConfig) -> Drafter | AnoleDrafter:
    """A drafter whose weights are on the meta device; its rotary table is real."""
    head_dim = config.dim // config.heads
    with torch.device("meta"):
        model = Drafter(config) if isinstance(config, DrafterConfig) else AnoleDrafter(config)
    if isinstance(config, DrafterConfig):
        model.rope = rope_table(config.prefix - 1, config.grid, head_dim, config.rope_base)
    else:
        model.rope = anole_angles(config.prefix, config.grid, head_dim, config.rope_base)
    return model


def blank_tokenizer(sizes: TokenizerSizes, grid: int) -> ImageTokenizer:
    """An image tokenizer for pictures of grid x grid tokens, on the meta device."""
    config = JanusVQVAEConfig(
        base_channels=sizes.channels, channel_multiplier=list(sizes.multipliers), num_res_blocks=sizes.blocks,
        latent_channels=sizes.latent, embed_dim=sizes.dim, num_embeddings=sizes.codebook, num_patches=grid,
    )  # fmt: skip
    with torch.device("meta"):
        return ChameleonTokenizer(config) if sizes.kind == "chameleon" else ImageTokenizer(config)


def blank_text(config: T5Config) -> T5EncoderModel:
    """A T5 encoder on the meta device."""
    with torch.device("meta"):
        return T5EncoderModel(config)


def t5_config(sizes: TextSizes) -> T5Config:
    """The configuration of a T5 (version 1.1) of these sizes."""
    return T5Config(
        d_model=sizes.width, num_layers=sizes.layers, num_heads=sizes.heads, d_kv=sizes.head, d_ff=sizes.ffn,
        vocab_size=sizes.vocab, feed_forward_proj="gated-gelu", tie_word_embeddings=False,
    )  # fmt: skip


@lru_cache
def shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the tensors of a network as published, under the names of this project.

    Of a text encoder those of the whole T5, and of Anole's head all rows, because that is what is downloaded.
    """
    if isinstance(sizes, Words):
        return {}
    if isinstance(sizes, (LlamaGenConfig, AnoleConfig)):
        # the rotary table is no weight, and building it for the real grid would take most of the time
        network: nn.Module = blank_target(replace(sizes, grid=1))
    elif isinstance(sizes, (DrafterConfig, AnoleDrafterConfig)):
        network = blank_drafter(replace(sizes, grid=1))
    elif isinstance(sizes, TokenizerSizes):
        network = blank_tokenizer(sizes, grid=1)
    else:
        with torch.device("meta"):
            network = T5ForConditionalGeneration(t5_config(sizes))
    found = {name: tuple(p.shape) for name, p in network.named_parameters()}
    if isinstance(sizes, TextSizes):
        found["lm_head.weight"] = (sizes.vocab, sizes.width)  # the library takes it for the embedding, which it is not
    if isinstance(sizes, AnoleConfig):
        found["lm_head.weight"] = (sizes.embeddings, sizes.dim)
    return found


def held(sizes: Sizes) -> int:
    """How many numbers of a part are in memory once it is loaded: a T5's encoder alone, an Anole's head of image tokens alone."""
    found = shapes(sizes)
    if isinstance(sizes, TextSizes):
        return sum(prod(shape) for name, shape in found.items() if name.startswith(("encoder.", "shared.")))
    count = sum(map(prod, found.values()))
    return count - (sizes.embeddings - sizes.vocab) * sizes.dim if isinstance(sizes, AnoleConfig) else count


def fill(network: Network, weights: Mapping[str, Tensor], device: torch.device, dtype: torch.dtype) -> Network:
    """Give a blank network its weights, and put it on a device for inference.

    Weights are moved and cast one by one, and those that already are what is asked for are taken as they are: tensors of a
    memory-mapped file stay in that file, so that there is never a second copy of the network. Rotary tables stay float32.
    Raises RuntimeError when a weight is missing, unknown or mis-shaped.
    """
    kept = _kept_in_float32(network, dtype)
    state = {name: w.to(device, torch.float32 if name in kept else dtype) for name, w in weights.items()}
    network.load_state_dict(state, strict=True, assign=True)
    network.requires_grad_(False).eval()
    network.to(device)  # buffers that are no weights
    lost = [name for name, t in (*network.named_parameters(), *network.named_buffers()) if t.is_meta]
    if lost:
        raise RuntimeError(f"these tensors were never given a value: {', '.join(lost)}")
    return network


def _kept_in_float32(network: nn.Module, dtype: torch.dtype) -> set[str]:
    """In float16 the second matrix of a T5's feed-forward layers would overflow; the library keeps it in float32 too."""
    if dtype != torch.float16 or not isinstance(network, T5EncoderModel):
        return set()
    return {name for name, _ in network.named_parameters() if name.endswith(".wo.weight")}
