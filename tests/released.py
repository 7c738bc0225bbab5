"""Golden numbers of the released code (LlamaGen, LANTERN) and their weights under this project's names.

The files hold inputs, weights and outputs of tiny random models, recorded with the authors' own classes. They lie in
tests/golden, or in the folder that the environment variable GOLDEN_DIR names.
"""

from __future__ import annotations

import json
import math
import os
import re
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import JanusVQVAEConfig

from lantern_demo.models.drafter import Drafter, DrafterConfig
from lantern_demo.models.llamagen import LlamaGen, LlamaGenConfig
from lantern_demo.models.tokenizer import ImageTokenizer

GOLDEN = Path(os.environ.get("GOLDEN_DIR") or Path(__file__).parent / "golden")


def tensors(name: str) -> dict[str, Tensor]:
    """The tensors of a golden file, whole numbers as int64."""
    kept = load_file(GOLDEN / f"{name}.safetensors")
    return {k: v.long() if v.dtype == torch.int32 else v for k, v in kept.items()}


def metadata(name: str) -> dict[str, Any]:
    """The header of a golden file; values that are JSON are decoded."""

    def decoded(text: str) -> Any:
        try:
            return json.loads(text)
        except json.JSONDecodeError:
            return text

    with safe_open(GOLDEN / f"{name}.safetensors", "pt") as file:
        return {k: decoded(v) for k, v in (file.metadata() or {}).items()}


def names(pattern: str) -> list[str]:
    """Names of the golden files that match a pattern, sorted; never empty."""
    found = sorted(path.stem for path in GOLDEN.glob(f"{pattern}.safetensors"))
    assert found, f"no golden file matches {pattern} in {GOLDEN}"
    return found


def llamagen(name: str) -> LlamaGen:
    """LlamaGen's own transformer; tensor names are the same here as there."""
    c = metadata(name)["config"]
    multiple = c["multiple_of"]
    config = LlamaGenConfig(
        dim=c["dim"],
        layers=c["n_layer"],
        heads=c["n_head"],
        ffn=multiple * math.ceil(int(8 * c["dim"] / 3) / multiple),
        vocab=c["vocab_size"],
        grid=math.isqrt(c["block_size"]),
        prefix=c["cls_token_num"],
        caption_dim=c["caption_dim"],
        classes=c["num_classes"] if c["model_type"] == "c2i" else 0,
    )
    return _loaded(LlamaGen(config), tensors(name))


_TARGET_NAMES = {
    "model.embed_tokens": "tok_embeddings",
    "model.cls_embedding": "cls_embedding",
    "model.norm": "norm",
    "lm_head": "output",
    "input_layernorm": "attention_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.up_proj": "feed_forward.w3",
    "mlp.down_proj": "feed_forward.w2",
}


def target_state(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """LANTERN's names of a LlamaGen target -> LlamaGen's; queries, keys and values are rows of one matrix."""
    renamed: dict[str, Tensor] = {}
    for name, value in state.items():
        q = re.fullmatch(r"model\.(layers\.\d+)\.self_attn\.q_proj\.weight", name)
        if q:
            parts = [state[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            renamed[f"{q[1]}.attention.wqkv.weight"] = torch.cat(parts)
        elif not re.search(r"self_attn\.[kv]_proj", name):
            for old, new in _TARGET_NAMES.items():
                name = name.replace(old, new)
            renamed[name.removeprefix("model.")] = value
    return renamed


def lantern_target(pair: str = "a") -> LlamaGen:
    """LANTERN's target of a golden pair."""
    name = f"lantern_pair_{pair}_target"
    c = metadata(name)["config"]
    config = LlamaGenConfig(
        dim=c["hidden_size"],
        layers=c["num_hidden_layers"],
        heads=c["num_attention_heads"],
        ffn=c["intermediate_size"],
        vocab=c["vocab_size"],
        grid=math.isqrt(c["block_size"]),
        prefix=c["cls_token_num"],
        caption_dim=c["caption_dim"],
        rope_base=c["rope_base"],
        eps=c["rms_norm_eps"],
        padding="released",
    )
    return _loaded(LlamaGen(config), target_state(tensors(name)))


def lantern_drafter(pair: str = "a") -> Drafter:
    """LANTERN's drafter of a golden pair; its grid and prefix are its target's."""
    name = f"lantern_pair_{pair}_drafter"
    header, target = metadata(name), metadata(f"lantern_pair_{pair}_target")["config"]
    c = header["config"]
    config = DrafterConfig(
        dim=c["hidden_size"],
        heads=c["num_attention_heads"],
        ffn=c["intermediate_size"],
        vocab=c["vocab_size"],
        grid=math.isqrt(target["block_size"]),
        prefix=target["cls_token_num"],
        bias=header["bias"],
        eps=c["rms_norm_eps"],
    )
    return _loaded(Drafter(config), tensors(name))


_VQ_NAMES = (
    (r"encoder\.conv_blocks\.(\d+)\.res\.", r"encoder.down.\1.block."),
    (r"decoder\.conv_blocks\.(\d+)\.res\.", r"decoder.up.\1.block."),
    (r"encoder\.conv_blocks\.", "encoder.down."),
    (r"decoder\.conv_blocks\.", "decoder.up."),
    (r"mid\.0\.", "mid.block_1."),
    (r"mid\.1\.", "mid.attn_1."),
    (r"mid\.2\.", "mid.block_2."),
)


def vq_state(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """LlamaGen's names of a VQ tokenizer -> those of the library's network."""
    renamed = {}
    for name, value in state.items():
        for old, new in _VQ_NAMES:
            name = re.sub(old, new, name)
        renamed[name] = value
    return renamed


def image_tokenizer(name: str, grid: int) -> ImageTokenizer:
    """LlamaGen's image tokenizer from its two weight files."""
    c = metadata(f"{name}_weights_dec")["config"]
    config = JanusVQVAEConfig(
        base_channels=c["ch"],
        channel_multiplier=c["ch_mult"],
        num_res_blocks=c["num_res_blocks"],
        latent_channels=c["z_channels"],
        embed_dim=c["codebook_embed_dim"],
        num_embeddings=c["codebook_size"],
        num_patches=grid,
    )
    model = ImageTokenizer(config)
    for module in model.modules():
        if isinstance(module, nn.GroupNorm):
            # The golden network is narrow with the published 32 groups; `ImageTokenizer` has fewer in a narrow network.
            module.num_groups = 32
    state = vq_state({**tensors(f"{name}_weights_enc"), **tensors(f"{name}_weights_dec")})
    _loaded(model.vq, state)
    return model.eval()


def _loaded(model: Any, state: dict[str, Tensor]) -> Any:
    model.load_state_dict(state, strict=True)
    return model.requires_grad_(False).eval()
