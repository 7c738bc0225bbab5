"""Every point's pictures held against what vanilla draws of the same captions with other seeds.

Three sets are told apart: the reference, vanilla's pictures of the same seeds, which distances are taken to; the floor, vanilla's
with other seeds; and the true scenes, drawn by the renderer and passed through the tokenizer. The loss by a measure is its value
less the reference's, and of a distance to the reference less the floor's, with the bootstrap's interval over captions. Where
noise is shared a picture and vanilla's of its seed are a pair, so that their difference varies far less than either does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy
import torch
from numpy.typing import NDArray

from lantern_demo.bench.quality import distances, tokens
from lantern_demo.bench.quality.classifier import AttributeClassifier
from lantern_demo.bench.quality.scenes import ALL, SceneSet, draw_truth, drawn, read, true_tokens
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
    "usage": Told("use of codes, TV to vanilla's", "lower"),
}


@dataclass(frozen=True)
class Seen:
    """What is seen of N pictures: of each its features [N, 256], right attributes and, of drawn ones, tokens with their nats."""

    features: NDArray[numpy.float32]
    right: dict[str, NDArray[numpy.bool_]]
    tokens: NDArray[numpy.int64]
    nats: NDArray[numpy.float64]

    def first(self, count: int) -> Seen:
        """The first pictures."""
        arrays = {key: value[:count] for key, value in vars(self).items() if key != "right"}
        return Seen(**arrays, right={name: values[:count] for name, values in self.right.items()})

    def __len__(self) -> int:
        return len(self.features)


@torch.inference_mode()
def look(pipe: Pipeline, classifier: AttributeClassifier, scenes: SceneSet, ids: list[list[int]]) -> Seen:
    """The pictures of token ids, the first of the scenes' prompts."""
    networks, given, count = pipe.networks, torch.tensor(ids), len(ids)
    nats = tokens.nll(networks.target, networks.text, scenes.prompts[:count], given, pipe.defaults.sampling()).numpy()
    wanted = {name: values[:count] for name, values in scenes.wanted.items()}
    return _seen(classifier, drawn(networks, given), wanted, given.numpy(), nats)


def look_at_truth(pipe: Pipeline, classifier: AttributeClassifier, scenes: SceneSet) -> tuple[Seen, Seen]:
    """The true scenes as they are, and through the tokenizer."""
    true = draw_truth(scenes, pipe.device, pipe.info.image_size)
    again = drawn(pipe.networks, true_tokens(pipe.networks, scenes))
    nothing = numpy.empty((len(true), 0), dtype=numpy.int64)
    first, second = (_seen(classifier, images, scenes.wanted, nothing, numpy.empty(len(true))) for images in (true, again))
    return first, second


def _seen(classifier: AttributeClassifier, images: torch.Tensor, wanted: dict[str, Any], ids: Any, nats: Any) -> Seen:
    reading = read(classifier, images, wanted)
    return Seen(reading.features, reading.right, ids, nats)


class Judge:
    """Measures of points that have the same number of pictures, the first of every set."""

    def __init__(
        self, reference: Seen, floor: Seen, truth: Seen, groups: NDArray[numpy.int64], codes: int, resamples: int
    ) -> None:
        """`groups` [N] is the caption of each picture; `codes` how many codes there are; all sets have N pictures.
        Intervals are of `resamples` draws."""
        self.resamples, self.groups, self.codes = resamples, groups, codes
        self.reference = reference
        self._moments = distances.moments(truth.features), distances.moments(reference.features)
        self._of_reference, self._of_floor = self._drawn(reference), self._drawn(floor)

    def losses(self, seen: Seen, is_reference: bool) -> dict[str, Difference]:
        """Every measure with what it comes to more than vanilla's. Of the reference itself, those that are no distances to it,
        against the floor's."""
        found = {}
        for key, mine in (self._of_reference if is_reference else self._drawn(seen)).items():
            other = self._of_floor if is_reference or key in TO_REFERENCE else self._of_reference
            found[key] = compared(*mine, *other[key])
        return found

    def _drawn(self, seen: Seen) -> dict[str, tuple[float, Values]]:
        """Every measure of a set, and of its resamples [resamples]."""
        whole = numpy.arange(len(self.groups))
        return {
            key: (measure(whole), bootstrap(measure, self.groups, self.resamples))
            for key, measure in self._measures(seen).items()
            if not (seen is self.reference and key in TO_REFERENCE)  # 0 by definition
        }

    def _measures(self, seen: Seen) -> dict[str, Measure]:
        """What each set measures, of any of its pictures by their indices."""
        truth, reference = self._moments
        used = tokens.usage(self.reference.tokens, self.codes)

        def fid(other: distances.Moments) -> Measure:
            return lambda index: distances.frechet(distances.moments(seen.features[index]), other)

        found: dict[str, Measure] = {
            ALL: mean_of(seen.right[ALL]),
            "fid_truth": fid(truth),
            "fid_vanilla": fid(reference),
            "nll": mean_of(seen.nats),
            "usage": lambda index: tokens.total_variation(tokens.usage(seen.tokens[index], self.codes), used),
        }
        if len(self.groups) > len(numpy.unique(self.groups)):
            found["diversity"] = mean_of(distances.diversity(seen.features, self.groups))
        return {key: found[key] for key in MEASURES if key in found}


TO_REFERENCE = ("fid_vanilla", "usage")
