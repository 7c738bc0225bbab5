"""Record the examples anew on this machine: python -m lantern_demo.ui.record_examples [--out FOLDER] [--count N]"""

from __future__ import annotations

import argparse
from pathlib import Path

from PIL import Image

from lantern_demo import load
from lantern_demo.pipeline import Generation
from lantern_demo.record import merge_records
from lantern_demo.ui import recorded, texts
from lantern_demo.ui.sweep import recorded_sweep

RECORDED = ("lambda", "delta")  # the knobs whose sweeps come with an example


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Draw every example of the page with all methods and keep the runs. What it times is shown to visitors: let nothing else run."
    )
    parser.add_argument("--out", type=Path, default=recorded.FOLDER, help="folder for the runs (default: the package's own)")
    parser.add_argument("--count", type=int, default=len(texts.EXAMPLES), help="only the first N examples")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N (default: %(default)s)")
    args = parser.parse_args()

    pipe = load("lantern-scenes", args.device)
    args.out.mkdir(parents=True, exist_ok=True)
    for number, (prompt, seed) in enumerate(texts.EXAMPLES[: args.count], 1):
        pictures: dict[str, Image.Image] = {}
        records = []
        for method, event in pipe.compare(prompt, seed=seed):
            if isinstance(event, Generation):
                pictures[method] = event.image
                records.append(event.record)
        record = merge_records(records)
        path = args.out / f"{number:02d}.json.gz"
        recorded.save(path, record, pictures, [recorded_sweep(pipe, prompt, seed, name) for name in RECORDED])
        numbers = "  ".join(f"{name} {entry['speedup']:.2f}x" for name, entry in record["methods"].items())
        print(f"{path.name}  {path.stat().st_size / 1024:.0f} KB  {prompt}: {numbers}", flush=True)


if __name__ == "__main__":
    main()
