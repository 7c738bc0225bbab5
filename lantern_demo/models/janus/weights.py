"""The published files of Janus-Pro, by its authors and as transformers converts them: names of
tensors, and values of config.json.

Formats (facts: deepseek-ai/Janus, janus/models/*.py; transformers,
models/janus/convert_janus_weights_to_hf.py):
  janus             DeepSeek's own "multi_modality" files: one pytorch_model.bin or several
  janus-vq          the image tokenizer in them, which has the names of LlamaGen's
  janus-library     transformers' conversion: safetensors
  janus-library-vq  the image tokenizer in them
"""

from __future__ import annotations

import re
from typing import Any

from lantern_demo.models.files.hub import Located
from lantern_demo.models.files.tensors import (
    CheckpointError,
    Layout,
    check_config,
    eps_and_theta,
    read_config,
    renaming,
)
from lantern_demo.models.janus.target import JanusConfig
from lantern_demo.models.tokenizer import VQ_NAMES

_AUTHORS_NAMES = (
    (r"^(?!image_)", "language_model.model."),
    (r"^image_embedding\.codes\.", "gen_embed."),
    (r"^image_embedding\.fc1\.", "gen_aligner.layers.0."),
    (r"^image_embedding\.fc2\.", "gen_aligner.layers.2."),
    (r"^image_head\.proj_out\.", "gen_head.output_mlp_projector."),
    (r"^image_head\.", "gen_head."),
)
_LIBRARY_NAMES = (
    (r"^(?!image_)", "language_model."),
    (r"^image_embedding\.codes\.", "generation_embeddings."),
    (r"^image_embedding\.fc1\.", "generation_aligner.fc1."),
    (r"^image_embedding\.fc2\.", "generation_aligner.hidden_layers.0."),
    (r"^image_head\.", "generation_head."),
    (r"^", "model."),
)
_OTHER_PARTS = re.compile(
    r"(vision_model|aligner|gen_vision_model)\..*|language_model\.lm_head\.weight"
)
_NO_TOKENIZER = re.compile(r"(?!gen_vision_model\.).*|gen_vision_model\.quantize\.codebook_used")

LAYOUTS = {
    "janus": Layout(renaming(*_AUTHORS_NAMES), _OTHER_PARTS),
    "janus-vq": Layout(renaming(*VQ_NAMES, (r"^", "gen_vision_model.")), _NO_TOKENIZER),
    "janus-library": Layout(
        renaming(*_LIBRARY_NAMES),
        re.compile(r"model\.(vision_model|aligner|vqmodel)\..*|lm_head\.weight"),
    ),
    "janus-library-vq": Layout(
        renaming((r"^vq\.", "model.vqmodel.")), re.compile(r"(?!model\.vqmodel\.).*")
    ),
}


def target_facts(sizes: JanusConfig, located: Located) -> dict[str, Any]:
    """Return the fields of a target's configuration that its config.json sets.

    Raise CheckpointError for another model's.
    """
    path = located.beside("config.json")
    said = read_config(path)
    # DeepSeek's name and the library's
    found = said.get("language_config") or said.get("text_config")
    if not isinstance(found, dict):
        raise CheckpointError(
            f"{path} says nothing of a language model: it belongs to another model"
        )
    check_config(
        path,
        found,
        sizes.heads,
        hidden_size=sizes.dim,
        num_hidden_layers=sizes.layers,
        vocab_size=sizes.embeddings,
    )
    # DeepSeek's file has neither: the library's LLaMA has those of the sizes
    return eps_and_theta(found, sizes)
