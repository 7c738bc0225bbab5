"""What passes of published sizes took on a processor, as `python -m lantern_demo.bench sizes` measured it with random weights: a
part of the report that the command wrote."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("recorded") / "sizes.json"
# A model's name, and what is left of it where there is little room.
NAMES = {
    "llamagen-t2i-256": ("LlamaGen-XL", "XL"),
    "llamagen-c2i-b-256": ("LlamaGen-B", "B"),
    "janus-pro-1b": ("Janus-Pro 1B", "Janus-Pro 1B"),
}
SHOWN = "lantern++"  # the method whose steps tell what a guess costs


@cache
def measured_sizes() -> dict[str, Any]:
    """The report: `machine`, and by model `tokens` of a picture, `kinds` (milliseconds of a pass by nodes) and `methods`
    (milliseconds a token, tokens a step, seconds of a picture, nodes of the tree)."""
    return json.loads(FILE.read_text())


def guess_costs() -> list[dict[str, Any]]:
    """By size what one more guess cost in a step, in passes of vanilla, drafting included: {"name", "short", "cost",
    "device"}, cheapest first."""
    found = measured_sizes()
    costs = [
        {"name": name, "short": short, "cost": round(_cost(size["methods"]), 2), "device": found["machine"]["device"]}
        for model, size in found["models"].items()
        for name, short in (NAMES.get(model, (model, model)),)
    ]
    return sorted(costs, key=lambda one: one["cost"])


def _cost(methods: dict[str, dict[str, Any]]) -> float:
    guessing, alone = methods[SHOWN], methods["vanilla"]
    step = guessing["ms_per_token"] * guessing["tokens_per_step"]
    return (step / alone["ms_per_token"] - 1) / (guessing["nodes"] - 1)
