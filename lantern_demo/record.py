"""The run record: everything needed to say what was run, on what, and to run it again."""

from __future__ import annotations

import hashlib
import platform
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

import torch
import transformers
from PIL import Image

from lantern_demo.decoding.loop import Step
from lantern_demo.decoding.verify import Judged
from lantern_demo.metrics import of_events
from lantern_demo.models.registry import ModelInfo
from lantern_demo.settings import Settings
from lantern_demo.stats import Stats
from lantern_demo.version import __version__

HOW_TIMED = (
    "Seconds of synchronised device work, previews and the page excluded. Every method was warmed up first. Methods whose schedule is "
    "race had equal slices of the device's time in rotation; the others ran one after the other, and schedule_reason says why. "
    "On a GPU a step's seconds lie between two events of the device, and capturing its graphs is counted apart. "
    "waited_seconds are those of decode_seconds in which the computing thread had no processor; disturbed: more than a tenth. "
    "speedup = vanilla's decode_seconds / this method's, both of this run; absent without a vanilla run."
)


def image_hash(image: Image.Image) -> str:
    """SHA-256 of the size and the RGB bytes, whatever file format they are saved in.

    It tells whether a file still is the picture that was recorded. It does not compare machines: the same tokens decoded with
    another number format or thread count may differ by a level or two of 255, and then the hash is another.
    """
    return hashlib.sha256(f"{image.size}".encode() + image.tobytes()).hexdigest()


def same_decoder(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether pictures of two models, told by what their records hold as `trained`, are drawn by one and the same network."""
    return all(one.get(part) == other.get(part) for part in ("tokenizer", "picture"))


def events_of(steps: list[Step], prices: list[float | None] | None) -> dict[str, Any]:
    """What happened in a run, step by step: step 0 is the prefill, whose token the target draws alone.

    `committed` and `milliseconds` are totals after each step, `kinds` has a letter per token: e for a draft that the exact rule
    accepts, r for one that only the relaxation accepts, t for the target's own. `trees` are the draft trees, and `trials` the drafts
    that were tried: node, the target's probability, what the rule counted, and what that had to exceed (greedy: reach). With shared noise
    there are `compared` instead: node, the token that the target itself drew there, where that stands (0: it is the draft, j: the j-th of
    the draft's neighbours, of those that count, -1: neither), and how many tokens stood for the draft, itself counted. `places` says where in the
    picture each token is, in the order they came, and is there only where that is not raster order. `prices` are those of the picture's
    tokens in raster order, None where nothing was measured.
    """
    places = [place for step in steps for place in step.places]
    told: dict[str, Any] = {} if places == sorted(places) else {"places": places}
    if any(step.compared for step in steps):
        told["compared"] = [[list(one) for one in step.compared] for step in steps]
    if prices is not None:
        told["prices"] = [price and round(price, 5) for price in prices]
    return told | {
        "committed": [step.committed for step in steps],
        "milliseconds": [round(1000 * step.seconds, 3) for step in steps],
        "kinds": "".join(kind[0] for step in steps for kind in step.kinds),
        "trees": [{"tokens": step.tree_tokens, "parents": step.parents, "path": step.path} for step in steps],
        "trials": [[_trial(judged) for judged in step.judged] for step in steps],
    }


def _trial(judged: Judged) -> list[float]:
    """A trial as records keep it: with five digits, or with the nine that two float32 numbers differ in, if it takes these to tell
    what was counted from its limit."""
    node, *values = judged
    for digits in (5, 9):
        p, counted, limit = (float(f"{value:.{digits}g}") for value in values)
        if counted != limit:
            break
    return [node, p, counted, limit]


def run_record(
    info: ModelInfo, trained: dict[str, Any], sources: dict[str, dict[str, Any]], prompt: str, unknown: list[str],
    settings: Settings, runs: list[tuple[Stats, list[int], str, dict[str, Any]]],
) -> dict[str, Any]:  # fmt: skip
    """The JSON-able record of a run or a comparison: `runs` are (stats, tokens, image hash, events) in the order they ran.
    `token_ids` are what was drawn; `image_sha256` is `image_hash` of the picture that was made of them then and there.

    `sources` says of each published part which repository, file and commit it is; it is empty for a model that ships with the code.
    """
    stats = {
        s.method: asdict(s)
        | {"speculative_decoding": of_events(events), "token_ids": ids, "image_sha256": image, "events": events}
        for s, ids, image, events in runs
    }
    vanilla = stats.get("vanilla")
    if vanilla is not None:
        for entry in stats.values():
            entry["speedup"] = vanilla["decode_seconds"] / entry["decode_seconds"]
    return {
        "lantern_demo": __version__,
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "transformers": transformers.__version__},
        "model": {"id": info.id, "trained": trained, "sources": sources},
        "device": runs[0][0].device if runs else None,
        "prompt": prompt,
        "unknown_words": unknown,
        "settings": settings.as_dict(),
        "order": list(stats),
        "how_timed": HOW_TIMED,
        "methods": stats,
    }


def merge_records(records: list[dict[str, Any]]) -> dict[str, Any]:
    """One record of a comparison from those of its methods, all with the same prompt and settings."""
    merged = {**records[0], "methods": {k: v for r in records for k, v in r["methods"].items()}}
    merged["order"] = list(merged["methods"])
    vanilla = merged["methods"].get("vanilla")
    for entry in merged["methods"].values():
        entry.pop("speedup", None)
        if vanilla is not None:
            entry["speedup"] = vanilla["decode_seconds"] / entry["decode_seconds"]
    return merged
