"""Train the classifier that reads a picture's attributes: `python -m lantern_demo.training.classifier --out runs/classifier`.

It learns from rendered scenes alone, half of them drawn at twice the size and reduced, softened, shifted in brightness and noised
so that it does not lean on pixels that a tokenizer changes. What it reads off a model's pictures is compared with what it reads
off reconstructions of true scenes.
"""

from __future__ import annotations

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lantern_demo.models import bundled
from lantern_demo.training import run
from lantern_demo.training.scenes import ATTRIBUTES, SIZE, render, sample_scenes
from lantern_demo.training.tokenizer import HELD_OUT


def reduced(images: Tensor) -> Tensor:
    """Pictures [B, 3, H, H] -> the same of SIZE pixels at most."""
    return F.interpolate(images, size=SIZE, mode="area") if images.shape[-1] > SIZE else images


class AttributeClassifier(nn.Module):
    """Pictures [B, 3, H, W] in [0, 1] -> logits [B, classes] per attribute; `features` gives what lies before the last layer.

    Pictures larger than 128 pixels are reduced to that: each pixel is the mean of those in its place.
    """

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for stage in range(4):
            out = width * min(4, 2**stage)
            layers += [nn.Conv2d(channels, out, 3, stride=2, padding=1), nn.BatchNorm2d(out), nn.ReLU()]
            layers += [nn.Conv2d(out, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU()]
            channels = out
        self.body = nn.Sequential(*layers)
        self.mix = nn.Sequential(nn.Linear(channels * 16, 256), nn.ReLU())
        self.heads = nn.ModuleDict({name: nn.Linear(256, len(classes)) for name, classes in ATTRIBUTES.items()})

    def features(self, images: Tensor) -> Tensor:
        """[B, 3, H, W] in [0, 1] -> [B, 256]."""
        return self.mix(F.adaptive_avg_pool2d(self.body(reduced(images) * 2 - 1), 4).flatten(1))

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        seen = self.features(images)
        return {name: head(seen) for name, head in self.heads.items()}

    @torch.no_grad()
    def read(self, images: Tensor) -> dict[str, Tensor]:
        """The most likely class index [B] of every attribute, on the CPU."""
        self.eval()
        return {name: logits.argmax(-1).cpu() for name, logits in self(images).items()}


def load_classifier(folder: Path, device: torch.device) -> AttributeClassifier:
    """The averaged classifier of a training run, or that of a model folder."""
    model = AttributeClassifier().to(device)
    if (folder / "config.json").exists():
        bundled.load_part(folder / "classifier", model)
        return model.eval()
    model.load_state_dict(torch.load(folder / "last.pt", map_location=device, weights_only=True)["average"])
    return model.eval()


def disturb(images: Tensor, g: torch.Generator) -> Tensor:
    """Blur some pictures, change brightness and add noise."""
    b = images.shape[0]
    soft = F.avg_pool2d(F.pad(images, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    images = torch.lerp(images, soft, torch.rand(b, 1, 1, 1, generator=g).to(images.device))
    images = images * (0.9 + 0.2 * torch.rand(b, 1, 1, 1, generator=g)).to(images.device)
    noise = torch.randn(images.shape, generator=g).to(images.device) * (0.04 * torch.rand(b, 1, 1, 1, generator=g)).to(
        images.device
    )
    return (images + noise).clamp(0, 1)


def main() -> None:
    parser = run.parser(__doc__ or "", steps=700, batch=32, lr=2e-3, average=0.99)
    parser.add_argument("--start-from", type=Path, help="a model folder or a run, whose classifier to train further")
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
        both = torch.cat((draw(scenes.rows(half[0])), reduced(draw(scenes.rows(half[1]), 2 * SIZE))))
        images = disturb(both, torch.Generator().manual_seed(seed))
        with torch.autocast(opts.device.type, torch.bfloat16):
            logits = model(images)
        wanted = scenes.attributes()
        right = [(logits[k].argmax(-1) == wanted[k]).float().mean() for k in ATTRIBUTES]
        losses = [F.cross_entropy(logits[k].float(), wanted[k]) for k in ATTRIBUTES]
        return torch.stack(losses).sum(), {"accuracy": torch.stack(right).mean().item()}

    def validate() -> dict[str, float]:
        scenes = sample_scenes(200, HELD_OUT + 50)
        parts = [scenes.rows(slice(i, i + 25)).to(opts.device) for i in range(0, 200, 25)]
        found = {}
        for size, name in ((SIZE, "held_out"), (2 * SIZE, f"held_out_{2 * SIZE}")):
            read = model.read(torch.cat([reduced(render(part, size)) for part in parts]))
            found.update({f"{name}_{k}": (read[k] == v).float().mean().item() for k, v in scenes.attributes().items()})
        return found

    run.train(model, opts, batch_loss, validate)


if __name__ == "__main__":
    main()
