"""What the rounds say: medians with their spread, and ratios taken within a round."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import mean, median
from typing import Any

import numpy

from lantern_demo.bench.speed import Run
from lantern_demo.distortion import spread_evenly
from lantern_demo.metrics import pooled

Round = dict[str, Any]

BINS = 8  # of a picture's tokens, for the growth of a step with them
RESAMPLES = 5000
# Of fewer values even the lowest and the highest have the median between them less than 95 times in 100: 1 - 2^(1-n).
FEWEST = 6
PARTS = ("draft", "verify", "commit")


def interval(values: list[float]) -> tuple[float, float] | None:
    """The bootstrap 95 % interval of the median, rounds resampled as independent; None for fewer than FEWEST values."""
    if len(values) < FEWEST:
        return None
    g = numpy.random.default_rng(0)  # the same values give the same interval
    medians = numpy.median(g.choice(numpy.array(values), (RESAMPLES, len(values))), axis=1)
    low, high = numpy.quantile(medians, (0.025, 0.975))
    return float(low), float(high)


def spread(values: list[float], bootstrap: bool = False) -> dict[str, Any]:
    """The median, the 10th and 90th percentile, and with `bootstrap` the interval of the median."""
    low, high = numpy.quantile(values, (0.1, 0.9))
    told: dict[str, Any] = {"median": median(values), "p10": float(low), "p90": float(high)}
    if bootstrap:
        told["interval95"] = interval(values)
    return told


def within(rounds: Iterable[Round], above: str, below: str, of: Callable[[Run], float]) -> list[float]:
    """of(above) / of(below) in every round that has both."""
    return [of(r["runs"][above]) / of(r["runs"][below]) for r in rounds if above in r["runs"] and below in r["runs"]]


def decode_seconds(run: Run) -> float:
    """Seconds of one of our runs by the engine's clock."""
    return run["decode_seconds"]


def wall_seconds(run: Run) -> float:
    """Seconds of any run by the wall's clock."""
    return run["wall_seconds"]


def step_ms(run: Run) -> float:
    """Milliseconds of a step: everything after the prefill over the steps. Nothing to divide by where there was none."""
    return 1000 * (run["decode_seconds"] - run["prefill_seconds"]) / max(1, run["steps"])


def growth(runs: list[Run]) -> list[dict[str, float]]:
    """Median milliseconds of a step by the tokens committed before it, in BINS equal parts of the picture."""
    tokens = runs[0]["tokens"]
    edges = [tokens * i // BINS for i in range(BINS + 1)]
    found: list[list[float]] = [[] for _ in range(BINS)]
    for run in runs:
        for i, before in enumerate(run["committed"][:-1]):
            found[before * BINS // tokens].append(1000 * (run["step_seconds"][i + 1] - run["step_seconds"][i]))
    bins = zip(edges[:-1], edges[1:], found, strict=True)
    return [{"from": low, "to": high, "ms": median(ms), "steps": len(ms)} for low, high, ms in bins if ms]


def vanilla_of(rows: dict[str, str]) -> str | None:
    """The name of the row that speedups are over; None when vanilla did not run, and then there are none."""
    return next((name for name, method in rows.items() if method == "vanilla"), None)


def price_of_first_tokens(run: dict[str, Any]) -> float | None:
    """The mean price of the very tokens that the one-step distance of a run is measured at, which it should agree with; None where
    there is no such distance."""
    if run["one_step_tvd"] is None or "prices" not in run.get("events", {}):
        return None
    starts = run["events"]["committed"][:-1]  # of all steps, since the law of every step was kept, or else some price is missing
    prices = [run["events"]["prices"][place] for place in spread_evenly(starts)]
    return None if None in prices else mean(prices)


def own(rounds: list[Round], name: str, vanilla: str | None) -> dict[str, Any]:
    """The summary of one of our rows."""
    runs = [r["runs"][name] for r in rounds if name in r["runs"]]
    tvd, price = ([run[key] for run in runs if run[key] is not None] for key in ("one_step_tvd", "price"))
    first = [found for run in runs if (found := price_of_first_tokens(run)) is not None]
    told: dict[str, Any] = {
        "method": runs[0]["method"],
        "rounds": len(runs),
        "nodes": sorted({run["nodes"] for run in runs}),
        "tree": sorted({run["tree"] for run in runs}),
        "mean_accepted_length": mean(run["mean_accepted_length"] for run in runs),
        "speculative_decoding": pooled([run["speculative_decoding"] for run in runs if "speculative_decoding" in run]),
        "ms_per_step": spread([step_ms(run) for run in runs]),
        **{f"ms_{p}": median(1000 * run[f"{p}_seconds"] / max(1, run["steps"]) for run in runs) for p in PARTS},
        "prefill_ms": median(1000 * run["prefill_seconds"] for run in runs),
        "tokens_per_second": spread([run["tokens_per_second"] for run in runs]),
        "price": mean(price) if price else None,
        "one_step_tvd": mean(tvd) if tvd else None,
        "price_of_first_tokens": mean(first) if first else None,
        "wall_over_clock": median(run["wall_seconds"] / run["decode_seconds"] for run in runs),
        "peak_bytes": _most(run["peak_bytes"] for run in runs),
        "growth": growth(runs),
    }
    if vanilla is not None:
        told["c"] = median(within(rounds, name, vanilla, step_ms))
        told["speedup"] = spread(within(rounds, vanilla, name, decode_seconds), bootstrap=True)
    return told


def peer(rounds: list[Round], name: str, ours: Iterable[str], vanilla: str | None) -> dict[str, Any]:
    """The summary of a peer: its seconds, its speedup over our vanilla, and ours over it, all by the wall's clock."""
    runs = [r["runs"][name] for r in rounds if name in r["runs"]]
    told: dict[str, Any] = {
        "rounds": len(runs),
        "seconds": spread([run["wall_seconds"] for run in runs]),
        "tokens_per_second": spread([run["tokens_per_second"] for run in runs]),
        "peak_bytes": _most(run["peak_bytes"] for run in runs),
        "ours_over_it": {row: spread(within(rounds, name, row, wall_seconds), bootstrap=True) for row in ours},
    }
    if vanilla is not None:
        told["speedup"] = spread(within(rounds, vanilla, name, wall_seconds), bootstrap=True)
    return told


def _most(values: Iterable[int | None]) -> int | None:
    return max((v for v in values if v is not None), default=None)


def summarise(rounds: list[Round], rows: dict[str, str], peers: Iterable[str] = ()) -> dict[str, dict[str, Any]]:
    """Rounds of the same contestants -> {"rows": by our name, "peers": by the peer's name}.

    `rows` maps our names to method ids. Raises ValueError when there is no round.
    """
    if not rounds:
        raise ValueError("there is no finished round to sum up")
    vanilla = vanilla_of(rows)
    return {
        "rows": {name: own(rounds, name, vanilla) for name in rows},
        "peers": {name: peer(rounds, name, rows, vanilla) for name in peers},
    }
