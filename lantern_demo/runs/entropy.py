"""The entropy of the distributions that a picture's tokens were drawn from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from lantern_demo.decoding.evidence import own_logits
from lantern_demo.decoding.loop import device_work
from lantern_demo.decoding.sampling import guide, probabilities
from lantern_demo.runs.pipeline import Pipeline
from lantern_demo.torch_defaults import own_defaults


def entropy_of(pipe: Pipeline, prompt: str, tokens: Sequence[int], **settings: Any) -> torch.Tensor:
    """Return the entropy of the target's distribution of each token of a picture, in nats: [tokens]
    float32 on the CPU.

    Temperature, top-k, top-p and guidance count; at temperature 0 it is the plain softmax. The
    caller has the pipeline's turn (`with pipe.turn():`). Raises NotAllowed as `Pipeline.request`
    does.
    """
    (plan,) = pipe.request(prompt, ["vanilla"], **settings).runs.values()
    found = list[torch.Tensor]()
    with device_work(pipe.device), pipe.threads.used(), own_defaults():
        config, condition = pipe.prepared(plan, pipe.read(prompt).encoded)
        sampling = config.sampling
        for logits in own_logits(pipe.target, condition, list(tokens), config):
            p = probabilities(guide(logits, sampling.cfg_scale), sampling)
            found.append(torch.special.entr(p).sum(-1))
    return torch.cat(found).cpu()
