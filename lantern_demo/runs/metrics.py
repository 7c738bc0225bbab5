"""Count drafts and accepted drafts under the names that serving engines use.

Names and definitions are those of vLLM's per-request metrics
(docs/features/speculative_decoding/acceptance_metrics.md). NVIDIA AIPerf reads the same fields.
As in vLLM, only a step with drafts counts, so vanilla has no steps here.

num_spec_steps: steps that had drafts.
num_draft_tokens: drafts that the model verified, which are all nodes of a tree but its root.
num_accepted_draft_tokens: accepted drafts, without the bonus token after them.
num_spec_tokens: the most that one step can accept, the depth of the tree or window.
mean_acceptance_length: 1 + num_accepted_draft_tokens / num_spec_steps, with the bonus token.
draft_acceptance_rate: num_accepted_draft_tokens / num_draft_tokens.
acceptance_histogram: at j the number of steps that accepted j drafts.
num_accepted_tokens_per_pos: at i the number of steps that accepted a draft i + 1 positions ahead.

The last step counts completely, although the picture may end before its last accepted draft.
`mean_acceptance_length` may therefore exceed `mean_accepted_length`, the picture's tokens over all
steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lantern_demo.decoding.results import Step


def acceptance(drafted: Sequence[int], accepted: Sequence[int], deepest: int) -> dict[str, Any]:
    """Return the metrics of a run from the drafts and accepted drafts of each step.

    `deepest` is the most that one can accept. A run without drafts has None as mean and rate.
    """
    histogram = [0] * (deepest + 1)
    for sent, kept in zip(drafted, accepted, strict=True):
        if sent:
            histogram[kept] += 1
    return _told(histogram, sum(drafted))


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


def of_steps(steps: Sequence[Step]) -> dict[str, Any]:
    """Return the metrics of a run."""
    drafted = [max(0, len(step.tree_tokens) - 1) for step in steps]
    accepted = [max(0, len(step.path) - 1) for step in steps]
    deepest = max((_depth(step.parents) for step in steps), default=0)
    return acceptance(drafted, accepted, deepest)


def _depth(parents: Sequence[int]) -> int:
    """Return the depth of a tree whose parents come before their children.

    The root, at depth 0, is its own parent.
    """
    depths = [0] * max(1, len(parents))
    for node in range(1, len(parents)):
        depths[node] = depths[parents[node]] + 1
    return max(depths)
