"""Compute the rows of the report from pictures and rounds: the gains of every point, and the losses
of its pictures.

The reference is vanilla's pictures of the same seeds, and the floor is vanilla's pictures with
other seeds. The loss by a measure is its value less the reference's, with the bootstrap interval
over captions. With shared noise, a picture and vanilla's of its seed form a pair: their difference
varies far less than either.
"""

from __future__ import annotations

from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from examples.make_bundled_model.scenes import Renderer
from examples.quality import tokens
from examples.quality.classifier import READ, AttributeClassifier
from examples.quality.drawing import Record
from examples.quality.intervals import BOTH_ENDS, compared, wilson
from examples.quality.points import FLOOR, Point
from examples.quality.scenes import ALL, SceneSet, draw_truth, drawn, read, true_tokens
from lantern_demo.bench.summary import summarise
from lantern_demo.decoding.methods import METHODS
from lantern_demo.runs.pipeline import Pipeline

Records = dict[str, list[Record]]  # by point, its pictures
Row = dict[str, Any]
# of N pictures: whether an attribute is right [N], and "nll", the mean nats per token [N]
Readings = dict[str, NDArray[Any]]


# The title of each measure, and its better direction.
MEASURES = {
    ALL: {"title": "everything asked for is found", "better": "higher"},
    "nll": {"title": "nats a token under the target", "better": ""},
}


def gains(
    pipe: Pipeline, points: list[Point], records: Records, rounds: list[dict[str, Any]]
) -> dict[str, Row]:
    """Return the description and gains of every point.

    Tokens per step are over all its pictures, the rest is from the rounds. The floor has the gains
    of vanilla.
    """
    speeds = summarise(rounds, {p.name: p.method for p in points if p.group != "again"})
    rows = {}
    for point in points:
        timed = "vanilla" if point.group == "again" else point.name
        told = speeds[timed]
        tvd = [one["runs"][timed]["tvd"] for one in rounds]
        pictures = records.get(point.name, [])
        steps = sum(record["steps"] for record in pictures)
        per_step, changed = told["mean_accepted_length"], told["changed"]
        if pictures:
            per_step = sum(len(record["tokens"]) - 1 for record in pictures) / steps
            changed = float(numpy.mean([record["changed"] for record in pictures]))
        rows[point.name] = {
            "name": point.name,
            "label": point.label,
            "method": point.method,
            "relaxed": not METHODS[point.method].lossless,
            "group": point.group,
            "knob": point.knob,
            "settings": point.settings,
            "preset": {**pipe.defaults.as_dict(), **point.settings},
            "pictures": len(pictures),
            "speed": {
                "tokens_per_step": per_step,
                "c": told["c"],
                "gain": per_step / told["c"],
                "speedup": told["gain"],
                "changed": changed,
                "tvd": None if None in tvd else float(numpy.mean(tvd)),
                "nodes": told["nodes"],
            },
        }
    return rows


@torch.inference_mode()
def look(
    pipe: Pipeline, classifier: AttributeClassifier, scenes: SceneSet, ids: list[list[int]]
) -> Readings:
    """Read the pictures of token ids, which belong to the first of the scenes' prompts."""
    networks, given, count = pipe.networks, torch.tensor(ids), len(ids)
    nats = tokens.nll(
        networks.target, networks.text, scenes.prompts[:count], given, pipe.defaults.sampling()
    )
    wanted = {name: values[:count] for name, values in scenes.wanted.items()}
    return {**read(classifier, drawn(networks, given), wanted), "nll": nats.numpy()}


def scene_front(
    pipe: Pipeline,
    classifier: AttributeClassifier,
    scenes: SceneSet,
    renderer: Renderer,
    records: Records,
    rows: dict[str, Row],
) -> dict[str, Any]:
    """Measure every point's pictures and return the part of a report with their losses."""
    pictures = draw_truth(renderer, scenes.scenes)
    again = drawn(pipe.networks, true_tokens(pipe.networks, pictures))  # through the tokenizer
    true = {"true": pictures, "again": again}
    seen = {
        name: look(pipe, classifier, scenes, [record["tokens"] for record in some])
        for name, some in tqdm(records.items(), desc="looking", unit="point")
        if some
    }
    for name, row in tqdm(rows.items(), desc="measuring", unit="point"):
        row |= {"right": None, "measures": {}}
        if name not in seen or name == FLOOR:
            continue
        row["right"] = right_of(seen[name])
        count = min(len(seen[some]["nll"]) for some in (name, "vanilla", FLOOR))
        reference = seen[FLOOR if name == "vanilla" else "vanilla"]
        for key in MEASURES:
            ours, theirs = (readings[key][:count] for readings in (seen[name], reference))
            row["measures"][key] = compared(ours, theirs, scenes.groups[:count])._asdict()
    return {
        "level": BOTH_ENDS,
        "measures": MEASURES,
        "truth": {
            name: {"right": right_of(read(classifier, images, scenes.wanted))}
            for name, images in true.items()
        },
        "floor": {"label": rows[FLOOR]["label"], "right": right_of(seen[FLOOR])},
        "rows": [row for name, row in rows.items() if name != FLOOR],
    }


def right_of(readings: Readings) -> dict[str, Any]:
    """Return the share of pictures in which each attribute matches the request, with Wilson's
    interval.
    """
    told = {}
    for name in (*READ, ALL):
        values = readings[name]
        right, of = int(values.sum()), len(values)
        told[name] = {
            "right": right,
            "of": of,
            "share": float(numpy.mean(values)),
            "interval": list(wilson(right, of)),
        }
    return told
