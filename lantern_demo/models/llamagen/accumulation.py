"""Keep the sums of float16 products in float16. Consumer GPUs compute them twice as fast as sums in float32, but less exactly:
how far a target's distributions move is measured before it is allowed."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lantern_demo.models.common import Condition
from lantern_demo.models.llamagen.target import LlamaGen

TOKENS = 64  # of the sequence that is measured
TOLERANCE = 0.01  # mean total variation distance between the distributions of a token with and without


def allow(target: nn.Module) -> None:
    """Let this process keep sums of float16 products in float16.

    Raises ValueError when the target is no LlamaGen's or not in float16 on a GPU, or when its distributions move by more
    than `TOLERANCE`; then nothing has changed.
    """
    if not isinstance(target, LlamaGen):
        raise ValueError(f"fp16_accumulation is for models of the LlamaGen family; this one is {type(target).__name__}")
    weight = target.output.weight
    if weight.dtype != torch.float16 or weight.device.type != "cuda":
        kind = f"{str(weight.dtype).removeprefix('torch.')} on {weight.device.type}"
        raise ValueError(f"fp16_accumulation is for a target in float16 on a GPU; this one is in {kind}")
    moved = drift(target)
    if not moved <= TOLERANCE:  # also when it is not a number
        raise ValueError(
            f"fp16_accumulation moves this model's distributions by {moved:.3g} on average; at most {TOLERANCE} is allowed"
        )
    torch.backends.cuda.matmul.allow_fp16_accumulation = True


def drift(target: LlamaGen) -> float:
    """The mean total variation distance, 0 to 1, between a target's distributions with sums in float16 and as set; the setting
    stays."""
    products = torch.backends.cuda.matmul
    before = products.allow_fp16_accumulation
    usual = probs(target)
    products.allow_fp16_accumulation = True
    try:
        return float((probs(target) - usual).abs().sum(-1).mean() / 2)
    finally:
        products.allow_fp16_accumulation = before


@torch.inference_mode()
def probs(target: LlamaGen) -> Tensor:
    """Laws [TOKENS, V] float32 behind the tokens of a fixed sequence, drawn without a caption or from class 0."""
    c, device = target.config, target.rope.device
    features = torch.zeros(1, dtype=torch.int64, device=device) if c.classes else target.no_caption()[None]
    count = min(TOKENS, c.tokens)
    cache = target.new_cache(1, count)
    target.prefill(Condition(features), cache)
    index = torch.arange(count, device=device)
    mask = torch.ones(count, count, dtype=torch.bool, device=device).tril()
    return target.head(target.forward(index * 7919 % c.vocab, index, mask, cache))[0].softmax(-1)
