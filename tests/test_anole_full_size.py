"""Anole in full size with random weights, in the files that are published: it loads without a second copy, and every method draws.

It writes about 17 GB to the folder that FULL_SIZE_DIR names, takes them away again, and wants about 18 GB of memory: without that
variable it is skipped. The figures that it measures are printed (`pytest -s`).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import pytest
import torch
from published import write_vocabulary
from safetensors.torch import save_file

from lantern_demo.models.anole.target import AnoleConfig
from lantern_demo.models.blank import blank_network, blank_tokenizer
from lantern_demo.models.families import LAYOUTS
from lantern_demo.models.needs import held
from lantern_demo.models.registry import REGISTRY

FOLDER = os.environ.get("FULL_SIZE_DIR")
TOKENS, SHARDS = 8, 3
BLOCK = 2**25  # random numbers that all weights are made of

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not FOLDER, reason="FULL_SIZE_DIR names no folder")]


def random(block: torch.Tensor, shape: tuple[int, ...], name: str) -> torch.Tensor:
    """bfloat16 weights of a size at which states neither vanish nor blow up: norms around 1, the rest by their inputs."""
    count = torch.Size(shape).numel()
    start = crc32(name.encode()) % 1000
    flat = block[start:].repeat(count // (BLOCK - start) + 1)[:count].view(shape)
    if "norm" in name:
        return 1 + 0.1 * flat if name.endswith("weight") else 0.1 * flat
    return flat * (1.0 if "embed" in name else shape[1] ** -0.5 if len(shape) > 1 else 0.1)


@pytest.fixture
def files() -> Iterator[Path]:
    """The published files, random."""
    assert FOLDER
    folder = Path(FOLDER) / "anole"
    published = REGISTRY["anole-7b"].published
    assert published is not None and isinstance(published.target, AnoleConfig)
    torch.manual_seed(0)
    block = torch.randn(BLOCK, dtype=torch.bfloat16)
    hub = folder / "Anole-7b-v0.1-hf"
    hub.mkdir(parents=True)
    try:
        shapes: dict[str, tuple[int, ...]] = {}
        for network, form in ((blank_network(published.target), "anole"), (blank_tokenizer(published.tokenizer, 1), "anole-vq")):
            own = {name: tuple(weight.shape) for name, weight in network.state_dict().items()}
            shapes |= {LAYOUTS[form].published(name, own)[0]: shape for name, shape in own.items()}
        shapes["lm_head.weight"] = (published.target.embeddings, published.target.dim)
        names = list(shapes)
        for i in range(SHARDS):
            part = names[i::SHARDS]
            save_file({n: random(block, shapes[n], n) for n in part}, hub / f"model-{i + 1:05d}-of-{SHARDS:05d}.safetensors")
        config = {"num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 65536, "swin_norm": False}
        (hub / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-5, "rope_theta": 10000.0}))
        write_vocabulary(hub / "tokenizer.json", published.target.vocab)
        (folder / "drafter").mkdir()
        assert published.drafter is not None
        drafter = blank_network(published.drafter).state_dict()
        torch.save({n: random(block, tuple(w.shape), n) for n, w in drafter.items()}, folder / "drafter" / "pytorch_model.bin")
        yield folder
    finally:
        shutil.rmtree(folder)


# In a process of its own, so that its memory is its own.
RUN = """
import json, sys, time
from pathlib import Path
import torch
from lantern_demo.decoding.loop import Decoded
from runs import decode
from lantern_demo.decoding.methods import METHODS
from lantern_demo.pipeline import load

def memory():
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {key: int(lines[key].split()[0]) / 2**20 for key in ("VmHWM", "VmRSS", "RssAnon")}

began = memory()
start = time.time()
pipe = load("anole-7b", device="cpu", dtype="bfloat16", folder=sys.argv[1])
told = {"began": began, "load_seconds": time.time() - start, "loaded": memory()}
start = time.time()
load("anole-7b", device="cpu", dtype="bfloat16", folder=sys.argv[1])
told["second_load_seconds"] = time.time() - start
encoded = pipe.networks.text.encode("a red lantern over the lake")
told["methods"] = {}
for method in METHODS.values():
    knobs = pipe.settings(tree="small", seed=1)
    start = time.time()
    with torch.inference_mode():
        condition = pipe.networks.target.condition(encoded.features, encoded.mask, True)
        *_, last = decode(pipe.target, pipe.drafter, condition, num_tokens=int(sys.argv[2]), method=method, sampling=knobs.sampling(),
            rule=knobs.rule(method), tree=knobs.tree_policy(method), neighbours=pipe.neighbours(), seed=1)
    told["methods"][method.id] = {"tokens": last.tokens, "steps": last.steps, "tvd": last.one_step_tvd, "seconds": time.time() - start}
    print(method.id, told["methods"][method.id], memory(), file=sys.stderr, flush=True)
image = pipe.decode_image(list(range(1024)))
told["picture"] = [*image.size, len(image.getcolors(2**18))]
told["end"] = memory()
print(json.dumps(told))
"""


def test_it_loads_and_every_method_draws(files: Path, tmp_path: Path) -> None:
    env = {**os.environ, "LANTERN_CACHE": str(files / "cache"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(files), str(TOKENS)], env=env, stdout=subprocess.PIPE, text=True, check=True
    )
    told = json.loads(done.stdout)
    print(json.dumps({"bytes": sum(f.stat().st_size for f in files.rglob("*") if f.is_file()), **told}, indent=1))
    published = REGISTRY["anole-7b"].published
    assert published is not None
    weights = held(published.target) * 2 / 2**30
    assert weights > 12
    # The weights stay in their files: what the process has of its own is far less than they are, also while it draws.
    assert told["loaded"]["RssAnon"] - told["began"]["RssAnon"] < 1.5
    assert told["end"]["RssAnon"] < 6 < weights / 2
    for method, found in told["methods"].items():
        assert len(found["tokens"]) == TOKENS and all(0 <= token < 8192 for token in found["tokens"]), method
        assert found["tvd"] == pytest.approx(0, abs=1e-4) or "lantern" in method
    assert told["picture"][:2] == [512, 512] and told["picture"][2] > 1000
