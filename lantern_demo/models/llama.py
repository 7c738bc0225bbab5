"""LLaMA decoders: the layer, and the forward passes of targets and drafters, once for all families.

A family gives its networks a rotary table, and the vectors of prompts and image tokens.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lantern_demo.decoding.cache import KVCache
from lantern_demo.decoding.interfaces import DEEPEST, Pass

# rows of a rotary table past the last token: draft trees may reach over the end of the image
BEYOND = DEEPEST
FUSED_NODES = 64  # the most nodes of a pass through `layer.FusedLayer`

# new keys and values [R, 2 heads, n, d] -> all attended to [R, heads, S, d], as `cache.Store`
Store = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass
class Condition:
    """The condition of an image, of R rows.

    It is text features [R, T, C] and their mask [R, T] bool (left-padded). Models that read the
    prompt themselves get its ids [R, T] and their mask. R is 2 with guidance (conditional,
    unconditional), 1 without.
    """

    features: Tensor
    mask: Tensor | None = None


# -- parts of a layer


class RMSNorm(nn.RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        # The published norm casts back before it scales; in float32 both orders are the same.
        return F.rms_norm(x.to(self.weight.dtype), x.shape[-1:], self.weight, self.eps)


def folded(norm: nn.RMSNorm, part: nn.Linear) -> nn.RMSNorm:
    """Multiply a norm's scale into the weight that alone reads it, in place.

    Return the norm without a scale.
    """
    part.weight.data *= norm.weight.data
    return nn.RMSNorm(norm.normalized_shape, norm.eps, elementwise_affine=False)


def prefix_mask(
    visible: Tensor | None, n: int, device: torch.device, padding: str, dtype: torch.dtype
) -> Tensor:
    """Return which prefix positions see which, [R or 1, 1, n, n] bool.

    visible [R, n] bool marks those without padding; None: all.

    "self": causal, padded columns hidden, and every position sees itself (LlamaGen). "released":
    rows of real positions are the same. A padded row sees the padded columns up to itself. In
    float32 only it also sees every real column, because the released mask adds two minima that
    saturate differently. Drafters read these rows, so a port has to keep them.
    """
    causal = torch.ones(n, n, dtype=torch.bool, device=device).tril()[None, None]
    if visible is None:
        return causal
    seen = visible.to(device)[:, None, None]
    if padding == "self":
        return (causal & seen) | torch.eye(n, dtype=torch.bool, device=device)
    padded_row = ~visible.to(device)[:, None, :, None]
    into_padding = causal & ~seen
    if dtype == torch.float32:
        into_padding = into_padding | seen
    return torch.where(padded_row, into_padding, causal & seen)


def angles(positions: int, head_dim: int, base: float) -> Tensor:
    """Return rotary angles [positions, head_dim / 2, 2] float32, (cos, sin) last."""
    frequency = base ** (-torch.arange(0, head_dim, 2).float() / head_dim)
    angle = torch.outer(torch.arange(positions).float(), frequency)
    return torch.stack((angle.cos(), angle.sin()), -1)


def rotations(rope: Tensor) -> Tensor:
    """Convert rotary rows [..., n, d / 2, 2] (cos, sin) to [..., n, 3, 1, d / 2] complex64.

    They are for queries, keys and values; values do not turn.
    """
    rotation = torch.view_as_complex(rope.float().contiguous())
    return torch.stack((rotation, rotation, torch.ones_like(rotation)), -2).unsqueeze(-2)


def rotated(qkv: Tensor, rotation: Tensor, dtype: torch.dtype) -> Tensor:
    """Rotate the pairs (i, i + d / 2) of queries, keys and values [R, n, 3, heads, d] float32.

    rotation [R or 1, n, 3, 1, d / 2] complex64 is that of `rotations`.
    """
    turned = torch.view_as_real(torch.complex(*qkv.chunk(2, -1)) * rotation).transpose(-1, -2)
    return turned.to(dtype, memory_format=torch.contiguous_format).flatten(-2)


def wide(part: nn.Module, x: Tensor) -> Tensor:
    """Map x [..., D] through a linear layer without a bias to [..., O] float32.

    Sums are in float32 anyway. Where the device allows, the output is not rounded to half
    precision, which matters where differences are enlarged, as guidance enlarges those of logits.
    PyTorch has no derivative of such a matmul.
    """
    # not so in mixed precision
    alike = type(part) is nn.Linear and part.weight.dtype == x.dtype != torch.float32
    if not alike or torch.is_grad_enabled() or not keeps_sums(x.device.type, x.dtype):
        return part(x).float()
    weight = cast(nn.Linear, part).weight
    sums = torch.mm(x.reshape(-1, x.shape[-1]), weight.t(), out_dtype=torch.float32)
    return sums.unflatten(0, x.shape[:-1])


@cache
def keeps_sums(device: str, dtype: torch.dtype) -> bool:
    """Return whether a device can return a matmul's float32 sums: CUDA since PyTorch 2.8."""
    try:
        ones = torch.ones(8, 8, dtype=dtype, device=device)
        return torch.mm(ones, ones, out_dtype=torch.float32).dtype == torch.float32
    except RuntimeError:  # also NotImplementedError, a subclass: a device that lacks them
        return False


def added(x: Tensor, part: nn.Module, y: Tensor) -> Tensor:
    """Add to x a linear layer without a bias of y, both [R, n, *].

    Without gradients the sum may overwrite x: otherwise CUDA copies x first, in its own launch.
    """
    if type(part) is not nn.Linear:
        return x + part(y)
    rows = x.reshape(-1, x.shape[-1])
    alike = x.dtype == y.dtype == part.weight.dtype  # not so in mixed precision
    add = rows.addmm_ if alike and not torch.is_grad_enabled() else rows.addmm
    return add(y.reshape(-1, y.shape[-1]), part.weight.t()).view(x.shape)


def joined(parts: Sequence[nn.Module]) -> nn.Linear:
    """Make one linear layer of several without biases, their outputs side by side.

    One matmul takes fewer kernels than several.
    """
    weight = torch.cat([cast(nn.Linear, part).weight.detach() for part in parts])
    with torch.device("meta"):
        made = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    made.weight = nn.Parameter(weight, requires_grad=False)
    return made


# -- the layer


class Attention(nn.Module):
    """Attention of `heads` heads that rotates its queries and keys."""

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(dim, dim, bias=False)
        self.k_proj = nn.Linear(dim, dim, bias=False)
        self.v_proj = nn.Linear(dim, dim, bias=False)
        self.o_proj = nn.Linear(dim, dim, bias=False)
        self.qkv: nn.Linear | None = None  # the first three in one, once they are joined

    def join(self) -> None:
        """Join the matmuls to queries, keys and values; the weights are in memory once."""
        self.qkv = joined((self.q_proj, self.k_proj, self.v_proj))
        del self.q_proj, self.k_proj, self.v_proj

    def read(self, x: Tensor) -> Tensor:
        """Map x [R, n, H] to queries, keys and values [R, n, 3 H] float32, before the rotation."""
        if self.qkv is not None:
            return wide(self.qkv, x)
        return torch.cat([wide(part, x) for part in (self.q_proj, self.k_proj, self.v_proj)], -1)

    def normed(self, qkv: Tensor) -> Tensor:
        """Normalise queries and keys of [R, n, 3, heads, d], if a family does so."""
        return qkv

    def rotated(self, x: Tensor, rotation: Tensor) -> Tensor:
        """Map x [R, n, H] to rotated queries and keys, and values [R, n, 3, heads, d]."""
        qkv = self.normed(self.read(x).unflatten(-1, (3, self.heads, -1)))
        return rotated(qkv, rotation, x.dtype)

    def forward(
        self, x: Tensor, rotation: Tensor, mask: Tensor | None, store: Store, outputs: int
    ) -> Tensor:
        """Attend with the last `outputs` queries of x [R, n, H] -> [R, outputs, H], unprojected."""
        rotated = self.rotated(x, rotation).flatten(2, 3).transpose(1, 2)
        k, v = store(rotated[:, self.heads :])
        q = rotated[:, : self.heads, x.shape[1] - outputs :]
        return F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2)


class FeedForward(nn.Module):
    """The weights of the feed-forward half: gate, up and down."""

    def __init__(self, dim: int, ffn: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(dim, ffn, bias=False)
        self.up_proj = nn.Linear(dim, ffn, bias=False)
        self.down_proj = nn.Linear(ffn, dim, bias=False)
        self.gate_up_proj: nn.Linear | None = None  # gate and up in one, once they are joined

    def join(self) -> None:
        """Join the matmuls to gate and up; the weights are in memory once."""
        self.gate_up_proj = joined((self.gate_proj, self.up_proj))
        del self.gate_proj, self.up_proj

    def gate_up(self, x: Tensor) -> Sequence[Tensor]:
        """Map normalised x [..., H] to gate and up [..., F] each."""
        if self.gate_up_proj is not None:
            return self.gate_up_proj(x).chunk(2, -1)
        return self.gate_proj(x), self.up_proj(x)


class Layer(nn.Module):
    """A layer of linear layers, under the names that Hugging Face checkpoints use.

    It trains, runs on accelerators, and is the reference in tests; `cpu.LeanLayer` is the same of
    fused matmuls. Drafters may have no norm before attention, families their own attention.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        ffn: int,
        eps: float,
        norm_before: bool = True,
        attention: type[Attention] = Attention,
    ) -> None:
        super().__init__()
        self.input_layernorm: nn.RMSNorm | None = RMSNorm(dim, eps) if norm_before else None
        self.self_attn = attention(dim, heads)
        self.post_attention_layernorm: nn.RMSNorm = RMSNorm(dim, eps)
        self.mlp = FeedForward(dim, ffn)

    def join(self) -> None:
        """Join the matmuls that have the same input, and fold the norms into them."""
        self.self_attn.join()
        self.mlp.join()
        assert self.self_attn.qkv is not None and self.mlp.gate_up_proj is not None
        if self.input_layernorm is not None:
            self.input_layernorm = folded(self.input_layernorm, self.self_attn.qkv)
        self.post_attention_layernorm = folded(self.post_attention_layernorm, self.mlp.gate_up_proj)

    def norm_before(self, x: Tensor) -> Tensor:
        """Return x [..., H] as attention reads it."""
        return x if self.input_layernorm is None else self.input_layernorm(x)

    def forward(
        self, x: Tensor, rotation: Tensor, mask: Tensor | None, store: Store, outputs: int
    ) -> Tensor:
        """Map states x [R, n, H] to those of the last `outputs` nodes [R, outputs, H].

        mask [R or 1, 1, outputs, S] is bool or added to the scores; None: all slots are visible.
        """
        attended = self.self_attn(self.norm_before(x), rotation, mask, store, outputs)
        return self.finish(x[:, x.shape[1] - outputs :], attended)

    def finish(self, x: Tensor, attended: Tensor) -> Tensor:
        """Apply the rest of the layer after attention: x [R, n, H] -> the same shape."""
        x = added(x, self.self_attn.o_proj, attended)
        gate, up = self.mlp.gate_up(self.post_attention_layernorm(x))
        return added(x, self.mlp.down_proj, F.silu(gate) * up)


# -- networks


class Decoder(nn.Module, ABC):
    """LLaMA layers with a cache and a rotary table."""

    attention: type[Attention] = Attention
    cache_type: type[KVCache] = KVCache
    layers: Any
    rope: Tensor
    turns: Tensor | None = None  # the rotation at each position of the table, once prepared
    fused: Sequence[Any] = ()  # the layers as `layer.FusedLayer`, where they are on and fit

    def __init__(self, config: Any, embeddings: int, norm_before: bool = True) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(embeddings, config.dim)
        sizes = config.dim, config.heads, config.ffn, config.eps, norm_before, self.attention
        self.layers = nn.ModuleList(Layer(*sizes) for _ in range(config.layers))
        self.register_buffer("rope", self.rope_table(), persistent=False)

    def join(self) -> None:
        """Prepare for an accelerator, once in place: fewer launches, and rotations at hand."""
        for layer in self.layers:
            layer.join()
        self.turns = rotations(self.rope)

    def layers_for(self, x: Tensor, mask: Tensor | None, outputs: int) -> Any:
        """Return the layers that read x [R, n, H]: in kernels for few nodes with a bias."""
        if not self.fused or mask is None or mask.dtype != x.dtype:
            return self.layers
        return self.fused if outputs == x.shape[1] <= FUSED_NODES else self.layers

    @abstractmethod
    def rope_table(self) -> Tensor:
        """Return the table of `rope` [positions, head_dim / 2, 2] float32, (cos, sin) last."""

    def embed(self, tokens: Tensor) -> Tensor:
        """Return the vectors [..., H] of image tokens [...] int64."""
        return F.embedding(tokens, self.embed_tokens.weight)

    def new_cache(self, rows: int, length: int) -> Any:
        """Return an empty cache with slots for the prefix and `length` further positions."""
        c = self.config
        weight = self.embed_tokens.weight
        sizes = c.layers, rows, c.heads, c.prefix + length, c.head_dim
        return self.cache_type(*sizes, dtype=weight.dtype, device=weight.device)

    def places(self, positions: Tensor, cache: Any) -> Tensor:
        """Return the rows [R or 1, n] of `rope` for positions [n] of a cache's sequence."""
        return positions[None]

    def rotation_at(self, positions: Tensor, cache: Any) -> Tensor:
        """Return the `rotations` [R or 1, n, 3, 1, d / 2] of positions [n]."""
        places = self.places(positions, cache)
        return rotations(self.rope[places]) if self.turns is None else self.turns[places]


class DecoderTarget(Decoder):
    """Implement `decoding.interfaces.Target`; a subclass adds the vectors of prompts."""

    # the positions that a padded position of the prompt sees: see `prefix_mask`
    padding = "self"
    # Blocks, counted from 1, whose outputs follow the final state in every hidden state, for a
    # drafter that reads them (`DrafterConfig.feature_layers`): hidden states are then [R, n, (1 +
    # F) H].
    feature_layers: tuple[int, ...] = ()

    def __init__(self, config: Any, embeddings: int) -> None:
        super().__init__(config, embeddings)
        self.vocab_size: int = config.vocab
        self.norm: Any = RMSNorm(config.dim, config.eps)
        self.lm_head: Any = nn.Linear(config.dim, config.vocab, bias=False)

    @abstractmethod
    def condition(self, features: Tensor, mask: Tensor | None, guided: bool) -> Condition:
        """Map a prompt as `text.Encoded` has it to the rows of a run, the conditional one first."""

    @abstractmethod
    def read(self, condition: Condition) -> Tensor:
        """Return the inputs [R, T, H] of the prefix positions."""

    def prefill(self, condition: Condition, cache: Any) -> Tensor:
        """Read the T prefix positions and return their hidden states [R, T, H]."""
        x = self.read(condition)
        n = x.shape[1]
        mask = prefix_mask(condition.mask, n, x.device, self.padding, x.dtype)
        cache.start(n, condition.mask)
        slots = torch.arange(n, device=x.device)
        return self.run(x, self.rotation_at(slots, cache), mask, cache.stores(slots, n))

    def forward(self, nodes: Pass, cache: Any) -> Tensor:
        """As `decoding.interfaces.Target.forward`; tokens may also be [R, n]."""
        x, end = self.embed(nodes.tokens).expand(cache.rows, -1, -1), nodes.end
        mask = cache.bias(nodes.visible, end)
        rotation = self.rotation_at(nodes.positions, cache)
        return self.run(x, rotation, mask, cache.stores(nodes.slots, end))

    def run(
        self, x: Tensor, rotation: Tensor, mask: Tensor | None, stores: Sequence[Store]
    ) -> Tensor:
        """Apply the blocks and the final norm to x [B, n, H] -> hidden [B, n, (1 + F) H].

        rotation [B or 1, n, 3, 1, d / 2] is that of `rotations`. x may be overwritten.
        """
        x = x.contiguous()  # rows of one vector cannot be added to in place
        features: list[Tensor] = []
        layers = self.layers_for(x, mask, x.shape[1])
        for number, (block, store) in enumerate(zip(layers, stores, strict=True), 1):
            x = block(x, rotation, mask, store, x.shape[1])
            if number in self.feature_layers:
                features.append(x.clone())  # the next block may overwrite x
        final = self.norm(x)
        return torch.cat((final, *features), -1) if features else final

    def head(self, hidden: Tensor) -> Tensor:
        final = hidden[..., : self.config.dim] if self.feature_layers else hidden
        return wide(self.lm_head, final)


class DecoderDrafter(Decoder):
    """Implement `decoding.interfaces.Drafter`, except `prefill`, by one LLaMA layer.

    It reads pairs of a token and the hidden state before it. Slot i pairs the target's hidden state
    at position i with the token at position i + 1.
    """

    guided = False  # whether it drafts one row, from guided states

    def __init__(self, config: Any, embeddings: int, norm_before: bool = True) -> None:
        super().__init__(config, embeddings, norm_before)
        self.fc = nn.Linear(2 * config.dim, config.dim, bias=config.bias)

    @property
    def layer(self) -> Any:
        """The only layer; checkpoints have it in a list."""
        return self.layers[0]

    def fuse(self, embedded: Tensor, before: Tensor) -> Tensor:
        """Join tokens' vectors with the states before them to the layer's input, all [R, m, H]."""
        return self.fc(torch.cat((embedded, before), -1))

    def forward(self, nodes: Pass, hidden: Tensor, cache: Any) -> Tensor:
        """As `decoding.interfaces.Drafter.forward`; tokens may also be [R, n]."""
        end, outputs = nodes.end, nodes.outputs
        x = self.fuse(self.embed(nodes.tokens).expand(hidden.shape[0], -1, -1), hidden)
        rotation = self.rotation_at(nodes.positions, cache)
        mask = cache.bias(nodes.visible, end)
        (layer,) = self.layers_for(x, mask, outputs)
        (store,) = cache.stores(nodes.slots, end)
        return layer(x, rotation, mask, store, outputs)
