"""Train the classifier that reads a picture's attributes.

It learns from rendered scenes alone. They are bent, blurred and disturbed, so that it reads shapes as a person does: from a
picture with wrong tokens too.
`bench quality` compares its readings of a model's pictures with those of reconstructions of true scenes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.make_bundled_model.emoji import sprites
from examples.make_bundled_model.render import SIZE, Renderer, sample_scenes
from examples.make_bundled_model.tokenizer import HELD_OUT
from lantern_demo.bench.quality.classifier import SEEN, AttributeClassifier, load_classifier
from lantern_demo.scenes import ATTRIBUTES
from lantern_demo.training import run

VALIDATED = 400  # held-out scenes of a validation
BATCH = 25  # of them at a time
CELL = SEEN // 16  # pixels a side of a token
WARP, SHIFTED = 0.05, 0.2  # most that places are bent, in half widths; largest share of cells that are shifted


def warp(b: int, g: torch.Generator) -> Tensor:
    """Return the places [B, H, W, 2] that a disturbed picture's pixels are read from: bent, and some cells of a token's size
    shifted, as where a model drew a wrong token."""
    smooth = torch.randn(b, 2, 6, 6, generator=g) * (WARP * torch.rand(b, 1, 1, 1, generator=g))
    cells = SEEN // CELL
    shifted = (torch.rand(b, 1, cells, cells, generator=g) < SHIFTED * torch.rand(b, 1, 1, 1, generator=g)).float()
    shift = shifted * (2 * CELL / SEEN) * (2 * torch.rand(b, 2, cells, cells, generator=g) - 1)
    moved = F.interpolate(smooth, SEEN, mode="bicubic", align_corners=False) + F.interpolate(shift, SEEN)
    still = F.affine_grid(torch.eye(2, 3).expand(b, 2, 3), [b, 3, SEEN, SEEN], align_corners=False)
    return still + moved.permute(0, 2, 3, 1)


def disturb(images: Tensor, g: torch.Generator) -> Tensor:
    """Bend and blur some pictures, shift cells, change brightness and add noise: pictures [B, 3, H, W], H = W = SEEN."""
    b = images.shape[0]
    images = F.grid_sample(images, warp(b, g).to(images.device), padding_mode="border", align_corners=False)
    for _ in range(2):
        soft = F.avg_pool2d(F.pad(images, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
        images = torch.lerp(images, soft, torch.rand(b, 1, 1, 1, generator=g).to(images.device))
    images = images * (0.9 + 0.2 * torch.rand(b, 1, 1, 1, generator=g)).to(images.device)
    noise = torch.randn(images.shape, generator=g).to(images.device) * (0.04 * torch.rand(b, 1, 1, 1, generator=g)).to(
        images.device
    )
    return (images + noise).clamp(0, 1)


def main() -> None:
    parser = run.parser(__doc__ or "", steps=2400, batch=48, lr=2e-3, average=0.99)
    parser.add_argument("--start-from", type=Path, help="a model folder or a run, whose classifier to train further")
    args = parser.parse_args()
    opts = run.options(args)
    renderer = Renderer(sprites(), opts.device)
    model = AttributeClassifier().to(opts.device)
    if args.start_from is not None:
        model.load_state_dict(load_classifier(args.start_from, opts.device).state_dict())

    def batch_loss(step: int) -> tuple[Tensor, dict[str, Tensor]]:
        seed = opts.batch_seed(step)
        scenes = sample_scenes(opts.batch, seed)
        images = disturb(renderer(scenes, SEEN)[:, :3], torch.Generator().manual_seed(seed))
        with torch.autocast(opts.device.type, torch.bfloat16):
            logits = model(images)
        wanted = {name: values.to(opts.device) for name, values in scenes.attributes().items()}
        right = [(logits[k].argmax(-1) == wanted[k]).float().mean() for k in ATTRIBUTES]
        losses = [F.cross_entropy(logits[k].float(), wanted[k]) for k in ATTRIBUTES]
        return torch.stack(losses).sum(), {"accuracy": torch.stack(right).mean(), "noun": right[0]}

    def validate() -> dict[str, float]:
        right = dict.fromkeys(ATTRIBUTES, 0.0)
        for part in range(VALIDATED // BATCH):
            scenes = sample_scenes(BATCH, HELD_OUT + 50 + part)
            read = model.read(renderer(scenes, SIZE)[:, :3])
            for name, values in scenes.attributes().items():
                right[name] += (read[name] == values).float().sum().item() / VALIDATED
        return {f"held_out_{name}": share for name, share in right.items()}

    run.train(model, opts, batch_loss, validate)


if __name__ == "__main__":
    main()
