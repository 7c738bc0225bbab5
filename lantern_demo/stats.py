"""What comes out of a run: its statistics, its picture, or the reason why there is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from PIL import Image

BUSY_SHARE = 0.1  # of its decode seconds: a run that waited longer for a processor was disturbed

Schedule = Literal["alone", "race", "in turn"]


@dataclass(frozen=True)
class Stats:
    """What a run measured. Seconds are of synchronised device work; `decode_seconds` = prefill + draft + verify + commit.

    With captured graphs the steps' parts are told apart as `decoding.engines.graphs` says, and `capture_seconds` went into capturing them.
    """

    method: str
    tokens: int  # image tokens
    steps: int  # target forwards after the prefill
    mean_accepted_length: float  # tokens committed per step, the bonus token counted
    accepted_lengths: list[int]
    text_seconds: float
    prefill_seconds: float
    draft_seconds: float
    verify_seconds: float
    commit_seconds: float
    decode_seconds: float
    image_seconds: float
    tokens_per_second: float
    one_step_tvd: float | None  # None where there was no step to measure
    one_step_tvd_method: str | None
    price: float | None  # of the picture: see `lantern_demo.price`; None where there was no step
    price_method: str | None
    nodes: int  # of the draft tree, root included
    tree: str  # which draft tree, and why
    tree_settings: dict[str, Any]  # what to ask for to get this very tree
    device: str
    dtype: str
    products: str  # how products with the weights are computed
    capture_seconds: float  # no part of decode_seconds
    engine: str  # what ran the steps: "plain", "fixed" or "graphs"
    engine_reason: str  # why it is not what it could be, if so
    threads: int  # of the processor, that compute
    threads_reason: str
    schedule: Schedule  # how the methods of the comparison shared the device
    schedule_reason: str  # why they did not race; empty where they did
    waited_seconds: float | None  # of decode_seconds, those in which the thread had no processor; None on a GPU
    disturbed: bool  # it waited for more than `BUSY_SHARE` of its decode seconds
    dice: Literal[
        "same", "own", "none"
    ]  # how it drew: by noise shared with all, by its paper's rule, or at temperature 0 not at all


@dataclass(frozen=True)
class Drawn:
    """A method has drawn its last token. Its Generation follows once all methods are through, since measuring what it gave up
    would hold up the others."""

    method: str
    image: Image.Image
    tokens: list[int]


@dataclass(frozen=True)
class Generation:
    """A finished picture, how it came about, and the record that reproduces it."""

    method: str
    image: Image.Image
    tokens: list[int]
    stats: Stats
    record: dict[str, Any]


@dataclass(frozen=True)
class MethodFailed:
    """A method of a comparison that raised; the others go on."""

    method: str
    message: str


def disturbed(waited: float | None, seconds: float) -> bool:
    """Whether a run waited for a processor for so long that its time says little."""
    return waited is not None and waited > BUSY_SHARE * seconds
