"""Draw every example of the page with the default methods on this machine, and keep the runs.

python examples/record_examples.py [--out FOLDER]

Visitors see their times, so let nothing else run. Then vanilla draws every thing for its chip, as
"a cat", and lanterns as the usual ones. All have the default seed: no picture is chosen.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from PIL import Image

from lantern_demo import load
from lantern_demo.bench.report import parser_of
from lantern_demo.paths import user_path
from lantern_demo.prompt_words import USUAL
from lantern_demo.runs.pipeline import Pipeline
from lantern_demo.runs.result import Result, record_of
from lantern_demo.scenes import THINGS, with_article
from lantern_demo.settings.knobs import DEFAULT_SEED
from lantern_demo.ui import recorded, texts


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument(
        "--out",
        type=user_path,
        default=recorded.FOLDER,
        help="folder for the runs (default: the package's own)",
    )
    out = parser.parse_args().out

    pipe = load("lantern-scenes")
    out.mkdir(parents=True, exist_ok=True)
    for number, prompt in enumerate(texts.EXAMPLES, 1):
        done = {
            method: event
            for method, event in pipe.compare(prompt, seed=DEFAULT_SEED)
            if isinstance(event, Result)
        }
        record = record_of(done.values())
        # methods end in another order
        pictures = {method: done[method].image for method in record["order"]}
        path = out / f"{number:02d}.json.gz"
        recorded.save(path, record, pictures)
        numbers = "  ".join(
            f"{name} {entry['speedup']:.2f}x" for name, entry in record["methods"].items()
        )
        print(f"{path.name}  {path.stat().st_size / 1024:.0f} KB  {prompt}: {numbers}", flush=True)
    path = out / recorded.THINGS.name
    things(pipe).save(path, quality=80, method=6)
    print(f"{path.name}  {path.stat().st_size / 1024:.0f} KB")


def things(pipe: Pipeline) -> Image.Image:
    """Draw lanterns and every thing -> their pictures in a row, in the order of `ask.PICTURES`."""
    row = Image.new("RGB", ((1 + len(THINGS)) * recorded.CHIP, recorded.CHIP))
    for place, prompt in enumerate([USUAL, *map(with_article, THINGS)]):
        picture = pipe.generate(prompt, "vanilla", seed=DEFAULT_SEED).image
        small = picture.resize((recorded.CHIP,) * 2, Image.Resampling.LANCZOS)
        row.paste(small, (place * recorded.CHIP, 0))
    return row


if __name__ == "__main__":
    main()
