"""The points of the front: every method at the model's preset, then one knob of the relaxed ones at
a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lantern_demo.bench.speed import Row
from lantern_demo.decoding.methods import METHODS
from lantern_demo.runs.pipeline import Pipeline
from lantern_demo.settings.knobs import KNOBS, short_name
from lantern_demo.settings.settings import settings_of

# main: a method at the preset; again: vanilla with other seeds, the noise floor; sweep: one knob
# moved.
Group = Literal["main", "again", "sweep"]

FLOOR = "vanilla again"
# The values of each setting that a sweep draws, by setting; a method's bound comes before its k.
SWEPT: dict[str, tuple[float, ...]] = {
    "lantern_delta": (0.0, 0.05, 0.1, 0.2, 0.3, 0.4),
    "lantern_k": (10, 100, 1000),
    "lanternpp_lambda": (1.0, 2.0, 3.0, 5.0, 10.0, 30.0),
    "lanternpp_k": (10, 30, 100),
    "window": (4, 8, 16),
}


@dataclass(frozen=True)
class Point(Row):
    """A row of the speed benchmark whose settings name the tree.

    `knob` is the setting that a sweep moved.
    """

    group: Group = "main"
    knob: str | None = None


def points_of(pipe: Pipeline, methods: list[str], tree: str) -> list[Point]:
    """Return all points of vanilla and these methods, each with the tree that `tree` selects on
    this machine.
    """
    base = pipe.settings(tree=tree)
    named = [name for name in pipe.available_methods if name in ("vanilla", *methods)]
    # settings that request exactly this tree, so that all processes and all points of a method
    # share it
    trees = {name: settings_of(pipe.planned(METHODS[name], base).drafts) for name in named}
    points = [Point(name, name, settings) for name, settings in trees.items()]
    points.append(Point(FLOOR, "vanilla", {}, "again"))
    for method, own in trees.items():
        start = base.with_changes(**own)
        # The first value of a bound is exact decoding with the method's own tree. It isolates the
        # effect of the tree.
        for knob in (name for name in SWEPT if KNOBS[name].reads(METHODS[method])):
            for value in SWEPT[knob]:
                if value != getattr(start, knob):
                    said = f"{method} {short_name(knob)} {value:g}"
                    points.append(Point(said, method, {**own, knob: value}, "sweep", knob))
    return points
