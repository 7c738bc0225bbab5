"""Train the classifier that reads a picture's attributes.

It learns from rendered scenes alone. Half of them are drawn at twice the size and reduced. Blur,
brightness shifts and noise keep it from relying on pixels that a tokenizer changes. Its readings of
a model's pictures are compared with those of reconstructions of true scenes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.make_bundled_model.lanterns import HELD_OUT, SIZE, render, sample_scenes
from examples.quality.classifier import AttributeClassifier, load_classifier, reduced
from examples.train_drafter import run
from lantern_demo.paths import user_path
from lantern_demo.scenes import ATTRIBUTES

VALIDATED = 200  # held-out scenes of a validation
BATCH = 25  # of them at a time


def disturb(images: Tensor, g: torch.Generator) -> Tensor:
    """Blur some pictures, change brightness and add noise."""
    b = images.shape[0]
    soft = F.avg_pool2d(F.pad(images, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    images = torch.lerp(images, soft, torch.rand(b, 1, 1, 1, generator=g).to(images.device))
    images = images * (0.9 + 0.2 * torch.rand(b, 1, 1, 1, generator=g)).to(images.device)
    noise = torch.randn(images.shape, generator=g).to(images.device) * (
        0.04 * torch.rand(b, 1, 1, 1, generator=g)
    ).to(images.device)
    return (images + noise).clamp(0, 1)


def main() -> None:
    parser = run.parser(__doc__ or "", steps=700, batch=32, lr=2e-3, average=0.99)
    parser.add_argument(
        "--start-from",
        type=user_path,
        help="a model folder or a run, whose classifier to train further",
    )
    args = parser.parse_args()
    opts = run.options(args)
    model = AttributeClassifier().to(opts.device)
    if args.start_from is not None:
        model.load_state_dict(load_classifier(args.start_from, opts.device).state_dict())
    draw = torch.compile(render) if opts.compile else render

    def batch_loss(step: int) -> tuple[Tensor, dict[str, float]]:
        seed = opts.batch_seed(step)
        scenes = sample_scenes(opts.batch, seed).to(opts.device)
        half = slice(opts.batch // 2), slice(opts.batch // 2, None)
        both = torch.cat(
            (draw(scenes.rows(half[0])), reduced(draw(scenes.rows(half[1]), 2 * SIZE)))
        )
        images = disturb(both, torch.Generator().manual_seed(seed))
        with run.cast(opts.device):
            logits = model(images)
        wanted = scenes.attributes()
        right = [(logits[k].argmax(-1) == wanted[k]).float().mean() for k in ATTRIBUTES]
        losses = [F.cross_entropy(logits[k].float(), wanted[k]) for k in ATTRIBUTES]
        return torch.stack(losses).sum(), {"accuracy": torch.stack(right).mean().item()}

    def validate() -> dict[str, float]:
        scenes = sample_scenes(VALIDATED, HELD_OUT + 50)
        parts = [
            scenes.rows(slice(i, i + BATCH)).to(opts.device) for i in range(0, VALIDATED, BATCH)
        ]
        found = {}
        for size, name in ((SIZE, "held_out"), (2 * SIZE, f"held_out_{2 * SIZE}")):
            read = model.read(torch.cat([reduced(render(part, size)) for part in parts]))
            found.update(
                {
                    f"{name}_{k}": (read[k] == v).float().mean().item()
                    for k, v in scenes.attributes().items()
                }
            )
        return found

    run.train(model, opts, batch_loss, validate)


if __name__ == "__main__":
    main()
