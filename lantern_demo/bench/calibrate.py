"""Count what a model's drafter lands, for trees that fit: `python -m lantern_demo.bench.calibrate --prompts 6`.

Writes calibration.json into the model's folder: at the preset settings, the chance of every draw of a wide fixed tree to be the
accepted one, and the mean accepted length of dynamic trees of several shapes. Prompts and seeds are none of the benchmarks', which
count theirs from 0: a tree must not be fitted on the rounds that it is judged by.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean

from tqdm import tqdm

from lantern_demo.bench.prompts import prompts_for
from lantern_demo.decoding.loop import Step
from lantern_demo.decoding.methods import METHODS
from lantern_demo.pipeline import load
from lantern_demo.tree_fitting import FILE, SHAPES, acceptance_by_rank

WIDE = "naive_extend_57"
FIRST_SEED = 1_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--model", default="lantern-scenes", help="registry id or a model folder")
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument(
        "--methods", nargs="+", choices=list(METHODS), help="only these; the file keeps what it says of the others"
    )
    parser.add_argument("--out", type=Path, help="the file to write; by default in the model's folder")
    args = parser.parse_args()
    pipe = load(args.model)
    prompts = prompts_for(pipe.info, args.prompts, FIRST_SEED)
    out = args.out or (pipe.info.folder or Path()) / FILE
    kept = json.loads(out.read_text()) if args.methods and out.exists() else {}
    static, dynamic = kept.get("static", {}), kept.get("dynamic", {})
    for method in (METHODS[name] for name in args.methods or METHODS):
        if method.source == "static":
            steps: list[Step] = []
            for seed, prompt in enumerate(tqdm(prompts, desc=method.id), FIRST_SEED):
                steps += [e for e in pipe.stream(prompt, method.id, seed=seed, tree=WIDE) if isinstance(e, Step)]
            static[method.id] = [[round(p, 4) for p in row] for row in acceptance_by_rank(steps)]
        if method.source == "dynamic":
            rows = []
            for top_k, depth, nodes in tqdm(SHAPES, desc=method.id):
                shape = {"draft_top_k": top_k, "draft_depth": depth, "draft_nodes": nodes}
                runs = [
                    pipe.generate(prompt, method.id, seed=seed, **shape).stats for seed, prompt in enumerate(prompts, FIRST_SEED)
                ]
                rows.append([top_k, depth, nodes, round(mean(r.mean_accepted_length for r in runs), 3)])
            dynamic[method.id] = rows
    told = {
        "settings": pipe.defaults.as_dict(),
        "prompts": len(prompts),
        "first_seed": FIRST_SEED,
        "static": static,
        "dynamic": dynamic,
    }
    out.write_text(json.dumps(told, indent=1) + "\n")
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
