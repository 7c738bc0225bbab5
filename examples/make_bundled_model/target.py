"""Train the target on lantern scenes, and the text encoder with it."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.make_bundled_model.tokenizer import load_image_tokenizer
from lantern_demo.models import bundled
from lantern_demo.models.llamagen.target import LlamaGen, LlamaGenConfig
from lantern_demo.scenes import HELD_OUT
from lantern_demo.training import run
from lantern_demo.training.captioned import Captions, scene_reader, scene_tokens, training_scenes

VALIDATED = 200  # held-out scenes that a validation looks at


class TextToTokens(nn.Module):
    """The two networks that are trained together."""

    def __init__(self, config: LlamaGenConfig, words: Sequence[str] | None = None) -> None:
        """`words`: the vocabulary, or None for that of the lantern scenes."""
        super().__init__()
        self.text = scene_reader(config.caption_dim, config.prefix, words)
        self.target = LlamaGen(config)
        self.target.apply(self._start)
        # Residual branches start small, so that depth does not add up to noise.
        for block in self.target.blocks:
            for weight in (block.attention.wo.weight, block.feed_forward.w2.weight):
                nn.init.normal_(weight, std=0.02 / (2 * config.layers) ** 0.5)

    @staticmethod
    def _start(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, ids: Tensor, ids_mask: Tensor, tokens: Tensor, drop: Tensor) -> Tensor:
        """ids [B, T], tokens [B, N], drop [B] bool (rows that see no caption) -> logits [B, N, V]."""
        features, mask = self.text(ids, ids_mask)
        nothing = self.target.no_caption().to(features.dtype)
        features = torch.where(drop[:, None, None], nothing, features)
        hidden = self.target.train_hidden(tokens[:, :-1], features, mask)
        return self.target.output(self.target.final(hidden[:, features.shape[1] - 1 :]))


def main() -> None:
    parser = run.parser(__doc__ or "", steps=2400, batch=32, lr=1.5e-3)
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder of a tokenizer run, or a model folder")
    parser.add_argument("--start-from", type=Path, help="a model folder whose text encoder and target to train further")
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
        model.text.load_state_dict(before.text.state_dict())
        model.target.load_state_dict(before.target.state_dict())
    forward = torch.compile(model) if opts.compile else model
    cast = torch.autocast(opts.device.type, torch.bfloat16)

    def nll(call: Callable[..., Tensor], tokens: Tensor, captions: list[str], drop: Tensor) -> Tensor:
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
            nll(model, held_ids[r], held_words(r, rng), torch.zeros(len(r), dtype=torch.bool)).item() for r in rows.split(50)
        ]
        return {"held_out_nll": sum(parts) / len(parts)}

    run.train(model, opts, batch_loss, validate)


if __name__ == "__main__":
    main()
