"""Faults of one token or one slot: most change no token of most runs, so laws do not show them."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small_models import model_of
from tiny import spied
from torch import Tensor

from lantern_demo.decoding.accept import Children, decide, decide_greedy
from lantern_demo.decoding.drafting import StaticProposer
from lantern_demo.decoding.ops import Ops
from lantern_demo.decoding.rules import Lantern, Rule
from lantern_demo.decoding.sampling import Sampling, draw_in_turn, guide, warp
from lantern_demo.decoding.step import Steps
from lantern_demo.decoding.verify import RejectionVerifier, SharedNoiseVerifier
from lantern_demo.decoding.window import Window, WindowProposer
from lantern_demo.models.anole import PaddedCache
from lantern_demo.models.tokenizer import neighbour_table
from lantern_demo.runs.pipeline import Pipeline


def run(method: str, **changes: Any) -> None:
    of = model_of("llamagen")
    of.run(of.modules, method, num_tokens=8, **changes)


def test_drafts_and_decisions_have_different_uniforms(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, calls = spied(monkeypatch, Steps, "begin"), spied(monkeypatch, StaticProposer, "propose")
    run("lantern++")
    steps, _, _, uniforms, _ = begun[0]
    rows = {tuple(row[steps.verifier.draws :].tolist()) for row in uniforms}
    assert calls and {tuple(call[-1].tolist()) for call in calls} <= rows


def test_every_token_is_drawn_with_a_uniform_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = spied(monkeypatch, RejectionVerifier, "sample")
    run("vanilla")
    assert len({float(uniforms[0]) for *_, uniforms in drawn}) == len(drawn) == 8


def test_every_draft_is_drawn_with_a_uniform_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[float] = []

    def noted(q: Tensor, u: Tensor) -> Tensor:
        used.extend(u.flatten().tolist())
        return draw_in_turn(q, u)

    monkeypatch.setattr(Ops, "draw_in_turn", staticmethod(noted))
    run("lantern++")
    assert len(set(used)) == len(used) > 20


def test_a_draw_that_is_no_node_is_no_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    """All nodes of a level are drawn from as often as its widest one."""
    judged = spied(monkeypatch, RejectionVerifier, "verify")
    run("lantern++")
    for _, draft, *_ in judged:
        assert not (draft.drawn >= 0)[draft.tree.of_inner(draft.tree.children) < 0].any()
    assert any((draft.tree.children < 0).any() for _, draft, *_ in judged)


def test_a_draft_has_the_noise_of_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or fewer drafts would be what the target draws there."""
    noised = spied(monkeypatch, SharedNoiseVerifier, "add_noise")
    run("eagle1", noise="shared")
    places = [at.flatten().tolist() for _, _, at in noised]
    _, *drafted, verified = places[:5]  # the first token's; the drafts' of three levels
    assert drafted == [[1], [2], [3]] and sorted(set(verified)) == [1, 2, 3, 4]


def test_a_guided_drafter_reads_guided_states() -> None:
    hidden = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    steps = Steps.__new__(Steps)
    steps.drafter = SimpleNamespace(guided=True)  # type: ignore[assignment]
    steps.config = SimpleNamespace(sampling=Sampling(cfg_scale=3.0))  # type: ignore[assignment]
    assert torch.equal(steps._for_drafter(hidden), guide(hidden, 3.0)[None])
    assert not torch.allclose(guide(hidden, 3.0), hidden[0])


def test_the_windows_next_drafts_follow_the_last_token() -> None:
    run_of: Any = SimpleNamespace(device=torch.device("cpu"))
    window = WindowProposer(Window(4), run_of)
    drawn = torch.tensor([10, 11, 12, 13])  # after the root and each of three drafts
    for depth, following in ((0, [11, 12, 13]), (1, [12, 13, 13]), (3, [13, 13, 13])):
        out: Any = SimpleNamespace(target_tokens=drawn, depth=torch.tensor([depth]))
        window.observe(out, torch.empty(0))
        assert window.tokens.tolist() == following


def test_a_draft_whose_refusal_leaves_nothing_is_accepted() -> None:
    p, q = torch.tensor([[1 - 2**-24, 0.0, 0.0]]), torch.tensor([[1.0, 0.0, 0.0]])
    u = torch.tensor([[1 - 2**-30]], dtype=torch.float64)
    assert decide(Rule(), p, Children(torch.tensor([[0]]), q), u).accepted.all()


def test_top_p_keeps_the_token_at_which_the_sum_is_reached() -> None:
    logits = torch.tensor([[0.5, 0.25, 0.125, 0.125]]).log()
    for top_p, kept in ((0.5, 2), (0.75, 3), (0.49, 1)):
        left = warp(logits[None], Sampling(top_p=top_p))
        assert int(left.isfinite().sum()) == kept


@pytest.mark.parametrize(
    ("draft", "p", "accepted"), [(1, (0.4, 0.2), False), (0, (0.2, 0.4), True)]
)
def test_a_relaxed_tie_goes_to_the_first_token(
    draft: int, p: tuple[float, float], accepted: bool
) -> None:
    """As argmax has it: the draft borrows token 2's probability, and so has as much as the top."""
    nearest = torch.full((4, 1), 2)
    children = Children(torch.tensor([[draft]]), None, nearest)
    verdict = decide_greedy(Lantern(1, 1.0), torch.tensor([[*p, 0.2, 0.2]]), children)
    assert float(verdict.score[0, 0]) == float(torch.tensor(0.4))
    assert bool(verdict.accepted[0, 0]) == accepted


def test_a_prompt_without_padding_follows_a_padded_one() -> None:
    cache = PaddedCache(1, 2, 1, 16, 4)
    padded = torch.tensor([[False, False, True, True], [True, True, True, True]])
    cache.start(4, padded)
    assert cache.positions(torch.tensor([4])).tolist() == [[2], [4]]
    cache.start(4)
    assert cache.positions(torch.tensor([4])).tolist() == [[4], [4]]


def test_each_kind_of_vectors_has_a_table(pipe: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = pipe.networks.tokenizer
    raw = tokenizer.vq.quantize.embedding.weight
    longer = torch.linspace(1, 9, len(raw))[:, None]  # the decoder reads unit vectors
    monkeypatch.setattr(raw, "data", raw.data * longer)
    monkeypatch.setattr(pipe.images, "_neighbours", {})
    found = [pipe.images.neighbours(vectors) for vectors in ("decoder", "raw")]
    wanted = [neighbour_table(book, found[0].shape[1]) for book in (tokenizer.codebook, raw)]
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
    assert not torch.equal(*found)
