"""Does a picture show what was asked for? `python -m lantern_demo.bench.quality --pictures 200`.

A classifier trained on rendered scenes reads the attributes off pictures of prompts that name them all. Its readings of true
scenes, and of the tokenizer's reconstructions of them, are the ceiling that a model's pictures are held against.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from lantern_demo.bench.__main__ import scene_prompts
from lantern_demo.decoding.methods import METHODS
from lantern_demo.models import bundled
from lantern_demo.models.registry import model_info
from lantern_demo.pipeline import Pipeline, load
from lantern_demo.training.classifier import AttributeClassifier
from lantern_demo.training.sample import encode_prompts, sample_batch
from lantern_demo.training.scenes import ATTRIBUTES, render, sample_scenes
from lantern_demo.training.tokenizer import HELD_OUT

Accuracy = dict[str, float]


def accuracy(classifier: AttributeClassifier, images: Tensor, wanted: dict[str, Tensor]) -> Accuracy:
    """The share of pictures [B, 3, H, W] on which each attribute is read as wanted [B]."""
    read: dict[str, list[Tensor]] = {name: [] for name in ATTRIBUTES}
    for part in images.split(50):
        for name, classes in classifier.read(part).items():
            read[name].append(classes)
    return {name: (torch.cat(read[name]) == wanted[name]).float().mean().item() for name in ATTRIBUTES}


def ceiling(pipe: Pipeline, classifier: AttributeClassifier, count: int) -> tuple[Accuracy, Accuracy]:
    """Accuracy on held-out true scenes and on their reconstructions."""
    scenes = [sample_scenes(50, HELD_OUT + 100 + part) for part in range(max(1, count // 50))]
    wanted = {name: torch.cat([s.attributes()[name] for s in scenes]) for name in ATTRIBUTES}
    images = torch.cat([render(s.to(pipe.device)) for s in scenes])
    with torch.inference_mode():
        again = torch.cat([pipe.networks.tokenizer.decode(pipe.networks.tokenizer.encode(part)) for part in images.split(50)])
    return accuracy(classifier, images, wanted), accuracy(classifier, again, wanted)


def drawn_by(pipe: Pipeline, method: str, prompts: list[str]) -> Tensor:
    """One picture per prompt -> [B, 3, H, W] in [0, 1]; vanilla in batches where that has the same law, which is faster."""
    tokens: list[Tensor] = []
    if method == "vanilla" and pipe.dtype == "float32":
        networks, batches = pipe.networks, [prompts[i : i + 50] for i in range(0, len(prompts), 50)]
        for seed, batch in enumerate(tqdm(batches, desc=method)):
            tokens.append(
                sample_batch(networks.target, *encode_prompts(networks.text, batch, pipe.device), pipe.defaults.sampling(), seed)
            )
    else:
        for seed, prompt in enumerate(tqdm(prompts, desc=method)):
            tokens.append(torch.tensor([pipe.generate(prompt, method, seed=seed).tokens]))
    with torch.inference_mode():
        return torch.cat([pipe.networks.tokenizer.decode(t.to(pipe.device)) for t in torch.cat(tokens).split(50)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--model", default="lantern-scenes", help="registry id")
    parser.add_argument("--pictures", type=int, default=200, help="pictures per method")
    parser.add_argument("--methods", nargs="+", default=["vanilla"], choices=list(METHODS))
    parser.add_argument("--dtype", default="auto", help="of target and drafter")
    parser.add_argument("--out", type=Path, help="where to write the accuracies as JSON")
    args = parser.parse_args()
    folder = model_info(args.model).folder
    if folder is None:
        parser.error(f"--model must draw lantern scenes, which the classifier reads; {args.model} does not")
    pipe = load(args.model, dtype=args.dtype)
    classifier = AttributeClassifier().to(pipe.device)
    bundled.load_part(folder / "classifier", classifier)
    prompts = scene_prompts(args.pictures, seed=1)
    wanted = {name: torch.tensor([p["attributes"][name] for p in prompts]) for name in ATTRIBUTES}
    true, again = ceiling(pipe, classifier, args.pictures)
    rows = {"true scenes": true, "reconstructions": again}
    for method in args.methods:
        rows[method] = accuracy(classifier, drawn_by(pipe, method, [p["prompt"] for p in prompts]), wanted)
    if args.out:
        args.out.write_text(json.dumps({"pictures": args.pictures, "accuracy": rows}, indent=1) + "\n")
    print(f"| {args.pictures} pictures each | " + " | ".join(ATTRIBUTES) + " |")
    print("|---|" + "--:|" * len(ATTRIBUTES))
    for name, row in rows.items():
        print(f"| {name} | " + " | ".join(f"{100 * v:.1f} %" for v in row.values()) + " |")


if __name__ == "__main__":
    main()
