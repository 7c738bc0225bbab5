"""EAGLE-1's drafter in its published format, for models of transformers: fc([embedding; state]) and
one LLaMA layer.

Slot i pairs the target's state at position i with the token at position i + 1. The target's head
reads the layer's output. EAGLE's own drafters have no norm before attention. LANTERN's drafter of
Anole has one, and norms of queries and keys by head. Sources: SafeAILab/EAGLE,
eagle/model/cnets.py; jadohu/LANTERN, models/drafters/cnets_anole.py.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor

from lantern_demo.decoding.interfaces import Pass
from lantern_demo.models.llama import PaddedCache, Store, angles, rotate_halves, rotations

from .adapter import Prompt, TextReader

FILES = ("model.safetensors", "pytorch_model.bin")
LAYER = "layers.0."
PRODUCTS = [f"{LAYER}self_attn.{name}_proj" for name in "qkvo"] + [
    f"{LAYER}mlp.{name}_proj" for name in ("gate", "up", "down")
]
NEEDED = {"fc.weight", f"{LAYER}post_attention_layernorm.weight"} | {
    f"{name}.weight" for name in PRODUCTS
}
ALLOWED = (
    NEEDED
    | {f"{name}.bias" for name in ("fc", *PRODUCTS)}
    | {"embed_tokens.weight", f"{LAYER}input_layernorm.weight"}
)
ALLOWED |= {f"{LAYER}self_attn.{name}_norm.{part}" for name in "qk" for part in ("weight", "bias")}


def read_weights(path: str | Path, reader: TextReader) -> dict[str, Tensor]:
    """Read a drafter's tensors from a file, or a folder with one of FILES, to the device and dtype
    of the reader's model.

    Raises ValueError, which names lantern_drafter, for a path without a drafter or a drafter that
    does not fit the model.
    """
    path = Path(path).expanduser()
    file = next((file for file in (path, *(path / name for name in FILES)) if file.is_file()), None)
    if file is None:
        raise ValueError(
            f"lantern_drafter is {str(path)!r}; it must be a file of tensors, or a folder with "
            f"{' or '.join(FILES)}"
        )
    try:
        safe = file.suffix == ".safetensors"
        found = load_file(file) if safe else torch.load(file, map_location="cpu", weights_only=True)
        weights = {name: x for name, x in found.items() if not name.endswith("rotary_emb.inv_freq")}
    except Exception as error:  # each library raises other errors
        raise ValueError(
            f"lantern_drafter is {file}, which cannot be read as .safetensors or a PyTorch file: "
            f"{error}"
        ) from error
    if wrong := sorted(NEEDED - set(weights)) + sorted(set(weights) - ALLOWED):
        raise ValueError(
            f"lantern_drafter is {file}, which is not of EAGLE-1's format: it lacks or has "
            f"{', '.join(wrong)}"
        )
    dim = reader.model.config.get_text_config().hidden_size
    if list(weights["fc.weight"].shape) != [dim, 2 * dim]:
        shape = list(weights["fc.weight"].shape)
        raise ValueError(
            f"lantern_drafter is {file}, whose fc has shape {shape}; for this model it must be "
            f"{[dim, 2 * dim]}"
        )
    like = reader.model.get_output_embeddings().weight
    return {name: x.to(like.device, like.dtype) for name, x in weights.items()}


class EagleDrafter:
    """Implements `decoding.interfaces.Drafter`.

    Sizes that its tensors do not show are the target's.
    """

    guided = False

    def __init__(self, weights: dict[str, Tensor], reader: TextReader, positions: int) -> None:
        """`positions` is their greatest number, the prompt's included."""
        text, self.weights, self.reader = reader.model.config.get_text_config(), weights, reader
        self.dim, self.eps = text.hidden_size, getattr(text, "rms_norm_eps", 1e-6)
        self.head_dim = (
            getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
        )
        theta = (getattr(text, "rope_parameters", None) or {}).get("rope_theta", 10000.0)
        self.rope = angles(positions, self.head_dim, theta).to(reader.prompt.device)

    def table(self, ids: Tensor) -> Tensor:
        """Return the vectors [..., H] of ids [...], from the drafter's own table or the model's."""
        own = self.weights.get("embed_tokens.weight")
        if own is None:
            return self.reader.model.get_input_embeddings()(ids)
        return F.embedding(ids, own)

    def new_cache(self, rows: int, length: int) -> PaddedCache:
        """Implement `decoding.interfaces.Drafter.new_cache`, with the reader's number of rows."""
        heads = self.weights[f"{PRODUCTS[0]}.weight"].shape[0] // self.head_dim
        like = self.weights["fc.weight"]
        rows, prefix = self.reader.prompt.shape
        slots = prefix + length
        return PaddedCache(
            1, rows, heads, slots, self.head_dim, dtype=like.dtype, device=like.device
        )

    def prefill(self, hidden: Tensor, token: Tensor, cache: PaddedCache, condition: Prompt) -> None:
        """Implement `decoding.interfaces.Drafter.prefill` for the prompt with its states."""
        assert condition.states is not None
        n = condition.ids.shape[1]
        cache.start(n, condition.real)
        drawn = self.reader.embed(token, self.table).expand(len(condition.ids), 1, -1)
        slots = torch.arange(n, device=token.device)
        following = torch.cat((self.table(condition.ids[:, 1:]), drawn), 1)
        self.run(following, condition.states, Pass(token, slots, slots, None), cache)

    def forward(self, nodes: Pass, hidden: Tensor, cache: PaddedCache) -> Tensor:
        """Implement `decoding.interfaces.Drafter.forward`.

        `hidden` is the drafter's outputs or the target's states [1, n, V + rows * H], see
        `adapter`.
        """
        rows = len(self.reader.prompt)
        if hidden.shape[-1] != self.dim:
            states = hidden[0, :, -rows * self.dim :]
            hidden = states.unflatten(-1, (rows, self.dim)).transpose(0, 1)
        embedded = self.reader.embed(nodes.tokens, self.table).expand(rows, -1, -1)
        return self.run(embedded, hidden, nodes, cache)

    def run(self, embedded: Tensor, hidden: Tensor, nodes: Pass, cache: PaddedCache) -> Tensor:
        """Run the layer on embedded and hidden [R, n, H]: outputs [R, m, H] of the last m slots."""
        x = self.product("fc", torch.cat((embedded, hidden.type_as(embedded)), -1))
        end, asked = nodes.end, nodes.asked
        rope = rotations(self.rope[cache.positions(nodes.positions)])
        store = partial(cache.write, 0, nodes.slots, end)
        mask = cache.bias(nodes.visible, end)
        found = self.attend(self.norm("input_layernorm", x), rope, mask, store, asked)
        x = x[:, -asked:] + found
        y = self.norm("post_attention_layernorm", x)
        gated = F.silu(self.product(PRODUCTS[4], y)) * self.product(PRODUCTS[5], y)
        return x + self.product(PRODUCTS[6], gated)

    def attend(
        self, x: Tensor, rope: Tensor, mask: Tensor | None, store: Store, asked: int
    ) -> Tensor:
        """Compute the attention of the last `asked` queries of normalised x [R, n, H].

        Heads may share keys and values.
        """
        q, k, v = (
            self.product(name, x).unflatten(-1, (-1, self.head_dim)) for name in PRODUCTS[:3]
        )
        k = self.head_norm("k", k)
        k, v = (part.repeat_interleave(q.shape[2] // part.shape[2], 2) for part in (k, v))
        qkv = torch.stack((self.head_norm("q", q), k, v), 2)
        q, k, v = rotate_halves(qkv.float(), rope, x.dtype).unbind(2)
        k, v = store(torch.stack((k, v), 2))
        found = F.scaled_dot_product_attention(q[:, -asked:].transpose(1, 2), k, v, attn_mask=mask)
        return self.product(PRODUCTS[3], found.transpose(1, 2).flatten(2))

    def product(self, name: str, x: Tensor) -> Tensor:
        """Apply a linear layer to x [..., D]."""
        return F.linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def norm(self, name: str, x: Tensor) -> Tensor:
        """Apply a norm of the layer to x [..., H], or return x unchanged without one."""
        weight = self.weights.get(f"{LAYER}{name}.weight")
        if weight is None:
            return x
        return F.rms_norm(x.float(), x.shape[-1:], eps=self.eps).type_as(x) * weight

    def head_norm(self, name: str, x: Tensor) -> Tensor:
        """Normalise queries or keys [R, m, heads, d] by head if the drafter has such norms."""
        weight, bias = (
            self.weights.get(f"{LAYER}self_attn.{name}_norm.{part}") for part in ("weight", "bias")
        )
        if weight is None or bias is None:
            return x
        return F.layer_norm(x, x.shape[-1:], eps=1e-5) * weight + bias
