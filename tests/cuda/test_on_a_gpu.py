"""What only a GPU can tell, on small random models; skipped where there is none.

Triton kernels are on where a test or a fixture says so, whatever the variable says.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from test_kernels import check_file

from examples.gpu import TimedModel, timed_model, without_graphs, without_kernels
from lantern_demo.bench.audit import cells_of, run_cell
from lantern_demo.decoding.drafting import StaticTree
from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.sampling import Sampling, draw, probabilities
from lantern_demo.decoding.step import Steps
from lantern_demo.kernels import switch

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="there is no CUDA device here"
)

TOKENS = 36


@pytest.fixture(
    scope="module",
    params=[("llamagen-t2i-256", True), ("llamagen-t2i-256", False), ("anole-7b", True)],
)
def timed(request: pytest.FixtureRequest) -> Iterator[TimedModel]:
    """A small model of every family, in kernels where they are for it, or in modules."""
    model, kernels = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LANTERN_KERNELS", str(int(kernels)))
        yield timed_model(model, torch.device("cuda"), small=True, dtype=torch.bfloat16)


@pytest.mark.parametrize("method", METHODS)
def test_graphs_give_the_tokens_of_eager_steps(timed: TimedModel, method: str) -> None:
    """Kept tokens are read before the graphs. A runner's smallest size has no room for them."""
    kept = tuple(timed.decoded(method, tokens=80, seed=3).tokens[:50])
    for seed, keep in ((3, kept), (4, kept[:12]), (5, ())):
        about: dict[str, Any] = {"tokens": 80, "seed": seed, "keep": keep}
        with without_graphs():
            eager = timed.decoded(method, **about)
        assert eager.runner == "plain" and eager.runner_reason.startswith("without graphs")
        replayed = timed.decoded(method, **about)
        assert replayed.runner == "graphs" and tuple(replayed.tokens[: len(keep)]) == keep
        assert replayed.tokens == eager.tokens
        assert replayed.accepted_lengths == eager.accepted_lengths


def test_kernels_give_the_tokens_of_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32, where rounding leaves the tokens as they are; exact methods draw vanilla's."""
    cuda = torch.device("cuda", 0)
    monkeypatch.setenv("LANTERN_KERNELS", "1")
    if not switch.on(cuda):
        pytest.skip("kernels are not for this card")
    own = timed_model("llamagen-t2i-256", cuda, small=True)
    assert own.target.fused and own.drafter.fused  # type: ignore[attr-defined]

    def tokens(of: TimedModel) -> dict[str, list[int]]:
        runs = {name: of.decoded(name, tokens=TOKENS, seed=4) for name in METHODS}
        assert {run.runner_reason for run in runs.values()} == {""}
        return {name: run.tokens for name, run in runs.items()}

    kernels = tokens(own)
    with without_kernels(own) as modules:
        assert tokens(modules) == kernels
    exact = [name for name, method in METHODS.items() if method.lossless]
    assert len(exact) > 1 and all(kernels[name] == kernels["vanilla"] for name in exact)


def test_kernels_compute_what_the_modules_do() -> None:
    check_file("test_alike.py", LANTERN_KERNELS="1")


@pytest.mark.parametrize("kernels", [True, False])
@pytest.mark.parametrize("method", ["eagle1", "eagle2", "sjd"])
def test_the_audit_passes(method: str, kernels: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the command with --device cuda, with few runs."""
    cuda = torch.device("cuda", 0)
    monkeypatch.setenv("LANTERN_KERNELS", str(int(kernels)))
    if kernels and not switch.on(cuda):
        pytest.skip("kernels are not for this card")
    for cell in cells_of([method], ["top-k"]):
        row = run_cell(cell, 1000, cuda)
        assert row.exact and not (kernels and row.engine), row


def test_a_failed_capture_harms_nothing(timed: TimedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    step, before = Steps.step, torch.cuda.current_stream()

    def reads(self: Steps, *args: Any, **options: Any) -> Any:
        taken = step(self, *args, **options)
        if torch.cuda.is_current_stream_capturing():
            self.root.item()  # the host may not read in a capture
        return taken

    with monkeypatch.context() as patch:
        patch.setattr(Steps, "step", reads)
        failed = timed.decoded("eagle1", StaticTree([(0,), (1,)]), tokens=12)
    assert failed.runner == "plain" and failed.runner_reason.startswith("without graphs")
    assert len(failed.tokens) == 12
    assert torch.cuda.current_stream() == before
    assert timed.decoded("eagle1", StaticTree([(0,), (1,), (2,)]), tokens=12).runner == "graphs"


def test_a_run_that_is_left_in_the_middle_harms_no_other(timed: TimedModel) -> None:
    wanted = timed.decoded("lantern++", tokens=TOKENS, seed=7).tokens
    run = timed.run("lantern++", tokens=TOKENS, seed=7)
    for _ in range(4):
        next(run)
    run.close()  # type: ignore[attr-defined]
    assert timed.decoded("lantern++", tokens=TOKENS, seed=7).tokens == wanted


def test_steps_take_time_and_their_parts_add_up(timed: TimedModel) -> None:
    done = timed.decoded("eagle2", tokens=TOKENS)
    parts = [done.seconds[name] for name in ("prefill", "draft", "verify", "commit")]
    assert min(parts) > 0 and sum(parts) == pytest.approx(done.decode_seconds)


def test_no_token_of_probability_0_is_drawn() -> None:
    """A parallel sum may step up where nothing is."""
    torch.manual_seed(0)
    p = probabilities(torch.randn(64, 16384, device="cuda") * 3, Sampling(top_k=50))
    for edge in (0.0, 1 - 2**-24):
        u = torch.full((64,), edge, device="cuda")
        assert bool((p.gather(1, draw(p, u)[:, None]) > 0).all())
    u = torch.rand(64, device="cuda")
    same = (draw(p, u).cpu() == draw(p.cpu(), u.cpu())).sum()
    assert int(same) >= 60  # sums of another order may put a boundary elsewhere
