"""Count drafts and accepted drafts under the names that serving engines use, so that their tools
can read them.

Names and definitions are vLLM's: its per-request metrics
(docs/features/speculative_decoding/acceptance_metrics.md) and its Prometheus counters
(vllm/v1/spec_decode/metrics.py). NVIDIA AIPerf reads the same fields. As in vLLM, only a step with
drafts counts, so vanilla has no steps here.

    num_spec_steps                 Steps that had drafts.
    num_draft_tokens               Drafts that the model verified: all nodes of a tree but its root.
    Engines that draft chains
                                   also count all drafts that they send to the model.
    num_accepted_draft_tokens      Accepted drafts, without the bonus token after them.
    num_spec_tokens                The most that one step can accept: the depth of the tree or
    window. mean_acceptance_length         1 + num_accepted_draft_tokens / num_spec_steps, which
    includes the bonus token. draft_acceptance_rate          num_accepted_draft_tokens /
    num_draft_tokens. acceptance_histogram           At j the number of steps that accepted j
    drafts, without the bonus token. num_accepted_tokens_per_pos    At i the number of steps that
    accepted a draft i + 1 positions ahead.

The last step counts completely, although the picture may end before its last accepted draft.
`mean_acceptance_length` may therefore exceed `mean_accepted_length`, the picture's tokens over all
steps.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

PREFIX = "lantern"  # of the counters; vLLM's own begin with "vllm"


def acceptance(drafted: Sequence[int], accepted: Sequence[int], deepest: int) -> dict[str, Any]:
    """Return the metrics of a run from the drafts and accepted drafts of each step.

    `deepest` is the most that one can accept.

    A run without drafts has None as mean and rate. Raises ValueError for inconsistent steps.
    """
    if len(drafted) != len(accepted):
        raise ValueError(
            f"drafted has {len(drafted)} steps and accepted {len(accepted)}; they must have as many"
        )
    steps = [(of, count) for of, count in zip(drafted, accepted, strict=True) if of]
    if any(not 0 <= count <= min(of, deepest) for of, count in steps):
        raise ValueError(
            f"accepted has a step outside its limits; allowed are 0 to what was drafted, and at most {deepest}"
        )
    histogram = [0] * (deepest + 1)
    for _, count in steps:
        histogram[count] += 1
    return _told(histogram, sum(of for of, _ in steps))


def pooled(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the metrics of several runs together."""
    histogram = [0] * max((len(run["acceptance_histogram"]) for run in runs), default=1)
    for run in runs:
        for count, steps in enumerate(run["acceptance_histogram"]):
            histogram[count] += steps
    return _told(histogram, sum(run["num_draft_tokens"] for run in runs))


def _told(histogram: list[int], sent: int) -> dict[str, Any]:
    steps, kept = sum(histogram), sum(count * of for count, of in enumerate(histogram))
    return {
        "mean_acceptance_length": 1 + kept / steps if steps else None,
        "draft_acceptance_rate": kept / sent if sent else None,
        "acceptance_histogram": histogram,
        "num_spec_steps": steps,
        "num_accepted_draft_tokens": kept,
        "num_draft_tokens": sent,
        "num_spec_tokens": len(histogram) - 1,
        "num_accepted_tokens_per_pos": [
            sum(histogram[place:]) for place in range(1, len(histogram))
        ],
    }


def of_events(events: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics of a run from its record's `events`: the trees hold the drafts, and the
    paths the accepted ones.
    """
    trees = events["trees"]
    drafted = [max(0, len(tree["tokens"]) - 1) for tree in trees]
    accepted = [
        max(0, len(tree["path"]) - 1) if count else 0
        for tree, count in zip(trees, drafted, strict=True)
    ]
    return acceptance(
        drafted, accepted, max((_depth(tree["parents"]) for tree in trees), default=0)
    )


def _depth(parents: Sequence[int]) -> int:
    """Return the depth of a tree whose parents come before their children; the root, at depth 0, is
    its own parent.
    """
    depths = [0] * max(1, len(parents))
    for node in range(1, len(parents)):
        depths[node] = depths[parents[node]] + 1
    return max(depths)


HELP = {
    "spec_decode_num_drafts_total": "Steps that had drafts.",
    "spec_decode_num_draft_tokens_total": "Draft tokens that the model verified.",
    "spec_decode_num_accepted_tokens_total": "Draft tokens that were accepted, without bonus tokens.",
    "spec_decode_num_accepted_tokens_per_pos_total": "Steps that accepted the draft at a position; 0 is the next token.",
    "pictures_total": "Pictures that were drawn.",
    "image_tokens_total": "Tokens of these pictures.",
    "decode_seconds_total": "Seconds of decoding them.",
}


class Counters:
    """Sums over all pictures that a program has drawn, by model and method. Thread-safe."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self._lock = threading.Lock()

    def add(self, record: Mapping[str, Any]) -> None:
        """Count the runs of a run record."""
        with self._lock:
            for method, entry in record["methods"].items():
                told, labels = (
                    entry["speculative_decoding"],
                    (("model", record["model"]["id"]), ("method", method)),
                )
                self._add("spec_decode_num_drafts_total", labels, told["num_spec_steps"])
                self._add("spec_decode_num_draft_tokens_total", labels, told["num_draft_tokens"])
                self._add(
                    "spec_decode_num_accepted_tokens_total",
                    labels,
                    told["num_accepted_draft_tokens"],
                )
                for place, count in enumerate(told["num_accepted_tokens_per_pos"]):
                    self._add(
                        "spec_decode_num_accepted_tokens_per_pos_total",
                        (*labels, ("position", str(place))),
                        count,
                    )
                self._add("pictures_total", labels, 1)
                self._add("image_tokens_total", labels, entry["tokens"])
                self._add("decode_seconds_total", labels, entry["decode_seconds"])

    def _add(self, name: str, labels: tuple[tuple[str, str], ...], value: float) -> None:
        self._sums[name, labels] = self._sums.get((name, labels), 0) + value

    def text(self, gauges: Iterable[tuple[str, str, float]] = ()) -> str:
        """Return the counters, and gauges of (name, help, value), in version 0.0.4 of Prometheus'
        text format.
        """
        with self._lock:
            sums = dict(self._sums)
        lines = list[str]()
        for name, told in HELP.items():
            lines += [f"# HELP {PREFIX}:{name} {told}", f"# TYPE {PREFIX}:{name} counter"]
            for (of, labels), value in sums.items():
                if of == name:
                    named = ",".join(f'{key}="{_escaped(label)}"' for key, label in labels)
                    lines.append(f"{PREFIX}:{name}{{{named}}} {value:.17g}")
        for name, told, value in gauges:
            lines += [
                f"# HELP {PREFIX}:{name} {told}",
                f"# TYPE {PREFIX}:{name} gauge",
                f"{PREFIX}:{name} {value:.17g}",
            ]
        return "\n".join(lines) + "\n"


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
