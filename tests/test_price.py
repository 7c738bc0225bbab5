"""The picture's price: nothing for what is lossless, the distance of the distributions for the rest, and what people are told of
it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from runs import decode
from tables import TableTarget
from test_loop import DRAFTER, PREFIX, SETTINGS, TARGET

from lantern_demo.decoding import loop
from lantern_demo.decoding.config import Config
from lantern_demo.decoding.loop import Decoded, Step
from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.sampling import Sampling
from lantern_demo.decoding.wavefront import Wavefront
from lantern_demo.runs import price
from lantern_demo.runs.distortion import ProbsWatcher, fixed_shift, measure, roots
from lantern_demo.runs.pipeline import Pipeline, load
from lantern_demo.runs.price import Price, own_probs, picture_price
from lantern_demo.ui import texts

TOKENS = 30


def priced(method: str, seed: int = 0, **changes: Any) -> tuple[Price, list[Step], Decoded, ProbsWatcher, Config]:
    knobs = {"sampling": Sampling(cfg_scale=2.0), **SETTINGS[method], **changes}
    knobs["neighbours"] = (torch.arange(1, 12) + torch.arange(12).unsqueeze(1)) % 12
    config, watcher = Config(num_tokens=TOKENS, seed=seed, **knobs), ProbsWatcher()
    *steps, last = loop.decode(TARGET, DRAFTER, PREFIX, config, watcher=watcher)
    assert isinstance(last, Decoded)
    with torch.inference_mode():
        found = picture_price(own_probs(TARGET, PREFIX, last.tokens, config), config, watcher, steps, last.tokens)  # type: ignore[arg-type]
    assert found is not None
    return found, steps, last, watcher, config  # type: ignore[return-value]


def test_own_distributions_are_the_models() -> None:
    """Of the table's target the distribution behind the last two tokens."""
    tokens = list(decode(TARGET, None, PREFIX, num_tokens=TOKENS, method=METHODS["vanilla"], sampling=Sampling(cfg_scale=2.0)))
    picture = tokens[-1].tokens  # type: ignore[union-attr]
    config = Config(METHODS["vanilla"], TOKENS, Sampling(cfg_scale=2.0))
    found = torch.stack(list(own_probs(TARGET, PREFIX, picture, config)))
    before = torch.tensor([int(PREFIX[-1]), *picture])
    torch.testing.assert_close(found, TARGET.probs(before[:-2], before[1:-1], config.sampling), atol=1e-6, rtol=0)


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if method.lossless or method.drafts.side_by_side])
def test_lossless_methods_cost_nothing(method: str, greedy: bool) -> None:
    changes: dict[str, Any] = {"tree": Wavefront(6)} if METHODS[method].drafts.side_by_side else {}  # rows of six
    for seed in range(3):
        found = priced(method, seed, sampling=Sampling(0.0 if greedy else 1.0, cfg_scale=2.0), **changes)[0]
        assert found.mean < 1e-5 and max(price or 0.0 for price in found.tokens) < 1e-5
        assert None not in found.tokens and len(found.tokens) == TOKENS


@pytest.mark.parametrize("method", [method.id for method in METHODS.values() if not method.lossless])
def test_the_others_cost_something(method: str) -> None:
    found = priced(method)[0]
    assert 0.01 < found.mean < 1 and found.tokens[0] == 0.0
    assert found.mean == pytest.approx(sum(price or 0.0 for price in found.tokens) / TOKENS)


def test_it_agrees_with_the_closed_form_and_the_one_step_distance() -> None:
    """LANTERN's children are fixed by the prefix: the price of each token is its rule's closed form, and the mean of the first
    tokens of steps is the one-step distance."""
    found, steps, _, watcher, config = priced("lantern")
    visits = watcher.visits(steps)
    for step in visits:
        for place, visit in step:
            shift = fixed_shift(config.rule, visit.p, visit.tokens, config.neighbours, visit.depth)
            assert found.tokens[place] == pytest.approx(0.5 * float(shift.abs().sum()), abs=1e-5)
    assert any(visit.depth > 0 for step in visits for _, visit in step)
    one_step = measure(config.rule, roots(visits), config.neighbours, False, 0)
    firsts = [found.tokens[step[0][0]] or 0.0 for step in visits]
    assert one_step is not None and len(visits) <= 16
    assert one_step.tvd == pytest.approx(sum(firsts) / len(firsts), abs=1e-5)


def test_of_drafts_that_were_drawn_it_is_an_estimate_of_the_same() -> None:
    """Many draws give what few give."""
    found, steps, _, watcher, config = priced("lantern++")
    pairs = [pair for step in watcher.visits(steps) for pair in step]
    exact = measure(config.rule, [visit for _, visit in pairs], config.neighbours, False, 5)
    assert exact is not None and "8 draws a token" in found.method
    assert sum(found.tokens[place] or 0.0 for place, _ in pairs) / len(pairs) == pytest.approx(exact.tvd, abs=0.02)


def test_of_a_picture_that_would_take_long_some_tokens_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are have the price that they have anyway, up to the draws; closed forms take no time, and are all there."""
    whole = priced("lantern++")[0]
    monkeypatch.setattr(price, "FEWEST", 5)
    monkeypatch.setattr(price, "WORK", 1)
    found = priced("lantern++")[0]
    at = [place for place, one in enumerate(found.tokens) if one is not None]
    assert len(at) == 6 and at[0] == 0
    assert [found.tokens[place] for place in at] == pytest.approx([whole.tokens[place] for place in at], abs=0.1)
    assert found.mean == pytest.approx(sum(found.tokens[place] or 0.0 for place in at) / 6)
    assert found.method == "monte carlo (8 draws a token), of 6 of the 30 tokens"
    assert found == priced("lantern++")[0], "the same for the same run"
    assert priced("eagle1")[0].method == "monte carlo (1 draw a token), of 6 of the 30 tokens"
    for method in ("lantern", "zipar", "vanilla"):
        assert None not in priced(method)[0].tokens
    assert None not in priced("eagle1", sampling=Sampling(0.0))[0].tokens


def test_no_more_tokens_are_looked_at_than_there_is_time_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a clock that says one second for each; at least so many are, and they lie all over the picture."""
    monkeypatch.setattr(price, "FEWEST", 4)
    _, steps, last, watcher, config = priced("lantern++")

    def found(seconds: float | None) -> list[int]:
        ticks = iter(range(1000))
        monkeypatch.setattr(price, "perf_counter", lambda: next(ticks))
        own = own_probs(TARGET, PREFIX, last.tokens, config)  # type: ignore[arg-type]
        with torch.inference_mode():
            done = picture_price(own, config, watcher, steps, last.tokens, seconds)
        assert done is not None and (seconds is None or done.method.endswith(f"of the {TOKENS} tokens") or seconds > TOKENS)
        return [place for place, one in enumerate(done.tokens) if one is not None]

    assert found(None) == found(100.0) == list(range(TOKENS))
    some, least = found(12.0), found(0.0)
    assert len(some) in (13, 14) and len(least) in (5, 6) and some[0] == least[0] == 0, "the first token is the model's own"
    assert max(some) > TOKENS // 2


def test_a_wrong_distribution_shows() -> None:
    """Negative control: the run's distribution is not the one that the picture is read with."""
    config, watcher = Config(METHODS["vanilla"], TOKENS, Sampling()), ProbsWatcher()
    *steps, last = loop.decode(TARGET, None, PREFIX, config, watcher=watcher)
    other = TableTarget(12, seed=2)
    with torch.inference_mode():
        found = picture_price(own_probs(other, PREFIX, last.tokens, config), config, watcher, steps, last.tokens)  # type: ignore[arg-type, union-attr]
    assert found is not None and found.mean > 0.1


def test_a_picture_of_one_token_has_no_price() -> None:
    config, watcher = Config(METHODS["vanilla"], 1, Sampling()), ProbsWatcher()
    *steps, last = loop.decode(TARGET, None, PREFIX, config, watcher=watcher)
    assert picture_price(own_probs(TARGET, PREFIX, last.tokens, config), config, watcher, steps, last.tokens) is None  # type: ignore[arg-type, union-attr]


def test_statistics_and_records_have_it(tiny_model: Any) -> None:
    pipe: Pipeline = load(tiny_model, "cpu", fit_trees=False)
    for method in ("vanilla", "sjd", "zipar"):
        done = pipe.generate("two red lanterns", method, zipar_window=2)
        entry = done.record["methods"][method]
        assert entry["price"] == done.stats.price is not None
        assert len(entry["events"]["prices"]) == len(done.tokens)
        assert ("places" in entry["events"]) == (method == "zipar")
        if method != "zipar":
            assert done.stats.price < 1e-5
            continue
        assert done.stats.price > 0.01 and done.stats.one_step_tvd is None and done.stats.price_method == "closed form"
        assert sorted(entry["events"]["places"]) == list(range(len(done.tokens)))


def test_what_people_are_told_in_short() -> None:
    assert texts.price_in_short(0.0999, METHODS["zipar"]) == "At least 9 in 100 pieces are not the model's pick."
    assert (
        texts.price_in_short(0.004, METHODS["lantern"])
        == "At least 40 in 10,000 pieces are not the model's pick; mostly look-alikes."
    )
    assert texts.price_in_short(0.005, METHODS["sjd"]) == "Rounding alone moved 0.5 of 100 pieces."
    assert texts.price_in_short(0.0, METHODS["sjd"]) == "Exact: the same odds, the dice rolled again."
    assert texts.price_in_short(0.0, METHODS["sjd"], alike=True) == "Exact: the very picture that vanilla draws."
    assert texts.price_in_short(0.0, METHODS["vanilla"], alike=True) == "The model itself."
    assert texts.price_in_short(0.0, METHODS["lantern"]) == "Gave up nothing in this run."


def test_what_people_are_told() -> None:
    assert (
        texts.price(0.0, METHODS["sjd"])
        == "Gave up nothing: same odds as the model, another roll of the dice, so another picture (price 0.000)."
    )
    assert texts.price(0.093, METHODS["zipar"]) == (
        "Of 100 tokens at least 9 come out differently than the model itself would have drawn them (price 0.093)."
    )
    assert texts.price(0.0999, METHODS["zipar"]).startswith("Of 100 tokens at least 9 come out"), "at least: 10 are too many"
    assert texts.price(0.29, METHODS["zipar"]).startswith("Of 100 tokens at least 29 come out")
    assert texts.price(0.004, METHODS["lantern"]).startswith("Of 10,000 tokens at least 40 come out")
    assert texts.price(0.0, METHODS["zipar"]) == "Gave up nothing with these settings (price 0.000)."
    assert (
        texts.price(0.0, METHODS["sjd"], greedy=True)
        == "Gave up nothing: greedy, every token is the model's likeliest (price 0.000)."
    )
    assert (
        texts.price(0.02, METHODS["sjd"]) == "Changes no odds by itself; the number format's rounding did, of 2.0 in 100 tokens."
    )
    assert texts.price(0.0, METHODS["vanilla"]) == "The model itself: it gives up nothing."
