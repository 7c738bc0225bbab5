"""Train the target on scenes, together with its text encoder and a drafter.

The drafter shapes the target: its loss teaches the target's states to tell of the token after the next one too.

The run's folder keeps the tokens of every picture. Every step words the captions again.
"""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from tqdm import tqdm

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from examples.make_bundled_model.emoji import sprites
from examples.make_bundled_model.render import SIZE, Renderer, joined, sample_scenes
from examples.make_bundled_model.tokenizer import CHUNK, HELD_OUT, SCENES_SEED, Bank, SceneTokenizer, load
from lantern_demo.models import bundled
from lantern_demo.models.files.disk_cache import replacing
from lantern_demo.models.llamagen.drafter import DrafterConfig
from lantern_demo.models.llamagen.target import LlamaGen, LlamaGenConfig
from lantern_demo.scenes import ATTRIBUTES, NOUNS
from lantern_demo.training import run
from lantern_demo.training.captioned import captions, scene_reader

VALIDATED = 240  # held-out scenes of a validation
DRAWN = 256  # scenes that a GPU draws at once
WORD_BATCH = 256  # captions of a step of the stage that teaches words
WORDS, NAMES = 0.3, 0.1  # weights of the losses of words alone and of nouns
TAPS = (3, 7)  # blocks whose states the drafter reads too; those of the first also name the nouns
AHEAD = 0.5  # weight of the drafter's loss
FOREIGN, STRIP = 0.25, 8  # share of pictures that get a strip of another one, and its most rows
BELOW = 4  # first row that a strip may begin with: a target has to see whether it has drawn the moon
OMIT = 0.25  # share of places, times and moons that captions leave out
PREFIX = 28  # positions of a caption: 27 words and an end mark

Attributes = dict[str, Tensor]


class TextToTokens(nn.Module):
    """The text encoder and the target, trained together."""

    def __init__(self, config: LlamaGenConfig) -> None:
        super().__init__()
        self.text = scene_reader(config.caption_dim, config.prefix)
        self.target = LlamaGen(config)
        self.target.feature_layers = tuple(sorted({min(block, config.layers) for block in TAPS}))
        same = {name: getattr(config, name) for name in ("dim", "heads", "ffn", "vocab", "grid", "prefix")}
        self.drafter = DrafterConfig(**same, guided=True, feature_layers=self.target.feature_layers).build()
        # of training alone: see `alone` and `forward`
        self.words_output = nn.Linear(config.dim, config.vocab)
        self.names_output = nn.Linear(config.dim, len(NOUNS))
        self.target.apply(self._start)
        # Residual branches start small, so that depth does not add up to noise.
        for block in self.target.blocks:
            for weight in (block.attention.wo.weight, block.feed_forward.w2.weight):
                nn.init.normal_(weight, std=0.02 / (2 * config.layers) ** 0.5)

    @staticmethod
    def _start(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def alone(self, features: Tensor, mask: Tensor) -> Tensor:
        """Map a caption's features [B, T, C] and mask [B, T] to logits [B, V] of any token of its picture."""
        read = self.target.cls_embedding(features).masked_fill(~mask.unsqueeze(-1), 0.0)
        return self.words_output(read.sum(1) / mask.sum(1, keepdim=True))

    def forward(self, ids: Tensor, ids_mask: Tensor, seen: Tensor, drop: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Map ids [B, T], seen tokens [B, N] and drop [B] bool (rows that see no caption) to logits [B, N, V], to those of
        `alone`, to logits [B, N, nouns] of the noun, and to the drafter's logits [B, N - 1, V] of all tokens but the first.

        Attention gives a prompt little weight next to many tokens. The noun's logits, read from the first of TAPS, teach the
        blocks to carry it everywhere.
        """
        features, mask = self.text(ids, ids_mask)
        alone, nothing = self.alone(features, mask), self.target.no_caption().to(features.dtype)
        features = torch.where(drop[:, None, None], nothing, features)
        hidden, first = self.target.train_hidden(seen[:, :-1], features, mask), features.shape[1] - 1
        states, taps = self.target.final(hidden[:, first:]), hidden[:, first:, self.target.config.dim :]
        drafted = self.drafter.train_passes(F.pad(seen[:, :-1], (first, 0)), hidden[:, :-1], 1)[0][:, first:]
        names = self.names_output(taps[..., : states.shape[-1]])
        return self.target.output(states), alone, names, self.target.output(drafted)


def by_words(alone: Tensor, tokens: Tensor) -> Tensor:
    """Return the loss of logits [B, V] for all tokens [B, N] of pictures."""
    return -alone.float().log_softmax(-1).gather(1, tokens).mean()


def learn_words(model: TextToTokens, ids: Tensor, attributes: Attributes, steps: int, device: torch.device) -> None:
    """Teach the text encoder, from scratch, to predict the tokens of a picture from its caption alone.

    A token depends far more on the tokens before it than on a rare noun. Without this stage the target learnt no noun in 1,800
    steps; with it, it has to learn one map for all nouns.
    """
    for name, weight in model.text.named_parameters():
        if name.endswith(("SelfAttention.o.weight", "DenseReluDense.wo.weight")):
            nn.init.zeros_(weight)  # at first every word stands for itself
    nn.init.normal_(model.text.encoder.shared.weight, std=0.1)
    for layer in model.target.cls_embedding.cap_proj.values():
        nn.init.normal_(layer.weight, std=layer.in_features**-0.5)
    caption, words = model.target.cls_embedding.cap_proj, model.text.encoder.shared.weight
    groups = [
        {"params": [words, *caption.parameters(), *model.words_output.parameters()], "lr": 1e-2},
        {"params": list(model.text.encoder.encoder.block.parameters()), "lr": 1e-3},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98), weight_decay=0.0)
    learnt = [weight for group in groups for weight in group["params"]]
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min(1.0, (s + 1) / 50) * (1 + math.cos(math.pi * s / steps)) / 2
    )
    for step in tqdm(range(steps), desc="words", mininterval=10):
        rows = torch.randint(len(ids), (WORD_BATCH,), generator=torch.Generator().manual_seed(step))
        said, said_mask = model.text.ids(captions(attributes, rows, random.Random(step), OMIT))
        with torch.autocast(device.type, torch.bfloat16):
            alone = model.alone(*model.text(said.to(device), said_mask.to(device)))
        by_words(alone, ids[rows].long().to(device)).backward()
        nn.utils.clip_grad_norm_(learnt, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()


@torch.no_grad()
def encode(tokenizer: SceneTokenizer, pictures: Tensor) -> Tensor:
    """Encode pictures [B, 3, 256, 256] in [0, 1] as token ids [B, 256] int16 on the CPU."""
    with torch.autocast(pictures.device.type, torch.bfloat16):
        return tokenizer.encode(pictures).to(torch.int16).cpu()


def cells_of(cover: Tensor, grid: int) -> Tensor:
    """Map the share [B, 1, H, H] of each pixel that sprites cover to the cells that have some of it, [B, grid * grid] bool."""
    return F.adaptive_avg_pool2d(cover, grid).flatten(1) > 0.1


def with_strips(seen: Tensor, g: torch.Generator) -> Tensor:
    """Return tokens [B, N] of which a share FOREIGN of the pictures has up to STRIP rows of the picture before it.

    Next to the tokens before it, a caption tells a token little. After rows of another noun, it tells much: a target that has
    begun to draw a wrong thing learns to return to its caption.
    """
    b, n = seen.shape
    grid = math.isqrt(n)
    row = torch.arange(n) // grid
    first, high = (torch.randint(low, most, (b, 1), generator=g) for low, most in ((BELOW, grid), (1, STRIP + 1)))
    foreign = torch.rand(b, 1, generator=g) < FOREIGN
    return torch.where(foreign & (row >= first) & (row < first + high), seen.roll(1, 0), seen)


def scene_tokens(
    tokenizer: SceneTokenizer, renderer: Renderer, seed: int, scenes: int, device: torch.device, bank: Bank | None = None
) -> tuple[Tensor, Tensor, Attributes]:
    """Tokenise scenes. Return ids [scenes, 256] int16, which of these cells sprites cover [scenes, 256] bool, and the
    attributes of each.

    Chunk i has the scenes of seed `seed` + i. Pictures that `bank`, of the same seed, has are read from there.
    """
    ids: list[Tensor] = []
    covered: list[Tensor] = []
    found: list[Attributes] = []
    together = 1 if device.type == "cpu" else DRAWN // CHUNK
    for chunks in tqdm(torch.arange(scenes // CHUNK).split(together), desc="scenes", mininterval=10):
        drawn = joined([sample_scenes(CHUNK, seed + chunk) for chunk in chunks.tolist()])
        kept = None if bank is None else bank.kept(int(chunks))
        seen = (renderer(drawn, SIZE) if kept is None else kept).to(device)
        ids.append(encode(tokenizer, seen[:, :3]))
        covered.append(cells_of(seen[:, 3:], tokenizer.tokenizer.grid).cpu())
        found.append(drawn.attributes())
    return torch.cat(ids), torch.cat(covered), {name: torch.cat([part[name] for part in found]) for name in ATTRIBUTES}


def main() -> None:
    parser = run.parser(__doc__ or "", steps=8000, batch=32, lr=1.5e-3, warmup=100, save_every=100, validate_every=250)
    parser.add_argument("--tokenizer", type=Path, required=True, help="folder of a tokenizer run")
    parser.add_argument("--scenes", type=int, default=12_000, help="scenes to train on")
    parser.add_argument("--first", type=int, default=0, help="first of these scenes; those of the tokenizer's run begin at 0")
    parser.add_argument("--start-from", type=Path, help="folder of a run or a model, whose networks to train further")
    parser.add_argument("--word-steps", type=int, default=500, help="first steps, in which the text encoder learns alone")
    parser.add_argument("--sprites", type=float, default=2.5, help="weight of the loss of cells that sprites cover")
    parser.add_argument("--layers", type=int, default=10)
    parser.add_argument("--dim", type=int, default=256)
    args = parser.parse_args()
    opts = run.options(args)
    tokenizer = load(args.tokenizer, opts.device)
    renderer = Renderer(sprites(), opts.device)
    store = opts.out / f"scenes{opts.rank}.pt"
    if not store.exists():
        drawn = (args.tokenizer / f"made-{args.scenes}-{SCENES_SEED}.raw").exists() and not args.first
        bank = Bank(args.tokenizer, renderer, args.scenes, SCENES_SEED) if drawn and opts.device.type == "cpu" else None
        train = scene_tokens(tokenizer, renderer, SCENES_SEED + args.first // CHUNK, args.scenes, opts.device, bank)
        held = scene_tokens(tokenizer, renderer, HELD_OUT, VALIDATED, opts.device)
        with replacing(store) as unfinished:
            torch.save((train, held), unfinished)
    (ids, covered, attributes), (held_ids, held_covered, held_attributes) = torch.load(store, weights_only=True)
    config = LlamaGenConfig(
        dim=args.dim,
        layers=args.layers,
        heads=args.dim // 64,
        ffn=3 * args.dim,
        vocab=tokenizer.tokenizer.codebook_size,
        caption_dim=args.dim,
        prefix=PREFIX,
    )
    model = TextToTokens(config).to(opts.device)
    if args.start_from is not None and (args.start_from / "config.json").exists():
        before = bundled.load(args.start_from, opts.device)
        model.target.load_state_dict(before.target.state_dict())
        model.text.load_state_dict(before.text.state_dict())
        if before.drafter is not None:
            model.drafter.load_state_dict(before.drafter.state_dict())
    elif args.start_from is not None:
        model.load_state_dict(torch.load(args.start_from / "last.pt", map_location=opts.device, weights_only=True)["average"])
    elif not (opts.out / "last.pt").exists():
        learn_words(model, ids, attributes, args.word_steps, opts.device)

    def losses(text: Tensor, mask: Tensor, tokens: Tensor, seen: Tensor, cells: Tensor, nouns: Tensor, drop: Tensor) -> Tensor:
        """Return the loss with sprites weighted, without weights, of the words alone, of the nouns, and of the drafter, [5].

        seen [B, N]: `tokens`, some of them replaced; cells [B, N] bool: covered; nouns [B].
        """
        with torch.autocast(opts.device.type, torch.bfloat16):
            logits, alone, names, drafted = model(text, mask, seen, drop)
        unnamed = names.float().log_softmax(-1).mean(1).gather(-1, nouns[:, None])[:, 0]
        each = F.cross_entropy(logits.float().flatten(0, 1), tokens.flatten(), reduction="none")
        weight = torch.where(cells, args.sprites, 1.0)
        named = -(unnamed * ~drop).sum() / (~drop).sum()
        later = F.cross_entropy(drafted.float().flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
        ahead = (weight[:, 1:].flatten() * later).sum() / weight[:, 1:].sum()
        weighted = (weight.flatten() * each).sum() / weight.sum()
        return torch.stack([weighted, each.mean(), by_words(alone, tokens), named, ahead])

    compiled = torch.compile(losses) if opts.compile else losses

    nouns, held_nouns = attributes["noun"], held_attributes["noun"]

    def made(step: int) -> list[Tensor]:
        seed = opts.batch_seed(step)
        g = torch.Generator().manual_seed(seed)
        rows = torch.randint(len(ids), (opts.batch,), generator=g)
        seen = with_strips(ids[rows], g)
        drop = torch.rand(opts.batch, generator=g) < 0.1
        said = captions(attributes, rows, random.Random(seed), OMIT)
        return [*model.text.ids(said), ids[rows].long(), seen.long(), covered[rows], nouns[rows], drop]

    batch = run.prepared(made, opts)

    def batch_loss(step: int) -> tuple[Tensor, dict[str, Tensor]]:
        parts = [part.to(opts.device, non_blocking=True) for part in batch(step)]
        total, *others = compiled(*parts).unbind()
        _, words, names, ahead = others
        told = dict(zip(("nll", "words", "names", "ahead"), (part.detach() for part in others), strict=True))
        return total + WORDS * words + NAMES * names + AHEAD * ahead, told

    def validate() -> dict[str, float]:
        rng, parts = random.Random(0), []
        for rows in torch.arange(len(held_ids)).split(48):
            said = captions(held_attributes, rows, rng, 0.0)
            drop = torch.zeros(len(rows), dtype=torch.bool)
            tokens = held_ids[rows].long()
            told = (*model.text.ids(said), tokens, tokens, held_covered[rows], held_nouns[rows], drop)
            parts.append(losses(*(part.to(opts.device) for part in told)))
        weighted, nll, _, names, ahead = torch.stack(parts).mean(0).tolist()
        return {"held_out_nll": nll, "held_out_weighted": weighted, "held_out_names": names, "held_out_ahead": ahead}

    run.train(model, opts, batch_loss, validate)


if __name__ == "__main__":
    main()
