"""The published files of Janus-Pro, by its authors and as transformers converts them: names of tensors, and values of
config.json.

Formats (facts: deepseek-ai/Janus, janus/models/*.py; transformers, models/janus/convert_janus_weights_to_hf.py):
  janus             DeepSeek's own "multi_modality" files: one pytorch_model.bin or several
  janus-vq          the image tokenizer in them, which has the names of LlamaGen's
  janus-library     transformers' conversion: safetensors
  janus-library-vq  the image tokenizer in them
"""

from __future__ import annotations

import re
from typing import Any

from lantern_demo.models.files.hub import Located
from lantern_demo.models.files.tensors import CheckpointError, Layout, Shapes, check_config, read_config
from lantern_demo.models.janus.target import JanusConfig
from lantern_demo.models.tokenizer import published_vq_name

# Parts of the target that do not belong to the decoder, by DeepSeek's names and by the library's.
_PARTS = {
    "image_embedding.codes.": ("gen_embed.", "generation_embeddings."),
    "image_embedding.fc1.": ("gen_aligner.layers.0.", "generation_aligner.fc1."),
    "image_embedding.fc2.": ("gen_aligner.layers.2.", "generation_aligner.hidden_layers.0."),
    "image_head.proj_out.": ("gen_head.output_mlp_projector.", "generation_head.proj_out."),
    "image_head.vision_head.": ("gen_head.vision_head.", "generation_head.vision_head."),
}


def _authors_names(name: str, _: Shapes) -> tuple[str, ...]:
    for ours, (theirs, _library) in _PARTS.items():
        if name.startswith(ours):
            return (theirs + name.removeprefix(ours),)
    return (f"language_model.model.{name}",)


def _library_names(name: str, _: Shapes) -> tuple[str, ...]:
    for ours, (_authors, theirs) in _PARTS.items():
        if name.startswith(ours):
            return (f"model.{theirs}{name.removeprefix(ours)}",)
    return (f"model.language_model.{name}",)


def _authors_vq_names(name: str, _: Shapes) -> tuple[str, ...]:
    return (f"gen_vision_model.{published_vq_name(name)}",)


def _library_vq_names(name: str, _: Shapes) -> tuple[str, ...]:
    return (f"model.vqmodel.{name.removeprefix('vq.')}",)


LAYOUTS = {
    "janus": Layout(_authors_names, re.compile(r"(vision_model|aligner|gen_vision_model)\..*|language_model\.lm_head\.weight")),
    "janus-vq": Layout(_authors_vq_names, re.compile(r"(?!gen_vision_model\.).*|gen_vision_model\.quantize\.codebook_used")),
    "janus-library": Layout(_library_names, re.compile(r"model\.(vision_model|aligner|vqmodel)\..*|lm_head\.weight")),
    "janus-library-vq": Layout(_library_vq_names, re.compile(r"(?!model\.vqmodel\.).*")),
}


def target_facts(sizes: JanusConfig, located: Located) -> dict[str, Any]:
    """Return the fields of a target's configuration that its config.json sets. Raise CheckpointError for another model's."""
    path = located.beside("config.json")
    said = read_config(path)
    wanted = {"num_attention_heads": sizes.heads, "num_key_value_heads": sizes.heads}
    wanted |= {"hidden_size": sizes.dim, "num_hidden_layers": sizes.layers, "vocab_size": sizes.embeddings}
    found = said.get("language_config") or said.get("text_config")  # DeepSeek's name and the library's
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} says nothing of a language model: it belongs to another model")
    check_config(path, found, wanted)
    # Newer library versions write theta one level down. DeepSeek's file has neither: the library's LLaMA has these values.
    theta = (found.get("rope_parameters") or {}).get("rope_theta", sizes.rope_base)
    return {"eps": float(found.get("rms_norm_eps", sizes.eps)), "rope_base": float(found.get("rope_theta", theta))}
