"""Count how many of a target's pictures show what their captions say.

The target draws random scenes by vanilla decoding in batches, and the classifier reads the pictures. The sheet shows the first
60. The script also prints the medians, over tokens, of the highest probability and of the entropy.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.make_bundled_model import tokenizer
from examples.make_bundled_model.render import contact_sheet
from lantern_demo.bench.quality.classifier import load_classifier
from lantern_demo.decoding.sampling import Sampling, probabilities
from lantern_demo.scenes import ATTRIBUTES, caption, some_scene
from lantern_demo.training.drafter import load_target
from lantern_demo.training.own import encode_prompts, sample_batch

CPU = torch.device("cpu")
BATCH, SHOWN, COLUMNS = 50, 60, 10


@torch.inference_mode()
def sharpness(target: Any, features: Tensor, mask: Tensor | None, ids: Tensor, sampling: Sampling) -> tuple[Tensor, Tensor]:
    """Return the highest probability and the entropy in nats, [B * N] each, of the distributions that drew ids [B, N]."""
    condition = target.condition(features, mask, True)
    hidden = target.train_hidden(ids[:, :-1].repeat(2, 1), condition.features, condition.mask)[:, -ids.shape[1] :]
    cond, uncond = target.head(hidden[..., : target.config.dim]).chunk(2)
    probs = probabilities(uncond + sampling.cfg_scale * (cond - uncond), sampling).flatten(0, 1)
    return probs.amax(-1), -torch.xlogy(probs, probs).sum(-1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    for part in ("target", "tokenizer", "classifier"):
        parser.add_argument(f"--{part}", type=Path, required=True, help="a run or a model folder")
    parser.add_argument("--out", type=Path, required=True, help="file for the sheet of pictures")
    parser.add_argument("--pictures", type=int, default=500)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--temperature", type=float, default=1.2)
    parser.add_argument("--top-k", type=int, default=0)
    parser.add_argument("--top-p", type=float, default=1.0)
    parser.add_argument("--cfg-scale", type=float, default=3.0)
    args = parser.parse_args()
    sampling = Sampling(args.temperature, args.top_k, args.top_p, args.cfg_scale)
    (target, text), pictures = load_target(args.target, CPU), tokenizer.load(args.tokenizer)
    classifier, rng = load_classifier(args.classifier, CPU), random.Random(args.seed)
    scenes = [some_scene(rng) for _ in range(args.pictures)]
    captions = [caption(scene, rng) for scene in scenes]
    drawn, tops, entropies = [], [], []
    for first in range(0, args.pictures, BATCH):
        condition = encode_prompts(text, captions[first : first + BATCH], CPU)
        ids = sample_batch(target, *condition, sampling, args.seed + first)
        for found, one in zip((tops, entropies), sharpness(target, *condition, ids, sampling), strict=True):
            found.append(one)
        with torch.inference_mode():
            drawn.append(pictures.picture(pictures.tokenizer.vectors(ids)))
    images = torch.cat(drawn)
    contact_sheet(images[:SHOWN], COLUMNS).save(args.out)
    read = classifier.read(images)
    right = {name: read[name] == torch.tensor([scene[name] for scene in scenes]) for name in ATTRIBUTES}
    right["everything"] = torch.stack(list(right.values())).all(0)
    counts = torch.tensor([scene["count"] for scene in scenes])
    for label, rows in [("all", counts >= 0), *((f"of {n + 1}", counts == n) for n in sorted(set(counts.tolist())))]:
        shares = "  ".join(f"{name} {100 * found[rows].float().mean():.1f} %" for name, found in right.items())
        print(f"{label}: {int(rows.sum())} pictures  {shares}")
    print(f"median highest probability {torch.cat(tops).median():.3f}, entropy {torch.cat(entropies).median():.3f} nats")


if __name__ == "__main__":
    main()
