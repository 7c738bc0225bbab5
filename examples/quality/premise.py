"""Test the premise of LANTERN: codebook neighbours look alike.

    python examples/quality/premise.py [--out FOLDER] [--pictures N]

Every token of true scenes is replaced by its n-th codebook neighbour, or by a random token.
premise.webp shows some of the scenes. premise.json has the PSNR to the pictures of the true tokens,
and the share of pictures that still show the caption.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import json

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from examples.make_bundled_model import emoji
from examples.make_bundled_model.scenes import Renderer, add_sprites
from examples.quality.classifier import load_classifier
from examples.quality.scenes import ALL, SEEDS, draw_truth, drawn, read, true_tokens, truth
from lantern_demo import load
from lantern_demo.bench.report import now, parser_of
from lantern_demo.models.tokenizer import neighbour_table
from lantern_demo.paths import user_path

RANKS = (1, 10, 100, 300)
SHOWN, TILE, LEGEND = 4, 144, 24  # scenes of the sheet; pixels


def replaced(tokens: Tensor, codebook: Tensor) -> dict[str, Tensor]:
    """Return tokens [P, N], unchanged and with every token replaced, by a name."""
    near = neighbour_table(codebook, max(RANKS)).long()
    generator = torch.Generator().manual_seed(0)
    neighbours = {f"neighbour {rank}": near[tokens, rank - 1] for rank in RANKS}
    return {
        "true tokens": tokens,
        **neighbours,
        "random token": torch.randint(len(codebook), tokens.shape, generator=generator),
    }


def sheet(pictures: dict[str, Tensor]) -> Image.Image:
    """Draw a column for each name, from its pictures [P, 3, H, W]: one of each caption."""
    image = Image.new("RGB", (len(pictures) * TILE, LEGEND + SHOWN * TILE), "white")
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(14)
    for column, (name, some) in enumerate(pictures.items()):
        draw.text((column * TILE + TILE / 2, LEGEND / 2), name, "black", font, "mm")
        for row, pixels in enumerate(
            (some[::SEEDS][:SHOWN] * 255).round().byte().permute(0, 2, 3, 1).numpy()
        ):
            tile = Image.fromarray(pixels).resize((TILE - 2, TILE - 2), Image.Resampling.LANCZOS)
            image.paste(tile, (column * TILE + 1, LEGEND + row * TILE + 1))
    return image


@torch.inference_mode()
def main() -> None:
    parser = parser_of(__doc__)
    here = Path(__file__).parents[1]
    parser.add_argument("--out", type=user_path, default=here, help="folder for what it writes")
    parser.add_argument("--pictures", type=int, default=400)
    add_sprites(parser)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    pipe = load("lantern-scenes", "cpu")
    try:
        scenes, networks = truth(args.pictures), pipe.networks
    except ValueError as error:
        parser.error(str(error))
    classifier = load_classifier(pipe.info.folder, pipe.device)
    renderer = Renderer(emoji.read(args.sprites), pipe.device)
    tokens = true_tokens(networks, draw_truth(renderer, scenes.scenes))
    pictures = {
        name: drawn(networks, ids)
        for name, ids in replaced(tokens, networks.tokenizer.codebook).items()
    }
    rows = []
    for name, some in pictures.items():
        error = (some - pictures["true tokens"]).square().mean((1, 2, 3))
        found = read(classifier, some, scenes.wanted)[ALL].mean()
        rows.append(
            {
                "tokens": name,
                "psnr": (-10 * error.log10()).mean().item() if error.any() else None,
                "share": float(found),
            }
        )
    report = {"created": now(), "pictures": args.pictures, "rows": rows}
    (args.out / "premise.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    sheet(pictures).save(args.out / "premise.webp", quality=85)


if __name__ == "__main__":
    main()
