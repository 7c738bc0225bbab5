"""Train the bundled model, from scenes to a drafter, in the minutes that you allow.

    python examples/make_bundled_model/emoji.py --out runs/sprites.npz
    python examples/make_bundled_model/train.py --out runs/model --minutes 150

Two processor cores do, or a GPU. The stages share the time: scenes, own lanterns, target, picture
decoder, own pictures, drafter, check, race. The image tokenizer stays unchanged, so that lanterns
keep their tokens, and the target keeps its law of them.
Every minute the networks go to --out in 16 bits, in files of at most 15 MB. So a run that is cut
off still leaves something. A run that finds such files in --out, or in --start-from, continues
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

import torch
from torch import Tensor

from examples.make_bundled_model.bank import Bank, Pictures, World
from examples.make_bundled_model.check import check, race
from examples.make_bundled_model.compiled import compile_layers
from examples.make_bundled_model.networks import BUNDLED, Model, read
from examples.make_bundled_model.picture_loss import picture_loss
from examples.make_bundled_model.run import SHARES, Run, fit
from examples.make_bundled_model.scenes import HELD_OUT, SHARE, add_sprites, sample
from examples.make_bundled_model.target_loss import Lesson
from examples.train_drafter.own import sample_batch
from examples.train_drafter.run import cast
from examples.train_drafter.teaching import draft_losses, train_hidden
from lantern_demo.bench.report import parser_of
from lantern_demo.decoding.sampling import Sampling
from lantern_demo.scenes import ATTRIBUTES, THINGS

# the data of a stage
NEEDS = {"target": "scenes", "picture": "scenes", "drafter": "scenes"}
OPENINGS = 64  # captions of lanterns whose first token a step of the target learns too
PASSES = (1.0, 0.8, 0.6)  # weights of a drafter's outputs at depth 0 to 2


def of_rows(pictures: Pictures, rows: Tensor) -> Pictures:
    """Return some of the pictures."""
    return pictures[0][rows].long(), {k: v[rows] for k, v in pictures[1].items()}


def chosen(among: int, count: int, g: torch.Generator) -> Tensor:
    """Choose rows of a bank at random."""
    return torch.randint(among, (count,), generator=g, device=g.device)


def train_target(
    run: Run, world: World, things: Bank, lanterns: Bank, own: Pictures | None
) -> None:
    """Teach target and text encoder the law of things; lanterns keep a teacher's law.

    Every other time they are the target's own pictures, if there are any: the law of what it draws
    wrong is in no true picture (arXiv 2306.13649).
    """
    model, args = world.model, run.args
    lesson = Lesson(model, things, Model(args.law).to(run.device) if args.law else None)
    weak = torch.tensor([ATTRIBUTES["thing"].index(name) for name in args.often])
    weak = torch.isin(things.attributes["thing"], weak.to(run.device)).nonzero()[:, 0]
    often = args.things // 2 if len(weak) else 0

    def loss_of(step: int) -> dict[str, Tensor]:
        g = torch.Generator(run.device).manual_seed(step)
        rows = chosen(len(things), args.things - often, g)
        if often:
            rows = torch.cat((rows, weak[chosen(len(weak), often, g)]))
        shown = things.rows(rows)
        if own is not None and step % 2:
            lit = of_rows(own, chosen(len(own[0]), args.lanterns, g))
        else:
            true = lanterns.rows(chosen(len(lanterns), args.lanterns, g))
            lit = true.nearest, true.attributes
        both = {k: torch.cat((v, lit[1][k])) for k, v in shown.attributes.items()}
        more = sample(OPENINGS, args.seed + 40_000_000 + step, lanterns=1.0).attributes()
        more = {k: v.to(run.device) for k, v in more.items()}
        with cast(run.device):
            return lesson(
                shown, lit, world.caption_ids(both, step), world.caption_ids(more, step), g
            )

    parts = {"text": model.text, "target": model.target, "words_head": model.words_head}
    parts |= {"names_head": model.names_head, "reader_head": model.reader_head}
    fit(run, parts | {"plan_heads": model.plan_heads}, loss_of, args.lr)


def train_picture(run: Run, world: World, things: Bank, lanterns: Bank) -> None:
    """Teach the picture decoder to draw from drawn tokens; a fifth of its pictures are lanterns."""
    model, count = world.model, run.args.pictures_batch
    decoder = model.picture.to(memory_format=torch.channels_last)

    def loss_of(step: int) -> dict[str, Tensor]:
        g = torch.Generator(run.device).manual_seed(step)
        lit = lanterns.rows(chosen(len(lanterns.pictures), -(-count // 5), g), pictures=True)
        shown = things.rows(chosen(len(things.pictures), count - len(lit), g), pictures=True)
        tokens = torch.cat((shown.drawn(g), lit.drawn(g)))
        true = torch.cat((shown.pictures, lit.pictures)).float() / 255
        picture, cover = true[:, :3], true[:, 3:]
        z = model.tokenizer.vectors(tokens).contiguous(memory_format=torch.channels_last)
        with cast(run.device):
            output = decoder.raw(z).float()
        error = ((output.detach().clamp(-1, 1) + 1) / 2 - picture).square() * cover
        inside = error.sum((1, 2, 3)) / (3 * cover.sum((1, 2, 3))).clamp(min=1)
        psnr = -10 * inside.clamp(min=1e-6).log10().mean()
        return {"loss": picture_loss(output, picture * 2 - 1, cover), "psnr_inside": psnr}

    fit(run, {"picture": decoder}, loss_of, 5e-4, muon=False)


def own_pictures(run: Run, world: World, seed: int, lanterns: float) -> Pictures:
    """Let the target draw captions of new scenes until the stage ends.

    lanterns: the share of scenes that show lanterns.
    """
    half = copy.deepcopy(world.model.target)
    half.feature_layers = ()
    if run.device.type == "cuda":
        half = half.half()
        half.rope = half.rope_table().to(run.device)
    ids, found, group = list[Tensor](), [], run.args.own_batch
    while not ids or run.progress < 1.0:
        scenes = sample(group, seed + len(ids), lanterns=lanterns)
        attributes = {k: v.to(run.device) for k, v in scenes.attributes().items()}
        with torch.inference_mode():
            captions = world.caption_ids(attributes, len(ids), omit=False)
            features, mask = world.model.text(*captions)
        features = features.to(half.lm_head.weight.dtype)
        ids.append(sample_batch(half, features, mask, Sampling(), len(ids)).to(torch.int16))
        found.append(attributes)
    run.tell(pictures=len(ids) * group)
    return (
        torch.cat(ids).to(run.device),
        {name: torch.cat([part[name] for part in found]) for name in found[0]},
    )


def train_drafter(
    run: Run, world: World, things: Bank, lanterns: Bank, own: Pictures | None
) -> None:
    """Teach the drafter the target's distributions, on true scenes and every other time on the
    target's own pictures, if there are any.
    """
    model, args = world.model, run.args
    target, drafter = model.target.requires_grad_(False), model.drafter
    model.text.requires_grad_(False)
    target.feature_layers = drafter.config.feature_layers
    compile_layers(target)
    slots = drafter.config.prefix + target.config.grid**2  # of a drafter, and one more

    def batch(step: int) -> Pictures:
        g = torch.Generator(run.device).manual_seed(step)
        count = args.things + args.lanterns
        if own is not None and step % 2:
            return of_rows(own, chosen(len(own[0]), count, g))
        lit = lanterns.rows(chosen(len(lanterns), count * 2 // 5, g))
        shown = things.rows(chosen(len(things), count - len(lit), g))
        both = {k: torch.cat((v, lit.attributes[k])) for k, v in shown.attributes.items()}
        return torch.cat((shown.drawn(g), lit.nearest)), both

    def loss_of(step: int) -> dict[str, Tensor]:
        tokens, attributes = batch(step)
        with cast(run.device):
            with torch.no_grad():
                said = model.text(*world.caption_ids(attributes, step))
                hidden = train_hidden(target, tokens, *said)[:, -slots:].float()
            found = draft_losses(drafter, tokens, hidden, target.head, len(PASSES), 0.2)
        total = sum(weight * loss for weight, (loss, _) in zip(PASSES, found, strict=True))
        return {
            "loss": torch.as_tensor(total),
            **{f"overlap{t}": o for t, (_, o) in enumerate(found)},
        }

    fit(run, {"drafter": drafter}, loss_of, 8e-4)


def command_line() -> argparse.Namespace:
    p = parser_of(__doc__)
    p.add_argument(
        "--out", type=Path, required=True, help="folder of weights, facts and a sheet of pictures"
    )
    p.add_argument("--minutes", type=float, default=150.0, help="of all stages together")
    p.add_argument(
        "--start-from", type=Path, help="an earlier run's --out whose weights to begin with"
    )
    p.add_argument(
        "--begin",
        type=Path,
        default=BUNDLED,
        help="model folder that a new run begins with",
    )
    p.add_argument(
        "--law", type=Path, help="model folder whose law of lanterns is kept (default: --begin)"
    )
    p.add_argument(
        "--stages", nargs="+", default=list(SHARES), choices=list(SHARES), help="leave some out"
    )
    add_sprites(p)
    p.add_argument("--lr", type=float, default=2e-4, help="the target's learning rate")
    p.add_argument("--things", type=int, default=18, help="pictures of things in a step")
    p.add_argument(
        "--often",
        nargs="+",
        default=[],
        choices=list(THINGS),
        metavar="THING",
        help="half of a step's things are of these",
    )
    p.add_argument("--lanterns", type=int, default=9, help="pictures of lanterns in a step")
    p.add_argument("--pictures-batch", type=int, default=12, help="of a step of the decoder")
    p.add_argument("--scenes", type=int, default=20_000, help="most scenes to learn from")
    p.add_argument("--seed", type=int, default=700_000_001, help="of the scenes to learn from")
    p.add_argument("--kept", type=int, default=4_000, help="scenes that the decoder learns from")
    p.add_argument("--own-batch", type=int, default=64, help="own pictures drawn at a time")
    p.add_argument("--held-out", type=int, default=64, help="scenes that measure the target")
    p.add_argument("--log-every", type=int, default=10, help="steps between lines of the log")
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
    model = Model(args.begin).to(device)
    run = Run(args, device, model)
    begun = read(args.out, model)
    if args.start_from and not begun and not read(args.start_from, model):
        raise SystemExit(f"--start-from {args.start_from} has no weights of a run")
    world = World(model, args.sprites, device)
    held = world.bank(HELD_OUT, args.held_out, lanterns=False)
    own = lit = None
    if run.begin("scenes"):
        # Each is seen about once. Of 6,000 the target learnt by heart which thing each sky had.
        share = args.lanterns / (args.things + args.lanterns)
        lit_scenes, kept = 1 + int(share * args.scenes), -(-args.kept // 4)
        lanterns = world.bank(args.seed, lit_scenes, lanterns=True, kept=kept, ended=run.over)
        wanted = max(1, args.scenes - lit_scenes)
        things = world.bank(
            args.seed + 10_000_000, wanted, lanterns=False, kept=args.kept, ended=run.over
        )
        run.tell(things=len(things), lanterns=len(lanterns))
        if run.begin("lanterns"):
            lit = own_pictures(run, world, args.seed + 20_000_000, lanterns=1.0)
        if run.begin("target"):
            train_target(run, world, things, lanterns, lit)
        if run.begin("picture"):
            train_picture(run, world, things, lanterns)
        if run.begin("pictures"):
            own = own_pictures(run, world, args.seed + 30_000_000, lanterns=SHARE)
        if run.begin("drafter"):
            train_drafter(run, world, things, lanterns, own)
    run.save()
    if run.begin("check"):
        check(run, world, held)
    if run.begin("race"):
        race(run, world)
    run.save()


if __name__ == "__main__":
    main()
