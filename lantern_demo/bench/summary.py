"""What the rounds say: medians with their spread, and ratios taken within a round."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import mean, median
from typing import Any

import numpy

from lantern_demo.bench.speed import Run
from lantern_demo.metrics import pooled

Round = dict[str, Any]

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


def spread(values: list[float]) -> dict[str, Any]:
    """The median, the 10th and 90th percentile, and the interval of the median."""
    low, high = numpy.quantile(values, (0.1, 0.9))
    return {"median": median(values), "p10": float(low), "p90": float(high), "interval95": interval(values)}


def step_ms(run: Run) -> float:
    """Milliseconds of a step: everything after the prefill over the steps. Nothing to divide by where there was none."""
    return 1000 * (run["decode_seconds"] - run["prefill_seconds"]) / max(1, run["steps"])


def summarise(rounds: list[Round], rows: dict[str, str], peers: Iterable[str] = ()) -> dict[str, dict[str, Any]]:
    """Rounds of the same contestants -> {"rows": by our name, "peers": by the peer's name}.

    `rows` maps our names to method ids; speedups are over the first that is vanilla, and there are none without. Raises
    ValueError when there is no round.
    """
    if not rounds:
        raise ValueError("there is no finished round to sum up")
    vanilla = next((name for name, method in rows.items() if method == "vanilla"), None)

    def ratio(above: str, below: str, of: Callable[[Run], float]) -> list[float]:
        return [of(r["runs"][above]) / of(r["runs"][below]) for r in rounds]

    def wall(run: Run) -> float:
        return run["wall_seconds"]

    found = {name: _own([r["runs"][name] for r in rounds]) for name in rows}
    others = {name: _shared([r["runs"][name] for r in rounds]) for name in peers}
    for name, told in others.items():
        told["ours_over_it"] = {row: spread(ratio(name, row, wall)) for row in rows}
    if vanilla is not None:
        for name, told in found.items():
            told["c"] = median(ratio(name, vanilla, step_ms))
            told["speedup"] = spread(ratio(vanilla, name, lambda run: run["decode_seconds"]))
        for name, told in others.items():
            told["speedup"] = spread(ratio(vanilla, name, wall))
    return {"rows": found, "peers": others}


def _shared(runs: list[Run]) -> dict[str, Any]:
    """What is told of our runs and of a peer's."""
    peaks = [run["peak_bytes"] for run in runs if run["peak_bytes"] is not None]
    return {
        "rounds": len(runs),
        "seconds": spread([run["wall_seconds"] for run in runs]),
        "tokens_per_second": spread([run["tokens_per_second"] for run in runs]),
        "peak_bytes": max(peaks, default=None),
    }


def _own(runs: list[Run]) -> dict[str, Any]:
    def known(key: str) -> float | None:
        values = [run[key] for run in runs if run.get(key) is not None]
        return mean(values) if values else None

    return _shared(runs) | {
        "method": runs[0]["method"],
        "nodes": sorted({run["nodes"] for run in runs}),
        "tree": sorted({run["tree"] for run in runs}),
        "mean_accepted_length": mean(run["mean_accepted_length"] for run in runs),
        "speculative_decoding": pooled([run["speculative_decoding"] for run in runs if "speculative_decoding" in run]),
        "ms_per_step": spread([step_ms(run) for run in runs]),
        **{f"ms_{p}": median(1000 * run[f"{p}_seconds"] / max(1, run["steps"]) for run in runs) for p in PARTS},
        **{key: known(key) for key in ("changed", "tvd")},
    }
