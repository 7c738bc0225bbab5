"""Parts that all families of models share: conditions, configurations, norms and masks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import Field, dataclass
from typing import Any, ClassVar, Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# rows of a rotary table past the last token: draft trees may reach over the end of the image
BEYOND = 64


@dataclass
class Condition:
    """The condition of an image: text features [R, T, C] and their mask [R, T] bool (left-padded),
    or class ids [R]. Models that read the prompt themselves get its ids [R, T] and their mask. R
    rows: 2 with guidance (conditional, unconditional), 1 without.
    """

    features: Tensor
    mask: Tensor | None = None


Network = TypeVar("Network", bound=nn.Module)


class NetworkSizes(ABC, Generic[Network]):
    """The configuration of a target or a drafter: a frozen dataclass with these fields that builds
    its network.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]
    dim: int
    heads: int
    ffn: int
    vocab: int  # image tokens
    grid: int  # image tokens a side
    prefix: int  # positions before the image tokens
    rope_base: float
    eps: float  # of the norms

    @abstractmethod
    def build(self) -> Network:
        """Return the network, on the device that PyTorch builds on."""

    @abstractmethod
    def rope_table(self) -> Tensor:
        """Return the network's rotary table [positions, head_dim / 2, 2] float32, (cos, sin) last;
        its buffer `rope` holds it.
        """

    def published_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of tensors that a published file holds and the network lacks, or has
        with fewer rows.
        """
        return {}

    @property
    def head_dim(self) -> int:
        """Width of an attention head."""
        return self.dim // self.heads


class TargetSizes(NetworkSizes[Network]):
    layers: int

    @property
    def tokens(self) -> int:
        """Image tokens of one picture."""
        return self.grid * self.grid


class DrafterSizes(NetworkSizes[Network]):
    """The configuration of a drafter; dim, heads, vocab, grid and prefix are its target's."""

    bias: bool  # of the layer that joins a token and a hidden state
    # Blocks of the target, counted from 1, whose outputs its states carry for the drafter. Some
    # families have no such drafters.
    feature_layers: tuple[int, ...] = ()

    def check_target(self, target: TargetSizes[Any]) -> None:
        """Check that this drafter was made for a target.

        Raise ValueError with the first difference.
        """
        for name in ("dim", "vocab", "grid", "prefix"):
            own, wanted = getattr(self, name), getattr(target, name)
            if own != wanted:
                raise ValueError(
                    f"says {name} {own}, but the target has {wanted}: it is another model's drafter"
                )
        try:
            self.check_feature_layers(target.layers)
        except ValueError as error:
            raise ValueError(f"is another model's drafter: its {error}") from None

    def check_feature_layers(self, layers: int) -> None:
        """Check that the feature layers are increasing numbers of a target's blocks, 1 to `layers`.

        Raise ValueError.
        """
        named = all(type(layer) is int and 1 <= layer <= layers for layer in self.feature_layers)
        if not named or list(self.feature_layers) != sorted(set(self.feature_layers)):
            raise ValueError(
                f"feature layers are {list(self.feature_layers)}; they must be numbers of the target's blocks, "
                f"from 1 to {layers}, each above the one before"
            )


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        # The published norm casts back before it scales; in float32 both orders are the same.
        return F.rms_norm(x.to(self.weight.dtype), x.shape[-1:], self.weight, self.eps)


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Attend with queries q over keys k and values v -> [R, heads, n, d]. mask: a bias, or bool
    with True for visible keys.
    """
    if mask is not None and q.device.type == "cpu" and torch.compiler.is_compiling():
        # Training alone compiles on a CPU. The backward pass of the fused kernel takes three times
        # as long there.
        scores = (q @ k.transpose(-1, -2)).float() * q.shape[-1] ** -0.5
        scores = (
            scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
        )
        return scores.softmax(-1).to(v.dtype) @ v
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def with_features(final: Tensor, features: list[Tensor]) -> Tensor:
    """Append the outputs of feature layers [..., H] to a target's final states [..., H]."""
    return torch.cat((final, *features), -1) if features else final


def prefix_mask(
    visible: Tensor | None, n: int, device: torch.device, padding: str, dtype: torch.dtype
) -> Tensor:
    """Return which prefix positions see which: visible [R, n] bool or None -> [R or 1, 1, n, n]
    bool.

    "self": causal, padded columns hidden, and every position sees itself (LlamaGen). "released":
    rows of real positions are the same. A padded row sees the padded columns up to itself and, in
    float32 only, every real column, because the released mask adds two minima that saturate
    differently. Drafters read these rows, so a port has to keep them.
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
