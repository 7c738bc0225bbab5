"""Combine trained parts into a model folder, with the numbers of their training.

Each part comes from a training run or from another model folder. The target is stored in 8 bits.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.make_bundled_model.picture import load_picture_decoder
from examples.make_bundled_model.tokenizer import load_image_tokenizer
from examples.quality.classifier import load_classifier
from examples.train_drafter.drafter import load_target
from lantern_demo.models import bundled
from lantern_demo.models.device import device_name
from lantern_demo.models.llamagen import Drafter
from lantern_demo.models.registry import DrafterConfig
from lantern_demo.paths import user_path


def load_drafter(folder: Path, device: torch.device) -> Drafter:
    """Load the drafter of a model folder, or the averaged one of a training run.

    Raises ValueError for a folder without one.
    """
    if (folder / "config.json").exists():
        found = bundled.load(folder, device).drafter
        if found is None:
            raise ValueError(f"{folder} has no drafter")
        return found
    weights = torch.load(folder / "last.pt", map_location=device, weights_only=True)["average"]
    drafter = Drafter(
        DrafterConfig(**json.loads((folder / "drafter.json").read_text(encoding="utf-8")))
    ).to(device)
    drafter.load_state_dict(weights)
    return drafter.eval()


def training_facts(folder: Path, part: str) -> dict[str, Any]:
    """Return steps, seconds and the last validation of a run from its log, or a part's entry in a
    model folder's config.
    """
    if (folder / "config.json").exists():
        told: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))[
            "trained"
        ][part]
        return told
    lines = [
        json.loads(line) for line in (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()
    ]
    held_out = next(line for line in reversed(lines) if any(k.startswith("held_out") for k in line))
    return {
        k: v for k, v in held_out.items() if k.startswith(("held_out", "codes", "step", "seconds"))
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    for part in ("tokenizer", "target", "drafter", "out"):
        parser.add_argument(f"--{part}", type=user_path, required=True)
    parser.add_argument(
        "--picture",
        type=user_path,
        help="a picture decoder's run; without it the tokenizer draws the pictures",
    )
    parser.add_argument(
        "--classifier",
        type=user_path,
        help="a classifier run; the quality benchmark reads pictures with it",
    )
    parser.add_argument(
        "--machine",
        default=device_name(torch.device("cpu")),
        help="what it was trained on, in words",
    )
    args = parser.parse_args()
    cpu = torch.device("cpu")
    target, text = load_target(args.target, cpu)
    tokenizer = load_image_tokenizer(args.tokenizer, cpu)
    picture = None if args.picture is None else load_picture_decoder(args.picture, tokenizer, cpu)
    given = [
        part
        for part in ("tokenizer", "picture", "target", "drafter")
        if getattr(args, part) is not None
    ]
    trained = {part: training_facts(getattr(args, part), part) for part in given}
    networks = bundled.Networks(
        text,
        target,
        load_drafter(args.drafter, cpu),
        tokenizer,
        {"machine": args.machine, **trained},
        picture=picture,
    )
    bundled.save(args.out, networks, eight_bits=True)
    if args.classifier is not None:
        bundled.save_part(
            args.out / "classifier", load_classifier(args.classifier, cpu), torch.float16
        )
    for path in sorted(args.out.rglob("*.*")):
        print(f"{path.stat().st_size / 1e6:8.2f} MB  {path}")


if __name__ == "__main__":
    main()
