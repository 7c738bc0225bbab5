"""Train the bundled model on one GPU, from pictures to a drafter, in the minutes that you allow.

    python examples/make_bundled_model/emoji.py --out runs/sprites.npz
    python examples/make_bundled_model/train.py --out runs/model --minutes 12

The stages share the time: image tokenizer, classifier, scenes, target, guidance, own pictures,
drafter, check, race.
Every minute the networks go to --out in 16 bits, in files of at most 15 MB, so that a run that is
cut off still leaves something. A run that finds such files in --out, or in --start-from, continues
with their weights. `networks.py` turns the folder into a model folder.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
if __name__ == "__main__":
    from lantern_demo.shutdown import stop_at_once

    stop_at_once()  # the imports below take seconds

import argparse
import copy
import json
import math
import re
import shutil
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from examples.make_bundled_model import emoji
from examples.make_bundled_model.folder import save
from examples.make_bundled_model.networks import BUNDLED, PREFIX, Model, assemble, left_out, read
from examples.make_bundled_model.scenes import (
    HELD_OUT,
    Renderer,
    add_sprites,
    contact_sheet,
    joined,
    sample,
)
from examples.make_bundled_model.world import PAD, Captions
from examples.train_drafter.own import sample_batch
from examples.train_drafter.run import cast, multiplies_bfloat16, optimizers_of
from examples.train_drafter.teaching import draft_losses, train_hidden
from lantern_demo.bench.report import parser_of
from lantern_demo.decoding.sampling import Sampling
from lantern_demo.disk_cache import replacing
from lantern_demo.models.llamagen import LlamaGen
from lantern_demo.models.text import END

# The share of the minutes that each stage gets.
SHARES = {
    "tokenizer": 0.14,
    "classifier": 0.05,
    "scenes": 0.09,
    "target": 0.33,
    "guidance": 0.14,
    "pictures": 0.06,
    "drafter": 0.12,
    "check": 0.03,
    "race": 0.04,
}
# what a stage learns from
NEEDS = {"target": "scenes", "guidance": "scenes", "drafter": "pictures"}
SHARD = 15_000_000  # most bytes of a file
# most rows of a strip of another picture, and the first row that it may begin at
STRIP, BELOW = 8, 4
# shares of pictures that get such a strip, and that lose their caption
FOREIGN, DROPPED = 0.25, 0.1
WORDS, NAMES = 0.3, 0.1  # weights of the losses of the caption alone and of the thing
PASSES = (1.0, 0.8, 0.6, 0.5)  # weights of a drafter's outputs at depth 0 to 3
OWN_GROUP = 8  # batches of pictures that the target draws at a time
RACED = ("eagle1", "eagle2", "lantern", "lantern++")


class Run:
    """The clock, the log and the files of a run."""

    def __init__(self, args: argparse.Namespace, device: torch.device) -> None:
        self.args, self.device = args, device
        self.began = self.saved = time.monotonic()
        self.ends = self.began  # of the stage
        args.out.mkdir(parents=True, exist_ok=True)
        told = args.out / "facts.json"
        before = json.loads(told.read_text(encoding="utf-8")) if told.exists() else {}
        sizes = {"layers": args.layers, "ffn": args.ffn}
        self.facts: dict[str, Any] = {**before, **sizes}
        self.model: Model | None = None

    def begin(self, stage: str) -> bool:
        """Start the clock of a stage. Return False if it is left out."""
        if stage not in self.args.stages:
            return False
        left = self.args.stages[self.args.stages.index(stage) :]
        time_left = self.began + 60 * self.args.minutes - time.monotonic()
        self.ends = time.monotonic() + time_left * SHARES[stage] / sum(SHARES[s] for s in left)
        self.stage, self.stage_began = stage, time.monotonic()
        return True

    @property
    def progress(self) -> float:
        """The share of the stage's time that is over, at most 1."""
        now = time.monotonic()
        return min(1.0, (now - self.stage_began) / max(1e-9, self.ends - self.stage_began))

    def tell(self, **numbers: float | Tensor) -> None:
        """Print numbers of the stage and keep the last of each."""
        rounded = {k: round(float(v), 4) for k, v in numbers.items()}
        seconds = round(time.monotonic() - self.began, 1)
        self.facts.setdefault(self.stage, {}).update(rounded, seconds=seconds)
        print(f"{seconds:7.1f} s  {self.stage}: {rounded}", flush=True)

    def save(self) -> None:
        """Write the networks in float16, and the facts."""
        assert self.model is not None
        shards: list[dict[str, Tensor]] = [{}]
        size = 0
        for name, value in self.model.shipped().items():
            half = value.detach().half() if value.is_floating_point() else value
            if size + half.nbytes > SHARD:
                shards, size = [*shards, {}], 0
            shards[-1][name] = half.cpu().contiguous().clone()
            size += half.nbytes
        for number, shard in enumerate(shards):
            with replacing(self.args.out / f"weights-{number}.pt") as part:
                torch.save(shard, part)
        (self.args.out / "facts.json").write_text(
            json.dumps(self.facts, indent=1), encoding="utf-8"
        )
        self.saved = time.monotonic()


def fit(
    run: Run, parts: dict[str, nn.Module], loss_of: Callable[[int], dict[str, Tensor]], lr: float
) -> None:
    """Train networks until the stage ends.

    `loss_of(step)` returns losses, of which "loss" is minimised.

    Matrices between embedding and head learn by Muon. At the end the networks have the running
    average of their weights.
    """
    networks = nn.ModuleDict(parts)
    named = {name: p for name, p in networks.named_parameters() if p.requires_grad}
    learnt, inner = list(named.values()), list[nn.Parameter]()
    if multiplies_bfloat16(run.device):  # in which Muon computes
        linear = {id(m.weight) for m in networks.modules() if isinstance(m, nn.Linear)}
        outer = re.compile(r"text\.|cap_proj|_head")
        inner = [p for name, p in named.items() if id(p) in linear and not outer.search(name)]
    optimizers = optimizers_of(learnt, inner, lr)
    average = [p.detach().float().clone() for p in learnt]
    step = 0
    while run.progress < 1.0:
        # The rate follows the clock: a short warm-up, then a cosine.
        rate = min(1.0, (step + 1) / 50) * (0.02 + 0.49 * (1 + math.cos(math.pi * run.progress)))
        for group in (g for o in optimizers for g in o.param_groups):
            group["lr"] = lr * group.get("share", 1.0) * rate
        losses = loss_of(step)
        losses["loss"].backward()
        nn.utils.clip_grad_norm_(learnt, 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        torch._foreach_lerp_(
            average, [p.detach().float() for p in learnt], 1 - min(0.995, (step + 1) / (step + 20))
        )
        if step % run.args.log_every == 0:
            run.tell(step=step, **{name: loss.item() for name, loss in losses.items()})
        if time.monotonic() - run.saved > 60:
            run.save()
        step += 1
    for p, mean in zip(learnt, average, strict=True):
        p.data.copy_(mean)
    run.tell(steps=step)


class World:
    """Scenes of a run: drawn, tokenised and captioned on the device."""

    def __init__(self, run: Run, model: Model) -> None:
        self.run, self.model, self.device = run, model, run.device
        self.renderer = Renderer(emoji.read(run.args.sprites), self.device)
        ids = {w: n for w, n in model.text.tokenizer.get_vocab().items() if w[0] != "<"}
        self.captions = Captions(ids, self.device)
        self.end = model.text.tokenizer.get_vocab()[END]
        self.group = 256 if self.device.type == "cuda" else 8

    def drawn(self, seed: int, count: int | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """Draw scenes -> [B, 4, 256, 256] uint8, and their attributes."""
        scenes = sample(count or self.group, seed)
        return (self.renderer(scenes) * 255).round().byte(), scenes.attributes()

    @torch.no_grad()
    def encode(self, pictures: Tensor) -> Tensor:
        """Encode pictures [B, 3 or 4, 256, 256] uint8 as token ids [B, 256] int64."""
        with cast(self.device):
            return self.model.tokenizer.encode(F.avg_pool2d(pictures[:, :3].float() / 255, 2))

    def said(
        self, attributes: dict[str, Tensor], seed: int, omit: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Caption scenes -> ids [B, PREFIX] with an end mark, and their mask."""
        ids = F.pad(self.captions(attributes, seed, omit), (0, 1), value=PAD)
        length = (ids != PAD).sum(1, keepdim=True)
        ids = ids.scatter(1, length, self.end)
        return ids, torch.arange(PREFIX, device=ids.device)[None] <= length


def train_tokenizer(run: Run, world: World) -> None:
    """Teach encoder, codebook and picture decoder the world, from the weights of lantern-scenes.

    The codebook follows the encoder by running means (VQ-VAE, arXiv 1711.00937, appendix A.1).
    """
    tokenizer, decoder, device = world.model.tokenizer, world.model.picture, run.device
    assert decoder is not None
    pictures, batch = list[Tensor](), run.args.pictures_batch
    while len(pictures) * world.group < run.args.bank and run.progress < 0.3:
        pictures.append(world.drawn(500_000_003 + len(pictures))[0])
    bank = torch.cat(pictures)
    book = tokenizer.vq.quantize.embedding.weight.requires_grad_(False)
    book.copy_(F.normalize(book.float(), dim=-1))
    total, used = book.clone(), torch.ones(len(book), device=device)
    g = torch.Generator(device).manual_seed(0)

    def loss_of(step: int) -> dict[str, Tensor]:
        rows = torch.randint(len(bank), (batch,), generator=g, device=device)
        drawn = bank[rows].float() / 255
        picture, cover = drawn[:, :3], drawn[:, 3:]
        with cast(device):
            z = tokenizer.latent(F.avg_pool2d(picture, 2)).float()
        vectors = z.detach().permute(0, 2, 3, 1).flatten(0, 2)
        ids = (vectors @ book.t()).argmax(-1)
        q = F.embedding(ids, book).view(batch, *z.shape[2:], -1).permute(0, 3, 1, 2)
        with cast(device):
            output = decoder.raw(z + (q - z).detach()).float()
        used.mul_(0.99).add_(torch.bincount(ids, minlength=len(book)), alpha=0.01)
        total.mul_(0.99).index_add_(0, ids, vectors, alpha=0.01)
        # An entry that nothing uses begins again at a random vector.
        dead = (used < 0.003 * len(vectors) / len(book))[:, None]
        fresh = vectors[torch.randint(len(vectors), (len(book),), generator=g, device=device)]
        total.copy_(torch.where(dead, fresh, total))
        used.copy_(torch.where(dead[:, 0], 1.0, used))
        book.copy_(F.normalize(total, dim=-1))
        commit = (z - q).square().mean()
        loss = picture_loss(output, picture * 2 - 1, cover)
        shown = (output.detach().clamp(-1, 1) + 1) / 2
        psnr = -10 * (shown - picture).square().mean(dim=(1, 2, 3)).log10().mean()
        return {"loss": loss + 2 * commit, "psnr": psnr}

    reader = nn.ModuleList([tokenizer.vq.encoder, tokenizer.vq.quant_conv])
    fit(run, {"tokenizer": reader, "picture": decoder}, loss_of, 6e-4)
    run.tell(codes=world.encode(bank[:512]).unique().numel())


def picture_loss(output: Tensor, picture: Tensor, cover: Tensor) -> Tensor:
    """Return the errors of pixels, of slopes at three scales, and of their mean steepness.

    Things and their edges weigh three times. output and picture: [B, 3, H, W] in [-1, 1], cover:
    [B, 1, H, W] in [0, 1].
    """
    error = output - picture
    weight = 1 + 2 * F.max_pool2d(cover, 9, 1, 4)
    weight = weight / weight.mean()
    loss = (weight * (error.abs() + 6 * error.square())).mean()
    for factor, share in ((1, 2.0), (2, 2.0), (4, 1.0)):
        part = error if factor == 1 else F.avg_pool2d(error, factor)
        heavy = weight if factor == 1 else F.avg_pool2d(weight, factor)
        across, down = part.diff(dim=-1).abs(), part.diff(dim=-2).abs()
        loss = (
            loss
            + share * (heavy[..., 1:] * across).mean()
            + share * (heavy[..., 1:, :] * down).mean()
        )
    return loss + 10 * (_steepness(output) - _steepness(picture)).abs().mean()


def _steepness(picture: Tensor) -> Tensor:
    """Return the root mean square slope in windows of 8 pixels. A blurred picture lacks it."""
    slopes = (
        F.pad(picture.diff(dim=-1), (0, 1)).square()
        + F.pad(picture.diff(dim=-2), (0, 0, 0, 1)).square()
    )
    return (F.avg_pool2d(slopes, 8, 4) + 1e-5).sqrt()


def train_classifier(run: Run, world: World) -> None:
    """Teach the classifier to read pictures: true ones, and what tokens keep of others."""
    model = world.model
    model.classifier.train()

    def loss_of(step: int) -> dict[str, Tensor]:
        drawn, attributes = world.drawn(300_000_001 + step)
        pictures = drawn[:, :3].float() / 255
        half = len(pictures) // 2
        kept = model.drawn(world.encode(drawn[:half]))
        images = disturb(torch.cat((kept, pictures[half:])), torch.Generator().manual_seed(step))
        with cast(run.device):
            logits = model.classifier(images)
        wanted = {name: value.to(run.device) for name, value in attributes.items()}
        losses = [F.cross_entropy(logits[k].float(), v) for k, v in wanted.items()]
        right = torch.stack([logits[k].argmax(-1) == v for k, v in wanted.items()]).all(0)
        return {"loss": torch.stack(losses).sum(), "right": right.float().mean()}

    fit(run, {"classifier": model.classifier}, loss_of, 2e-3)
    model.classifier.eval()


def disturb(images: Tensor, g: torch.Generator) -> Tensor:
    """Blur some pictures, change brightness and add noise."""
    b = images.shape[0]
    soft = F.avg_pool2d(F.pad(images, (1, 1, 1, 1), mode="replicate"), 3, stride=1)
    images = torch.lerp(images, soft, torch.rand(b, 1, 1, 1, generator=g).to(images.device))
    images = images * (0.9 + 0.2 * torch.rand(b, 1, 1, 1, generator=g)).to(images.device)
    noise = torch.randn(images.shape, generator=g).to(images.device) * (
        0.04 * torch.rand(b, 1, 1, 1, generator=g)
    ).to(images.device)
    return (images + noise).clamp(0, 1)


Scenes = tuple[Tensor, dict[str, Tensor]]  # token ids [B, 256] int16 and attributes [B]


def true_scenes(
    world: World, seed: int, wanted: int, ended: Callable[[], bool] = lambda: False
) -> Scenes:
    """Draw and tokenise groups of scenes, until there are `wanted` of them or `ended` is true."""
    ids, found = list[Tensor](), []
    while len(ids) * world.group < wanted and not (ids and ended()):
        pictures, attributes = world.drawn(seed + len(ids))
        ids.append(world.encode(pictures).to(torch.int16))
        found.append({k: v.to(world.device) for k, v in attributes.items()})
    return torch.cat(ids), joined(found)


def with_strips(ids: Tensor, g: torch.Generator) -> Tensor:
    """Return ids [B, N] of which a share FOREIGN has some rows of the picture before it.

    After the tokens of its own picture a token gains little from the caption, after rows of another
    thing much. So a target learns to trust its caption.
    """
    b, n = ids.shape
    grid = math.isqrt(n)
    row = torch.arange(n, device=ids.device) // grid
    first = torch.randint(BELOW, grid, (b, 1), generator=g, device=ids.device)
    high = torch.randint(1, STRIP + 1, (b, 1), generator=g, device=ids.device)
    foreign = torch.rand(b, 1, generator=g, device=ids.device) < FOREIGN
    return torch.where(foreign & (row >= first) & (row < first + high), ids.roll(1, 0), ids)


def target_states(
    model: Model, target: LlamaGen, said: tuple[Tensor, Tensor], seen: Tensor, drop: Tensor
) -> Tensor:
    """Return hidden states [B, N, (1 + F) H] of tokens, with the caption hidden where `drop`."""
    features, mask = model.text(*said)
    features = torch.where(drop[:, None, None], target.no_caption().to(features.dtype), features)
    return train_hidden(target, seen[:, :-1], features, mask)[:, PREFIX - 1 :]


def train_target(run: Run, world: World, scenes: Scenes, held: Scenes) -> None:
    """Teach target and text encoder to draw scenes from captions."""
    model, device = world.model, run.device
    ids, attributes = scenes
    model.target.feature_layers = (model.target.config.layers // 3,)
    dim = model.target.config.dim

    def loss_of(step: int) -> dict[str, Tensor]:
        g = torch.Generator(device).manual_seed(step)
        rows = torch.randint(len(ids), (run.args.batch,), generator=g, device=device)
        tokens, chosen = ids[rows].long(), {k: v[rows] for k, v in attributes.items()}
        drop = torch.rand(len(rows), generator=g, device=device) < DROPPED
        said = world.said(chosen, step)
        with cast(device):
            features, mask = model.text(*said)
            read = model.target.cls_embedding(features).masked_fill(~mask[..., None], 0.0)
            alone = model.words_head(read.sum(1) / mask.sum(1, keepdim=True)).float()
            hidden = target_states(model, model.target, said, with_strips(tokens, g), drop)
            logits = model.target.lm_head(hidden[..., :dim])
            names = model.names_head(hidden[..., dim:]).float()
        nll = F.cross_entropy(logits.float().flatten(0, 1), tokens.flatten())
        words = -alone.log_softmax(-1).gather(1, tokens).mean()
        named = -names.log_softmax(-1).mean(1).gather(1, chosen["thing"][:, None])[:, 0]
        named = (named * ~drop).sum() / (~drop).sum().clamp(min=1)
        return {
            "loss": nll + WORDS * words + NAMES * named,
            "nll": nll,
            "words": words,
            "names": named,
        }

    parts = {
        "text": model.text,
        "target": model.target,
        "words_head": model.words_head,
        "names_head": model.names_head,
    }
    fit(run, parts, loss_of, 1.5e-3)
    run.tell(held_out_nll=held_out(run, world, held))


@torch.no_grad()
def held_out(run: Run, world: World, held: Scenes, skipped: int | None = None) -> float:
    """Return the loss in nats a token on held-out scenes, with one block left out if asked."""
    model, total = world.model, 0.0
    for rows in torch.arange(len(held[0])).split(64):
        tokens = held[0][rows].long()
        said = world.said({k: v[rows] for k, v in held[1].items()}, 1, omit=False)
        nobody = torch.zeros(len(rows), dtype=torch.bool, device=run.device)
        with cast(run.device), left_out(model.target, skipped):
            hidden = target_states(model, model.target, said, tokens, nobody)
            logits = model.target.lm_head(hidden[..., : model.target.config.dim])
        total += F.cross_entropy(
            logits.float().flatten(0, 1), tokens.flatten(), reduction="sum"
        ).item()
    return total / held[0].numel()


def distil_guidance(run: Run, world: World, scenes: Scenes, held: Scenes) -> None:
    """Teach the target to draw in one row what it draws with guidance --cfg-scale in two.

    arXiv 2210.03142. Rows without a caption keep their distribution, so that guidance stays
    possible on top.
    """
    model, device, scale = world.model, run.device, run.args.cfg_scale
    ids, attributes = scenes
    model.target.feature_layers = ()
    teacher = copy.deepcopy(model.target).requires_grad_(False)
    reader = copy.deepcopy(model.text).requires_grad_(False)
    if run.args.compile:
        compile_blocks(teacher)

    def loss_of(step: int) -> dict[str, Tensor]:
        g = torch.Generator(device).manual_seed(10_000_000 + step)
        rows = torch.randint(len(ids), (run.args.batch,), generator=g, device=device)
        tokens, chosen = ids[rows].long(), {k: v[rows] for k, v in attributes.items()}
        drop = torch.rand(len(rows), generator=g, device=device) < DROPPED
        said = world.said(chosen, step)
        seen = with_strips(tokens, g)
        with cast(device), torch.no_grad():
            features, mask = reader(*said)
            nothing = teacher.no_caption().to(features.dtype).expand_as(features)
            both = train_hidden(
                teacher,
                seen[:, :-1].repeat(2, 1),
                torch.cat((features, nothing)),
                mask.repeat(2, 1),
            )
            cond, uncond = teacher.lm_head(both[:, PREFIX - 1 :]).float().chunk(2)
            wanted = torch.where(
                drop[:, None, None], uncond, uncond + scale * (cond - uncond)
            ).softmax(-1)
        with cast(device):
            logits = model.target.lm_head(target_states(model, model.target, said, seen, drop))
        guess = logits.float().log_softmax(-1)
        loss = -(wanted * guess).sum(-1).mean()
        distance = (wanted - guess.detach().exp()).abs().sum(-1).mean() / 2
        return {"loss": loss, "variation": distance}

    fit(run, {"text": model.text, "target": model.target}, loss_of, 5e-4)
    run.tell(held_out_nll=held_out(run, world, held))


def compile_blocks(target: LlamaGen) -> None:
    """Compile the blocks of a target for inputs of fixed shapes. A copy of it is not compiled."""
    for block in target.layers:
        block.compile(dynamic=False)


def own_pictures(run: Run, world: World) -> Scenes:
    """Let the target draw captions of new scenes until the stage ends.

    The first group is held out.
    """
    half = copy.deepcopy(world.model.target)
    half.feature_layers = ()
    if run.device.type == "cuda":
        half = half.half()
        half.rope = half.rope_table().to(run.device)
    ids, found, group = list[Tensor](), [], OWN_GROUP * run.args.batch
    while len(ids) < 2 or (run.progress < 1.0 and len(ids) * group < run.args.own):
        scenes = sample(group, 800_000_011 + len(ids))
        attributes = {k: v.to(run.device) for k, v in scenes.attributes().items()}
        with torch.inference_mode():
            features, mask = world.model.text(*world.said(attributes, len(ids)))
        features = features.to(half.lm_head.weight.dtype)
        ids.append(sample_batch(half, features, mask, Sampling(), len(ids)).to(torch.int16))
        found.append(attributes)
    run.tell(pictures=len(ids) * group)
    return torch.cat(ids).to(run.device), joined(found)


def train_drafter(run: Run, world: World, own: Scenes) -> None:
    """Teach the drafter the target's distribution on the target's own pictures."""
    model, device = world.model, run.device
    ids, attributes = own
    kept = OWN_GROUP * run.args.batch  # the first pictures are held out
    target, drafter = model.target.requires_grad_(False), model.drafter
    model.text.requires_grad_(False)
    target.feature_layers = drafter.config.feature_layers
    slots = drafter.config.prefix + ids.shape[1]  # of a drafter, and one more

    def overlaps(rows: Tensor, noise: float, seed: int) -> list[tuple[Tensor, Tensor]]:
        """Return loss and overlap at each depth."""
        tokens, chosen = ids[rows].long(), {k: v[rows] for k, v in attributes.items()}
        with cast(device):
            with torch.no_grad():
                said = model.text(*world.said(chosen, seed))
                hidden = train_hidden(target, tokens, *said)[:, -slots:].float()
            return draft_losses(drafter, tokens, hidden, target.head, len(PASSES), noise)

    def loss_of(step: int) -> dict[str, Tensor]:
        g = torch.Generator(device).manual_seed(step)
        rows = kept + torch.randint(len(ids) - kept, (run.args.batch,), generator=g, device=device)
        found = overlaps(rows, 0.2, step)
        total = sum(weight * loss for weight, (loss, _) in zip(PASSES, found, strict=True))
        return {
            "loss": torch.as_tensor(total),
            **{f"overlap{t}": o for t, (_, o) in enumerate(found)},
        }

    fit(run, {"drafter": drafter}, loss_of, 1.5e-3)
    with torch.no_grad():
        rows = torch.arange(min(kept, 256), device=device)
        run.tell(**{f"held_out_overlap{t}": o for t, (_, o) in enumerate(overlaps(rows, 0.0, 1))})


@torch.no_grad()
def check(run: Run, world: World, held: Scenes) -> None:
    """Measure what each block is worth, how sure the target is, and whether its pictures show what
    was asked. Draw a sheet of 60 pictures.
    """
    model, device = world.model, run.device
    model.target.feature_layers = ()
    whole = held_out(run, world, held)
    worth = [held_out(run, world, held, i) - whole for i in range(model.target.config.layers)]
    run.facts["worth_of_blocks"] = [round(value, 4) for value in worth]
    said = world.said(held[1], 5, omit=False)
    features, mask = model.text(*said)
    ids = sample_batch(copy.deepcopy(model.target), features, mask, Sampling(), 5).to(device)
    nobody = torch.zeros(len(ids), dtype=torch.bool, device=device)
    probs = []
    for rows in torch.arange(len(ids)).split(64):
        with cast(device):
            part = (said[0][rows], said[1][rows])
            hidden = target_states(model, model.target, part, ids[rows], nobody[rows])
            probs.append(model.target.lm_head(hidden).float().softmax(-1))
    sure = torch.cat([p.amax(-1) for p in probs]).median()
    entropy = torch.cat([-torch.xlogy(p, p).sum(-1) for p in probs]).median()
    run.tell(held_out_nll=whole, least_worth=min(worth), top_probability=sure, entropy=entropy)
    pictures = torch.cat([model.drawn(part) for part in ids.split(64)])
    parts = [world.drawn(HELD_OUT + i)[0] for i in range(-(-len(ids) // world.group))]
    truth = torch.cat(parts)[:, :3] / 255
    for name, shown in (("drawn", pictures), ("true", truth.to(device))):
        seen = [model.classifier.read(part) for part in shown.split(64)]
        right = {k: torch.cat([part[k] for part in seen]) == v.cpu() for k, v in held[1].items()}
        every = torch.stack(list(right.values())).all(0).float().mean()
        thing = right["thing"].float().mean()
        run.tell(**{f"{name}_all_right": every, f"{name}_thing_right": thing})
    contact_sheet(pictures[:60], 10).save(run.args.out / "sheet.webp", quality=80)
    captions = world.captions.text(said[0].masked_fill(said[0] == world.end, PAD)[:60])
    (run.args.out / "captions.txt").write_text("\n".join(captions) + "\n", encoding="utf-8")


def race(run: Run, world: World) -> None:
    """Count the tokens a pass of the methods until the stage ends, at most on 100 prompts."""
    from lantern_demo import Result, load

    assert run.model is not None
    folder = run.args.out / "model"
    save(folder, assemble(run.model, run.facts))
    pipe = load(folder, str(run.device))
    shutil.rmtree(folder)
    scenes = sample(100, HELD_OUT - 1).attributes()
    captions = world.captions.text(world.captions(scenes, 1, omit=False))
    found: dict[str, list[float]] = {}
    for number, caption in enumerate(captions):
        if number and run.progress == 1.0:
            break
        for method, event in pipe.compare(caption, list(RACED), seed=number, cfg_scale=1.0):
            if isinstance(event, Result):
                found.setdefault(method, []).append(event.mean_accepted_length)
                found.setdefault(f"{method} changed", []).append(event.changed)
    means = {name: sum(values) / len(values) for name, values in found.items()}
    run.tell(prompts=len(found[RACED[0]]), **means)


def command_line() -> argparse.Namespace:
    p = parser_of(__doc__)
    p.add_argument(
        "--out", type=Path, required=True, help="folder of weights, facts and a sheet of pictures"
    )
    p.add_argument("--minutes", type=float, default=12.0, help="of all stages together")
    p.add_argument(
        "--start-from", type=Path, help="an earlier run's --out whose weights to begin with"
    )
    p.add_argument(
        "--begin", type=Path, default=BUNDLED, help="model folder that a new run begins with"
    )
    p.add_argument(
        "--stages", nargs="+", default=list(SHARES), choices=list(SHARES), help="leave some out"
    )
    add_sprites(p)
    p.add_argument("--layers", type=int, default=24, help="of the target")
    p.add_argument("--ffn", type=int, default=1536, help="width of the drafter's feed-forward half")
    p.add_argument(
        "--cfg-scale", type=float, default=3.0, help="guidance that the target learns to draw with"
    )
    p.add_argument("--batch", type=int, default=384, help="pictures of a step")
    p.add_argument(
        "--pictures-batch", type=int, default=96, help="pictures of a step of the tokenizer"
    )
    p.add_argument(
        "--bank", type=int, default=16_384, help="pictures that the tokenizer learns from"
    )
    p.add_argument(
        "--scenes", type=int, default=150_000, help="most scenes that the target learns from"
    )
    p.add_argument(
        "--own", type=int, default=65_536, help="most pictures that the drafter learns from"
    )
    p.add_argument("--held-out", type=int, default=512, help="scenes that measure the loss")
    p.add_argument("--log-every", type=int, default=50, help="steps between lines of the log")
    p.add_argument(
        "--compile", action="store_true", help="compile the target's blocks; worth it on a GPU"
    )
    args = p.parse_args()
    if not args.minutes > 0:
        p.error(f"--minutes must be above 0, got {args.minutes:g}")
    wanted = {*args.stages, *(NEEDS[stage] for stage in args.stages if stage in NEEDS)}
    args.stages = [stage for stage in SHARES if stage in wanted]
    return args


def main() -> None:
    args = command_line()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    run = Run(args, device)
    model = run.model = Model(args.layers, args.ffn, args.begin).to(device)
    if not read(args.out, model) and args.start_from:
        read(args.start_from, model)
    if args.compile:
        compile_blocks(model.target)
    world = World(run, model)
    if run.begin("tokenizer"):
        train_tokenizer(run, world)
    if run.begin("classifier"):
        train_classifier(run, world)
    held = true_scenes(world, HELD_OUT, args.held_out)
    if run.begin("scenes"):
        scenes = true_scenes(world, 700_000_001, args.scenes, lambda: run.progress == 1.0)
        run.tell(scenes=len(scenes[0]))
        if run.begin("target"):
            train_target(run, world, scenes, held)
        if run.begin("guidance"):
            distil_guidance(run, world, scenes, held)
    if run.begin("pictures"):
        own = own_pictures(run, world)
        if run.begin("drafter"):
            train_drafter(run, world, own)
    run.save()
    if run.begin("check"):
        check(run, world, held)
    if run.begin("race"):
        race(run, world)
    run.save()


if __name__ == "__main__":
    main()
