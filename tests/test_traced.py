"""Whole steps as one graph of `torch.compile`, which a break would refuse."""

from __future__ import annotations

import pytest
import torch
from small_models import model_of

from lantern_demo.decoding.loop import Decoded
from lantern_demo.decoding.step import Steps


@pytest.mark.slow
@pytest.mark.parametrize("method", ["vanilla", "eagle1", "eagle2", "lantern", "lantern++"])
def test_a_whole_step_is_one_graph(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced without generated code, with the sizes of captured steps."""
    model = model_of("llamagen")

    def tokens() -> list[int]:
        *_, last = model.run(model.joined, method, num_tokens=8)
        assert isinstance(last, Decoded)
        return last.tokens

    wanted = tokens()
    torch.compiler.reset()
    whole = torch.compile(Steps.step, backend="eager", fullgraph=True, dynamic=False)
    with monkeypatch.context() as patch:
        # a replayed step is not timed from inside either
        patch.setattr(Steps, "step", lambda self, shape, _: whole(self, shape))
        assert tokens() == wanted
    torch.compiler.reset()
