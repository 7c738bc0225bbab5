"""Train the drafter of a target: `python -m lantern_demo.training.drafter --target runs/target --out runs/drafter`.

The loss is that of EAGLE and LANTERN, SmoothL1 to the target's next hidden state and cross-entropy to its law through its
frozen head, with noise on the states, in two points taken further: the law is the guided one that is decoded with, and the
drafter also learns from its own outputs, as deep nodes of a draft tree will make it (`Drafter.train_passes`). A last term is
the total variation to the target, because the chance that a sampled draft is accepted is one minus just that.
With --guided the drafter works on guided states, one row instead of two: see `DrafterConfig.guided`.
"""

from __future__ import annotations

import json
import random
from dataclasses import asdict
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from lantern_demo.models import bundled
from lantern_demo.models.drafter import Drafter, DrafterConfig
from lantern_demo.models.llamagen import LlamaGenConfig
from lantern_demo.training import run
from lantern_demo.training.sample import sample_batch
from lantern_demo.training.target import Captions, TextToTokens, load_image_tokenizer, training_scenes

PASSES = 3  # the stable pass, and tree nodes of depth 1 and 2
PASS_WEIGHTS = (1.0, 0.8, 0.6)


def load_target(folder: Path, device: torch.device) -> TextToTokens:
    """The target and text encoder of a model folder, or the averaged ones of a training run, frozen."""
    if (folder / "config.json").exists():
        networks = bundled.load(folder, device)
        model = TextToTokens(networks.target.config).to(device)
        model.text, model.target = networks.text, networks.target
        return model.requires_grad_(False).eval()
    weights = torch.load(folder / "last.pt", map_location=device, weights_only=True)["average"]
    layers = 1 + max(int(k.split(".")[2]) for k in weights if k.startswith("target.layers."))
    vocab, dim = weights["target.tok_embeddings.weight"].shape
    config = LlamaGenConfig(dim=dim, layers=layers, heads=dim // 64, ffn=3 * dim, vocab=vocab, caption_dim=dim)
    model = TextToTokens(config).to(device)
    model.load_state_dict(weights)
    return model.requires_grad_(False).eval()


def own_samples(
    model: TextToTokens, words: Captions, count: int, cfg_scale: float, device: torch.device
) -> tuple[Tensor, list[str]]:
    """What the target draws for captions of the training scenes -> ids [count, N] int16 and their captions."""
    rng, ids, captions, size = random.Random(7), [], [], 64
    for part in tqdm(range(count // size), desc="samples", mininterval=5):
        prompts = words(
            torch.randint(len(words.attributes["count"]), (size,), generator=torch.Generator().manual_seed(part)), rng
        )
        ids.append(sample_batch(model.text, model.target, prompts, cfg_scale, 50_000 + part).to(torch.int16))
        captions += prompts
    return torch.cat(ids), captions


def main() -> None:
    parser = run.parser(__doc__ or "", steps=2000, batch=12, lr=1.5e-3)
    parser.add_argument("--target", type=Path, required=True, help="folder of a target run, or a model folder")
    parser.add_argument("--scenes", type=int, default=8_000, help="scenes to draw when --target is a model folder")
    parser.add_argument("--own", type=int, default=0, help="pictures to sample from the target and train on, beside the scenes")
    parser.add_argument(
        "--cfg-scale", type=float, default=3.0, help="guidance that pictures are sampled and overlap is measured with"
    )
    parser.add_argument("--ffn", type=int, default=1024)
    parser.add_argument("--guided", action="store_true", help="draft from guided states, one row instead of two")
    args = parser.parse_args()
    opts = run.options(args)
    model = load_target(args.target, opts.device)
    c = model.target.config
    sizes = DrafterConfig(
        dim=c.dim, heads=c.heads, ffn=args.ffn, vocab=c.vocab, grid=c.grid, prefix=c.prefix, guided=args.guided
    )  # fmt: skip
    drafter = Drafter(sizes).to(opts.device)
    (opts.out / "drafter.json").write_text(json.dumps(asdict(sizes)) + "\n")
    drafter.embed_tokens.weight.data.copy_(model.target.tok_embeddings.weight)
    # The scenes of the target's run are used again; a model folder has none, but the tokenizer to make them.
    if (args.target / "config.json").exists():
        ids, attributes = training_scenes(opts.out, load_image_tokenizer(args.target, opts.device), args.scenes, opts)
    else:
        ids, attributes = torch.load(args.target / f"scenes{opts.rank}.pt", weights_only=True)
    words = Captions(attributes)
    held, ids = ids[-240:], ids[:-240]
    own_ids, own_captions = torch.empty(0, c.tokens, dtype=torch.int16), []
    if args.own:
        store = opts.out / f"own{opts.rank}.pt"
        if not store.exists():
            torch.save(own_samples(model, words, args.own, args.cfg_scale, opts.device), store)
        own_ids, own_captions = torch.load(store, weights_only=True)
    cast = torch.autocast(opts.device.type, torch.bfloat16)
    first = c.prefix - 1  # the slot of image token 0, whose output stands for image token 1

    @torch.no_grad()
    def states(tokens: Tensor, captions: list[str], scale: Tensor) -> Tensor:
        """The target's hidden states [R, T + N, H] float32, conditional rows first; guided ones if the drafter works on those."""
        text, mask = (t.to(opts.device) for t in model.text.ids(captions))
        with cast:
            features, mask = model.text(text, mask)
            nothing = model.target.no_caption().to(features.dtype).expand_as(features)
            both = model.target.train_hidden(tokens.repeat(2, 1), torch.cat((features, nothing)), mask.repeat(2, 1))
        return guide(both.float(), scale) if args.guided else both.float()

    def guide(rows: Tensor, scale: Tensor) -> Tensor:
        """States or logits [2B, S, *], conditional rows first -> guided [B, S, *]."""
        cond, uncond = rows.chunk(2)
        return uncond + scale[:, None, None] * (cond - uncond)

    def logits(hidden: Tensor, scale: Tensor) -> Tensor:
        """Hidden [R, S, H] -> guided logits [B, S, V] float32."""
        made = model.target.output(hidden).float()
        return made if args.guided else guide(made, scale)

    def compare(tokens: Tensor, captions: list[str], scale: Tensor, noise: float) -> tuple[Tensor, list[Tensor]]:
        """Loss, and the overlap sum(min(p, q)) of every pass."""
        tokens = tokens.long().to(opts.device)
        hidden = states(tokens, captions, scale)
        inputs = hidden[:, :-1] + noise * (torch.rand_like(hidden[:, :-1]) - 0.5)
        following = F.pad(tokens, (first, 0)).repeat(
            len(hidden) // len(tokens), 1
        )  # the token at position i + 1, for every slot i but the last
        with cast:
            outputs = drafter.train_passes(following, inputs, PASSES)
            wanted = hidden[:, 1:]
            with torch.no_grad():
                law = logits(wanted[:, first:-1], scale).softmax(-1)
            loss, overlaps = hidden.new_zeros(()), []
            for t, output in enumerate(outputs):
                start = first + t
                close = F.smooth_l1_loss(output[:, start:-1].float(), wanted[:, start:-1])
                guess = logits(output[:, start:-1], scale).log_softmax(-1)
                p = law[:, t:]
                entropy = -(p * guess).sum(-1).mean()
                overlap = torch.minimum(p, guess.exp()).sum(-1).mean()
                loss = loss + PASS_WEIGHTS[t] * (close + entropy + (1 - overlap))
                overlaps.append(overlap.detach())
        return loss, overlaps

    def batch_loss(step: int) -> tuple[Tensor, dict[str, float]]:
        seed = opts.batch_seed(step)
        g, rng = torch.Generator().manual_seed(seed), random.Random(seed)
        if len(own_ids) and step % 2:
            rows = torch.randint(len(own_ids), (opts.batch,), generator=g)
            tokens, captions = own_ids[rows], [own_captions[i] for i in rows.tolist()]
        else:
            rows = torch.randint(len(ids), (opts.batch,), generator=g)
            tokens, captions = ids[rows], words(rows, rng)
        scale = (args.cfg_scale * (0.6 + 0.8 * torch.rand(opts.batch, generator=g))).to(opts.device)
        loss, overlaps = compare(tokens, captions, scale, noise=0.2)
        return loss, {f"overlap{t}": o.item() for t, o in enumerate(overlaps)}

    def validate() -> dict[str, float]:
        rng, sums = random.Random(0), torch.zeros(PASSES)
        parts = torch.arange(len(held)).split(24)
        for rows in parts:
            scale = torch.full((len(rows),), args.cfg_scale, device=opts.device)
            captions = words(rows + len(ids), rng)
            sums += torch.stack(compare(held[rows], captions, scale, noise=0.0)[1]).cpu()
        return {f"held_out_overlap{t}": v for t, v in enumerate((sums / len(parts)).tolist())}

    run.train(drafter, opts, batch_loss, validate)


if __name__ == "__main__":
    main()
