"""LlamaGen, LANTERN's drafter of it, both on a CPU, and their published files.

LlamaGen is an autoregressive model over a grid of image tokens after a condition prefix.

A fact of the published model shapes this file (FoundationVision/LlamaGen,
autoregressive/models/gpt.py). The rotary table of the prefix is all zero (cos = sin = 0), so prefix
queries and keys vanish, and prefix queries attend uniformly. A picture's tokens see the prompt only
as a uniform average of its values.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lantern_demo.decoding.cache import KVCache
from lantern_demo.decoding.interfaces import Pass
from lantern_demo.models.cpu import LeanLayer, Norm, complex_rope, matmul, paired
from lantern_demo.models.device import DTYPES, half
from lantern_demo.models.hub import Located
from lantern_demo.models.llama import (
    BEYOND,
    Attention,
    Condition,
    DecoderDrafter,
    DecoderTarget,
)
from lantern_demo.models.registry import DrafterConfig, LlamaGenConfig, Sizes
from lantern_demo.models.tensors import NOTHING, Layout, Shapes, renaming
from lantern_demo.models.text import CaptionEncoder, load_text
from lantern_demo.models.tokenizer import ImageTokenizer


def rope_table(prefix: int, grid: int, head_dim: int, base: float = 10000.0) -> Tensor:
    """Return rotary angles [prefix + grid * grid + BEYOND, head_dim / 2, 2], (cos, sin) last.

    Half of the pairs turn with the row, half with the column. Rows of the prefix and past the end
    are zero, not the identity: see the module's docstring.
    """
    half = head_dim // 2
    frequency = base ** (-torch.arange(0, half, 2)[: half // 2].float() / half)
    angle = torch.outer(torch.arange(grid).float(), frequency)
    rows = angle[:, None].expand(grid, grid, -1)
    columns = angle[None].expand(grid, grid, -1)
    both = torch.cat((rows, columns), -1).flatten(0, 1)
    table = torch.stack((both.cos(), both.sin()), -1)
    before, after = (table.new_zeros(n, *table.shape[1:]) for n in (prefix, BEYOND))
    return torch.cat((before, table, after))


def in_halves(rows: Tensor, heads: int) -> Tensor:
    """Order rows [heads * d, ...] so that adjacent pairs of each head become (i, i + d / 2)."""
    return rows.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)


def _read_pairs(module: Any, state: dict[str, Tensor], prefix: str, *_: object) -> None:
    for name in (f"{prefix}q_proj.weight", f"{prefix}k_proj.weight"):
        if name in state and len(state[name]) % (2 * module.heads) == 0:  # else it is refused
            state[name] = in_halves(state[name], module.heads)


def _write_pairs(module: Any, state: dict[str, Tensor], prefix: str, _: object) -> None:
    for name in (f"{prefix}q_proj.weight", f"{prefix}k_proj.weight"):
        if name in state:
            state[name] = paired(state[name], module.heads)


class PairedAttention(Attention):
    """Attention whose published queries and keys turn in adjacent pairs.

    Its weights turn by halves, as all do here, and its state is as published. Scores sum over a
    whole head, so that they do not depend on the order.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__(dim, heads)
        self.register_load_state_dict_pre_hook(_read_pairs)
        self.register_state_dict_post_hook(_write_pairs)


# -- the target


class CaptionEmbedding(nn.Module):
    """Maps text features to model width; has the learnt features of "no caption"."""

    def __init__(self, config: LlamaGenConfig) -> None:
        super().__init__()
        self.cap_proj = nn.ModuleDict(
            {
                "fc1": nn.Linear(config.caption_dim, config.dim, bias=False),
                "fc2": nn.Linear(config.dim, config.dim, bias=False),
            }
        )
        self.uncond_embedding = nn.Parameter(
            torch.randn(config.prefix, config.caption_dim) / config.caption_dim**0.5
        )

    def forward(self, features: Tensor) -> Tensor:
        return self.cap_proj["fc2"](F.gelu(self.cap_proj["fc1"](features), approximate="tanh"))


class LlamaGen(DecoderTarget):
    """The target; implements `decoding.interfaces.Target`."""

    attention = PairedAttention
    config: LlamaGenConfig

    def __init__(self, config: LlamaGenConfig) -> None:
        super().__init__(config, config.vocab)
        self.padding = config.padding
        self.cls_embedding = CaptionEmbedding(config)

    def rope_table(self) -> Tensor:
        c = self.config
        return rope_table(c.prefix, c.grid, c.head_dim, c.rope_base)

    def no_caption(self) -> Tensor:
        """The learnt features of "no caption" [T, C]."""
        return self.cls_embedding.uncond_embedding

    def condition(self, features: Tensor, mask: Tensor | None, guided: bool) -> Condition:
        """Map features [B, T, C] and mask [B, T] of B prompts to their rows.

        Conditional rows come first. An unconditional row keeps the prompt's mask, as published
        (LlamaGen generate.py).
        """
        if not guided:
            return Condition(features, mask)
        nothing = self.no_caption().to(features.dtype).expand_as(features)
        return Condition(
            torch.cat((features, nothing)), None if mask is None else mask.repeat(2, 1)
        )

    def read(self, condition: Condition) -> Tensor:
        nothing = self.no_caption()
        return self.cls_embedding(condition.features.to(nothing.device, nothing.dtype))


# -- the drafter


def normed_features(config: DrafterConfig, states: Tensor) -> Tensor:
    """Normalise the feature layers' outputs [..., F D] that states [..., (1 + F) D] end with."""
    features = states[..., config.dim :].unflatten(-1, (-1, config.dim))
    return F.rms_norm(features, (config.dim,), eps=config.eps).flatten(-2)


class Drafter(DecoderDrafter):
    """The EAGLE drafter of the LANTERN models; implements `decoding.interfaces.Drafter`.

    It is one decoder layer that predicts the target's next hidden state. Input is fc([embedding of
    the next token ; the target's hidden state]); there is no norm before attention or at the end.
    The target's own head turns outputs into logits (jadohu/LANTERN,
    models/drafters/cnets_llamagen.py). It may also read the outputs of some of the target's blocks,
    after EAGLE-3 (Li et al. 2025): see `DrafterConfig.feature_layers`.

    Slot i pairs the target's hidden state at position i with the token at position i + 1. So slot
    prefix - 1 + j carries image token j, at its position of the target's rotary grid. Slots of the
    prefix carry token id 0. There is no prompt mask: padded rows of the prefix are read like the
    others, as published.
    """

    attention = PairedAttention
    config: DrafterConfig

    def __init__(self, config: DrafterConfig) -> None:
        super().__init__(config, config.vocab, norm_before=False)
        self.guided = config.guided
        if config.feature_layers:
            # Terms added to fc's output at a stable slot and at a node. They start at zero, so that
            # training may continue from a drafter without them.
            self.fc_taps = nn.Linear(
                len(config.feature_layers) * config.dim, config.dim, bias=False
            )
            self.fc_own = nn.Linear(config.dim, config.dim, bias=False)
            nn.init.zeros_(self.fc_taps.weight)
            nn.init.zeros_(self.fc_own.weight)

    def rope_table(self) -> Tensor:
        """As `Decoder.rope_table`.

        Slot i carries the token at position i + 1, so the table begins one position later.
        """
        c = self.config
        return rope_table(c.prefix - 1, c.grid, c.head_dim, c.rope_base)

    def prefill(
        self, hidden: Tensor, token: Tensor, cache: KVCache, condition: object = None
    ) -> None:
        """As `decoding.interfaces.Drafter.prefill`. The prompt itself is not read.

        Raise ValueError for hidden states [R, n, *] without the feature layers' outputs.
        """
        config = self.config
        n, width = hidden.shape[1:]
        wanted = (1 + len(config.feature_layers)) * config.dim
        if width != wanted:
            raise ValueError(
                f"hidden states are {width} wide; "
                f"a drafter with feature layers {list(config.feature_layers)} reads {wanted}: "
                "the target's `feature_layers` must be its own"
            )
        cache.start(n)
        slots = torch.arange(n, device=hidden.device)
        self.forward(Pass(F.pad(token, (n - 1, 0)), slots, slots, None), hidden, cache)

    def fuse(self, embedded: Tensor, before: Tensor) -> Tensor:
        """As `DecoderDrafter.fuse`.

        The states are the target's [R, m, (1 + F) H] at stable slots, and the drafter's own outputs
        [R, m, H] at nodes.
        """
        dim = self.config.dim
        if not self.config.feature_layers:
            return super().fuse(embedded, before)
        x = super().fuse(embedded, before[..., :dim])
        if before.shape[-1] == dim:
            return x + self.fc_own(before)
        return x + self.fc_taps(normed_features(self.config, before))


# -- on a CPU


class LeanTarget(LlamaGen):
    """A LlamaGen target on a CPU. It shares the original's prompts and vectors of tokens."""

    def __init__(self, target: LlamaGen, product: str = "plain") -> None:
        nn.Module.__init__(self)  # without weights
        c = target.config
        self.config, self.vocab_size, self.padding = c, c.vocab, c.padding
        self.feature_layers = target.feature_layers
        self.embed_tokens, self.cls_embedding = target.embed_tokens, target.cls_embedding
        self.layers = [
            LeanLayer(
                block,
                product,
                Norm(block.input_layernorm.weight, c.eps),
                Norm(block.post_attention_layernorm.weight, c.eps),
            )
            for block in target.layers
        ]
        self.norm = Norm(target.norm.weight, c.eps)
        self.lm_head = matmul(target.lm_head.weight, product)
        self.rope = target.rope
        self.turns = complex_rope(target.rope, c.heads)


class LeanDrafter(Drafter):
    """A drafter on a CPU. Norms are the library's, and the token half of `fc` is a table."""

    def __init__(self, drafter: Drafter, product: str = "plain") -> None:
        nn.Module.__init__(self)  # without weights
        c = drafter.config
        self.config, self.guided = c, c.guided
        token_half, state_half = drafter.fc.weight.float().split(c.dim, 1)
        # Half of the first matmul only ever reads one of V vectors.
        bias = None if drafter.fc.bias is None else drafter.fc.bias.float()
        table = F.linear(drafter.embed_tokens.weight.float(), token_half, bias)
        self.embed_tokens = nn.Embedding.from_pretrained(table)
        # The terms of feature layers and of a node's own output share a matmul with the rest.
        if c.feature_layers:
            self.own = matmul(state_half + drafter.fc_own.weight.float(), product)
            self.states = matmul(
                torch.cat((state_half, drafter.fc_taps.weight.float()), 1), product
            )
        else:
            self.own = matmul(state_half, product)
        weight = drafter.layer.post_attention_layernorm.weight.float()
        after = partial(F.rms_norm, normalized_shape=(c.dim,), weight=weight, eps=c.eps)
        self.layers = [LeanLayer(drafter.layer, product, None, after)]
        self.rope = drafter.rope
        self.turns = complex_rope(drafter.rope, c.heads)

    def fuse(self, embedded: Tensor, before: Tensor) -> Tensor:
        dim = self.config.dim
        if before.shape[-1] == dim:
            return self.own(before).add_(embedded)
        features = normed_features(self.config, before)
        return self.states(torch.cat((before[..., :dim], features), -1)).add_(embedded)


# -- published files


def configured(sizes: LlamaGenConfig, form: str) -> tuple[LlamaGenConfig, dict[str, Any]] | None:
    """Return the sizes where config.json leaves them out, and other values that it must have.

    None is for the format without config.json.
    """
    if form == "llamagen":
        return None
    # the eps is that of LANTERN's template
    return replace(sizes, eps=1e-6), {"block_size": sizes.tokens, "cls_token_num": sizes.prefix}


def prompt_reader(target: LlamaGenConfig, located: Located, device: torch.device) -> CaptionEncoder:
    """Return the text encoder of published files. Raise CheckpointError when they are not T5's."""
    return load_text(located, target.caption_dim, device, DTYPES[half(device)])


_QKV = re.compile(r"\.self_attn\.([qkv])_proj\.")

_llamagen_names = renaming(
    (_QKV.pattern, ".attention.wqkv."),
    (r"\.self_attn\.o_proj\.", ".attention.wo."),
    (r"\.mlp\.gate_proj\.", ".feed_forward.w1."),
    (r"\.mlp\.up_proj\.", ".feed_forward.w3."),
    (r"\.mlp\.down_proj\.", ".feed_forward.w2."),
    (r"\.input_layernorm\.", ".attention_norm."),
    (r"\.post_attention_layernorm\.", ".ffn_norm."),
    (r"^embed_tokens\.", "tok_embeddings."),
    (r"^lm_head\.", "output."),
)


def _qkv_row(name: str, shapes: Shapes) -> int | None:
    """Return the first row of queries, keys or values in LlamaGen's one matrix for the three."""
    found = _QKV.search(name)
    return None if found is None else "qkv".index(found[1]) * shapes[name][0]


_VQ_NAMES = (
    (r"^vq\.", ""),
    (r"\.(down|up)\.(\d+)\.block\.", r".conv_blocks.\2.res."),
    (r"\.(down|up)\.(\d+)\.", r".conv_blocks.\2."),
    (r"\.mid\.block_1\.", ".mid.0."),
    (r"\.mid\.attn_1\.", ".mid.1."),
    (r"\.mid\.block_2\.", ".mid.2."),
)

# Facts: FoundationVision/LlamaGen@ce98ec4, jadohu/LANTERN@3a56e45.
LAYOUTS = {
    # LlamaGen's own .pt files; the target of a model folder has the same names
    "llamagen": Layout(_llamagen_names, re.compile(r"freqs_cis"), _qkv_row),
    # LANTERN's conversions, with the names of a Hugging Face LLaMA
    "lantern": Layout(renaming((r"^(?!lm_head\.)", "model.")), NOTHING),
    # LlamaGen's tokenizer; transformers' JanusVQVAE is a renamed copy of it
    "vq": Layout(renaming(*_VQ_NAMES), re.compile(r"quantize\.codebook_used")),
}
NETWORKS: dict[type[Sizes], Any] = {LlamaGenConfig: LlamaGen, DrafterConfig: Drafter}
TOKENIZER = ImageTokenizer
