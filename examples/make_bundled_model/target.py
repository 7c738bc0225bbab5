"""Train the target on lantern scenes, together with the text encoder.

The scenes are drawn and tokenised once and kept in the run's folder. Every step words the captions
again.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.make_bundled_model.lanterns import HELD_OUT, Scenes, caption, render, sample_scenes
from examples.make_bundled_model.networks import grown
from examples.make_bundled_model.tokenizer import load_image_tokenizer
from examples.train_drafter import run
from examples.train_drafter.drafter import scene_reader
from lantern_demo.models import bundled
from lantern_demo.models.llamagen import LlamaGen
from lantern_demo.models.registry import LlamaGenConfig
from lantern_demo.models.tokenizer import ImageTokenizer
from lantern_demo.paths import user_path
from lantern_demo.scenes import ATTRIBUTES

CHUNK = 50  # scenes drawn and encoded at a time
VALIDATED = 200  # held-out scenes of a validation


class TextToTokens(nn.Module):
    """The two networks that are trained together."""

    def __init__(self, config: LlamaGenConfig) -> None:
        super().__init__()
        self.text = scene_reader(config.caption_dim, config.prefix)
        self.target = LlamaGen(config)
        self.target.apply(self._start)
        # Residual branches start small, so that noise does not grow with depth.
        for block in self.target.blocks:
            for weight in (block.self_attn.o_proj.weight, block.mlp.down_proj.weight):
                nn.init.normal_(weight, std=0.02 / (2 * config.layers) ** 0.5)

    @staticmethod
    def _start(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, ids: Tensor, ids_mask: Tensor, tokens: Tensor, drop: Tensor) -> Tensor:
        """Compute logits [B, N, V] from ids [B, T], tokens [B, N] and drop [B] bool (rows without
        caption).
        """
        features, mask = self.text(ids, ids_mask)
        nothing = self.target.no_caption().to(features.dtype)
        features = torch.where(drop[:, None, None], nothing, features)
        hidden = self.target.train_hidden(tokens[:, :-1], features, mask)
        return self.target.lm_head(self.target.final(hidden[:, features.shape[1] - 1 :]))


def scene_tokens(
    tokenizer: ImageTokenizer, count: int, seed: int, device: torch.device, compiled: bool
) -> tuple[Tensor, dict[str, Tensor]]:
    """Draw and tokenise `count` scenes.

    Return ids [count, N] int16 and the scenes' attributes, on the CPU.
    """
    draw = torch.compile(render) if compiled else render
    ids, attributes = [], []
    with torch.no_grad(), run.cast(device):
        for part in tqdm(range(count // CHUNK), desc="scenes", mininterval=5):
            scenes = sample_scenes(CHUNK, seed + part)
            image = draw(scenes.to(device)).contiguous(memory_format=torch.channels_last)
            ids.append(tokenizer.encode(image).to(torch.int16).cpu())
            attributes.append(scenes.attributes())
    return torch.cat(ids), {k: torch.cat([a[k] for a in attributes]) for k in ATTRIBUTES}


def training_scenes(
    folder: Path, tokenizer: ImageTokenizer, count: int, opts: run.Options
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return this process's tokenised scenes as `scene_tokens` does; make them if `folder` does not
    hold them yet.
    """
    store = folder / f"scenes{opts.rank}.pt"
    if not store.exists():
        seed = 10_000_019 + opts.rank * count
        torch.save(scene_tokens(tokenizer, count, seed, opts.device, opts.compile), store)
    ids, attributes = torch.load(store, weights_only=True)
    return ids, attributes


class Captions:
    """Words captions for scenes that are kept as attributes only."""

    def __init__(self, attributes: dict[str, Tensor]) -> None:
        self.attributes = attributes

    def __call__(self, rows: Tensor, rng: random.Random) -> list[str]:
        chosen = {k: v[rows] for k, v in self.attributes.items()}
        scenes = Scenes(
            **chosen,
            **dict.fromkeys(
                ("centre", "radius", "horizon", "moon_at", "phase", "stars"), torch.empty(0)
            ),
        )
        return [caption(scenes, i, rng, omit=0.06) for i in range(len(rows))]


def main() -> None:
    parser = run.parser(__doc__ or "", steps=2400, batch=32, lr=1.5e-3)
    parser.add_argument(
        "--tokenizer",
        type=user_path,
        required=True,
        help="folder of a tokenizer run, or a model folder",
    )
    parser.add_argument(
        "--start-from",
        type=user_path,
        help="a model folder whose text encoder and target to train further; a target of fewer "
        "--layers gets more, by writing its blocks several times, each time with a part of their "
        "outputs",
    )
    parser.add_argument("--scenes", type=int, default=20_000, help="scenes to draw for training")
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--dim", type=int, default=256)
    args = parser.parse_args()
    opts = run.options(args)
    tokenizer = load_image_tokenizer(args.tokenizer, opts.device)
    config = LlamaGenConfig(
        dim=args.dim,
        layers=args.layers,
        heads=args.dim // 64,
        ffn=3 * args.dim,
        vocab=tokenizer.codebook_size,
        caption_dim=args.dim,
    )
    ids, attributes = training_scenes(opts.out, tokenizer, args.scenes, opts)
    held_ids, held_attributes = scene_tokens(tokenizer, VALIDATED, HELD_OUT, opts.device, False)
    words, held_words = Captions(attributes), Captions(held_attributes)
    model = TextToTokens(config).to(opts.device)
    if args.start_from is not None:
        before = bundled.load(args.start_from, opts.device)
        deeper = grown(before.target, config.layers, config.prefix)
        model.text.load_state_dict(before.text.state_dict())
        model.target.load_state_dict(deeper.state_dict())
    forward = torch.compile(model) if opts.compile else model
    cast = run.cast(opts.device)

    def nll(
        call: Callable[..., Tensor], tokens: Tensor, captions: list[str], drop: Tensor
    ) -> Tensor:
        text, mask = model.text.ids(captions)
        tokens = tokens.long().to(opts.device)
        with cast:
            logits = call(text.to(opts.device), mask.to(opts.device), tokens, drop.to(opts.device))
        return F.cross_entropy(logits.float().flatten(0, 1), tokens.flatten())

    def batch_loss(step: int) -> tuple[Tensor, dict[str, float]]:
        seed = opts.batch_seed(step)
        g = torch.Generator().manual_seed(seed)
        rows = torch.randint(len(ids), (opts.batch,), generator=g)
        drop = torch.rand(opts.batch, generator=g) < 0.1
        return nll(forward, ids[rows], words(rows, random.Random(seed)), drop), {}

    def validate() -> dict[str, float]:
        rng, rows = random.Random(0), torch.arange(len(held_ids))
        parts = [
            nll(
                model, held_ids[r], held_words(r, rng), torch.zeros(len(r), dtype=torch.bool)
            ).item()
            for r in rows.split(50)
        ]
        return {"held_out_nll": sum(parts) / len(parts)}

    run.train(model, opts, batch_loss, validate)


if __name__ == "__main__":
    main()
