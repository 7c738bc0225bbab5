"""Write the mean colour of each token, and the tokens of true scenes, into a model folder.

The page paints an unfinished picture in the mean colours. `bench quality` compares pictures with the true scenes, which no
training saw.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.make_bundled_model.emoji import sprites
from examples.make_bundled_model.render import SIZE, Renderer, sample_scenes
from examples.make_bundled_model.tokenizer import HELD_OUT
from lantern_demo.bench.quality.scenes import SEEDS, TRUTH
from lantern_demo.models.bundled import PALETTE, Networks
from lantern_demo.models.palette import token_colours
from lantern_demo.models.registry import BUNDLED
from lantern_demo.models.tokenizer import ImageTokenizer
from lantern_demo.runs.pipeline import load
from lantern_demo.scenes import ATTRIBUTES, some_scene

BATCH = 8
OFFSET = 1_000_000  # from HELD_OUT: scenes that no validation uses


@torch.inference_mode()
def mean_colours(networks: Networks, renderer: Renderer, scenes: int) -> tuple[Tensor, int]:
    """Compute the mean colour [V, 3] int32 of each token over rendered scenes, and the number of tokens seen.

    Unseen tokens have their colour in `token_colours`.
    """
    tokenizer = networks.tokenizer
    book = tokenizer.codebook_size
    total, seen = torch.zeros(book, 3, dtype=torch.float64), torch.zeros(book, dtype=torch.float64)
    for batch in tqdm(range(-(-scenes // BATCH)), unit="batch"):
        pictures = renderer(sample_scenes(BATCH, batch))[:, :3]
        tokens = tokenizer.encode(_reduced(pictures, tokenizer)).flatten()
        colours = F.adaptive_avg_pool2d(pictures, tokenizer.grid).permute(0, 2, 3, 1).reshape(-1, 3)
        total.index_add_(0, tokens, colours.double())
        seen.index_add_(0, tokens, torch.ones_like(tokens, dtype=torch.float64))
    mean = (255 * total / seen.clamp(min=1)[:, None]).round().to(torch.int32)
    return torch.where((seen > 0)[:, None], mean, token_colours(networks)), int((seen > 0).sum())


@torch.inference_mode()
def true_scenes(tokenizer: ImageTokenizer, renderer: Renderer, captions: int) -> dict[str, Tensor]:
    """Return tokens [P, N] and attributes [P], int16, of P = SEEDS * captions held-out scenes, SEEDS of each caption."""
    rng = random.Random(HELD_OUT)
    asked = [some_scene(rng) for _ in range(captions)]
    wanted = {name: torch.tensor([scene[name] for scene in asked]).repeat_interleave(SEEDS) for name in ATTRIBUTES}
    tokens = []
    for first in tqdm(range(0, captions * SEEDS, BATCH), unit="batch"):
        part = {name: values[first : first + BATCH] for name, values in wanted.items()}
        pictures = renderer(sample_scenes(len(part["noun"]), HELD_OUT + OFFSET + first, part))[:, :3]
        tokens.append(tokenizer.encode(_reduced(pictures, tokenizer)))
    return {"tokens": torch.cat(tokens).to(torch.int16), **{name: values.to(torch.int16) for name, values in wanted.items()}}


def _reduced(pictures: Tensor, tokenizer: ImageTokenizer) -> Tensor:
    return F.avg_pool2d(pictures, SIZE // tokenizer.size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--model", type=Path, default=BUNDLED / "lantern-emoji", help="the model's folder (default: the bundled one)"
    )
    parser.add_argument("--scenes", type=int, default=1024, help="scenes to take colours from (default: %(default)s)")
    parser.add_argument("--captions", type=int, default=500, help=f"of true scenes, {SEEDS} of each (default: %(default)s)")
    args = parser.parse_args()
    networks, renderer = load(args.model, "cpu", fit_trees=False).networks, Renderer(sprites())
    colours, seen = mean_colours(networks, renderer, args.scenes)
    path = args.model / f"{PALETTE}.safetensors"
    save_file({PALETTE: colours.to(torch.uint8)}, path)
    print(f"{path}: {seen} of {len(colours)} tokens seen in {args.scenes} scenes")
    save_file(true_scenes(networks.tokenizer, renderer, args.captions), args.model / TRUTH)
    print(f"{args.model / TRUTH}: {args.captions} captions")


if __name__ == "__main__":
    main()
