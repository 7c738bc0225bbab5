"""Draw the pairs of the quiz anew: python -m lantern_demo.ui.record_quiz [--out FILE]

A pair is one prompt with one seed, drawn by vanilla and by LANTERN++ with the preset's settings. The prompts are the first ten of
`prompts`, and the seeds their numbers: whatever comes out is kept, and nobody chooses.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from lantern_demo import load
from lantern_demo.models.registry import ModelInfo
from lantern_demo.scenes import worded
from lantern_demo.ui.prompt_words import phrasebook
from lantern_demo.ui.quiz import FILE, METHODS_OF_A_PAIR
from lantern_demo.ui.run_view import picture_address

PAIRS, SEED = 10, 2026


def prompts(info: ModelInfo, seed: int) -> Iterator[tuple[str, bool]]:
    """Prompts without end, every part of each drawn at random, and of each whether vanilla's picture stands on the left."""
    book, dice = phrasebook(info), random.Random(seed)
    if book is None:
        raise ValueError(f"model must be one with a vocabulary of its own, got {info.id}")
    while True:
        said = {part: dice.choice(options)[0] for part, options in book.parts.items()}
        yield worded(said), dice.random() < 0.5


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the pairs of the quiz anew, and keep them.")
    parser.add_argument("--out", type=Path, default=FILE, help="file for the pairs (default: the package's own)")
    args = parser.parse_args()
    pipe = load("lantern-scenes", "cpu")
    pairs: list[dict[str, Any]] = []
    record: dict[str, Any] = {}
    for seed, (prompt, plain_left) in zip(range(PAIRS), prompts(pipe.info, SEED), strict=False):
        drawn = {method: pipe.generate(prompt, method, seed=seed) for method in METHODS_OF_A_PAIR}
        record = drawn["vanilla"].record
        shown = METHODS_OF_A_PAIR if plain_left else METHODS_OF_A_PAIR[::-1]
        pairs.append(
            {
                "prompt": prompt,
                "seed": seed,
                "pictures": [{"method": name, "picture": picture_address(drawn[name].image, 80)} for name in shown],
                "steps": {name: one.stats.steps for name, one in drawn.items()},
                "price": drawn["lantern++"].stats.price,
            }
        )
        print(f"{seed + 1} of {PAIRS}  {prompt}", flush=True)
    whole = {
        "model": record["model"]["id"],
        "settings": {**record["settings"], "seed": None},
        "device": record["device"],
        "created": datetime.now(timezone.utc).date().isoformat(),
        "prompts_seed": SEED,
        "pairs": pairs,
    }
    args.out.write_text(json.dumps(whole, indent=1) + "\n")
    print(f"{args.out}  {args.out.stat().st_size / 1024:.0f} KB")


if __name__ == "__main__":
    main()
