"""Check a trained model: measures of its target, a sheet of pictures, and a race."""

from __future__ import annotations

import copy
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor

from examples.make_bundled_model.bank import Bank, World
from examples.make_bundled_model.folder import save
from examples.make_bundled_model.networks import assemble
from examples.make_bundled_model.run import Run
from examples.make_bundled_model.scenes import HELD_OUT, contact_sheet, sample
from examples.make_bundled_model.target_loss import COVERED, missed, target_states
from examples.train_drafter.own import encode_prompts, sample_batch
from examples.train_drafter.run import cast
from lantern_demo.decoding.sampling import Sampling
from lantern_demo.scenes import THINGS, with_article

PART = 32  # pictures of a pass
RACED = ("eagle1", "eagle2", "lantern", "lantern++")


@torch.no_grad()
def sum_inside(world: World, held: Bank, known: bool) -> float:
    """Return the divergence inside a thing, summed, in nats a picture; the mean of `held`.

    Without the caption unless `known`. The name of a thing is worth ln(things) nats.
    """
    target, total = world.model.target, 0.0
    for rows in torch.arange(len(held), device=world.device).split(PART):
        part = held.rows(rows)
        drop = torch.full((len(rows),), not known, device=world.device)
        tokens = part.drawn(torch.Generator(world.device).manual_seed(int(rows[0])))
        with cast(world.device):
            captions = world.caption_ids(part.attributes, 1, omit=False)
            states = target_states(world.model, target, captions, tokens, drop)
            guess = target.lm_head(states[..., : target.config.dim]).float().log_softmax(-1)
        off = missed(guess, part.codes, part.probs).divergence
        total += float((off * (part.cover > COVERED)).sum())
    return total / len(held)


@torch.no_grad()
def check(run: Run, world: World, held: Bank) -> None:
    """Measure the target's divergence, how sure it is, and draw every bare thing once."""
    model, device = world.model, run.device
    model.target.feature_layers = ()
    prompts = [with_article(name) for name in THINGS]
    condition = encode_prompts(model.text, prompts, device)
    ids = sample_batch(copy.deepcopy(model.target), *condition, Sampling(), 5).to(device)
    whole = (model.target, model.text.ids(prompts), ids)
    nobody = torch.zeros(len(ids), dtype=torch.bool, device=device)
    captions = tuple(part.to(device) for part in whole[1])
    with cast(device):
        states = target_states(model, model.target, captions, ids, nobody)
        probs: Tensor = model.target.lm_head(states).float().softmax(-1)
    run.tell(
        sum_inside=sum_inside(world, held, known=True),
        sum_inside_without_caption=sum_inside(world, held, known=False),
        top_probability=probs.amax(-1).median(),
        entropy=-torch.xlogy(probs, probs).sum(-1).median(),
    )
    pictures = torch.cat([model.drawn(part) for part in ids.split(PART)])
    contact_sheet(pictures, 10).save(run.args.out / "sheet.webp", quality=80)


def race(run: Run, world: World) -> None:
    """Count the tokens a pass of the methods until the stage ends, at most on 100 prompts."""
    from lantern_demo import Result, load

    with TemporaryDirectory() as made:
        folder = Path(made) / "model"
        save(folder, assemble(run.model, run.facts))
        pipe = load(folder, str(run.device))
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
