"""Add the mean colour of each token over rendered scenes to a model folder.

A token's colour depends on its neighbours. Its mean over many pictures paints a picture that is
still being drawn.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.make_bundled_model.lanterns import render, sample_scenes
from lantern_demo.models.bundled import PALETTE
from lantern_demo.models.registry import BUNDLED
from lantern_demo.models.tokenizer import ImageTokenizer, token_colours
from lantern_demo.paths import user_path
from lantern_demo.runs.pipeline import load

BATCH = 32


@torch.inference_mode()
def mean_colours(tokenizer: ImageTokenizer, scenes: int) -> tuple[Tensor, int]:
    """Compute the mean colour [V, 3] int32 of each token over rendered scenes, and the number of
    tokens seen.

    Unseen tokens have their colour in `token_colours`."""
    book = tokenizer.codebook_size
    total, seen = torch.zeros(book, 3, dtype=torch.float64), torch.zeros(book, dtype=torch.float64)
    cell = tokenizer.size // tokenizer.grid
    for batch in tqdm(range(-(-scenes // BATCH)), unit="batch"):
        pictures = render(sample_scenes(BATCH, batch), tokenizer.size)
        tokens = tokenizer.encode(pictures).flatten()
        colours = (
            pictures.unflatten(3, (-1, cell))
            .unflatten(2, (-1, cell))
            .mean((3, 5))
            .permute(0, 2, 3, 1)
            .reshape(-1, 3)
        )
        total.index_add_(0, tokens, colours.double())
        seen.index_add_(0, tokens, torch.ones_like(tokens, dtype=torch.float64))
    mean = (255 * total / seen.clamp(min=1)[:, None]).round().to(torch.int32)
    return torch.where((seen > 0)[:, None], mean, token_colours(tokenizer)), int((seen > 0).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model",
        type=user_path,
        default=BUNDLED / "lantern-scenes",
        help="the model's folder (default: the bundled one)",
    )
    parser.add_argument(
        "--scenes", type=int, default=2048, help="scenes to look at (default: %(default)s)"
    )
    args = parser.parse_args()
    tokenizer = load(args.model, "cpu").networks.tokenizer
    colours, seen = mean_colours(tokenizer, args.scenes)
    path = args.model / f"{PALETTE}.safetensors"
    save_file({PALETTE: colours.to(torch.uint8)}, path)
    print(f"{path}: {seen} of {len(colours)} tokens seen in {args.scenes} scenes")


if __name__ == "__main__":
    main()
