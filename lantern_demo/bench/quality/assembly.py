"""From pictures and rounds to the rows of the report."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy
from tqdm import tqdm

from lantern_demo.bench.quality.measuring import MEASURES, Judge, Seen, look, look_at_truth
from lantern_demo.bench.quality.points import FLOOR, Point
from lantern_demo.bench.quality.premise import premise
from lantern_demo.bench.quality.recommend import recommend
from lantern_demo.bench.quality.scenes import SceneSet
from lantern_demo.bench.quality.statistics import LEVEL, wilson
from lantern_demo.bench.quality.tokens import clusters
from lantern_demo.bench.summary import summarise
from lantern_demo.decoding.methods import METHODS
from lantern_demo.pipeline import Pipeline
from lantern_demo.training.classifier import AttributeClassifier

Drawn = dict[str, list[dict[str, Any]]]  # by point, its pictures
PREMISE_PICTURES = 100


class Assembly:
    """What the rows of one report share. Pictures are looked at once, and what was seen is kept in the folder `kept`."""

    def __init__(self, pipe: Pipeline, classifier: AttributeClassifier, scenes: SceneSet, kept: Path, resamples: int) -> None:
        self.pipe, self.classifier, self.scenes, self.kept = pipe, classifier, scenes, kept
        self.resamples = resamples
        self.true, self.again = look_at_truth(pipe, classifier, scenes)
        self.labels = clusters(pipe.networks.tokenizer.codebook)
        self._judges: dict[int, Judge] = {}

    def report(self, points: list[Point], drawn: Drawn, rounds: list[dict[str, Any]]) -> dict[str, Any]:
        """Everything but what was run on what. Raises ValueError when vanilla or the floor has no pictures."""
        speeds = summarise(rounds, {p.name: p.method for p in points if p.group != "again"})["rows"]
        seen = {name: self.look(name, records) for name, records in tqdm(drawn.items(), desc="looking", unit="point") if records}
        floor, reference = (seen.get(name) for name in (FLOOR, "vanilla"))
        if floor is None or reference is None:
            raise ValueError("vanilla's pictures, which all others are held against, have not been drawn")
        rows = [
            self.row(point, drawn[point.name], seen.get(point.name), reference, floor, speeds)
            for point in tqdm(points, desc="measuring", unit="point")
            if point.group != "again"
        ]
        pictures = min(PREMISE_PICTURES, self.scenes.pictures)
        return {
            "level": LEVEL,
            "rounds": len(rounds),
            "measures": {key: told._asdict() for key, told in MEASURES.items()},
            "truth": {"true": {"right": _right(self.true)}, "again": {"right": _right(self.again)}},
            "floor": {"label": next(p.label for p in points if p.name == FLOOR), "right": _right(floor)},
            "rows": rows,
            "recommended": recommend(rows),
            "premise": premise(self.pipe, self.classifier, pictures, 0),
        }

    def look(self, name: str, records: list[dict[str, Any]]) -> Seen:
        """The pictures of a point."""
        file = self.kept / f"{re.sub('[^a-z0-9.+]+', '-', name)}.npz"
        return look(self.pipe, self.classifier, self.scenes, [record["tokens"] for record in records], file)

    def row(
        self, point: Point, records: list[dict[str, Any]], seen: Seen | None, reference: Seen, floor: Seen, speeds: dict[str, Any]
    ) -> dict[str, Any]:
        """A row of the report: what a point gains and what its pictures lose."""
        row = gains(self.pipe, point, records, speeds) | {"right": None, "measures": {}}
        if seen is not None:
            judge = self.judge(min(len(seen), len(reference), len(floor)), reference, floor)
            prices = judge.price(seen.first(len(judge.groups)), point.name == "vanilla")
            row["right"] = _right(seen)
            row["measures"] = {
                key: {"value": d.value, "floor": d.floor, "difference": d.difference, "interval": [d.low, d.high]}
                for key, d in prices.items()
            }
        return row

    def judge(self, count: int, reference: Seen, floor: Seen) -> Judge:
        """What measures points of `count` pictures; whole captions only."""
        count -= count % self.scenes.seeds
        if count not in self._judges:
            sets = [some.first(count) for some in (reference, floor, self.again)]
            self._judges[count] = Judge(
                sets[0], sets[1], sets[2], self.scenes.groups[:count], self.labels, self.pipe.info.grid, self.resamples
            )
        return self._judges[count]


def gains(pipe: Pipeline, point: Point, records: list[dict[str, Any]], speeds: dict[str, Any]) -> dict[str, Any]:
    """What a point is, and what it gains: tokens a step over all its pictures, the rest from the rounds."""
    told = speeds[point.name]
    steps = sum(record["steps"] for record in records)
    per_step = sum(len(record["tokens"]) - 1 for record in records) / steps if steps else told["mean_accepted_length"]
    return {
        "name": point.name, "label": point.label, "method": point.method, "relaxed": not METHODS[point.method].lossless,
        "group": point.group, "knob": point.knob, "settings": point.settings,
        "preset": {**pipe.defaults.as_dict(), **point.settings}, "pictures": len(records),
        "speed": {
            "tokens_per_step": per_step, "c": told["c"], "gain": per_step / told["c"], "speedup": told["speedup"],
            "price": told["price"], "one_step_tvd": told["one_step_tvd"],
            "price_of_first_tokens": told["price_of_first_tokens"], "nodes": told["nodes"],
        },
    }  # fmt: skip


def _right(seen: Seen) -> dict[str, Any]:
    """The share of pictures on which each attribute is as asked for, with Wilson's interval."""
    told = {}
    for name, values in seen.right.items():
        right, of = int(values.sum()), len(values)
        told[name] = {"right": right, "of": of, "share": float(numpy.mean(values)), "interval": list(wilson(right, of))}
    return told
