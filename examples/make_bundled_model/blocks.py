"""Measure what each block of a target is worth.

    python examples/make_bundled_model/blocks.py --model FOLDER

Prints the loss on held-out scenes in nats a token, and how much it rises without each block.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

import torch
import torch.nn.functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.make_bundled_model.lanterns import HELD_OUT
from examples.make_bundled_model.networks import BUNDLED, left_out
from examples.make_bundled_model.target import Captions, TextToTokens, scene_tokens
from lantern_demo.models import bundled
from lantern_demo.paths import user_path

BATCH = 50


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=user_path, default=BUNDLED, help="a model folder")
    parser.add_argument("--scenes", type=int, default=200, help="held-out scenes")
    args = parser.parse_args()
    cpu = torch.device("cpu")
    networks = bundled.load(args.model, cpu)
    model = TextToTokens(networks.target.config).eval()
    model.text, model.target = networks.text, networks.target
    ids, attributes = scene_tokens(networks.tokenizer, args.scenes, HELD_OUT, cpu, False)
    captions = Captions(attributes)(torch.arange(len(ids)), random.Random(0))

    @torch.inference_mode()
    def loss(block: int | None) -> float:
        total = 0.0
        with left_out(model.target, block):
            for first in range(0, len(ids), BATCH):
                tokens = ids[first : first + BATCH].long()
                words, mask = model.text.ids(captions[first : first + BATCH])
                nobody = torch.zeros(len(tokens), dtype=torch.bool)
                logits = model(words, mask, tokens, nobody)
                total += F.cross_entropy(
                    logits.flatten(0, 1), tokens.flatten(), reduction="sum"
                ).item()
        return total / ids.numel()

    whole = loss(None)
    print(f"whole: {whole:.4f} nats a token on {len(ids)} held-out scenes")
    for block in range(model.target.config.layers):
        print(f"without block {block + 1:2}: {loss(block) - whole:+.4f}", flush=True)


if __name__ == "__main__":
    main()
