"""The published files of LlamaGen, by its authors and by LANTERN's: names of tensors, and the values that config.json must
have.

Formats (facts: FoundationVision/LlamaGen@ce98ec4, jadohu/LANTERN@3a56e45):

  llamagen   LlamaGen's own .pt files, with this project's names.
  lantern    LANTERN's conversions: names of a Hugging Face LLaMA; separate matrices for queries, keys and values.
  vq         LlamaGen's tokenizer; transformers' JanusVQVAE is a renamed copy of it.
  t5         a whole T5; only its encoder is taken.
"""

from __future__ import annotations

import re
from typing import Any

from lantern_demo.models.files.hub import Located
from lantern_demo.models.files.tensors import NOTHING, Layout, Shapes, as_published, check_config, read_config
from lantern_demo.models.llamagen.drafter import DrafterConfig
from lantern_demo.models.llamagen.target import LlamaGenConfig
from lantern_demo.models.tokenizer import published_vq_name

# Values of LANTERN's configuration template for LlamaGen, which a config.json may leave out.
TEMPLATE_EPS, TEMPLATE_ROPE = 1e-6, 10000.0

_LANTERN_NAMES = (
    ("tok_embeddings.", "model.embed_tokens."),
    ("cls_embedding.", "model.cls_embedding."),
    ("output.", "lm_head."),
    ("norm.", "model.norm."),
    ("layers.", "model.layers."),
)
_LANTERN_LAYER_NAMES = (
    ("attention.wo.", "self_attn.o_proj."),
    ("feed_forward.w1.", "mlp.gate_proj."),
    ("feed_forward.w3.", "mlp.up_proj."),
    ("feed_forward.w2.", "mlp.down_proj."),
    ("attention_norm.", "input_layernorm."),
    ("ffn_norm.", "post_attention_layernorm."),
)


def _lantern_names(name: str, _: Shapes) -> tuple[str, ...]:
    for ours, theirs in _LANTERN_NAMES:
        if name.startswith(ours):
            name = theirs + name.removeprefix(ours)
            break
    for ours, theirs in _LANTERN_LAYER_NAMES:
        name = name.replace(f".{ours}", f".{theirs}")
    if ".attention.wqkv." in name:
        return tuple(name.replace("attention.wqkv", f"self_attn.{part}_proj") for part in "qkv")
    return (name,)


def _vq_names(name: str, _: Shapes) -> tuple[str, ...]:
    return (published_vq_name(name),)


def _t5_names(name: str, _: Shapes) -> tuple[str, ...]:
    # The embedding is one tensor with several names.
    return ("shared.weight",) if name == "encoder.embed_tokens.weight" else (name,)


LAYOUTS = {
    "llamagen": Layout(as_published, re.compile(r"freqs_cis")),
    "lantern": Layout(_lantern_names, NOTHING),
    "vq": Layout(_vq_names, re.compile(r"quantize\.codebook_used")),
    "t5": Layout(_t5_names, re.compile(r"decoder\..*|lm_head\.weight|encoder\.embed_tokens\.weight")),
}


def target_facts(sizes: LlamaGenConfig, located: Located) -> dict[str, Any]:
    """Return the fields of a target's configuration that its files set. LlamaGen's own files set none. Raise CheckpointError
    when they belong to another model."""
    if located.source.format != "lantern":
        return {}
    path = located.beside("config.json")
    said = read_config(path)
    grid = {"block_size": sizes.tokens, "cls_token_num": sizes.prefix}
    check_config(path, said, {"num_attention_heads": sizes.heads, "num_key_value_heads": sizes.heads, **grid})
    return {"eps": said.get("rms_norm_eps", TEMPLATE_EPS), "rope_base": float(said.get("rope_base", TEMPLATE_ROPE))}


def drafter_facts(sizes: DrafterConfig, located: Located) -> dict[str, Any]:
    """As `target_facts`, for a drafter, whose config.json may be missing."""
    path = located.beside("config.json")
    said = read_config(path) if path.is_file() else {}
    check_config(path, said, {"num_attention_heads": sizes.heads, "num_key_value_heads": sizes.heads})
    return {"eps": said.get("rms_norm_eps", TEMPLATE_EPS), "bias": bool(said.get("bias", sizes.bias))}
