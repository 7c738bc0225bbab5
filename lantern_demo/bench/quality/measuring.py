"""Compare every point's pictures with vanilla's of the same captions.

The reference is vanilla's pictures of the same seeds, and the floor is vanilla's pictures with other seeds. The loss by a measure
is its value less the reference's, with the bootstrap interval over captions. With shared noise, a picture and vanilla's of its
seed form a pair: their difference varies far less than either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy
import torch
from numpy.typing import NDArray

from lantern_demo.bench.quality import tokens
from lantern_demo.bench.quality.classifier import AttributeClassifier
from lantern_demo.bench.quality.scenes import ALL, Right, SceneSet, drawn, read
from lantern_demo.bench.quality.statistics import Difference, Values, bootstrap, compared, mean_of
from lantern_demo.runs.pipeline import Pipeline


class Told(NamedTuple):
    """The title of a measure, and its better direction."""

    title: str
    better: Literal["lower", "higher", ""]


MEASURES: dict[str, Told] = {
    ALL: Told("everything asked for is found", "higher"),
    "nll": Told("nats a token under the target", ""),
}


@dataclass(frozen=True)
class Seen:
    """The readings of N drawn pictures: right attributes, and mean nats per token [N]."""

    right: Right
    nats: NDArray[numpy.float64]

    def first(self, count: int) -> Seen:
        """Return the readings of the first `count` pictures."""
        return Seen({name: values[:count] for name, values in self.right.items()}, self.nats[:count])

    def __len__(self) -> int:
        return len(self.nats)


@torch.inference_mode()
def look(pipe: Pipeline, classifier: AttributeClassifier, scenes: SceneSet, ids: list[list[int]]) -> Seen:
    """Read the pictures of token ids, which belong to the first of the scenes' prompts."""
    networks, given, count = pipe.networks, torch.tensor(ids), len(ids)
    nats = tokens.nll(networks.target, networks.text, scenes.prompts[:count], given, pipe.defaults.sampling()).numpy()
    wanted = {name: values[:count] for name, values in scenes.wanted.items()}
    return Seen(read(classifier, drawn(networks, given), wanted), nats)


def look_at_truth(pipe: Pipeline, classifier: AttributeClassifier, scenes: SceneSet) -> Right:
    """Read the true scenes, decoded from their tokens."""
    return read(classifier, drawn(pipe.networks, scenes.tokens), scenes.wanted)


class Judge:
    """Measures of points that have the same number of pictures, the first of every set."""

    def __init__(self, reference: Seen, floor: Seen, groups: NDArray[numpy.int64], resamples: int) -> None:
        """`groups` [N] is the caption of each picture. All sets have N pictures. Intervals use `resamples` resamples."""
        self.resamples, self.groups = resamples, groups
        self._of_reference, self._of_floor = self._drawn(reference), self._drawn(floor)

    def losses(self, seen: Seen, is_reference: bool) -> dict[str, Difference]:
        """Return every measure with its difference to vanilla's. The reference is compared with the floor."""
        mine, others = (self._of_reference, self._of_floor) if is_reference else (self._drawn(seen), self._of_reference)
        return {key: compared(*mine[key], *others[key]) for key in MEASURES}

    def _drawn(self, seen: Seen) -> dict[str, tuple[float, Values]]:
        """Compute every measure of a set, and of its resamples [resamples]."""
        measures = {ALL: mean_of(seen.right[ALL]), "nll": mean_of(seen.nats)}
        whole = numpy.arange(len(self.groups))
        return {key: (one(whole), bootstrap(one, self.groups, self.resamples)) for key, one in measures.items()}
