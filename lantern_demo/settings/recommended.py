"""Settings of the relaxed methods that were chosen for a model from speed against quality.

`python -m lantern_demo.bench quality` chooses them (see `bench.quality.recommend`); they lie in the model's folder as
recommended.json.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, TypeAdapter, ValidationError

from lantern_demo.settings.settings import Settings, method_of

FILE = "recommended.json"
Kind = Literal["careful", "fast"]
KINDS: tuple[Kind, ...] = ("careful", "fast")


def _allowed(settings: dict[str, Any]) -> dict[str, Any]:
    Settings().with_changes(**settings)
    return settings


def _complete(found: dict[Kind, Any]) -> dict[Kind, Any]:
    if set(found) != set(KINDS):
        raise ValueError(f"must have {' and '.join(KINDS)}")
    return found


MethodId = Annotated[str, AfterValidator(lambda name: method_of(name).id)]
Changes = Annotated[dict[str, Any], AfterValidator(_allowed)]


@dataclass(frozen=True)
class Recommendation:
    """Settings of one method: what they gained (tokens a step over what a step costs), and the share of pictures that lost
    something of what was asked for, negative where vanilla's lost more; both measured on `pictures` pictures."""

    settings: Changes
    gain: float
    loss: float
    pictures: int


@dataclass(frozen=True)
class Found:
    """On how many of `of` pictures everything asked for was found (`right`), drawn by a method with the model's preset but for
    `settings`."""

    method: MethodId
    settings: Changes
    right: int
    of: int


@dataclass(frozen=True)
class Recommended:
    """The recommendations of a model by method and kind; None where nothing that was tried qualifies. Fast ones lose `fast_loss`
    at most. `found`: what the pictures of the points that were measured showed."""

    device: str
    level: float
    measures: int
    fast_loss: float
    methods: dict[MethodId, Annotated[dict[Kind, Recommendation | None], AfterValidator(_complete)]]
    found: tuple[Found, ...] = ()

    def settings(self, kind: Kind) -> dict[str, Any]:
        """The settings of all methods that have a recommendation of a kind."""
        return {
            name: value for by_kind in self.methods.values() if (one := by_kind[kind]) for name, value in one.settings.items()
        }


def read_recommended(folder: Path | None) -> Recommended | None:
    """The recommendations in a model folder, None where there are none. Raises ValueError naming the file when it is damaged."""
    if folder is None or not (folder / FILE).exists():
        return None
    try:
        return TypeAdapter(Recommended).validate_json((folder / FILE).read_bytes())
    except ValidationError as error:
        raise ValueError(f"{folder / FILE} holds no recommended settings: {error.errors()[0]['msg']}") from error
