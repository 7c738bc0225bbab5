"""Compare every point's pictures with vanilla's of the same captions.

The reference is vanilla's pictures of the same seeds, and the floor is vanilla's pictures with other seeds. The loss by a measure
is its value less the reference's, with the bootstrap interval over captions. With shared noise, a picture and vanilla's of its
seed form a pair: their difference varies far less than either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy
import torch
from numpy.typing import NDArray

from lantern_demo.bench.quality import tokens
from lantern_demo.bench.quality.classifier import AttributeClassifier
from lantern_demo.bench.quality.scenes import ALL, Right, SceneSet, drawn, read
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

    def values(self, measure: str) -> NDArray[Any]:
        """Return a measure of each picture [N]."""
        return self.nats if measure == "nll" else self.right[measure]

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
