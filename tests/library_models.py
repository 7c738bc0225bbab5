"""Tiny random models of transformers' own classes, and how ours are compared with the library's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import transformers
from passes import commit, tree_pass
from tiny import vq_config

from lantern_demo.decoding.trees import static_tree

DECODER: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
    "initializer_range": 0.3,
}
VOCABULARY, PROMPT = 40, torch.tensor([[5, 9, 3, 11]])
ASKED: dict[str, Any] = {"max_new_tokens": 30, "pad_token_id": 0, "eos_token_id": None}


def llama() -> Any:
    torch.manual_seed(1)
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(vocab_size=VOCABULARY, **DECODER)
    ).eval()


def chameleon() -> Any:
    torch.manual_seed(2)
    images = {
        f"IMGIMG{''.join(chr(ord('A') + int(digit)) for digit in str(i))}Z": 16 + i
        for i in range(16)
    }
    sizes = {
        "base_channels": 32,
        "channel_multiplier": [1, 1],
        "num_res_blocks": 1,
        "resolution": 8,
        "latent_channels": 8,
    }
    config = transformers.ChameleonConfig(
        vocab_size=VOCABULARY,
        vq_config={"embed_dim": 8, "num_embeddings": 16, **sizes},
        vocabulary_map={"<image>": 2} | images,
        **DECODER,
    )
    return transformers.ChameleonForConditionalGeneration(config).eval()


def janus() -> Any:
    torch.manual_seed(3)
    see = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "image_size": 64,
        "patch_size": 16,
    }
    config = transformers.JanusConfig(
        text_config=transformers.LlamaConfig(vocab_size=VOCABULARY, **DECODER),
        vision_config={"projection_dim": 32, "num_image_tokens": 16, **see},
        vq_config=vq_config(
            32, (1, 1), 1, 32, 8, 24, projection_dim=32, image_token_embed_dim=32, num_patches=4
        ),
    )
    model = transformers.JanusForConditionalGeneration(config).eval()
    told = model.generation_config
    told.bos_token_id, told.pad_token_id, told.eos_token_id, told.generation_kwargs = (
        5,
        0,
        7,
        {"boi_token_id": 11},
    )
    return model


Theirs = Callable[[torch.Tensor | None, torch.Tensor, torch.Tensor, Any], torch.Tensor]


def walk(
    target: Any, condition: Any, theirs: Theirs, check: Callable[[torch.Tensor, torch.Tensor], None]
) -> None:
    """Check a target's states of a prompt, a cached step, a tree, its accepted path moved up, and a
    step behind it. `theirs` gives the library's [R, n, H] behind a cache of its own, of image
    tokens [n] (None: of the prompt), at slots [n] that see [n, all].
    """
    t = condition.features.shape[1]
    cache, library = target.new_cache(len(condition.features), 32), transformers.DynamicCache()
    check(
        target.prefill(condition, cache),
        theirs(None, torch.arange(t), torch.ones(t, t, dtype=torch.bool).tril(), library),
    )

    def read(tokens: torch.Tensor, depths: torch.Tensor, mask: torch.Tensor) -> None:
        hidden = tree_pass(target, tokens, depths, mask, cache)
        seen = torch.cat((torch.ones(len(tokens), cache.length, dtype=torch.bool), mask), 1)
        check(hidden, theirs(tokens, cache.length + depths, seen, library))

    def step(token: int) -> None:
        read(
            torch.tensor([token]),
            torch.zeros(1, dtype=torch.int64),
            torch.ones(1, 1, dtype=torch.bool),
        )
        cache.length += 1

    step(41)
    tree = static_tree(((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0)))
    read(torch.arange(7, 7 + 9 * tree.size, 9) % target.config.vocab, tree.depths, tree.mask)
    path, length = torch.tensor([0, 1, 4]), cache.length
    assert tree.mask[4].nonzero().flatten().tolist() == path.tolist()
    commit(cache, path)
    kept = torch.cat((torch.arange(length), length + path))
    for layer in library.layers:
        layer.keys, layer.values = layer.keys[:, :, kept], layer.values[:, :, kept]
    step(60)


def drafter(
    seed: int = 5, norms: bool = False, own: bool = False, bias: bool = True
) -> dict[str, torch.Tensor]:
    """The tensors of a tiny random drafter for any of these models: with norms it is of the kind of
    LANTERN's for Anole.
    """
    torch.manual_seed(seed)
    dim, shared, ffn, layer = DECODER["hidden_size"], 16, 48, "layers.0."
    shapes = {"fc.weight": (dim, 2 * dim)} | ({"fc.bias": (dim,)} if bias else {})
    shapes |= {"embed_tokens.weight": (VOCABULARY, dim)} if own else {}
    shapes |= {f"{layer}self_attn.{name}_proj.weight": (dim, dim) for name in "qo"}
    shapes |= {f"{layer}self_attn.{name}_proj.weight": (shared, dim) for name in "kv"}
    shapes |= {f"{layer}mlp.{name}_proj.weight": (ffn, dim) for name in ("gate", "up")}
    shapes[f"{layer}mlp.down_proj.weight"] = dim, ffn
    found = {name: 0.3 * torch.randn(shape) for name, shape in shapes.items()}
    found[f"{layer}post_attention_layernorm.weight"] = torch.ones(dim)
    if norms:
        found[f"{layer}input_layernorm.weight"] = torch.ones(dim)
        for name, heads in (("q", 4), ("k", 2)):
            found |= {
                f"{layer}self_attn.{name}_norm.{part}": torch.rand(heads, 8)
                for part in ("weight", "bias")
            }
    return found
