"""The published files of LlamaGen, by its authors and by LANTERN's: names of tensors, and the
values that config.json must have.

Formats (facts: FoundationVision/LlamaGen@ce98ec4, jadohu/LANTERN@3a56e45):

  llamagen   LlamaGen's own .pt files, with this project's names.
  lantern    LANTERN's conversions: names of a Hugging Face LLaMA; separate matrices for queries,
  keys and values. vq         LlamaGen's tokenizer; transformers' JanusVQVAE is a renamed copy of
  it. t5         a whole T5; only its encoder is taken.
"""

from __future__ import annotations

import re
from typing import Any

from lantern_demo.models.files.hub import Located
from lantern_demo.models.files.tensors import (
    NOTHING,
    Layout,
    Shapes,
    check_config,
    read_config,
    renaming,
)
from lantern_demo.models.llamagen.drafter import DrafterConfig
from lantern_demo.models.llamagen.target import LlamaGenConfig
from lantern_demo.models.tokenizer import VQ_NAMES

# Values of LANTERN's configuration template for LlamaGen, which a config.json may leave out.
TEMPLATE_EPS, TEMPLATE_ROPE = 1e-6, 10000.0

_renamed = renaming(
    (r"^output\.", "lm_head."),
    (r"^(?!lm_head\.)", "model."),
    (r"\.tok_embeddings\.", ".embed_tokens."),
    (r"\.attention\.wo\.", ".self_attn.o_proj."),
    (r"\.feed_forward\.w1\.", ".mlp.gate_proj."),
    (r"\.feed_forward\.w3\.", ".mlp.up_proj."),
    (r"\.feed_forward\.w2\.", ".mlp.down_proj."),
    (r"\.attention_norm\.", ".input_layernorm."),
    (r"\.ffn_norm\.", ".post_attention_layernorm."),
)


def _lantern_names(name: str, shapes: Shapes) -> tuple[str, ...]:
    if ".wqkv." in name:
        return tuple(
            f"model.{name.replace('attention.wqkv', f'self_attn.{part}_proj')}" for part in "qkv"
        )
    return _renamed(name, shapes)


LAYOUTS = {
    "llamagen": Layout(renaming(), re.compile(r"freqs_cis")),
    "lantern": Layout(_lantern_names, NOTHING),
    "vq": Layout(renaming(*VQ_NAMES), re.compile(r"quantize\.codebook_used")),
    # The embedding is one tensor with several names.
    "t5": Layout(
        renaming((r"^encoder\.embed_tokens\.weight$", "shared.weight")),
        re.compile(r"decoder\..*|lm_head\.weight|encoder\.embed_tokens\.weight"),
    ),
}


def target_facts(sizes: LlamaGenConfig, located: Located) -> dict[str, Any]:
    """Return the fields of a target's configuration that its files set.

    LlamaGen's own files set none. Raise CheckpointError when they belong to another model.
    """
    if located.source.format != "lantern":
        return {}
    path = located.beside("config.json")
    said = read_config(path)
    check_config(path, said, sizes.heads, block_size=sizes.tokens, cls_token_num=sizes.prefix)
    return {
        "eps": said.get("rms_norm_eps", TEMPLATE_EPS),
        "rope_base": float(said.get("rope_base", TEMPLATE_ROPE)),
    }


def drafter_facts(sizes: DrafterConfig, located: Located) -> dict[str, Any]:
    """As `target_facts`, for a drafter, whose config.json may be missing."""
    path = located.beside("config.json")
    said = read_config(path) if path.is_file() else {}
    check_config(path, said, sizes.heads)
    return {
        "eps": said.get("rms_norm_eps", TEMPLATE_EPS),
        "bias": bool(said.get("bias", sizes.bias)),
    }
