"""A lane: what one method of a comparison has done so far, and its HTML."""

from __future__ import annotations

from dataclasses import dataclass, replace
from html import escape
from typing import Any, Literal

from lantern_demo.decoding.methods import METHODS, Method
from lantern_demo.ui import words
from lantern_demo.ui.charts import COLOURS
from lantern_demo.ui.engine import Progress

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


def head_html(method: Method) -> str:
    """The part of a lane that never changes: name, badge and sentence."""
    badge, title = (words.LOSSLESS, words.LOSSLESS_TITLE) if method.lossless else (words.LOSSY, words.LOSSY_TITLE)
    return (
        f'<div class="lane-head" style="--lane: {COLOURS[method.id]}"><h3>{escape(method.label)}'
        f'<span class="badge {badge}" title="{escape(title)}">{badge}</span></h3>'
        f"<p>{escape(words.method_sentence(method))}</p></div>"
    )


def numbers_html(lane: Lane, vanilla: Lane | None = None) -> str:
    """The part of a lane that changes: its passes, its progress and its numbers. `vanilla` is the lane that speedups are against."""
    share = lane.committed / lane.total if lane.total else 0.0
    rows = "".join(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in _rows(lane, vanilla))
    method = METHODS[lane.method]
    return (
        f'<div class="lane-numbers" data-phase="{lane.phase}" style="--lane: {COLOURS[lane.method]}; --share: {share:.1%}">'
        f'<div class="lane-bar" aria-hidden="true"><span></span></div>'
        f'<p class="lane-passes">{_passes(lane)}<small>{escape(_phase(lane))}</small></p>'
        f'<dl aria-label="{escape(method.label)} in numbers">{rows}</dl>'
        f'<p class="lane-price">{_price(lane, method)}</p></div>'
    )


def _passes(lane: Lane) -> str:
    """Passes of the model: what does not depend on the machine comes first."""
    if not lane.committed:
        return words.NOT_YET
    return words.passes(lane.steps, lane.total - 1) if lane.has_picture else words.passes_so_far(lane.steps)


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


def _rows(lane: Lane, vanilla: Lane | None) -> list[tuple[str, str]]:
    rate = f"{lane.committed / lane.seconds:.0f}" if lane.seconds else words.NOT_YET
    accepted = f"{(lane.committed - 1) / lane.steps:.2f}" if lane.steps else words.NOT_YET
    tree = words.NOT_YET
    if lane.entry is not None:
        why = lane.entry["tree"]
        kind = f" <small>{escape(why.split(':')[0])}</small>" if ":" in why else ""
        tree = f'<span title="{escape(why)}">{lane.entry["nodes"]}{kind}</span>'
    return [
        ("Decoding", f"{lane.seconds:.2f} s{_waited(lane)}" if lane.committed else words.NOT_YET),
        ("Speedup", _speedup(lane, vanilla)),
        ("Tokens/s", rate),
        (f'<span title="{words.MAL_TITLE}">Tokens/pass</span>', accepted),
        ("Tree nodes", tree),
    ]


def _waited(lane: Lane) -> str:
    """A mark where the machine was too busy for the time to mean much."""
    if lane.entry is None or not lane.entry["disturbed"]:
        return ""
    return f' <span title="{escape(words.waited(lane.entry))}">\u26a0</span>'


def _speedup(lane: Lane, vanilla: Lane | None) -> str:
    if not lane.has_picture:
        return words.NOT_YET
    if vanilla is None or not vanilla.has_picture:
        return f"<small>{words.WAITING_FOR_VANILLA if vanilla is None or not vanilla.running else words.NOT_YET}</small>"
    return f"<strong>{words.times(vanilla.seconds / lane.seconds)}</strong>"


def _price(lane: Lane, method: Method) -> str:
    """What the method gave up for its speed."""
    if lane.phase == "failed":
        return escape(lane.message)
    if lane.phase == "drawn":
        return words.MEASURED_LATER
    if lane.entry is None:
        return "&nbsp;"
    tvd = lane.entry["one_step_tvd"]
    if tvd is None:
        return words.NOT_MEASURED
    title = f"{words.TVD_TITLE} ({lane.entry['one_step_tvd_method']})"
    return f'<span title="{escape(title)}">{words.price(tvd, method.lossless)} <small>TVD</small></span>'
