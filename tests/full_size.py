"""What the tests of models in full size share: random weights that neither vanish nor blow up, and a process that loads and
draws."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from zlib import crc32

import torch

FOLDER = os.environ.get("FULL_SIZE_DIR")
BLOCK = 2**25  # random numbers that all weights are made of


def random(block: torch.Tensor, shape: tuple[int, ...], name: str) -> torch.Tensor:
    """bfloat16 weights of a size at which states neither vanish nor blow up: norms around 1, the rest by their inputs."""
    count = torch.Size(shape).numel()
    start = crc32(name.encode()) % 1000
    flat = block[start:].repeat(count // (BLOCK - start) + 1)[:count].view(shape)
    if "norm" in name:
        return 1 + 0.1 * flat if name.endswith("weight") else 0.1 * flat
    return flat * (1.0 if "embed" in name else shape[1] ** -0.5 if len(shape) > 1 else 0.1)


# In a process of its own, so that its memory is its own. Rows of four, since a few tokens fill no row of the model's.
RUN = """
import gc, json, sys, threading, time
from pathlib import Path
import torch
from runs import decode
from lantern_demo.decoding.methods import METHODS
from lantern_demo.runs.pipeline import load

model, dtype, folder, tokens = sys.argv[1:]

def memory():
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {key: int(lines[key].split()[0]) / 2**20 for key in ("VmHWM", "VmRSS", "RssAnon")}

most = 0.0
def watch():
    global most
    while True:
        most = max(most, memory()["RssAnon"])
        time.sleep(0.02)

began = memory()
threading.Thread(target=watch, daemon=True).start()
start = time.time()
pipe = load(model, device="cpu", dtype=dtype, folder=folder)
told = {"began": began, "load_seconds": time.time() - start, "dtype": pipe.dtype, "threads": torch.get_num_threads()}
told["loaded"] = {"most of its own": most, **memory()}
del pipe
gc.collect()  # two at once would not fit
start = time.time()
pipe = load(model, device="cpu", dtype=dtype, folder=folder)
told["second_load_seconds"] = time.time() - start
encoded = pipe.networks.text.encode("a red lantern over the lake")
told["methods"] = {}
for name in pipe.available_methods:
    method, knobs = METHODS[name], pipe.settings(tree="small", zipar_window=2, seed=1)
    start = time.time()
    with torch.inference_mode():
        condition = pipe.networks.target.condition(encoded.features, encoded.mask, True)
        drafter = pipe.drafter if method.needs_drafter else None
        asked = dict(sampling=knobs.sampling(), rule=knobs.rule(method), tree=method.drafts.of(knobs), seed=1, row=4)
        *_, last = decode(
            pipe.target, drafter, condition, num_tokens=int(tokens), method=method, neighbours=pipe.neighbours(), **asked
        )
    told["methods"][name] = {
        "tokens": last.tokens, "steps": last.steps, "tvd": last.one_step_tvd, "seconds": time.time() - start,
        "decode": last.decode_seconds}
    print(name, told["methods"][name], memory(), file=sys.stderr, flush=True)
told["drawn"] = {"most of its own": most, **memory()}
start = time.time()
image = pipe.decode_image(list(range(pipe.info.tokens)))
told["picture"] = [*image.size, len(image.getcolors(2**18)), time.time() - start]
told["end"] = {"most of its own": most, **memory()}
print(json.dumps(told))
"""


def load_and_draw(model: str, dtype: str, files: Path, tokens: int) -> dict[str, Any]:
    """Load a model of published files twice, draw some tokens with every method that it has, and a picture -> what that took, in
    seconds and GiB. It is printed, too."""
    here = Path(__file__).parent
    env = {**os.environ, "LANTERN_CACHE": str(files / "cache"), "HF_HUB_OFFLINE": "1"}
    env["PYTHONPATH"] = os.pathsep.join((str(here), str(here.parent)))
    done = subprocess.run(
        [sys.executable, "-c", RUN, model, dtype, str(files), str(tokens)], env=env, stdout=subprocess.PIPE, text=True, check=True
    )
    told: dict[str, Any] = json.loads(done.stdout)
    print(json.dumps({"bytes": sum(f.stat().st_size for f in files.rglob("*") if f.is_file()), **told}, indent=1))
    return told
