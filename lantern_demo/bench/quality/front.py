"""Compute the rows of the report from pictures and rounds: the gains of every point, and the losses of its pictures."""

from __future__ import annotations

from typing import Any

import numpy
from tqdm import tqdm

from lantern_demo.bench.quality.classifier import AttributeClassifier
from lantern_demo.bench.quality.drawing import Record
from lantern_demo.bench.quality.measuring import MEASURES, look, look_at_truth
from lantern_demo.bench.quality.points import FLOOR, Point
from lantern_demo.bench.quality.scenes import Right, SceneSet
from lantern_demo.bench.quality.statistics import LEVEL, compared, wilson
from lantern_demo.bench.summary import summarise
from lantern_demo.decoding.methods import METHODS
from lantern_demo.runs.pipeline import Pipeline

Drawn = dict[str, list[Record]]  # by point, its pictures
Row = dict[str, Any]


def gains(pipe: Pipeline, points: list[Point], drawn: Drawn, rounds: list[dict[str, Any]]) -> dict[str, Row]:
    """Return the description and gains of every point.

    Tokens per step are over all its pictures, the rest is from the rounds. The floor has the gains of vanilla."""
    speeds = summarise(rounds, {p.name: p.method for p in points if p.group != "again"})
    rows = {}
    for point in points:
        told = speeds["vanilla" if point.group == "again" else point.name]
        records = drawn.get(point.name, [])
        steps = sum(record["steps"] for record in records)
        per_step = sum(len(record["tokens"]) - 1 for record in records) / steps if steps else told["mean_accepted_length"]
        rows[point.name] = {
            "name": point.name,
            "label": point.label,
            "method": point.method,
            "relaxed": not METHODS[point.method].lossless,
            "group": point.group,
            "knob": point.knob,
            "settings": point.settings,
            "preset": {**pipe.defaults.as_dict(), **point.settings},
            "pictures": len(records),
            "speed": {
                "tokens_per_step": per_step,
                "c": told["c"],
                "gain": per_step / told["c"],
                "speedup": told["gain"],
                **{key: told[key] for key in ("changed", "tvd", "nodes")},
            },
        }
    return rows


def scene_front(
    pipe: Pipeline, classifier: AttributeClassifier, scenes: SceneSet, drawn: Drawn, rows: dict[str, Row]
) -> dict[str, Any]:
    """Measure every point's pictures and return the part of a report with their losses."""
    true = look_at_truth(pipe, classifier, scenes)
    seen = {
        name: look(pipe, classifier, scenes, [record["tokens"] for record in records])
        for name, records in tqdm(drawn.items(), desc="looking", unit="point")
        if records
    }
    for name, row in tqdm(rows.items(), desc="measuring", unit="point"):
        row |= {"right": None, "measures": {}}
        if name not in seen or name == FLOOR:
            continue
        row["right"] = right_of(seen[name].right)
        count = min(len(seen[some]) for some in (name, "vanilla", FLOOR))
        reference = seen[FLOOR if name == "vanilla" else "vanilla"]
        for key in MEASURES:
            ours, theirs = (some.values(key)[:count] for some in (seen[name], reference))
            row["measures"][key] = compared(ours, theirs, scenes.groups[:count])._asdict()
    return {
        "level": LEVEL,
        "measures": {key: measure._asdict() for key, measure in MEASURES.items()},
        "truth": {"right": right_of(true)},
        "floor": {"label": rows[FLOOR]["label"], "right": right_of(seen[FLOOR].right)},
        "rows": [row for name, row in rows.items() if name != FLOOR],
    }


def right_of(found: Right) -> dict[str, Any]:
    """Return the share of pictures in which each attribute matches the request, with Wilson's interval."""
    told = {}
    for name, values in found.items():
        right, of = int(values.sum()), len(values)
        told[name] = {"right": right, "of": of, "share": float(numpy.mean(values)), "interval": list(wilson(right, of))}
    return told
