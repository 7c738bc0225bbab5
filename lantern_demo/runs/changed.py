"""Mark the tokens of a picture that ZipAR changed, by one pass of the model over the finished picture.

A method that drafts marks its changed tokens in the run (`Step.kinds`): those that only its relaxation accepted. With shared
noise a marked token differs from the one that the model itself draws there. With independent noise the exact rule would have
refused the draft. A lossless method marks none. ZipAR has no acceptance rule, and so needs the pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lantern_demo.decoding.config import Config
from lantern_demo.decoding.drafting import ZipAR
from lantern_demo.decoding.interfaces import Target
from lantern_demo.decoding.loop import Step, parts_of
from lantern_demo.decoding.results import AcceptKind
from lantern_demo.decoding.sampling import uniforms_of, warp
from lantern_demo.decoding.zipar import plan_of

CHUNK = 32  # tokens per pass over a finished picture


@torch.inference_mode()
def marked(target: Target, condition: Any, config: Config, steps: Sequence[Step]) -> list[Step]:
    """Return ZipAR's steps, with each token marked as relaxed that the model itself would draw otherwise. The model reads all
    tokens before it, and draws with the run's random number. With shared noise that is the position's noise. With independent
    noise it is the uniform of the pass, by the same inverse of the cumulative distribution."""
    assert isinstance(config.tree, ZipAR)
    placed = {place: token for step in steps for place, token in zip(step.places, step.tokens, strict=True)}
    count, device = config.num_tokens, config.torch_device
    tokens = [placed[place] for place in range(count)]
    proposer, verifier = parts_of(config, target.vocab_size)
    verifier.begin(config.seed)
    uniforms = uniforms_of(config.seed, device, count, verifier.draws + proposer.draws)
    drawn = plan_of(count, config.row_length, config.tree.lead, device).table[2, :, : uniforms.shape[1]]
    by_place = uniforms.new_zeros(count + 1).index_put_((drawn,), uniforms[: drawn.shape[0], : drawn.shape[1]])
    own = tokens[:1]  # which the model draws after reading the prompt
    for logits in own_logits(target, condition, tokens, config):
        places = torch.arange(len(own), len(own) + logits.shape[1], device=device)
        own += verifier.sample(warp(logits, config.sampling), places, by_place[places]).tolist()

    def kinds(step: Step) -> list[AcceptKind]:
        return ["target" if own[place] == placed[place] else "relaxed" for place in step.places]

    return [replace(step, kinds=kinds(step)) for step in steps]


def own_logits(target: Target, condition: Any, tokens: list[int], config: Config) -> Iterator[Tensor]:
    """Yield the target's logits [R, m, V] of positions 1, 2, ... of a picture, each given all tokens before it, CHUNK positions
    at a time."""
    cache = target.new_cache(config.rows, len(tokens))
    target.prefill(condition, cache)
    slots = torch.arange(cache.length + len(tokens) - 1, device=config.torch_device)
    read = torch.tensor(tokens[:-1], device=config.torch_device)
    for chunk, at in zip(read.split(CHUNK), slots[cache.length :].split(CHUNK), strict=True):
        visible = slots[: int(at[-1]) + 1] <= at[:, None]
        yield target.head(target.forward(chunk, at, at, visible, cache))
