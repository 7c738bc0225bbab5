"""A lane: what one method of a comparison has done so far, and how the page says it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from lantern_demo.decoding.methods import METHODS, Method
from lantern_demo.ui import words
from lantern_demo.ui.charts import COLOURS
from lantern_demo.ui.engine import Progress
from lantern_demo.ui.files import stem

Phase = Literal["idle", "waiting", "drawing", "drawn", "done", "failed", "stopped"]


@dataclass(frozen=True)
class Lane:
    """What a lane shows. `entry` is the method's part of the run record once it has finished."""

    method: str
    phase: Phase = "idle"
    total: int = 0  # tokens of a picture
    committed: int = 0
    steps: int = 0
    seconds: float = 0.0  # of decoding, so far
    entry: dict[str, Any] | None = None
    message: str = ""  # why it failed

    @property
    def running(self) -> bool:
        return self.phase in ("waiting", "drawing", "drawn")

    @property
    def has_picture(self) -> bool:
        """Whether all tokens are there."""
        return self.phase in ("drawn", "done")

    def at(self, progress: Progress) -> Lane:
        return replace(self, phase="drawing", committed=progress.committed, steps=progress.steps, seconds=progress.seconds)

    def drawn(self) -> Lane:
        return replace(self, phase="drawn")

    def finished(self, entry: dict[str, Any]) -> Lane:
        return replace(
            self, phase="done", committed=entry["tokens"], steps=entry["steps"], seconds=entry["decode_seconds"], entry=entry
        )

    def failed(self, message: str) -> Lane:
        return replace(self, phase="failed", message=message)

    def stopped(self) -> Lane:
        return replace(self, phase="stopped") if self.running else self


def lane_view(lane: Lane, vanilla: Lane | None) -> dict[str, Any]:
    """What the page's script shows of a lane: texts, never markup. `vanilla` is the lane that speedups are against."""
    method = METHODS[lane.method]
    badge, badge_title = (words.LOSSLESS, words.LOSSLESS_TITLE) if method.lossless else (words.LOSSY, words.LOSSY_TITLE)
    price, price_hint = _price(lane, method)
    return {
        "id": lane.method, "name": stem(lane.method), "label": method.label, "colour": COLOURS[lane.method],
        "sentence": words.method_sentence(method), "badge": badge, "badgeTitle": badge_title,
        "alt": words.WEB["drawnWith"].format(method=method.label), "download": words.WEB["download"].format(method=method.label),
        "phase": lane.phase, "share": f"{lane.committed / lane.total if lane.total else 0.0:.1%}",
        "passes": _passes(lane), "progress": _phase(lane), "rows": _rows(lane, vanilla), "price": price, "priceHint": price_hint,
    }  # fmt: skip


def _passes(lane: Lane) -> str:
    """Passes of the model: what does not depend on the machine comes first."""
    if not lane.committed:
        return words.NOT_YET
    return words.passes(lane.steps, lane.total - 1 if lane.has_picture else None)


def _phase(lane: Lane) -> str:
    progress = f"{lane.committed} of {lane.total} tokens"
    return {
        "idle": "not run yet",
        "waiting": "waiting for the start",
        "drawing": progress,
        "drawn": f"{lane.total} tokens drawn",
        "done": f"{lane.total} tokens drawn",
        "failed": "failed",
        "stopped": f"stopped at {progress}" if lane.committed else "stopped before the start",
    }[lane.phase]


def _rows(lane: Lane, vanilla: Lane | None) -> list[tuple[str, str, str | None]]:
    """(name, value, hint)"""
    rate = f"{lane.committed / lane.seconds:.0f}" if lane.seconds else words.NOT_YET
    accepted = f"{(lane.committed - 1) / lane.steps:.2f}" if lane.steps else words.NOT_YET
    nodes, tree = (words.NOT_YET, None) if lane.entry is None else (str(lane.entry["nodes"]), lane.entry["tree"])
    seconds, waited = f"{lane.seconds:.2f} s" if lane.committed else words.NOT_YET, None
    if lane.entry is not None and lane.entry["disturbed"]:
        seconds, waited = f"{seconds} \u26a0", words.waited(lane.entry)
    return [
        ("Decoding", seconds, waited),
        ("Speedup", _speedup(lane, vanilla), None),
        ("Tokens/s", rate, None),
        ("Tokens/pass", accepted, words.MAL_TITLE),
        ("Tree nodes", nodes, tree),
    ]


def _speedup(lane: Lane, vanilla: Lane | None) -> str:
    if not lane.has_picture:
        return words.NOT_YET
    if vanilla is None or not vanilla.has_picture:
        return words.NOT_YET if vanilla is not None and vanilla.running else words.WAITING_FOR_VANILLA
    return words.times(vanilla.seconds / lane.seconds)


def _price(lane: Lane, method: Method) -> tuple[str, str | None]:
    """What the method gave up for its speed, and how that was measured."""
    if lane.phase == "failed":
        return lane.message, None
    if lane.phase == "drawn":
        return words.MEASURED_LATER, None
    if lane.entry is None:
        return "", None
    tvd = lane.entry["one_step_tvd"]
    if tvd is None:
        return words.NOT_MEASURED, None
    return words.price(tvd, method.lossless), f"{words.TVD_TITLE} ({lane.entry['one_step_tvd_method']})"
