"""Windows that the target drafts itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from runs import decode
from tables import ChainTarget, random_probs

from lantern_demo.decoding import noise, verify
from lantern_demo.decoding.config import Config
from lantern_demo.decoding.methods import METHODS, Method, register
from lantern_demo.decoding.rules import LanternPlusPlus
from lantern_demo.decoding.window import Window

VOCAB = 6
CHAIN = ChainTarget(random_probs(VOCAB, VOCAB, 7).log(), random_probs(VOCAB, VOCAB, 8).log())


def run(method: str = "sjd", tokens: int = 150, **settings: Any) -> Any:
    tree = {"tree": Window(8)} if method == "sjd" else {}
    knobs = {"num_tokens": tokens, "method": METHODS[method], **tree, **settings}
    *_, last = decode(CHAIN, None, torch.tensor([0]), **knobs)
    return last


def test_a_window_of_a_relaxed_rule_is_refused() -> None:
    rule = LanternPlusPlus(2, 3.0)
    method = Method("mine", "Mine", Window, rule, False, "A window and a relaxed rule.")
    with pytest.raises(ValueError, match=r"method mine drafts from a window, and its rule"):
        register(method)
    with pytest.raises(ValueError, match=r"rule is .*, which relaxes; Window needs the exact rule"):
        Config(method, 8, rule=rule, tree=Window(4))


def test_one_noise_for_a_position_needs_fewer_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Than noise that is drawn anew in every pass."""
    steady = run().steps
    seeds = iter(range(100, 10**6))
    real = verify.SharedNoiseVerifier.verify

    def anew(self: verify.SharedNoiseVerifier, *given: Any) -> Any:
        noise.gumbel_(self.noise, next(seeds))
        return real(self, *given)

    monkeypatch.setattr(verify.SharedNoiseVerifier, "verify", anew)
    assert steady < 0.95 * run().steps
