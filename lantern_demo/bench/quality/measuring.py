"""Every point's pictures held against what vanilla draws of the same captions with other seeds.

Three sets are told apart: the reference, vanilla's pictures of the same seeds, which distances are taken to; the floor, vanilla's with
other seeds; and the true scenes, drawn by the renderer and passed through the tokenizer. A measure's price is its value less the
reference's, and of a distance to the reference less the floor's, with the bootstrap's interval over captions. Where noise is shared a
picture and vanilla's of its seed are a pair, so that their difference varies far less than either does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy
import torch
from numpy.typing import NDArray

from lantern_demo.bench.quality import distances, pixels, tokens
from lantern_demo.bench.quality.scenes import ALL, SceneSet, draw_truth, drawn, read, true_tokens
from lantern_demo.bench.quality.statistics import Difference, Measure, Values, bootstrap, compared, mean_of
from lantern_demo.pipeline import Pipeline
from lantern_demo.training.classifier import AttributeClassifier

BATCH = 50


class Told(NamedTuple):
    """What people read of a measure."""

    title: str
    better: Literal["lower", "higher", ""]


MEASURES: dict[str, Told] = {
    ALL: Told("everything asked for is found", "higher"),
    "fid_truth": Told("scene-FID to true scenes", "lower"),
    "kernel_truth": Told("kernel distance to true scenes x 1000", "lower"),
    "precision": Told("precision against true scenes", "higher"),
    "recall": Told("recall of true scenes", "higher"),
    "diversity": Told("diversity per caption over seeds", "higher"),
    "fid_vanilla": Told("scene-FID to vanilla's pictures", "lower"),
    "kernel_vanilla": Told("kernel distance to vanilla's x 1000", "lower"),
    "spectrum": Told("spectrum, dB from vanilla's", "lower"),
    "patches": Told("patches, sliced Wasserstein to vanilla's", "lower"),
    "nll": Told("nats a token under the target", ""),
    "usage": Told("use of codes, TV to vanilla's", "lower"),
    "pairs": Told("neighbouring codes, TV to vanilla's", "lower"),
}


@dataclass(frozen=True)
class Seen:
    """What is kept of N pictures: of each its features [N, 256], light's spectrum, patches, right attributes and, of drawn ones, tokens."""

    features: NDArray[numpy.float32]
    spectrum: NDArray[numpy.float64]
    patches: NDArray[numpy.float32]
    right: dict[str, NDArray[numpy.bool_]]
    tokens: NDArray[numpy.int64]
    nats: NDArray[numpy.float64]

    def first(self, count: int) -> Seen:
        """The first pictures."""
        right = {name: values[:count] for name, values in self.right.items()}
        return Seen(
            self.features[:count], self.spectrum[:count], self.patches[:count], right, self.tokens[:count], self.nats[:count]
        )

    def __len__(self) -> int:
        return len(self.features)


@torch.inference_mode()
def look(pipe: Pipeline, classifier: AttributeClassifier, scenes: SceneSet, ids: list[list[int]], file: Path) -> Seen:
    """The pictures of token ids, the first of the scenes' prompts; kept in `file`, from which the same ids are read again."""
    given = numpy.asarray(ids, dtype=numpy.int64)
    if file.exists():
        with numpy.load(file) as kept:
            if numpy.array_equal(kept["tokens"], given):
                right = {name[6:]: kept[name] for name in kept.files if name.startswith("right_")}
                return Seen(kept["features"], kept["spectrum"], kept["patches"], right, given, kept["nats"])
    images = drawn(pipe.networks, torch.tensor(ids))
    likely = tokens.nll(
        pipe.networks.target, pipe.networks.text, scenes.prompts[: len(ids)], torch.tensor(ids), pipe.defaults.sampling()
    )
    seen = _seen(classifier, images, {k: v[: len(ids)] for k, v in scenes.wanted.items()}, given, likely.numpy())
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_suffix(".part.npz")
    arrays: dict[str, Any] = {f"right_{name}": values for name, values in seen.right.items()}
    arrays |= {"tokens": given, "features": seen.features, "spectrum": seen.spectrum, "patches": seen.patches, "nats": seen.nats}
    numpy.savez(part, **arrays)
    part.replace(file)
    return seen


def look_at_truth(pipe: Pipeline, classifier: AttributeClassifier, scenes: SceneSet) -> tuple[Seen, Seen]:
    """The true scenes as they are, and through the tokenizer."""
    true = draw_truth(scenes, pipe.device, pipe.info.image_size)
    again = drawn(pipe.networks, true_tokens(pipe.networks, scenes))
    nothing = numpy.empty((len(true), 0), dtype=numpy.int64)
    first, second = (_seen(classifier, images, scenes.wanted, nothing, numpy.empty(len(true))) for images in (true, again))
    return first, second


def _seen(
    classifier: AttributeClassifier, images: torch.Tensor, wanted: dict[str, Any], ids: NDArray[numpy.int64],
    nats: NDArray[numpy.float64],
) -> Seen:  # fmt: skip
    reading = read(classifier, images, wanted)
    rows = [(pixels.spectrum(part), pixels.patches(part)) for part in images.split(BATCH)]
    light, small = (numpy.concatenate(column) for column in zip(*rows, strict=True))
    return Seen(reading.features, light, small, reading.right, ids, nats)


class Judge:
    """Measures of points that have the same number of pictures, the first of every set."""

    def __init__(
        self, reference: Seen, floor: Seen, truth: Seen, groups: NDArray[numpy.int64], labels: Any, grid: int, resamples: int
    ) -> None:
        """`groups` [N] is the caption of each picture; `labels` [V] the cluster of each code; all sets have N pictures.
        Intervals are of `resamples` draws."""
        self.resamples = resamples
        self.reference, self.floor, self.truth = reference, floor, truth
        self.groups, self.labels, self.grid = groups, labels, grid
        self._found: dict[tuple[str, bool], tuple[float, Values]] = {}

    def price(self, seen: Seen, is_reference: bool) -> dict[str, Difference]:
        """Every measure with what it comes to more than vanilla's. Of the reference itself, those that are no distances to it, against
        the floor's."""
        measures = self._measures(seen)
        if is_reference:
            measures = {key: measure for key, measure in measures.items() if key not in TO_REFERENCE}
        return {
            key: compared(*self._drawn(key, measure), *self._vanilla(key, paired=not is_reference and key not in TO_REFERENCE))
            for key, measure in measures.items()
        }

    def _vanilla(self, key: str, paired: bool) -> tuple[float, Values]:
        """What a measure comes to of the reference, or of the floor."""
        if (key, paired) not in self._found:
            self._found[key, paired] = self._drawn(key, (self._of_reference if paired else self._of_floor)[key])
        return self._found[key, paired]

    @cached_property
    def _of_reference(self) -> dict[str, Measure]:
        return self._measures(self.reference)

    @cached_property
    def _of_floor(self) -> dict[str, Measure]:
        return self._measures(self.floor)

    def _drawn(self, key: str, measure: Measure) -> tuple[float, Values]:
        return measure(numpy.arange(len(self.groups))), bootstrap(
            measure, self.groups, self.resamples, halves=key in ("precision", "recall")
        )

    @cached_property
    def _moments(self) -> tuple[distances.Moments, distances.Moments]:
        return distances.moments(self.truth.features), distances.moments(self.reference.features)

    @cached_property
    def _size(self) -> float:
        """The root mean square of the true scenes' features."""
        return float(numpy.sqrt(numpy.square(self.truth.features, dtype=numpy.float64).mean()))

    def _measures(self, seen: Seen) -> dict[str, Measure]:
        """What each set measures, of any of its pictures by their indices."""
        truth, reference = self._moments
        # Of large features a kernel of the third degree sees the few largest alone.
        made, true, vanilla = (of.features / self._size for of in (seen, self.truth, self.reference))
        to_truth, to_reference = distances.Kernel(made, true), distances.Kernel(made, vanilla)
        manifolds = distances.Manifolds(self.truth.features, seen.features)
        light, small = self.reference.spectrum.mean(0), self.reference.patches.mean(0, dtype=numpy.float64)
        codes = len(self.labels)
        used = tokens.usage(self.reference.tokens, codes)
        pairs = tokens.neighbour_pairs(self.reference.tokens, self.labels, self.grid)

        def fid(other: distances.Moments) -> Measure:
            return lambda index: distances.frechet(distances.moments(seen.features[index]), other)

        def small_mean(index: NDArray[numpy.int64]) -> Any:
            # as a product, since gathering rows of thousands of numbers for every resample would take most of the time
            return numpy.bincount(index, minlength=len(seen)).astype(numpy.float32) @ seen.patches / len(index)

        found: dict[str, Callable[[NDArray[numpy.int64]], float]] = {
            ALL: mean_of(seen.right[ALL]),
            "fid_truth": fid(truth),
            "kernel_truth": lambda index: 1000 * to_truth(index),
            "precision": lambda index: manifolds(None, index)[0],
            "recall": lambda index: manifolds(None, index)[1],
            "fid_vanilla": fid(reference),
            "kernel_vanilla": lambda index: 1000 * to_reference(index),
            "spectrum": lambda index: pixels.spectrum_distance(seen.spectrum[index], light),
            "patches": lambda index: pixels.patch_distance(small_mean(index), small),
            "nll": mean_of(seen.nats),
            "usage": lambda index: tokens.usage_distance(tokens.usage(seen.tokens[index], codes), used),
            "pairs": lambda index: tokens.pairs_distance(
                tokens.neighbour_pairs(seen.tokens[index], self.labels, self.grid), pairs
            ),
        }
        if len(self.groups) > len(numpy.unique(self.groups)):
            found["diversity"] = mean_of(distances.diversity(seen.features, self.groups))
        return {key: found[key] for key in MEASURES if key in found}


TO_REFERENCE = ("fid_vanilla", "kernel_vanilla", "spectrum", "patches", "usage", "pairs")
