"""Speed and distortion of every method on this machine: `python -m lantern_demo.bench --prompts 4 --out bench.json`.

Every prompt is a comparison as on the page: the methods one after the other on one device, warmed up, in one run. Printed are
medians over the prompts; a speedup is the median of the ratios to vanilla within each comparison, with its lowest and highest.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
from tqdm import tqdm

from lantern_demo.decoding.methods import METHODS
from lantern_demo.models.labels import CLASSES
from lantern_demo.models.registry import ModelInfo
from lantern_demo.pipeline import Generation, MethodFailed, Pipeline, load
from lantern_demo.record import merge_records
from lantern_demo.settings import TREES
from lantern_demo.training.scenes import ATTRIBUTES, full_caption


def scene_prompts(count: int, seed: int = 0) -> list[dict[str, Any]]:
    """Prompts that name every attribute, with the class indices they name; the same for the same seed."""
    g = torch.Generator().manual_seed(seed)
    prompts = []
    for _ in range(count):
        wanted = {name: int(torch.randint(len(classes), (1,), generator=g)) for name, classes in ATTRIBUTES.items()}
        prompts.append({"prompt": full_caption(**wanted), "attributes": wanted})
    return prompts


def prompts_for(info: ModelInfo, count: int) -> list[str]:
    """Prompts for any model: scenes in words, or classes by number; the same for the same model and count."""
    if info.kind == "class":
        return [str(n) for n in torch.randint(CLASSES, (count,), generator=torch.Generator().manual_seed(0)).tolist()]
    return [p["prompt"] for p in scene_prompts(count)]


def run(pipe: Pipeline, prompts: list[str], methods: list[str] | None, **settings: Any) -> list[dict[str, Any]]:
    """One comparison record per prompt; prompt i is drawn with seed i. Raises RuntimeError when a method fails."""
    records = []
    for seed, prompt in enumerate(tqdm(prompts, desc="prompts")):
        done = []
        for method, event in pipe.compare(prompt, methods, seed=seed, **settings):
            if isinstance(event, MethodFailed):
                raise RuntimeError(f"{method} failed: {event.message}")
            if isinstance(event, Generation):
                done.append(event.record)
        records.append(merge_records(done))
    return records


def table(records: list[dict[str, Any]]) -> str:
    """The Markdown table of comparison records of the same methods."""
    head = "| method | nodes | accepted / step | ms / step | tokens / s | speedup (range) | one-step TVD |"
    lines = [head, "|---|--:|--:|--:|--:|--:|--:|"]
    for method in records[0]["order"]:
        runs = [r["methods"][method] for r in records]
        steps = [1000 * (r["decode_seconds"] - r["prefill_seconds"]) / r["steps"] for r in runs]
        speedups = [r["speedup"] for r in runs if "speedup" in r]
        speedup = f"{median(speedups):.2f}x ({min(speedups):.2f} to {max(speedups):.2f})" if speedups else "-"
        tvd = [r["one_step_tvd"] for r in runs if r["one_step_tvd"] is not None]
        lines.append(
            f"| {METHODS[method].label} | {runs[0]['nodes']} | {mean(r['mean_accepted_length'] for r in runs):.2f} "
            f"| {median(steps):.1f} | {median(r['tokens_per_second'] for r in runs):.0f} | {speedup} "
            f"| {mean(tvd) if tvd else float('nan'):.4f} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--model", default="lantern-scenes", help="registry id")
    parser.add_argument("--prompts", type=int, default=4, help="how many prompts to draw")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), help="by default all that the model has a drafter for")
    parser.add_argument("--out", type=Path, help="where to write the records as JSON")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tree", default=None, choices=TREES, help="draft trees; by default the model's preset")
    parser.add_argument("--lantern-delta", type=float, default=None)
    parser.add_argument("--lantern-k", type=int, default=None)
    parser.add_argument("--lanternpp-lambda", type=float, default=None)
    parser.add_argument("--lanternpp-k", type=int, default=None)
    args = parser.parse_args()
    knobs = {
        k: v
        for k in ("tree", "lantern_delta", "lantern_k", "lanternpp_lambda", "lanternpp_k")
        if (v := getattr(args, k)) is not None
    }
    pipe = load(args.model, args.device)
    records = run(pipe, prompts_for(pipe.info, args.prompts), args.methods, **knobs)
    if args.out:
        args.out.write_text(json.dumps(records, indent=1) + "\n")
    print(f"{records[0]['model']['id']} on {records[0]['device']}, {args.prompts} prompts, settings {pipe.settings(**knobs)}\n")
    print(table(records))


if __name__ == "__main__":
    main()
