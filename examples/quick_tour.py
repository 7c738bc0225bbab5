"""A tour of the Python interface: draw one prompt with every default method, compare them, then
turn a knob.

python examples/quick_tour.py [--out FOLDER]
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
if __name__ == "__main__":
    from lantern_demo.shutdown import stop_at_once

    stop_at_once()  # the imports below take seconds

from lantern_demo import load
from lantern_demo.bench.report import parser_of
from lantern_demo.paths import user_path
from lantern_demo.runs.result import Result

PROMPT = "three red round lanterns over a lake at dusk with a full moon"


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument(
        "--out", type=user_path, default=Path("tour"), help="folder for the pictures"
    )
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    pipe = load("lantern-scenes")

    print("Every default method on one prompt and seed:")
    # The other events are Steps with their committed tokens. The fastest method ends first.
    done = {
        method: event for method, event in pipe.compare(PROMPT, seed=7) if isinstance(event, Result)
    }
    for method, result in done.items():
        result.image.save(out / f"{method}.png")
        print(
            f"  {method:10} {result.decode_seconds:6.2f} s  "
            f"{done['vanilla'].decode_seconds / result.decode_seconds:5.2f}x  "
            f"{result.mean_accepted_length:.2f} tokens a step  {result.changed:4.0%} look-alikes"
        )

    print("LANTERN++ at looser and looser bounds:")
    for bound in (1.0, 2.0, 5.0, 10.0):
        settings = {"lanternpp_lambda": bound, "noise": "independent"}
        result = pipe.generate(PROMPT, method="lantern++", seed=7, **settings)
        print(
            f"  lambda {bound:4.1f}  {result.mean_accepted_length:.2f} tokens a step  "
            f"{result.changed:4.0%} look-alikes"
        )


if __name__ == "__main__":
    main()
