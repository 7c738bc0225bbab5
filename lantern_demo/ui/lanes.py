"""A lane: what one method of a comparison has done so far, and its HTML."""

from __future__ import annotations

from dataclasses import dataclass, replace
from html import escape
from typing import Any, Literal

from lantern_demo.decoding.methods import METHODS, Method
from lantern_demo.ui import words
from lantern_demo.ui.charts import COLOURS
from lantern_demo.ui.engine import Frame

Phase = Literal["idle", "waiting", "drawing", "done", "failed", "stopped"]


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

    def at(self, frame: Frame) -> Lane:
        return replace(self, phase="drawing", committed=frame.committed, steps=frame.steps, seconds=frame.seconds)

    def finished(self, entry: dict[str, Any]) -> Lane:
        return replace(
            self, phase="done", committed=entry["tokens"], steps=entry["steps"], seconds=entry["decode_seconds"], entry=entry
        )

    def failed(self, message: str) -> Lane:
        return replace(self, phase="failed", message=message)

    def stopped(self) -> Lane:
        return replace(self, phase="stopped") if self.phase in ("waiting", "drawing") else self


def head_html(method: Method) -> str:
    """The part of a lane that never changes: name, badge and sentence."""
    badge, title = (words.LOSSLESS, words.LOSSLESS_TITLE) if method.lossless else (words.LOSSY, words.LOSSY_TITLE)
    return (
        f'<div class="lane-head" style="--lane: {COLOURS[method.id]}"><h3>{escape(method.label)}'
        f'<span class="badge {badge}" title="{escape(title)}">{badge}</span></h3>'
        f"<p>{escape(words.method_sentence(method))}</p></div>"
    )


def numbers_html(lane: Lane) -> str:
    """The part of a lane that changes: its clock, its progress and its numbers."""
    share = lane.committed / lane.total if lane.total else 0.0
    rows = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in _rows(lane))
    method = METHODS[lane.method]
    return (
        f'<div class="lane-numbers" data-phase="{lane.phase}" style="--lane: {COLOURS[lane.method]}; --share: {share:.1%}">'
        f'<div class="lane-bar" aria-hidden="true"><span></span></div>'
        f'<p class="lane-clock">{_clock(lane)}<small>{escape(_phase(lane))}</small></p>'
        f'<dl aria-label="{escape(method.label)} in numbers">{rows}</dl>'
        f'<p class="lane-price">{_price(lane, method)}</p></div>'
    )


def _clock(lane: Lane) -> str:
    return f"{lane.seconds:.2f} s" if lane.committed else words.NOT_YET


def _phase(lane: Lane) -> str:
    progress = f"{lane.committed} of {lane.total} tokens"
    return {
        "idle": "not run yet",
        "waiting": "waiting for its turn",
        "drawing": progress,
        "done": f"decoding {lane.total} tokens",
        "failed": "failed",
        "stopped": f"stopped at {progress}" if lane.committed else "stopped before its turn",
    }[lane.phase]


def _rows(lane: Lane) -> list[tuple[str, str]]:
    rate = f"{lane.committed / lane.seconds:.0f}" if lane.seconds else words.NOT_YET
    accepted = f"{(lane.committed - 1) / lane.steps:.2f}" if lane.steps else words.NOT_YET
    tree = words.NOT_YET
    if lane.entry is not None:
        why = lane.entry["tree"]
        kind = f" <small>{escape(why.split(':')[0])}</small>" if ":" in why else ""
        tree = f'<span title="{escape(why)}">{lane.entry["nodes"]}{kind}</span>'
    return [
        ("Speedup", _speedup(lane)),
        ("Tokens/s", rate),
        ("Steps", str(lane.steps) if lane.steps else words.NOT_YET),
        (f'<span title="{words.MAL_TITLE}">Tokens/step</span>', accepted),
        ("Tree nodes", tree),
    ]


def _speedup(lane: Lane) -> str:
    if lane.entry is None:
        return words.NOT_YET
    if "speedup" not in lane.entry:
        return f"<small>{words.WAITING_FOR_VANILLA}</small>"
    return f"<strong>{words.times(lane.entry['speedup'])}</strong>"


def _price(lane: Lane, method: Method) -> str:
    """What the method gave up for its speed."""
    if lane.phase == "failed":
        return escape(lane.message)
    if lane.entry is None:
        return "&nbsp;"
    tvd = lane.entry["one_step_tvd"]
    if tvd is None:
        return words.NOT_MEASURED
    title = f"{words.TVD_TITLE} ({lane.entry['one_step_tvd_method']})"
    return f'<span title="{escape(title)}">{words.price(tvd, method.lossless)} <small>TVD</small></span>'
