"""The methods' colours, and what the table of a run holds."""

from __future__ import annotations

from itertools import cycle
from typing import Any

from lantern_demo.decoding.methods import METHODS
from lantern_demo.ui import words

# Okabe and Ito's colours, which colour-blind people can tell apart, in the methods' order.
PALETTE = ("#7f7f7f", "#56b4e9", "#0072b2", "#e69f00", "#d55e00", "#009e73", "#cc79a7")
COLOURS: dict[str, str] = dict(zip(METHODS, cycle(PALETTE), strict=False))
LABELS: dict[str, str] = {method.id: method.label for method in METHODS.values()}


def table(entries: dict[str, dict[str, Any]]) -> list[list[str]]:
    """A row of text per method, in the order of `words.TABLE_HEAD`."""
    return [_row(name, entry) for name, entry in entries.items()]


def _row(name: str, entry: dict[str, Any]) -> list[str]:
    tvd = entry["one_step_tvd"]
    return [
        LABELS[name],
        f"{entry['decode_seconds']:.3f}",
        f"{entry['tokens_per_second']:.1f}",
        str(entry["steps"]),
        f"{entry['mean_accepted_length']:.2f}",
        words.times(entry["speedup"]) if "speedup" in entry else "n/a",
        "n/a" if tvd is None else f"{tvd:.4f}",
        *(f"{entry[f'{part}_seconds']:.3f}" for part in ("prefill", "draft", "verify", "commit")),
        str(entry["nodes"]),
    ]
