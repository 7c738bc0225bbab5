"""The picture's price, for every method alike: how far the distributions that a run drew its tokens from are from the model's
own.

One pass of the target over the finished picture gives its distribution of every token given all tokens before it. The price of a
token is the total variation distance between that distribution and the one by which the method drew it, given what it could see:
drafts and random numbers are averaged out (see `distortion`), and of a wavefront it is the distribution that was drawn from. A
lossless method's price is rounding.

A price of 0.1 says: of 100 tokens at least 10 come out differently than the model would have drawn them, in the best case on
average.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lantern_demo.decoding.config import Config
from lantern_demo.decoding.loop import Step
from lantern_demo.decoding.protocols import Target
from lantern_demo.decoding.sampling import guide, probabilities
from lantern_demo.runs.distortion import ProbsWatcher, Visit, shift_at

CHUNK = 32  # tokens a pass over the finished picture takes at once
DRAWS = 8  # of drafts that are averaged over; the mean of many tokens needs few
WORK = 2**25  # numbers that the estimates of a picture go through: 1 to 13 seconds of one processor with 16,384 tokens
FEWEST = 64  # tokens that are looked at, whatever it takes


class Price(NamedTuple):
    """Total variation distances, 0 to 1, and how they were come by."""

    mean: float  # of the tokens that were looked at
    tokens: list[float | None]  # in raster order; None where it was not looked at: see `chosen` and `distortion.ProbsWatcher`
    method: str


def own_probs(target: Target, condition: Any, tokens: list[int], config: Config) -> Iterator[Tensor]:
    """The target's probabilities [V] of the places 1, 2, ... of a picture, each given all tokens before it."""
    cache = target.new_cache(config.rows, len(tokens))
    target.prefill(condition, cache)
    for chunk in torch.tensor(tokens[:-1], device=config.torch_device).split(CHUNK):
        count = len(chunk)
        mask = torch.ones(count, count, dtype=torch.bool, device=config.torch_device).tril()
        hidden = target.forward(chunk, torch.arange(count, device=config.torch_device), mask, cache)
        cache.advance(count)
        yield from probabilities(guide(target.head(hidden), config.sampling.cfg_scale), config.sampling)


def draws_of(config: Config) -> int:
    """Draws of drafts that are averaged over: the exact rule's estimate is the same for all of them."""
    return 1 if config.rule.settled else DRAWS


def chosen(visits: dict[int, Visit], config: Config) -> dict[int, Visit]:
    """The visits that are looked at, by place: all of them, or, where their estimates would take more than WORK, as many as that
    has room for, FEWEST at least, picked at random; the same for the same run."""
    vocabulary = len(next(iter(visits.values())).p)
    # most of the time goes by for tokens that have mass, and some of it for all
    entries = min(vocabulary, config.sampling.top_k or vocabulary) + vocabulary // 8
    offered = [int(visit.offered.sum()) for visit in visits.values() if visit.q is not None]
    work = entries * sum(offered) * draws_of(config)
    count = max(FEWEST, len(visits) * WORK // max(work, 1))
    if count >= len(visits):
        return visits
    order = torch.randperm(len(visits), generator=torch.Generator().manual_seed(config.seed ^ 1))[:count].tolist()
    indices = sorted(visits)
    return {indices[i]: visits[indices[i]] for i in order}


def picture_price(
    own: Iterable[Tensor],
    config: Config,
    watcher: ProbsWatcher,
    steps: Sequence[Step],
    tokens: list[int],
    seconds: float | None = None,
) -> Price | None:
    """What a run gave up on its picture: own are the picture's `own_probs`, `watcher` watched the run, `steps` are its steps and
    `tokens` the picture in raster order. With `seconds` no more tokens are looked at than that has time for, FEWEST at least,
    picked at random all over the picture; what makes `own` does not count. None where there is no token but the first, which the
    prefill draws from the model's own distribution."""
    visits = dict(pair for step in watcher.visits(steps) for pair in step)
    if not visits:
        return None
    visits = visits if config.sampling.greedy else chosen(visits, config)
    prices: list[float | None] = [0.0] + [None] * (len(tokens) - 1)
    # not with the run's own random numbers: the drafts came about through those
    generator, sampled = torch.Generator(config.torch_device).manual_seed(config.seed ^ 1), 0
    order = torch.randperm(len(visits), generator=torch.Generator().manual_seed(config.seed ^ 1)).tolist()
    turn, room, spent, done = dict(zip(visits, order, strict=True)), len(visits), 0.0, 0
    for index, probs in enumerate(own, start=1):
        if (visit := visits.get(index)) is None or turn[index] >= room:
            continue
        if config.sampling.greedy:
            prices[index] = float(visit.emitted != int(probs.argmax()))
            continue
        began = perf_counter()
        shift, draws = shift_at(config.rule, visit, config.neighbours, generator, draws_of(config))
        sampled = max(sampled, draws)
        prices[index] = 0.5 * float((visit.p + shift - probs).abs().sum())
        if seconds is not None:
            spent, done = spent + perf_counter() - began, done + 1
            room = max(FEWEST, int(seconds * done / spent))
    looked_at = [price for price in prices if price is not None]
    method = f"monte carlo ({sampled} draw{'s' * (sampled > 1)} a token)" if sampled else "closed form"
    if len(looked_at) < len(tokens):
        method += f", of {len(looked_at)} of the {len(tokens)} tokens"
    return Price(sum(looked_at) / len(looked_at), prices, method)
