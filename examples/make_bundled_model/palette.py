"""Add the mean patch of each token over drawn scenes to a model folder, and its mean colour.

    python examples/make_bundled_model/palette.py --model FOLDER

The look of a token depends on its neighbours. Its mean over many pictures paints a picture that
is still being drawn. All patches are one picture, PATCHES of them in a row.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import save_file
from torch import Tensor
from tqdm import tqdm

from examples.make_bundled_model import emoji
from examples.make_bundled_model.bank import encoded
from examples.make_bundled_model.scenes import Renderer, add_sprites, sample
from lantern_demo.bench.report import parser_of
from lantern_demo.models.bundled import PALETTE, PATCHES
from lantern_demo.models.registry import BUNDLED
from lantern_demo.models.tokenizer import ImageTokenizer, token_colours
from lantern_demo.paths import user_path
from lantern_demo.runs.load import load

BATCH = 32
IN_A_ROW = 64  # patches, as the page's scripts read them
SIDE = 16  # pixels of a patch
QUALITY = 75  # of WebP: pages that draw download it


@torch.inference_mode()
def mean_patches(tokenizer: ImageTokenizer, renderer: Renderer, scenes: int) -> tuple[Tensor, int]:
    """Compute the mean patch [V, 3, SIDE, SIDE] of each token over drawn scenes, in [0, 1], and
    the number of tokens seen.

    Unseen tokens have their colour in `token_colours`.
    """
    book = tokenizer.codebook_size
    total, seen = torch.zeros(book, 3 * SIDE * SIDE), torch.zeros(book)
    for batch in tqdm(range(-(-scenes // BATCH)), unit="batch"):
        drawn = (renderer(sample(BATCH, batch)) * 255).round().byte()
        scene = encoded(tokenizer, drawn, {})
        pictures = F.adaptive_avg_pool2d(drawn[:, :3].float() / 255, SIDE * tokenizer.grid)
        patches = F.unfold(pictures, SIDE, stride=SIDE).mT.flatten(0, 1)
        tokens, odds = scene.codes.long().flatten(0, 1), scene.probs.float().flatten(0, 1)
        for entry, share in zip(tokens.unbind(1), odds.unbind(1), strict=True):
            total.index_add_(0, entry, patches * share[:, None])
            seen.index_add_(0, entry, share)
    mean = (total / seen.clamp(min=1e-9)[:, None]).view(book, 3, SIDE, SIDE)
    flat = (token_colours(tokenizer) / 255)[..., None, None].expand_as(mean)
    return torch.where((seen > 0)[:, None, None, None], mean, flat), int((seen > 0).sum())


def sheet(patches: Tensor) -> Image.Image:
    """Return patches [V, 3, SIDE, SIDE] in one picture, IN_A_ROW of them in a row."""
    patches = F.pad(patches, [0, 0, 0, 0, 0, 0, 0, -len(patches) % IN_A_ROW])
    rows = patches.unflatten(0, (-1, IN_A_ROW)).permute(0, 3, 1, 4, 2).flatten(0, 1).flatten(1, 2)
    return Image.fromarray((255 * rows).round().byte().numpy())


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument(
        "--model",
        type=user_path,
        default=BUNDLED / "lantern-scenes",
        help="the model's folder (default: the bundled one)",
    )
    parser.add_argument(
        "--scenes", type=int, default=2048, help="scenes to look at (default: %(default)s)"
    )
    add_sprites(parser)
    args = parser.parse_args()
    tokenizer = load(args.model, "cpu").networks.tokenizer
    renderer = Renderer(emoji.read(args.sprites), "cpu")
    patches, seen = mean_patches(tokenizer, renderer, args.scenes)
    colours = (255 * patches.mean((2, 3))).round().to(torch.uint8)
    path = args.model / f"{PALETTE}.safetensors"
    save_file({PALETTE: colours}, path)
    print(f"{path}: {seen} of {len(colours)} tokens seen in {args.scenes} scenes")
    picture = args.model / PATCHES
    sheet(patches).save(picture, quality=QUALITY, method=6)
    print(f"{picture}: {picture.stat().st_size >> 10} KB")


if __name__ == "__main__":
    main()
