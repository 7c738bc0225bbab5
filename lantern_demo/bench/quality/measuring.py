"""Compare every point's pictures with vanilla's of the same captions with other seeds.

Three sets are distinct: the reference, vanilla's pictures of the same seeds, which distances are taken to; the floor, vanilla's
with other seeds; and true scenes through the tokenizer. The loss by a measure is its value
less the reference's, and of a distance to the reference less the floor's, with the bootstrap's interval over captions. Where
noise is shared a picture and vanilla's of its seed are a pair, so that their difference varies far less than either does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy
import torch
from numpy.typing import NDArray

from lantern_demo.bench.quality import distances, tokens
from lantern_demo.bench.quality.classifier import AttributeClassifier
from lantern_demo.bench.quality.scenes import ALL, SceneSet, drawn, read
from lantern_demo.bench.quality.statistics import Difference, Measure, Values, bootstrap, compared, mean_of
from lantern_demo.runs.pipeline import Pipeline


class Told(NamedTuple):
    """What people read of a measure."""

    title: str
    better: Literal["lower", "higher", ""]


MEASURES: dict[str, Told] = {
    ALL: Told("everything asked for is found", "higher"),
    "fid_truth": Told("scene-FID to true scenes", "lower"),
    "diversity": Told("diversity per caption over seeds", "higher"),
    "fid_vanilla": Told("scene-FID to vanilla's pictures", "lower"),
    "nll": Told("nats a token under the target", ""),
}


TO_REFERENCE = ("fid_vanilla",)  # measures that are distances to the reference


@dataclass(frozen=True)
class Seen:
    """The readings of N pictures: of each its features [N, 256], right attributes and, of drawn ones, the nats of its tokens."""

    features: NDArray[numpy.float32]
    right: dict[str, NDArray[numpy.bool_]]
    nats: NDArray[numpy.float64]

    def first(self, count: int) -> Seen:
        """Return the first pictures."""
        right = {name: values[:count] for name, values in self.right.items()}
        return Seen(self.features[:count], right, self.nats[:count])

    def __len__(self) -> int:
        return len(self.features)


@torch.inference_mode()
def look(pipe: Pipeline, classifier: AttributeClassifier, scenes: SceneSet, ids: list[list[int]]) -> Seen:
    """Look at the pictures of token ids, the first of the scenes' prompts."""
    networks, given, count = pipe.networks, torch.tensor(ids), len(ids)
    nats = tokens.nll(networks.target, networks.text, scenes.prompts[:count], given, pipe.defaults.sampling()).numpy()
    wanted = {name: values[:count] for name, values in scenes.wanted.items()}
    return Seen(*read(classifier, drawn(networks, given), wanted), nats)


def look_at_truth(pipe: Pipeline, classifier: AttributeClassifier, scenes: SceneSet) -> Seen:
    """Look at the true scenes, through the tokenizer."""
    return Seen(*read(classifier, drawn(pipe.networks, scenes.tokens), scenes.wanted), numpy.empty(len(scenes.tokens)))


class Judge:
    """Measures of points that have the same number of pictures, the first of every set."""

    def __init__(self, reference: Seen, floor: Seen, truth: Seen, groups: NDArray[numpy.int64], resamples: int) -> None:
        """`groups` [N] is the caption of each picture; all sets have N pictures. Intervals are of `resamples` draws."""
        self.resamples, self.groups = resamples, groups
        self._truth, self._reference = distances.moments(truth.features), distances.moments(reference.features)
        self._of_reference, self._of_floor = self._drawn(reference), self._drawn(floor)

    def losses(self, seen: Seen, is_reference: bool) -> dict[str, Difference]:
        """Return every measure with its difference to vanilla's. Of the reference itself, the measures that are no distances to
        it, against the floor's."""
        if is_reference:
            mine = self._of_reference
            return {key: compared(*mine[key], *self._of_floor[key]) for key in mine if key not in TO_REFERENCE}
        others = self._of_reference | {key: self._of_floor[key] for key in TO_REFERENCE}
        return {key: compared(*drawn, *others[key]) for key, drawn in self._drawn(seen).items()}

    def _drawn(self, seen: Seen) -> dict[str, tuple[float, Values]]:
        """Every measure of a set, and of its resamples [resamples]."""

        def fid(other: distances.Moments) -> Measure:
            return lambda index: distances.frechet(distances.moments(seen.features[index]), other)

        measures: dict[str, Measure] = {
            ALL: mean_of(seen.right[ALL]),
            "fid_truth": fid(self._truth),
            "diversity": mean_of(distances.diversity(seen.features, self.groups)),
            "fid_vanilla": fid(self._reference),
            "nll": mean_of(seen.nats),
        }
        whole = numpy.arange(len(self.groups))
        return {key: (one(whole), bootstrap(one, self.groups, self.resamples)) for key, one in measures.items()}
