"""Count accepted drafts of a model's drafter and windows, to fit trees: `python -m lantern_demo.bench.calibrate --prompts 6`.

Writes calibration.json into the model's folder, or into this machine's cache for a published model. All counts use the preset
settings. For a wide fixed tree the file has the probability that each draw is the accepted one. For dynamic trees of several
shapes, OPT-Trees and windows of several sizes it has the mean accepted length. For wavefronts it has tokens per pass and the
share of changed tokens. Methods that share a kind of drafts use the counts of one method: `lantern_demo.runs.fitting` names it.
Prompts and seeds differ from the benchmarks', which count from 0: no tree may be fitted on the rounds that evaluate it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import mean
from typing import Any

from tqdm import tqdm

from lantern_demo.bench.speed import prompts_for
from lantern_demo.decoding.drafting import StaticTree, ZipAR
from lantern_demo.decoding.loop import Step
from lantern_demo.decoding.methods import METHODS, Method
from lantern_demo.models.machine.shutdown import stoppable
from lantern_demo.runs.fitting import CANDIDATES, FILE, acceptance_by_rank, calibration_folder
from lantern_demo.runs.pipeline import Pipeline, load
from lantern_demo.settings.drafts import settings_of

WIDE = "naive_extend_57"
FIRST_SEED = 1_000_000
# EAGLE-1's counts select no tree. `bench sizes` estimates its tokens with them.
COUNTED = ("eagle1", *(kind.counted for kind in CANDIDATES.values()))


def parser() -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument("--model", default="lantern-scenes", help="registry id or a model folder")
    p.add_argument("--prompts", type=int, default=6)
    p.add_argument("--methods", nargs="+", choices=COUNTED, help="only these; the file keeps what it says of the others")
    p.add_argument("--out", type=Path, help="the file to write; by default where the model's own is looked for")
    return p


def rows_of(pipe: Pipeline, method: Method, prompts: list[str]) -> list[list[float]]:
    """Compute a method's rows of a `lantern_demo.runs.fitting.Calibration`, with one run per prompt and row."""
    kind: Any = method.drafts
    if kind is StaticTree:
        steps: list[Step] = []
        for seed, prompt in enumerate(tqdm(prompts, desc=method.id), FIRST_SEED):
            steps += [e for e in pipe.stream(prompt, method.id, seed=seed, tree=WIDE) if isinstance(e, Step)]
        return [[round(p, 4) for p in row] for row in acceptance_by_rank(steps)]
    wave, rows = kind is ZipAR, list[list[float]]()
    for values in tqdm([values for values in CANDIDATES[kind].values if not wave or values[0] < pipe.info.grid], desc=method.id):
        asked = settings_of(kind(*values))
        done = [pipe.generate(prompt, method.id, seed=seed, **asked).stats for seed, prompt in enumerate(prompts, FIRST_SEED)]
        changed = [round(mean(run.changed for run in done), 4)] if wave else []
        rows.append([*values, round(mean(run.mean_accepted_length for run in done), 3), *changed])
    return [*rows, [pipe.info.grid, 1.0, 0.0]] if wave else rows  # a whole row is vanilla


def main() -> None:
    args = parser().parse_args()
    pipe = load(args.model)
    prompts = prompts_for(pipe.info, args.prompts, FIRST_SEED)
    out = args.out or calibration_folder(pipe.info.id, pipe.info.folder) / FILE
    out.parent.mkdir(parents=True, exist_ok=True)
    kept = json.loads(out.read_text()) if args.methods and out.exists() else {}
    tables = {one.table: kept.get(one.table, {}) for one in CANDIDATES.values()}
    for name in args.methods or [name for name in COUNTED if name in pipe.available_methods]:
        tables[CANDIDATES[METHODS[name].drafts].table][name] = rows_of(pipe, METHODS[name], prompts)
    told = {"settings": pipe.defaults.as_dict(), "prompts": len(prompts), "first_seed": FIRST_SEED, **tables}
    out.write_text(json.dumps(told, indent=1) + "\n")
    print(f"wrote {out}")


if __name__ == "__main__":
    with stoppable():
        main()
