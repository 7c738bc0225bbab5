"""Train the drafter of a target.

The command is `python examples/train_drafter/drafter.py --target FOLDER --out runs/drafter`.

The loss is the total variation to the target's distribution: a sampled draft is accepted with a
chance of one minus that value. With smaller weights it adds the terms of EAGLE and LANTERN:
cross-entropy to the distribution through the target's frozen head, and SmoothL1 to its next final
state, with noise on the states. The distribution is the guided one, as in decoding. The drafter
also learns from its own outputs, as in deep nodes of a draft tree (`teaching.train_passes`). With
--guided the drafter works on guided states, one row instead of two. With --feature-layers it also
reads some blocks of the target: see `registry.DrafterConfig`. Of published models it trains
LlamaGen's.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
if __name__ == "__main__":
    from lantern_demo.shutdown import stop_at_once

    stop_at_once()  # the imports below take seconds

import argparse
import hashlib
import json
import random
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from examples.make_bundled_model.scenes import sample
from examples.make_bundled_model.world import Captions, vocabulary
from examples.train_drafter import run
from examples.train_drafter.own import OwnPictures, encode_prompts
from examples.train_drafter.teaching import draft_losses, drafter_sizes, train_hidden
from lantern_demo.decoding.sampling import Sampling
from lantern_demo.models import bundled, checkpoints
from lantern_demo.models.bundled import preset_of
from lantern_demo.models.llamagen import Drafter, LlamaGen
from lantern_demo.models.registry import REGISTRY, DrafterConfig, LlamaGenConfig, ModelInfo
from lantern_demo.paths import user_path
from lantern_demo.settings.settings import Settings
from lantern_demo.shutdown import stoppable

PASSES = (1.0, 0.8, 0.6)  # weights of the stable pass, and of tree nodes of depth 1 and 2
SHARD = 64  # pictures that a target draws at once


def read_captions(info: ModelInfo, file: Path | None) -> list[str]:
    """Return the captions of a text file. Raise ValueError if it has no caption."""
    if file is None:
        raise ValueError(f"--captions must name a file of captions, one a line, for {info.id}")
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines()  # some editors put a mark first
    except (OSError, UnicodeDecodeError) as error:
        allowed = "a text file in UTF-8"
        raise ValueError(f"--captions must name {allowed}, got {file} ({error})") from None
    captions = [line.strip() for line in lines if line.strip()]
    if not captions:
        raise ValueError(f"--captions must name a file with a caption a line; {file} has none")
    return captions


def scene_pictures(args: argparse.Namespace, opts: run.Options) -> OwnPictures:
    """Return pictures that the target of a model folder draws from captions of random scenes.

    Raise ValueError for another folder.
    """
    folder = user_path(args.target)
    if not (folder / "config.json").exists():
        allowed = "the id of a published model or a model folder"
        raise ValueError(f"--target must be {allowed}, got {folder}")
    networks = bundled.load(folder, opts.device)
    writer = Captions({word: number for number, word in enumerate(vocabulary(), 1)})

    def prompts(number: int, rng: random.Random) -> list[str]:
        seed = rng.randrange(2**31)
        return writer.text(writer(sample(number, seed).attributes(), seed))

    sampling = Sampling(cfg_scale=args.cfg_scale)
    own = args.own or 2_048
    return OwnPictures(
        opts.out, opts.rank, networks.target, networks.text, prompts, own, SHARD, sampling
    )


def published_pictures(args: argparse.Namespace, opts: run.Options, info: ModelInfo) -> OwnPictures:
    """Return pictures that a published target draws from captions in a file, one a line."""
    assert info.published is not None
    sizes = info.published.target
    # Everything that may be refused comes before anything is fetched.
    if not isinstance(sizes, LlamaGenConfig):
        raise ValueError(f"--target must be a LlamaGen, got {info.id}")
    drafter_sizes(sizes, sizes.ffn, args.guided, args.feature_layers)
    choices = read_captions(info, args.captions)
    target = checkpoints.load_part("target", info, opts.device, folder=args.folder)
    encoder = checkpoints.load_part("text", info, opts.device, folder=args.folder)
    sampling = Sampling(top_k=info.preset.get("top_k", 0), cfg_scale=args.cfg_scale)

    def prompts(number: int, rng: random.Random) -> list[str]:
        return rng.choices(choices, k=number)

    return OwnPictures(
        opts.out, opts.rank, target, encoder, prompts, args.own or 20_000, SHARD, sampling
    )


def keep_states(
    own: OwnPictures, target: Any, states: Callable[[Tensor, list[str]], Tensor], opts: run.Options
) -> None:
    """Keep the target's states with its own pictures.

    End the program with a sentence if there is no room.
    """
    ids, prompts = own.shard(0)
    one = 2 * states(ids[:1], prompts[:1]).numel()  # bytes
    wanted, free = opts.world * own.shards * SHARD * one, shutil.disk_usage(opts.out).free
    there = sum(path.stat().st_size for path in opts.out.glob("states*.pt"))
    if wanted > there + free:
        raise SystemExit(
            f"--keep-states needs {wanted / 1e9:.1f} GB in {opts.out}, {one / 1e6:.1f} MB a "
            f"picture, and {free / 1e9:.1f} GB "
            "are free: lower --own, or leave it out"
        )
    norms = b"".join(
        p.detach().float().cpu().numpy().tobytes() for p in target.parameters() if p.dim() == 1
    )
    own.states = states
    own.key = hashlib.sha256(norms + str(target.feature_layers).encode()).hexdigest()[:12]


class Lesson:
    """The loss of a drafter, with guidance around `top`."""

    def __init__(
        self, own: OwnPictures, drafter: Any, opts: run.Options, guided: bool, top: float
    ) -> None:
        """guided: the drafter reads guided states."""
        self.own, self.target, self.opts, self.guided, self.top = own, own.target, opts, guided, top
        self.rows = own.rows
        self.held_out = own.shard("held-out")  # never trained on
        self.slots = drafter.config.prefix + own.target.config.tokens  # and one more
        self.cast = run.cast(opts.device)
        self.drafter = drafter
        self.forward = torch.compile(train_hidden) if opts.compile else train_hidden

    @torch.no_grad()
    def states(self, tokens: Tensor, captions: list[str]) -> Tensor:
        """Return the target's hidden states [R, S + 1, (1 + F) H] of all slots and one more,
        conditional rows first. R is 2 B, or B without guidance.
        """
        with self.cast:
            condition = self.target.condition(
                *encode_prompts(self.own.encoder, captions, self.opts.device), self.rows == 2
            )
            ids = tokens.long().to(self.opts.device).repeat(self.rows, 1)
            # A published model decodes in 16 bits, and its drafter reads padded rows as of then.
            hidden = self.forward(
                self.target, ids, condition.features, condition.mask, torch.bfloat16
            )
            return hidden[:, -self.slots :]

    def compare(
        self, tokens: Tensor, both: Tensor, scale: Tensor, noise: float
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the loss, and the overlap of every pass. both: the target's `states` of the tokens
        [B, S].
        """
        tokens, both = tokens.long().to(self.opts.device), both.to(self.opts.device).float()
        hidden = guide(both, scale) if self.guided and self.rows == 2 else both

        def logits(states: Tensor) -> Tensor:
            made = self.target.head(states)
            return made if self.guided or self.rows == 1 else guide(made, scale)

        with self.cast:
            found = draft_losses(self.drafter, tokens, hidden, logits, len(PASSES), noise)
        loss = sum(weight * loss for weight, (loss, _) in zip(PASSES, found, strict=True))
        return torch.as_tensor(loss), [overlap for _, overlap in found]

    def batch_loss(self, step: int) -> tuple[Tensor, dict[str, float]]:
        """As in `run.train`."""
        seed = self.opts.batch_seed(step)
        tokens, captions, kept = self.own.batch(
            self.opts.batch, step, self.opts.steps, random.Random(seed)
        )
        both = self.states(tokens, captions) if kept is None else kept
        g = torch.Generator().manual_seed(seed)
        scale = self.top * (0.6 + 0.8 * torch.rand(self.opts.batch, generator=g))
        loss, overlaps = self.compare(tokens, both, scale.to(self.opts.device), noise=0.2)
        return loss, {f"overlap{t}": o.item() for t, o in enumerate(overlaps)}

    def validate(self) -> dict[str, float]:
        """As in `run.train`."""
        tokens, captions = self.held_out
        scale = torch.full((len(tokens),), self.top, device=self.opts.device)
        _, overlaps = self.compare(tokens, self.states(tokens, captions), scale, noise=0.0)
        return {f"held_out_overlap{t}": o.item() for t, o in enumerate(overlaps)}


def guide(rows: Tensor, scale: Tensor) -> Tensor:
    """Guide states or logits [2B, S, *], conditional rows first, at guidance scale [B] -> [B, S,
    *].
    """
    cond, uncond = rows.chunk(2)
    return uncond + scale[:, None, None] * (cond - uncond)


def command_line() -> argparse.Namespace:
    parser = run.parser(__doc__ or "", steps=2000, batch=12, lr=1.5e-3)
    parser.add_argument(
        "--target",
        required=True,
        help="a model folder, or the id of a model",
    )
    parser.add_argument(
        "--own",
        type=int,
        help="pictures that the target draws to train on; 2,048, or a published one 20,000",
    )
    parser.add_argument(
        "--captions",
        type=user_path,
        help="a file of captions, one a line, for a published model",
    )
    parser.add_argument(
        "--folder", type=user_path, help="a local folder with the files of a published model"
    )
    parser.add_argument(
        "--cfg-scale",
        type=float,
        help="guidance that pictures are drawn and overlap is measured with; else the model's "
        "preset",
    )
    parser.add_argument(
        "--ffn", type=int, help="width of the feed-forward half; by default the target's own"
    )
    parser.add_argument(
        "--start-from",
        type=user_path,
        help="a model folder whose drafter to train further, at its own sizes",
    )
    parser.add_argument(
        "--guided", action="store_true", help="draft from guided states, one row instead of two"
    )
    layers = "blocks of the target to read too, counted from 1"
    parser.add_argument(
        "--feature-layers", type=int, nargs="+", default=[], metavar="BLOCK", help=layers
    )
    parser.add_argument(
        "--keep-states",
        action="store_true",
        help="keep the target's states of its own pictures on disk",
    )
    return parser.parse_args()


def begin(
    sizes: DrafterConfig, target: LlamaGen, opts: run.Options, start_from: Path | None
) -> Any:
    """Return the drafter of a run, new or from a model folder.

    End the program with a sentence if an existing run or drafter has other sizes.
    """
    drafter: Any = Drafter(sizes).to(opts.device)
    before = bundled.load(start_from, opts.device).drafter if start_from else None
    # Feature layers may be new, or others than before if they are as many.
    if before is not None and (
        len(before.config.feature_layers) not in (0, len(sizes.feature_layers))
        or replace(before.config, feature_layers=sizes.feature_layers) != sizes
    ):
        raise SystemExit(f"--start-from has a drafter of {before.config}, not of {sizes}")
    told = opts.out / "drafter.json"
    if (opts.out / "last.pt").exists() and (
        there := type(sizes)(**json.loads(told.read_text(encoding="utf-8")))
    ) != sizes:
        raise SystemExit(f"--out has a run of a drafter of {there}, not of {sizes}")
    told.write_text(json.dumps(asdict(sizes)) + "\n", encoding="utf-8")
    if before is None:
        drafter.embed_tokens.weight.data.copy_(target.embed_tokens.weight)
    else:
        drafter.load_state_dict(drafter.state_dict() | before.state_dict())
    return drafter


def set_up(args: argparse.Namespace) -> tuple[Any, Lesson, ModelInfo | None]:
    """Return the drafter of a run, its lesson, and the published model that it is for, if any.

    Raise ValueError, or its kind CheckpointError, for what cannot be trained.
    """
    opts = run.options(args)
    info = REGISTRY.get(args.target)
    preset = info.preset if info is not None else preset_of(user_path(args.target))
    published = info if info is not None and info.published else None
    args.cfg_scale = args.cfg_scale or Settings(**preset).cfg_scale
    if info is not None and not published:
        args.target = str(info.folder)
    own = published_pictures(args, opts, published) if published else scene_pictures(args, opts)
    if not own.shards:
        raise ValueError(f"--own must be {SHARD} or more, got {args.own}")
    target = own.target
    ffn = args.ffn or target.config.ffn
    sizes = drafter_sizes(target.config, ffn, args.guided, args.feature_layers)
    target.feature_layers = sizes.feature_layers
    drafter = begin(sizes, target, opts, args.start_from)
    lesson = Lesson(own, drafter, opts, args.guided, args.cfg_scale)
    if args.keep_states:
        keep_states(own, target, lesson.states, opts)
    return drafter, lesson, published


def save_drafter(folder: Path, drafter: Drafter) -> None:
    """Write a drafter as config.json, its configuration, and model.safetensors, its tensors."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: weight.detach().cpu().contiguous() for name, weight in drafter.state_dict().items()},
        folder / "model.safetensors",
    )
    (folder / "config.json").write_text(
        json.dumps(asdict(drafter.config), indent=1) + "\n", encoding="utf-8"
    )


def main() -> None:
    args = command_line()
    try:
        drafter, lesson, published = set_up(args)
    except ValueError as error:
        raise SystemExit(str(error)) from None
    run.train(drafter, lesson.opts, lesson.batch_loss, lesson.validate)
    if published and lesson.opts.rank == 0:
        folder = lesson.opts.out / "drafter"
        save_drafter(folder, drafter)
        print(f"Load it with load({published.id!r}, drafter={str(folder)!r}).")


if __name__ == "__main__":
    with stoppable():
        main()
