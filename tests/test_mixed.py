"""`typical` and `ensemble`: their distributions by formula and by counting, with dice of their own and with shared noise."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from tables import chi_square_p, decide, draw_without_replacement, random_probs
from tiny import write_tiny_model
from torch import Tensor

from lantern_demo import load
from lantern_demo.decoding.config import Config
from lantern_demo.decoding.deciding import decide_shared
from lantern_demo.decoding.drafting import StaticTree
from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.rules import Rule
from lantern_demo.decoding.sampling import Sampling
from lantern_demo.decoding.shared import SharedNoise
from lantern_demo.decoding.successors import Ensemble, Typical
from lantern_demo.decoding.trees import Draft, static_tree
from lantern_demo.settings.settings import Settings
from lantern_demo.ui.evidence import evidence_of

RUNS, VOCAB = 100_000, 8
P_BOUND = 1e-4
P, Q = random_probs(1, VOCAB, 3)[0], random_probs(1, VOCAB, 4)[0]


def counted(rule: Rule, count: int, seed: int = 5) -> Tensor:
    """How often each token came out behind so many drafts, by the papers' dice."""
    generator = torch.Generator().manual_seed(seed)
    tokens = draw_without_replacement(Q.expand(RUNS, -1), torch.rand(RUNS, count, generator=generator))
    u = torch.rand(RUNS, count + 1, generator=generator)
    verdict = decide(rule, P.expand(RUNS, -1), tokens, Q.expand(RUNS, -1), None, u)
    bonus = torch.multinomial(verdict.residual, 1, generator=generator)[:, 0]
    kept = tokens.gather(1, verdict.rank.clamp(min=0).unsqueeze(1))[:, 0]
    return torch.where(verdict.rank < 0, bonus, kept).bincount(minlength=VOCAB)


def by_noise(seed: int = 6) -> tuple[Tensor, Tensor]:
    """Gumbel noise [RUNS, V] added to the scores of the target and of the drafter."""
    noise = -torch.rand(RUNS, VOCAB, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).log_().neg_().log_()
    return P.log() + noise, Q.log() + noise


@pytest.mark.parametrize("epsilon", [0.02, 0.09, 0.3])
def test_typical_keeps_what_is_likely_enough(epsilon: float) -> None:
    entropy = -float((P * P.log()).sum())
    passes = min(epsilon, math.sqrt(epsilon) * math.exp(-entropy)) < P
    probs = Q * passes + (1 - (Q * passes).sum()) * P
    found = counted(Typical(epsilon), 1)
    assert 0 < int(passes.sum()) < VOCAB and chi_square_p(found, probs) > P_BOUND > chi_square_p(found, P)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("weight", [0.1, 0.3, 1.0])
def test_an_ensemble_draws_from_the_mixture(weight: float, count: int) -> None:
    probs = weight * P + (1 - weight) * Q
    assert chi_square_p(counted(Ensemble(weight), count), probs) > P_BOUND
    assert chi_square_p(counted(Ensemble(weight), count), 0.5 * probs + 0.5 / VOCAB) < P_BOUND


@pytest.mark.parametrize("count", [1, 3])
def test_typical_with_shared_noise_keeps_what_is_likely_enough(count: int) -> None:
    rule, (target, drafter) = Typical(0.09), by_noise()
    own, tokens = target.argmax(-1), drafter.topk(count).indices
    rank, _ = decide_shared(rule, P.expand(RUNS, -1), tokens, own, None)
    came = torch.where(rank < count, tokens.gather(1, rank.clamp(max=count - 1).unsqueeze(1))[:, 0], own)
    passes = rule.passing(P)
    assert bool((passes[came] | (came == own)).all()) and bool((came == own)[~passes[tokens].any(1)].all())


def test_an_ensemble_with_shared_noise_draws_from_the_mixture() -> None:
    weight, runs = 0.4, 4000
    tree = StaticTree([(0,)])
    config = Config(METHODS["ensemble"], 4, Sampling(), Ensemble(weight), tree, dice="same")
    judge, found = SharedNoise(config, VOCAB), torch.zeros(VOCAB)
    drawn = static_tree(tree.paths)
    for seed in range(runs):
        judge.begin(seed)
        child = judge.noisy(Q.log().unsqueeze(0), 0).argmax(-1)
        draft = Draft(drawn, torch.stack([torch.tensor(0), child[0]]), child.unsqueeze(0), scored=Q.log().unsqueeze(0))
        made = judge.judge(draft, P.log().expand(2, -1).clone(), torch.empty(0))
        assert (int(made.following[0]) == 1) == (int(made.own[0]) == int(child)) and made.relaxed is not None
        found[made.own[0]] += 1
    probs = weight * P + (1 - weight) * Q
    assert chi_square_p(found, probs) > P_BOUND > chi_square_p(found, P)


@pytest.mark.parametrize("method", ["typical", "ensemble"])
def test_what_is_told_of_a_guess_is_what_decided(method: str, tmp_path: Path) -> None:
    """With shared noise: a guess that vanilla's own draw is not was kept by the rule alone, and the page says so."""
    pipe = load(str(write_tiny_model(tmp_path / "tiny")))
    entry = pipe.generate("a red lantern", method, tree="small", seed=3).record["methods"][method]
    words = evidence_of(Settings(tree="small", seed=3), METHODS[method], entry)
    before, seen = 0, set()
    for after, tree, tried in zip(
        entry["events"]["committed"], entry["events"]["trees"], words.trials(entry["events"]), strict=True
    ):
        kept = dict(zip(tree["path"][1:], entry["events"]["kinds"][before:after], strict=False))
        before = after
        for node, case, *_ in tried:
            assert {"exact": "e", "relaxed": "r", "refused": None}[case] == kept.get(node)
            seen.add(case)
    assert seen == {"exact", "relaxed", "refused"}


def test_what_is_no_share_is_refused() -> None:
    for made, name in ((lambda: Typical(1.5), "epsilon is 1.5"), (lambda: Ensemble(-0.1), "weight is -0.1")):
        with pytest.raises(ValueError, match=f"{name}; it must be between 0 and 1"):
            made()
