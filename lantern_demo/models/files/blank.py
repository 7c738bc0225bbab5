"""Networks without memory: they are built on the meta device, which gives the names and shapes of
their tensors, and then filled one tensor at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from transformers import JanusVQVAEConfig, T5Config, T5EncoderModel, T5ForConditionalGeneration

from lantern_demo.models.common import Network, NetworkSizes
from lantern_demo.models.registry import TextSizes, TokenizerSizes, Words
from lantern_demo.models.tokenizer import ChameleonTokenizer, ImageTokenizer

Sizes = NetworkSizes[Any] | TokenizerSizes | TextSizes | Words


def blank_network(sizes: NetworkSizes[Network]) -> Network:
    """Return a target or a drafter with its weights on the meta device; its rotary table is real."""
    with torch.device("meta"):
        model = sizes.build()
    model.rope = sizes.rope_table()
    return model


def blank_tokenizer(sizes: TokenizerSizes, grid: int) -> ImageTokenizer:
    """Return an image tokenizer for pictures of grid x grid tokens, on the meta device."""
    config = JanusVQVAEConfig(
        base_channels=sizes.channels,
        channel_multiplier=list(sizes.multipliers),
        num_res_blocks=sizes.blocks,
        latent_channels=sizes.latent,
        embed_dim=sizes.dim,
        num_embeddings=sizes.codebook,
        num_patches=grid,
    )
    with torch.device("meta"):
        return ChameleonTokenizer(config) if sizes.kind == "chameleon" else ImageTokenizer(config)


def blank_text(config: T5Config) -> T5EncoderModel:
    """Return a T5 encoder on the meta device."""
    with torch.device("meta"):
        return T5EncoderModel(config)


def t5_config(sizes: TextSizes) -> T5Config:
    """Return the configuration of a T5 (version 1.1) of these sizes."""
    return T5Config(
        d_model=sizes.width,
        num_layers=sizes.layers,
        num_heads=sizes.heads,
        d_kv=sizes.head,
        d_ff=sizes.ffn,
        vocab_size=sizes.vocab,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
    )


def shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of a network's published tensors, under the names of this project.

    They include everything that is downloaded: the whole T5 of a text encoder, and all rows of a
    head that is cut when it is read.
    """
    found = dict(_built_shapes(sizes))
    if isinstance(sizes, TextSizes):
        # the library wrongly takes it for the embedding
        found["lm_head.weight"] = (sizes.vocab, sizes.width)
    if isinstance(sizes, NetworkSizes):
        found |= sizes.published_shapes()
    return found


def held(sizes: Sizes) -> int:
    """Return how many numbers of a part stay in memory: the encoder of a T5, and the kept rows of a
    head.
    """
    found = _built_shapes(sizes)
    if isinstance(sizes, TextSizes):
        found = {
            name: shape for name, shape in found.items() if name.startswith(("encoder.", "shared."))
        }
    return sum(map(prod, found.values()))


@lru_cache
def _built_shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of the tensors of the network that is built."""
    if isinstance(sizes, Words):
        return {}
    if isinstance(sizes, NetworkSizes):
        # the rotary table is no weight, and building it for the real grid would take most of the
        # time
        network: nn.Module = blank_network(replace(sizes, grid=1))
    elif isinstance(sizes, TokenizerSizes):
        network = blank_tokenizer(sizes, grid=1)
    else:
        with torch.device("meta"):
            network = T5ForConditionalGeneration(t5_config(sizes))
    return {name: tuple(p.shape) for name, p in network.named_parameters()}


def fill(
    network: Network, weights: Mapping[str, Tensor], device: torch.device, dtype: torch.dtype | None
) -> Network:
    """Give a blank network its weights, and put it on a device for inference; dtype None keeps
    their dtypes.

    Weights are moved and cast one by one. Those that already have the device and dtype are not
    copied: tensors of a memory-mapped file stay in that file, so that the network is never in
    memory twice. Rotary tables stay float32. Raise RuntimeError when a weight is missing, unknown
    or mis-shaped.
    """
    kept = _kept_in_float32(network, dtype)
    state = {
        name: w.to(device, torch.float32 if name in kept else dtype) for name, w in weights.items()
    }
    network.load_state_dict(state, strict=True, assign=True)
    network.requires_grad_(False).eval()
    network.to(device)  # moves the buffers that are no weights
    lost = [
        name for name, t in (*network.named_parameters(), *network.named_buffers()) if t.is_meta
    ]
    if lost:
        raise RuntimeError(f"these tensors were never given a value: {', '.join(lost)}")
    return network


def _kept_in_float32(network: nn.Module, dtype: torch.dtype | None) -> set[str]:
    """In float16 the second matrix of a T5's feed-forward layers would overflow; the library keeps
    it in float32 too.
    """
    if dtype != torch.float16 or not isinstance(network, T5EncoderModel):
        return set()
    return {name for name, _ in network.named_parameters() if name.endswith(".wo.weight")}
