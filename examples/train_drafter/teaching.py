"""The sizes of a drafter, and the passes over whole pictures that training makes, with their
losses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from lantern_demo.models.llama import Condition, prefix_mask, rotations
from lantern_demo.models.llamagen import Drafter, LlamaGen
from lantern_demo.models.registry import DrafterConfig, LlamaGenConfig, check_feature_layers

# weights of cross-entropy and of SmoothL1 in the loss, next to the total variation
ENTROPY, DISTANCE = 0.3, 0.1


def drafter_sizes(
    target: LlamaGenConfig, ffn: int, guided: bool, feature_layers: Sequence[int] = ()
) -> DrafterConfig:
    """Return the configuration of a drafter for a target.

    Raise ValueError if the target lacks a named block.
    """
    made = DrafterConfig(
        dim=target.dim,
        heads=target.heads,
        ffn=ffn,
        vocab=target.vocab,
        grid=target.grid,
        prefix=target.prefix,
        rope_base=target.rope_base,
        guided=guided,
        feature_layers=tuple(feature_layers),
    )
    check_feature_layers(feature_layers, target.layers)
    return made


def train_hidden(
    target: LlamaGen,
    tokens: Tensor,
    features: Tensor,
    mask: Tensor | None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Run teacher forcing: tokens [B, N] and the rows of a condition -> hidden [B, T + N, (1 + F)
    H].

    The state that predicts token j is at T - 1 + j. Positions count from a row's first one, padded
    or not: attention depends on their differences alone. Padded rows see what they would see in
    `dtype`, by default the target's own (`llama.prefix_mask`).
    """
    prefix = target.read(Condition(features, mask))
    x = torch.cat((prefix, target.embed(tokens).type_as(prefix)), 1)
    n, t = x.shape[1], prefix.shape[1]
    seen = torch.ones(n, n, dtype=torch.bool, device=x.device).tril()
    if mask is not None:
        seen = seen & F.pad(mask, (0, n - t), value=True)[:, None, None]
        own = dtype or target.norm.weight.dtype
        seen[:, :, :t, :t] = prefix_mask(mask, t, x.device, target.padding, own)
    stores = [unstored] * len(target.layers)
    return target.run(x, rotations(target.rope[None, :n]), seen, stores)


def unstored(kv: Tensor) -> tuple[Tensor, Tensor]:
    """A `llama.Store` that keeps nothing: a pass attends to its own keys and values."""
    k, v = kv.chunk(2, 1)
    return k, v


def train_passes(drafter: Drafter, tokens: Tensor, hidden: Tensor, passes: int) -> list[Tensor]:
    """Run teacher forcing with the inputs of drafting.

    tokens [B, S] has the token after each slot's state, 0 in front of the picture. hidden is [B, S,
    (1 + F) H]. Each output is [B, S, H], and its row i imitates the final state at position i + 1.

    Pass 0 reads the target's states, as the stable slots do. Pass t reads the output of pass t - 1
    one slot before, as a tree node at depth t does: it attends to the stable slots up to i - t, to
    its t - 1 ancestors and to itself. Its first t slots have no such ancestors and are invalid.
    """
    embedded = drafter.embed(tokens).type_as(hidden)
    rotation = rotations(drafter.rope[None, : tokens.shape[1]])
    slot = torch.arange(hidden.shape[1], device=hidden.device)
    back = slot[:, None] - slot[None]  # how many slots key j precedes query i by
    keys: list[Tensor] = []
    values: list[Tensor] = []
    outputs: list[Tensor] = []
    for t in range(passes):
        before = hidden if t == 0 else F.pad(outputs[-1], (0, 0, 1, 0))[:, :-1]
        x = drafter.fuse(embedded, before)
        rotated = drafter.layer.self_attn.rotated(drafter.layer.norm_before(x), rotation)
        q, k, v = rotated.transpose(1, 3).unbind(2)
        keys.append(k)
        values.append(v)
        seen = torch.cat([back >= t, *(back == t - u for u in range(1, t + 1))], 1)
        attended = F.scaled_dot_product_attention(
            q, torch.cat(keys, 2), torch.cat(values, 2), attn_mask=seen
        )
        outputs.append(drafter.layer.finish(x, attended.transpose(1, 2).flatten(2)))
    return outputs


def draft_losses(
    drafter: Drafter,
    tokens: Tensor,
    hidden: Tensor,
    logits: Callable[[Tensor], Tensor],
    passes: int,
    noise: float,
) -> list[tuple[Tensor, Tensor]]:
    """Return loss and overlap sum(min(p, q)) of every pass of a drafter.

    tokens [B, N] are the pictures. hidden [R, S + 1, (1 + F) H] float32 has the target's states of
    the drafter's slots and one more; R is B or a multiple. `logits` maps states and outputs
    [R, n, *] to logits [B, n, V] float32. Uniform noise of width `noise` is added to final states.
    """
    first = drafter.config.prefix - 1  # the slot of token 0, whose output stands for token 1
    final = hidden[..., : drafter.config.dim]
    shaken = noise * (torch.rand_like(final[:, :-1]) - 0.5)
    inputs = hidden[:, :-1] + F.pad(shaken, (0, hidden.shape[-1] - final.shape[-1]))
    # the token at position i + 1, for slot i
    following = F.pad(tokens, (first, 0)).repeat(len(hidden) // len(tokens), 1)
    with torch.no_grad():
        probs = logits(hidden[:, first + 1 : -1]).softmax(-1)
    found = []
    # Pass t is valid from slot first + t on, and the last slot has no state to imitate.
    for t, output in enumerate(train_passes(drafter, following, inputs, passes)):
        made, p = output[:, first + t : -1], probs[:, t:]
        guess = logits(made).log_softmax(-1)
        overlap = torch.minimum(p, guess.exp()).sum(-1).mean()
        entropy = -(p * guess).sum(-1).mean()
        distance = F.smooth_l1_loss(made.float(), final[:, first + t + 1 : -1])
        found.append(((1 - overlap) + ENTROPY * entropy + DISTANCE * distance, overlap.detach()))
    return found
