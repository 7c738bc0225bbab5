"""Count what a model's drafter lands, and its windows, for trees that fit: `python -m lantern_demo.bench.calibrate --prompts 6`.

Writes calibration.json into the model's folder, of a published model into this machine's cache: at the preset settings, the
chance of every draw of a wide fixed tree to be the accepted one, the mean accepted length of dynamic trees of several shapes, of
OPT-Trees and of windows of several sizes, and of wavefronts tokens a pass and the share of tokens that they change. Prompts and
seeds are none of the benchmarks', which count theirs from 0: a tree must not be fitted on the rounds that it is judged by.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean
from typing import Any

from tqdm import tqdm

from lantern_demo.bench.speed import prompts_for
from lantern_demo.decoding.drafting import DynamicTree, StaticTree
from lantern_demo.decoding.loop import Step
from lantern_demo.decoding.methods import METHODS, Method
from lantern_demo.decoding.opt_tree import OptTree
from lantern_demo.decoding.wavefront import Wavefront
from lantern_demo.decoding.window import Window
from lantern_demo.runs.fitting import CHANCES, FILE, LEADS, SHAPES, WINDOWS, acceptance_by_rank, calibration_folder
from lantern_demo.runs.pipeline import Pipeline, load
from lantern_demo.runs.stats import Stats

WIDE = "naive_extend_57"
FIRST_SEED = 1_000_000
TABLES = ("static", "dynamic", "windows", "chances", "wavefronts")


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument("--model", default="lantern-scenes", help="registry id or a model folder")
    p.add_argument("--prompts", type=int, default=6)
    p.add_argument("--methods", nargs="+", choices=list(METHODS), help="only these; the file keeps what it says of the others")
    p.add_argument("--out", type=Path, help="the file to write; by default where the model's own is looked for")
    return p


def calibration_of(pipe: Pipeline, method: Method, prompts: list[str]) -> dict[str, dict[str, Any]]:
    """What a calibration says of a method: by kind of table and name, its rows."""

    def runs(**settings: Any) -> list[Stats]:
        """A run for each prompt."""
        return [pipe.generate(prompt, method.id, seed=seed, **settings).stats for seed, prompt in enumerate(prompts, FIRST_SEED)]

    def landed(**settings: Any) -> float:
        """Tokens a step, mean of the prompts."""
        return round(mean(run.mean_accepted_length for run in runs(**settings)), 3)

    if method.drafts is StaticTree:
        steps: list[Step] = []
        for seed, prompt in enumerate(tqdm(prompts, desc=method.id), FIRST_SEED):
            steps += [e for e in pipe.stream(prompt, method.id, seed=seed, tree=WIDE) if isinstance(e, Step)]
        return {"static": {method.id: [[round(p, 4) for p in row] for row in acceptance_by_rank(steps)]}}
    if method.drafts is DynamicTree:
        shapes = tqdm(SHAPES, desc=method.id)
        return {"dynamic": {method.id: [[*s, landed(draft_top_k=s[0], draft_depth=s[1], draft_nodes=s[2])] for s in shapes]}}
    if method.drafts is OptTree:
        return {"chances": {method.id: [[least, landed(opt_chance=least)] for least in tqdm(CHANCES, desc=method.id)]}}
    if method.drafts is Window:
        return {"windows": {method.id: [[nodes, landed(window=nodes)] for nodes in tqdm(WINDOWS, desc=method.id)]}}
    if method.drafts is Wavefront:
        rows = [[pipe.info.grid, 1.0, 0.0]]  # a whole row is vanilla
        for lead in tqdm([lead for lead in LEADS if lead < pipe.info.grid], desc=method.id):
            done = runs(zipar_window=lead)
            tokens, changed = (mean(getattr(run, of) for run in done) for of in ("mean_accepted_length", "changed"))
            rows.insert(-1, [lead, round(tokens, 3), round(changed, 4)])
        return {"wavefronts": {method.id: rows}}
    return {}


def main() -> None:
    args = parser().parse_args()
    pipe = load(args.model)
    prompts = prompts_for(pipe.info, args.prompts, FIRST_SEED)
    out = args.out or calibration_folder(pipe.info.id, pipe.info.folder) / FILE
    out.parent.mkdir(parents=True, exist_ok=True)
    kept = json.loads(out.read_text()) if args.methods and out.exists() else {}
    tables = {kind: kept.get(kind, {}) for kind in TABLES}
    for name in args.methods or pipe.available_methods:
        for kind, rows in calibration_of(pipe, METHODS[name], prompts).items():
            tables[kind] |= rows
    told = {"settings": pipe.defaults.as_dict(), "prompts": len(prompts), "first_seed": FIRST_SEED, **tables}
    out.write_text(json.dumps(told, indent=1) + "\n")
    print(f"wrote {out}")


if __name__ == "__main__":
    main()
