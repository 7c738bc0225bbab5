"""The published files of Anole: the names of their tensors, and the values that config.json must
have.

Formats:

  anole         a Hugging Face Chameleon: this project's names after "model.". Its head is cut to
  image tokens. anole-vq      the image tokenizer in the same files. chameleon-vq  the same image
  tokenizer in the file of its authors.
"""

from __future__ import annotations

import re
from typing import Any

from lantern_demo.models.anole.drafter import AnoleDrafterConfig
from lantern_demo.models.anole.target import FIRST, AnoleConfig
from lantern_demo.models.files.hub import Located
from lantern_demo.models.files.tensors import (
    Layout,
    Rows,
    Shapes,
    check_config,
    eps_and_theta,
    read_config,
    renaming,
)


def _image_rows(name: str, shapes: Shapes) -> Rows | None:
    """Return the head's rows of image tokens, out of those of the whole vocabulary."""
    return Rows(FIRST, shapes["embed_tokens.weight"][0]) if name == "lm_head.weight" else None


_VQ_PARTS = "encoder|decoder|quantize|quant_conv|post_quant_conv"
_UP = re.compile(r"vq\.decoder\.up\.(\d+)\.")


def _chameleon_names(name: str, shapes: Shapes) -> tuple[str, ...]:
    # The library counts the decoder's levels from the codes, Chameleon from the picture.
    last = max(int(found[1]) for found in map(_UP.match, shapes) if found)
    return (_UP.sub(lambda found: f"decoder.up.{last - int(found[1])}.", name).removeprefix("vq."),)


def _anole_vq_names(name: str, shapes: Shapes) -> tuple[str, ...]:
    return tuple(f"model.vqmodel.{published}" for published in _chameleon_names(name, shapes))


LAYOUTS = {
    "anole": Layout(
        renaming((r"^(?!lm_head\.)", "model.")), re.compile(r"model\.vqmodel\..*"), _image_rows
    ),
    "anole-vq": Layout(_anole_vq_names, re.compile(r"(?!model\.vqmodel\.).*")),
    # As its authors do, take the network's tensors alone: names of others beside them are unknown.
    "chameleon-vq": Layout(_chameleon_names, re.compile(rf"(?!({_VQ_PARTS})\.).*")),
}


def target_facts(sizes: AnoleConfig, located: Located) -> dict[str, Any]:
    """Return the fields of a target's configuration that its config.json sets.

    Raise CheckpointError for another model's.
    """
    path = located.beside("config.json")
    said = read_config(path)
    check_config(path, said, sizes.heads, vocab_size=sizes.embeddings, swin_norm=False)
    return eps_and_theta(said, sizes)


def drafter_facts(sizes: AnoleDrafterConfig, located: Located) -> dict[str, Any]:
    """As `target_facts`, for a drafter, whose config.json may be missing."""
    path = located.beside("config.json")
    said = read_config(path) if path.is_file() else {}
    check_config(path, said, sizes.heads)
    return {**eps_and_theta(said, sizes), "bias": bool(said.get("bias", sizes.bias))}
