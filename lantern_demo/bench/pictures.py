"""What the picture decoder of a model gains over its tokenizer's own: `python -m lantern_demo.bench.pictures --out runs/pictures`.

Held-out scenes go through the tokenizer and are drawn by both decoders, the tokenizer's pictures enlarged by bicubic interpolation.
Both are held against the same scenes rendered in full. The folder --out gets pictures.json, pictures.md, and samples.png: what the
target draws, by both decoders, side by side.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from lantern_demo.bench.prompts import prompts_for
from lantern_demo.bench.quality.scenes import ALL, draw_truth, drawn, load_classifier_of, read, true_tokens, truth
from lantern_demo.bench.quality.statistics import wilson
from lantern_demo.models.bundled import Networks
from lantern_demo.models.device import device_name
from lantern_demo.pipeline import Pipeline, load
from lantern_demo.training.classifier import AttributeClassifier
from lantern_demo.training.picture import steepness_kept
from lantern_demo.training.sample import encode_prompts, sample_batch
from lantern_demo.training.scenes import ATTRIBUTES, contact_sheet
from lantern_demo.training.tokenizer import psnr

BATCH = 25
COLUMNS = 6  # pairs in a row of the sheet


@torch.inference_mode()
def enlarged(networks: Networks, tokens: Tensor, size: int) -> Tensor:
    """Token ids [B, N] as the tokenizer itself draws them, enlarged to `size` pixels a side [B, 3, size, size] in [0, 1], on the CPU."""
    small = torch.cat([networks.tokenizer.decode(part).cpu() for part in tokens.split(BATCH)])
    return F.interpolate(small, size=size, mode="bicubic").clamp(0, 1)


def held_out(pipe: Pipeline, classifier: AttributeClassifier, pictures: int) -> dict[str, Any]:
    """PSNR, steepness and what is read off the pictures of `pictures` held-out scenes: rendered, and by each decoder."""
    scenes, size = truth(pictures, 1), pipe.info.image_size
    tokens = true_tokens(pipe.networks, scenes)
    true = draw_truth(scenes, pipe.device, size, BATCH)
    sets = {"true": true, "tokenizer": enlarged(pipe.networks, tokens, size), "picture": drawn(pipe.networks, tokens, BATCH)}
    found: dict[str, Any] = {"pictures": pictures, "size": size}
    for name, images in sets.items():
        right = read(classifier, images, scenes.wanted, BATCH).right
        found[name] = {
            "right": {key: int(values.sum()) for key, values in right.items()},
            "interval": list(wilson(int(right[ALL].sum()), pictures)),
        }
        if name != "true":
            found[name] |= {
                "psnr": torch.cat([psnr(*both) for both in zip(images.split(BATCH), true.split(BATCH), strict=True)])
                .mean()
                .item(),
                "steepness": steepness_kept(images, true).mean().item(),
            }
    return found


@torch.inference_mode()
def times(networks: Networks, rounds: int) -> dict[str, Any]:
    """Milliseconds on one thread to decode a picture of random tokens, by each decoder in turn: the best and the median round.

    `ratio` is of the two; that of the median is the median over pairs, which what else runs on the machine disturbs alike.
    """
    device = networks.tokenizer.codebook.device
    g = torch.Generator().manual_seed(0)
    ids = torch.randint(networks.tokenizer.codebook_size, (1, networks.tokenizer.grid**2), generator=g).to(device)
    calls: dict[str, Callable[[Tensor], Tensor]] = {"tokenizer": networks.tokenizer.decode, "picture": networks.draw}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for call in calls.values():
            call(ids)
        taken: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(rounds):
            for name, call in calls.items():
                began = time.perf_counter()
                call(ids).cpu()
                taken[name].append(1000 * (time.perf_counter() - began))
    finally:
        torch.set_num_threads(threads)
    old, new = taken["tokenizer"], taken["picture"]
    return {
        **{name: {"best": min(values), "median": median(values)} for name, values in taken.items()},
        "ratio": {"best": min(new) / min(old), "median": median(b / a for a, b in zip(old, new, strict=True))},
        "rounds": rounds,
    }


def samples(pipe: Pipeline, pictures: int, seed: int) -> Tensor:
    """Token ids [pictures, N] that the target draws at the preset, of prompts that name every attribute."""
    networks = pipe.networks
    features, mask = encode_prompts(networks.text, prompts_for(pipe.info, pictures, seed), pipe.device)
    return sample_batch(networks.target, features, mask, pipe.defaults.sampling(), seed).to(pipe.device)


def side_by_side(old: Tensor, new: Tensor, columns: int = COLUMNS) -> Tensor:
    """Pictures [B, 3, H, W] twice, B a multiple of `columns` -> [2 B, 3, H, W], a row of the old ones over the same of the new."""
    return torch.cat([part for both in zip(old.split(columns), new.split(columns), strict=True) for part in both])


def markdown(report: dict[str, Any]) -> str:
    """The report's numbers as two tables."""
    scenes, taken = report["held_out"], report["times"]
    labels = {"true": "rendered", "tokenizer": "tokenizer, enlarged", "picture": "picture decoder"}
    lines = [
        f"{scenes['pictures']} held-out scenes at {scenes['size']} x {scenes['size']} pixels",
        "",
        f"| | PSNR | steepness of the true | {' | '.join(ATTRIBUTES)} | all of them |",
        "|---|--:|--:|" + "--:|" * (len(ATTRIBUTES) + 1),
    ]
    for name, label in labels.items():
        row = scenes[name]
        shares = [f"{100 * row['right'][key] / scenes['pictures']:.1f} %" for key in (*ATTRIBUTES, ALL)]
        near = [f"{row['psnr']:.2f} dB", f"{row['steepness']:.3f}"] if "psnr" in row else ["", "1"]
        lines.append(f"| {label} | {' | '.join((*near, *shares))} |")
    lines += ["", f"A picture on one thread of {report['device']}, {taken['rounds']} rounds, both decoders in turn", ""]
    lines += ["| | best | median |", "|---|--:|--:|"]
    lines += [
        f"| {labels[name]} | {taken[name]['best']:.1f} ms | {taken[name]['median']:.1f} ms |" for name in ("tokenizer", "picture")
    ]
    lines.append(f"| ratio | {taken['ratio']['best']:.2f} | {taken['ratio']['median']:.2f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="lantern-scenes", help="registry id or a model folder, with a picture decoder")
    parser.add_argument("--out", type=Path, required=True, help="folder for pictures.json, pictures.md and samples.png")
    parser.add_argument("--pictures", type=int, default=500, help="held-out scenes (default: 500)")
    parser.add_argument("--rounds", type=int, default=40, help="of the measuring of time (default: 40)")
    parser.add_argument("--samples", type=int, default=24, help=f"pictures of the sheet, a multiple of {COLUMNS} (default: 24)")
    parser.add_argument("--seed", type=int, default=0, help="of the samples and their prompts (default: 0)")
    args = parser.parse_args()
    pipe = load(args.model, "cpu", fit_trees=False)
    if pipe.networks.picture is None:
        parser.error(f"{args.model} has no picture decoder")
    if args.samples % COLUMNS or args.pictures < 1 or args.rounds < 1:
        parser.error(f"--samples must be a multiple of {COLUMNS}, --pictures and --rounds at least 1")
    args.out.mkdir(parents=True, exist_ok=True)
    with tqdm(total=3) as bar:
        timed = times(pipe.networks, args.rounds)
        bar.update()
        scenes = held_out(pipe, load_classifier_of(pipe.info.folder, pipe.device), args.pictures)
        bar.update()
        tokens = samples(pipe, args.samples, args.seed)
        both = side_by_side(enlarged(pipe.networks, tokens, pipe.info.image_size), drawn(pipe.networks, tokens, BATCH))
        contact_sheet(both, COLUMNS).save(args.out / "samples.png")
        bar.update()
    report = {
        "device": device_name(pipe.device),
        "held_out": scenes,
        "times": timed,
        "trained": pipe.networks.trained.get("picture"),
    }
    (args.out / "pictures.json").write_text(json.dumps(report, indent=1) + "\n")
    (args.out / "pictures.md").write_text(markdown(report))
    print(markdown(report))


if __name__ == "__main__":
    main()
