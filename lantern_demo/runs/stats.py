"""Define the results of a run: its statistics and picture, or the reason for its failure."""

from __future__ import annotations

from dataclasses import dataclass, field
from io import BytesIO
from typing import Annotated, Any, Literal, TypeVar

from PIL import Image
from pydantic import AfterValidator, Field, Strict

from lantern_demo.faults import unreadable
from lantern_demo.models.device import MOST_THREADS

BUSY_SHARE = 0.1  # of the decode seconds: a run that waited longer for a processor was disturbed
MOST_TOKENS, MOST_NODES = 4096, 256  # of a run, and of a draft tree, in a record

Item = TypeVar("Item")


def _readable(text: str) -> str:
    if bad := unreadable(text):
        raise ValueError(f"must be text without control characters, got {bad}")
    return text


# Records must satisfy these types when read; they are not checked when written. One fault of a list
# is enough.
READABLE = AfterValidator(_readable)
Name = Annotated[str, Field(max_length=80), READABLE]
Line = Annotated[str, Field(max_length=200), READABLE]
Text = Annotated[str, Field(max_length=2000), READABLE]
Whole = Annotated[int, Strict()]
Number = Annotated[float, Strict(), Field(allow_inf_nan=False)]
Seconds = Annotated[Number, Field(ge=0, le=1e6)]
Share = Annotated[Number, Field(ge=0, le=1)]
Many = Annotated[list[Item], Field(fail_fast=True, max_length=MOST_TOKENS + 1)]

Schedule = Literal["alone", "race", "in turn"]


@dataclass(frozen=True, kw_only=True, repr=False)
class Stats:
    """The measurements of a run.

    Seconds are of synchronised device work. `decoding.graphs` tells how the parts of captured steps
    are timed.
    """

    method: Name
    tokens: Annotated[Whole, Field(ge=1, le=MOST_TOKENS)]  # image tokens
    steps: Annotated[Whole, Field(ge=0, le=MOST_TOKENS)]  # target forwards after the prefill
    # tokens committed per step, the bonus token counted
    mean_accepted_length: Annotated[Number, Field(ge=0, le=MOST_NODES)]
    accepted_lengths: Many[Annotated[Whole, Field(ge=1, le=MOST_NODES)]]
    text_seconds: Seconds
    prefill_seconds: Seconds
    draft_seconds: Seconds
    verify_seconds: Seconds
    commit_seconds: Seconds
    decode_seconds: Annotated[Seconds, Field(gt=0)]  # prefill + draft + verify + commit
    changed: Share = field(init=False)  # share of the tokens; a record counts it
    image_seconds: Seconds
    tokens_per_second: float = field(init=False)
    nodes: Annotated[Whole, Field(ge=1, le=MOST_NODES)]  # of the draft tree, root included
    tree: Text  # the draft tree, and why
    tree_settings: dict[str, Any]  # the settings that define this tree
    device: Text
    dtype: Text
    products: Text  # how matmuls with the weights are computed
    capture_seconds: Seconds  # not part of decode_seconds
    engine: Text  # the runner of the steps: "plain" or "graphs"
    # why it fell back to plain steps, or from Triton kernels; empty: it did not
    engine_reason: Text
    # threads of the processor that compute; None in records that lack it
    threads: Annotated[Whole, Field(ge=1, le=MOST_THREADS)] | None
    threads_reason: Text
    schedule: Schedule  # how the methods of the comparison shared the device
    schedule_reason: Text  # why they did not race; empty if they did
    # the decode seconds in which the thread had no processor; None on a GPU
    waited_seconds: Seconds | None
    disturbed: bool = field(init=False)  # see the function
    noise: Literal["shared", "independent", "none"]  # none at temperature 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens_per_second", self.tokens / self.decode_seconds)
        object.__setattr__(self, "disturbed", disturbed(self.waited_seconds, self.decode_seconds))

    def __repr__(self) -> str:
        ran = f"{self.tokens} tokens in {self.steps} steps, {self.decode_seconds:.2f} s"
        return f"<Stats of {self.method}: {ran}>"


@dataclass(frozen=True, repr=False)
class Generation:
    """A finished picture, how it came about, and the record that reproduces it."""

    method: str
    image: Image.Image
    tokens: list[int]
    stats: Stats
    record: dict[str, Any]

    @property
    def warning(self) -> str | None:
        """Why the picture does not show all of the prompt; None if it does."""
        return self.record["warning"]

    def __repr__(self) -> str:
        seed, ran = self.record["settings"]["seed"], f"{self.stats.steps} steps"
        return f"<Generation by {self.method}: {self.record['prompt']!r}, seed {seed}, {ran}>"

    def _repr_png_(self) -> bytes:
        """Return the picture, which a notebook shows."""
        with BytesIO() as file:
            self.image.save(file, "png")
            return file.getvalue()


@dataclass(frozen=True)
class MethodFailed:
    """A method of a comparison that raised an error; the others go on."""

    method: str
    message: str


def disturbed(waited: float | None, seconds: float) -> bool:
    """Return whether a run waited for a processor for more than `BUSY_SHARE` of its seconds."""
    return waited is not None and waited > BUSY_SHARE * seconds
