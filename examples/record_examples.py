"""Record the examples again on this machine: python examples/record_examples.py [--out FOLDER] [--count N]

With --redraw the runs stay, and another picture decoder draws their pictures from their tokens.
"""

from __future__ import annotations

import argparse
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from lantern_demo import load
from lantern_demo.runs.pipeline import Generation, Pipeline
from lantern_demo.runs.record import image_hash, merge_records
from lantern_demo.ui import recorded, texts
from lantern_demo.ui.run_view import picture_address
from lantern_demo.ui.sweep import recorded_sweep

RECORDED = ("lambda", "delta")  # the knobs whose sweeps come with an example

REDRAWN = " The pictures were drawn anew from the tokens on {date}, by a later decoder than the one whose time image_seconds are."


def redrawn(pipe: Pipeline, record: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Image.Image]]:
    """Return a run whose pictures are drawn again from its tokens, and the pictures by method.

    All times of the run stay. `how_timed` states that the pictures are later."""
    pictures = {name: pipe.decode_image(entry["token_ids"]) for name, entry in record["methods"].items()}
    entries = {name: {**entry, "image_sha256": image_hash(pictures[name])} for name, entry in record["methods"].items()}
    how = record["how_timed"].split(REDRAWN.partition("{date}")[0])[0]  # one such sentence, the latest
    told = how + REDRAWN.format(date=datetime.now(timezone.utc).date().isoformat())
    model = {**record["model"], "trained": pipe.networks.trained}
    return {**record, "model": model, "how_timed": told, "methods": entries}, pictures


def redrawn_sweep(pipe: Pipeline, sweep: dict[str, Any]) -> dict[str, Any]:
    """Return a sweep whose pictures are drawn again from their tokens."""
    points = [point | {"picture": picture_address(pipe.decode_image(point["token_ids"]))} for point in sweep["points"]]
    return {**sweep, "points": points}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=(
            "Draw every example of the page with all methods and keep the runs. What it times is shown to visitors: let "
            "nothing else run."
        )
    )
    parser.add_argument("--out", type=Path, default=recorded.FOLDER, help="folder for the runs (default: the package's own)")
    parser.add_argument("--count", type=int, default=len(texts.EXAMPLES), help="only the first N examples")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: %(default)s)")
    parser.add_argument("--redraw", action="store_true", help="keep the runs, draw their pictures anew from their tokens")
    args = parser.parse_args()

    pipe = load("lantern-emoji", args.device)
    if args.redraw:
        for path in sorted(args.out.glob("*.json.gz")):
            kept = recorded.read(path)
            recorded.save(path, *redrawn(pipe, kept.record), [redrawn_sweep(pipe, sweep) for sweep in kept.sweeps])
            print(f"{path.name}  {path.stat().st_size / 1024:.0f} KB", flush=True)
        return
    args.out.mkdir(parents=True, exist_ok=True)
    for number, (prompt, seed) in enumerate(texts.EXAMPLES[: args.count], 1):
        pictures: dict[str, Image.Image] = {}
        records = []
        for method, event in pipe.compare(prompt, seed=seed):
            if isinstance(event, Generation):
                pictures[method] = event.image
                records.append(event.record)
        record = merge_records(records)
        pictures = {method: pictures[method] for method in record["order"]}  # methods end in another order
        path = args.out / f"{number:02d}.json.gz"
        recorded.save(path, record, pictures, [recorded_sweep(pipe, prompt, seed, name) for name in RECORDED])
        numbers = "  ".join(f"{name} {entry['speedup']:.2f}x" for name, entry in record["methods"].items())
        print(f"{path.name}  {path.stat().st_size / 1024:.0f} KB  {prompt}: {numbers}", flush=True)


if __name__ == "__main__":
    main()
