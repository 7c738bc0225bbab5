"""The page as files that any static host can serve, without Python: python -m lantern_demo.ui.static OUT [--cells N]

It has the recorded races with their clocks and sliders, the quiz, the video and the captions, by the scripts of the served page.
Look-alikes are decoded ahead, at some cells of every race in all lanes: near misses of LANTERN++, the nearest to the middle of
the picture first. Only these cells can be pressed there.
"""

from __future__ import annotations

import argparse
import gzip
import json
from bisect import bisect_right
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from lantern_demo.ui import extras, quiz, texts
from lantern_demo.ui.components import SCRIPTS, STYLES, script
from lantern_demo.ui.look_alikes import NODES, LookAlikes
from lantern_demo.ui.page import STAGE_SCRIPTS, theme
from lantern_demo.ui.published_sizes import guess_costs
from lantern_demo.ui.recorded import Recorded, cards, recorded_runs
from lantern_demo.ui.run_view import results_view
from lantern_demo.ui.service import Service

CELLS = 12  # of a race at which look-alikes are decoded
HERO = "lantern++"
MOST_BYTES = 3_000_000
SHARED = ("dom", "extras", "charts", "layers")
COMPONENTS = {"examples": ("cards", ("cards",)), "stage": ("stage", STAGE_SCRIPTS), "price": ("price", ("price",))}


def write(out: Path, cells: int = CELLS, runs: Sequence[Recorded] | None = None) -> int:
    """Write the edition into a folder -> its bytes. runs: the races, all recorded ones when left out. Raises ValueError for a
    number of cells that is none, for a folder that has something in it, and for an edition of more than MOST_BYTES."""
    if cells < 1:
        raise ValueError(f"cells must be at least 1, got {cells}")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"out must be a new or an empty folder, got {str(out)!r}")
    runs = recorded_runs() if runs is None else runs
    for folder in ("races", "looks", "recorded", "extras"):
        (out / folder).mkdir(parents=True, exist_ok=True)
    for name, (_, text) in extras.files().items():
        (out / "extras" / name).write_text(text)
    (out / "extras" / "quiz.json").write_text(_compact(quiz.quiz()))
    (out / "style.css").write_text(
        "\n".join([theme()._get_theme_css(), *(path.read_text() for path in (*STYLES, SCRIPTS / "static/page.css"))])
    )
    (out / "index.html").write_text(index(runs))
    service = Service(runs[0].record["model"]["id"], "cpu")
    service.wait()
    alikes = LookAlikes(service)
    for run in runs:
        view = results_view(run.record, run.pictures, run.source, True, sweeps=run.sweeps_told)
        view |= {"name": run.name, "pressable": pressable(view, cells)}
        _pack(out / "races" / f"{run.name}.json.gz", view)
        _pack(out / "looks" / f"{run.name}.json.gz", looks(alikes, view))
        if run.sweeps:
            (out / "recorded" / run.name).mkdir()
            (out / "recorded" / run.name / "sweeps").write_text(_compact(run.sweeps))
        print(f"{run.name}  {run.record['prompt']}: look-alikes at {len(view['pressable'])} cells", flush=True)
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    if size > MOST_BYTES:
        raise ValueError(
            f"cells is {cells}: the edition weighs {size:,} bytes, at most {MOST_BYTES:,} are allowed; ask for fewer"
        )
    return size


def index(runs: Sequence[Recorded]) -> str:
    """The HTML: the components' places, and the scripts that fill them."""
    words = texts.WEB | texts.STATIC | {"sizes": guess_costs()}
    shared = "\n".join([f"const WORDS = {_script_json(words)};", *(script(name) for name in SHARED)])
    parts = "\n".join(
        (
            f'component("{place}", (element, props, trigger, watch, server) => '
            f"{{\n{chr(10).join(script(name) for name in names)}\n}});"
        )
        for place, (_, names) in COMPONENTS.items()
    )
    shown = cards()
    assert shown is not None
    names = {run.record["prompt"] for run in runs}
    known = {**shown, "cards": [card for card in shown["cards"] if card["prompt"] in names]}
    places = "".join(f'<section id="{place}"><div class="{name}"></div></section>' for place, (name, _) in COMPONENTS.items())
    papers = ", ".join(f'<a href="{escape(address)}" rel="noopener">{escape(name)}</a>' for name, address in texts.PAPERS.items())
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(texts.TITLE)}</title><meta name="description" content="{escape(texts.DESCRIPTION)}">
<link rel="icon" href="data:,"><link rel="stylesheet" href="style.css"></head>
<body><main><div id="intro"><h1>{escape(texts.TITLE)}</h1><p>{escape(texts.INTRO)}</p></div>
{places}<footer id="foot"><nav aria-label="{escape(texts.FOOT)}"><span>{papers}</span>
<span>{escape(texts.STATIC_NOTE)}</span></nav></footer></main>
<script>{shared}
const RACES = {_script_json([run.name for run in runs])};
{script("static/page")}
themed();
{parts}
begin({_script_json(known)});</script></body></html>
"""


def pressable(view: dict[str, Any], cells: int) -> list[int]:
    """The cells of a race that can be pressed: near misses of the method that keeps them, the nearest to the picture's middle."""
    lane = next(lane for lane in view["lanes"] if lane["id"] == HERO)
    middle = view["grid"] / 2
    near = [cell for cell, kind in enumerate(lane["kinds"]) if kind == "r"]
    return sorted(
        sorted(near, key=lambda cell: (cell % view["grid"] - middle) ** 2 + (cell // view["grid"] - middle) ** 2)[:cells]
    )


def looks(alikes: LookAlikes, view: dict[str, Any]) -> dict[str, dict[int, dict[str, Any]]]:
    """By lane and cell what the server would answer somebody who looks there."""
    return {lane["id"]: {cell: alikes.look(asked(view, lane, cell)) for cell in view["pressable"]} for lane in view["lanes"]}


def asked(view: dict[str, Any], lane: dict[str, Any], cell: int) -> dict[str, Any]:
    """What web/look.js asks the server of a cell."""
    step = bisect_right(lane["committed"], cell)
    beside = [other["tokens"][cell] for other in view["lanes"] if other["id"] == "vanilla" and other is not lane]
    return {
        "model": view["model"],
        "prompt": view["prompt"],
        "settings": view["settings"],
        "tokens": lane["tokens"],
        "cell": cell,
        "guesses": _guesses(lane, cell, step),
        "beside": beside,
        "tree": _tree(lane, step),
    }


def _guesses(lane: dict[str, Any], cell: int, step: int) -> list[int]:
    """The guesses that were tried for a token, in that order; where tries were not kept, the one that was accepted."""
    if not step:
        return []
    tree, place = lane["trees"][step], cell - lane["committed"][step - 1]
    path, parents = tree["path"], tree["parents"]
    tried = [node for node, *_ in lane["trials"][step] if parents[node] == path[place]]
    own = path[place + 1 : place + 2]
    return list(dict.fromkeys(tree["tokens"][node] for node in tried or own))


def _tree(lane: dict[str, Any], step: int) -> dict[str, Any] | None:
    """The draft tree of a step with the model's own token below the last accepted guess; None where there is none to draw."""
    tree = lane["trees"][step]
    tokens, parents, path = tree["tokens"], tree["parents"], tree["path"]
    if not step or not 1 < len(tokens) < NODES:
        return None
    before, after = lane["committed"][step - 1], lane["committed"][step]
    if after - before >= len(path):
        tokens, parents = [*tokens, lane["tokens"][after - 1]], [*parents, path[-1]]
    return {"tokens": tokens, "parents": parents, "at": before - 1}


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _script_json(value: Any) -> str:
    """JSON that can stand in a script of a page."""
    return _compact(value).replace("<", "\\u003c")


def _pack(path: Path, value: Any) -> None:
    path.write_bytes(gzip.compress(_compact(value).encode(), 9, mtime=0))


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the page as files that any static host can serve, without Python.")
    parser.add_argument("out", type=Path, help="a new folder")
    parser.add_argument("--cells", type=int, default=CELLS, help="cells of a race that can be pressed (default: %(default)s)")
    args = parser.parse_args()
    try:
        size = write(args.out, args.cells)
    except ValueError as error:
        parser.error(str(error))
    print(f"{args.out}  {size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
