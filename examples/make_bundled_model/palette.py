"""Add the mean colour of each token over drawn scenes to a model folder.

    python examples/make_bundled_model/palette.py --model FOLDER

A token's colour depends on its neighbours. Its mean over many pictures paints a picture that is
still being drawn.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor
from tqdm import tqdm

from examples.make_bundled_model import emoji
from examples.make_bundled_model.bank import encoded
from examples.make_bundled_model.scenes import Renderer, add_sprites, sample
from lantern_demo.bench.report import parser_of
from lantern_demo.models.bundled import PALETTE
from lantern_demo.models.registry import BUNDLED
from lantern_demo.models.tokenizer import ImageTokenizer, token_colours
from lantern_demo.paths import user_path
from lantern_demo.runs.load import load

BATCH = 32


@torch.inference_mode()
def mean_colours(tokenizer: ImageTokenizer, renderer: Renderer, scenes: int) -> tuple[Tensor, int]:
    """Compute the mean colour [V, 3] int32 of each token over drawn scenes, and the number of
    tokens seen.

    Unseen tokens have their colour in `token_colours`.
    """
    book = tokenizer.codebook_size
    total, seen = torch.zeros(book, 3, dtype=torch.float64), torch.zeros(book, dtype=torch.float64)
    cell = tokenizer.size // tokenizer.grid
    for batch in tqdm(range(-(-scenes // BATCH)), unit="batch"):
        drawn = (renderer(sample(BATCH, batch)) * 255).round().byte()
        scene = encoded(tokenizer, drawn, {})
        pictures = F.avg_pool2d(drawn[:, :3].float() / 255, drawn.shape[-1] // tokenizer.size)
        colours = F.avg_pool2d(pictures, cell).permute(0, 2, 3, 1).reshape(-1, 1, 3)
        tokens, odds = scene.codes.long().flatten(), scene.probs.double().flatten(0, 1)
        total.index_add_(0, tokens, (colours * odds[..., None]).flatten(0, 1))
        seen.index_add_(0, tokens, odds.flatten())
    mean = (255 * total / seen.clamp(min=1e-9)[:, None]).round().to(torch.int32)
    return torch.where((seen > 0)[:, None], mean, token_colours(tokenizer)), int((seen > 0).sum())


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
    colours, seen = mean_colours(tokenizer, renderer, args.scenes)
    path = args.model / f"{PALETTE}.safetensors"
    save_file({PALETTE: colours.to(torch.uint8)}, path)
    print(f"{path}: {seen} of {len(colours)} tokens seen in {args.scenes} scenes")


if __name__ == "__main__":
    main()
