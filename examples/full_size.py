"""Load full-size models with random weights from files in the published formats, and draw with
every method.

    python examples/full_size.py /some/folder --models anole

It checks that memory holds packed weights only once, even while they are packed. The files are
written to the folder and deleted afterwards. LlamaGen-XL needs 9 GB of disk and 8 GB of memory,
Anole 15 and 20, Janus-Pro 1B 5 and 6. It prints memory and seconds. The exit status is 1 if a check
fails.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import T5Config

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from published import write_chat_vocabulary, write_tokenizer, write_vocabulary

from lantern_demo.bench.report import parser_of
from lantern_demo.decoding.methods import METHODS
from lantern_demo.models import tensors
from lantern_demo.models.cpu import sixteen_bits
from lantern_demo.models.families import LAYOUTS, blank_network
from lantern_demo.models.registry import REGISTRY, Published
from lantern_demo.models.text import blank_text
from lantern_demo.models.tokenizer import blank_tokenizer
from lantern_demo.paths import user_path

ROOT = Path(__file__).resolve().parents[1]
BLOCK = 2**25  # random numbers that all weights are built from
TOKENS = 16

FLAN_T5_XL = T5Config(
    d_model=2048,
    num_layers=24,
    num_heads=32,
    d_kv=64,
    d_ff=5120,
    vocab_size=32128,
    feed_forward_proj="gated-gelu",
    tie_word_embeddings=False,
)

Shapes = dict[str, tuple[int, ...]]


# -- the files


def shapes_of(network: nn.Module, form: str) -> Shapes:
    """Return the tensor shapes of a network by the names of a published format."""
    own = tensors.shapes_of(network)
    return {LAYOUTS[form].published(name, own): shape for name, shape in own.items()}


def random(block: Tensor, shapes: Shapes) -> dict[str, Tensor]:
    """Return weights scaled so that states neither vanish nor blow up: norms around 1, the rest by
    their inputs.
    """
    found = {}
    for name, shape in shapes.items():
        count, start = torch.Size(shape).numel(), crc32(name.encode()) % 1000
        flat = block[start:].repeat(count // (BLOCK - start) + 1)[:count].view(shape)
        if "norm" in name:
            found[name] = 1 + 0.1 * flat if name.endswith("weight") else 0.1 * flat
        else:
            found[name] = flat * (
                1.0 if "embed" in name else shape[1] ** -0.5 if len(shape) > 1 else 0.1
            )
    return found


def save_shards(block: Tensor, shapes: Shapes, folder: Path, count: int) -> None:
    """Save one shard after the other, since all weights at once may not fit."""
    for i in range(count):
        part = {name: shapes[name] for name in list(shapes)[i::count]}
        save_file(random(block, part), folder / f"model-{i + 1:05d}-of-{count:05d}.safetensors")


def write_llamagen(folder: Path, published: Published) -> None:
    c, block = published.target, torch.randn(BLOCK)
    assert published.drafter is not None
    for part in ("target", "drafter", "text"):
        (folder / part).mkdir()
    save_file(
        random(block, shapes_of(blank_network(c), "lantern")),
        folder / "target" / "model.safetensors",
    )
    heads = {"num_attention_heads": c.heads, "num_key_value_heads": c.heads}
    sizes = {
        "block_size": c.tokens,
        "cls_token_num": c.prefix,
        "rms_norm_eps": c.eps,
        "rope_base": c.rope_base,
    }
    (folder / "target" / "config.json").write_text(json.dumps({**heads, **sizes}), encoding="utf-8")
    drafter = random(block, shapes_of(blank_network(published.drafter), "drafter"))
    torch.save(drafter, folder / "drafter" / "pytorch_model.bin")
    torch.save(
        {"model": random(block, shapes_of(blank_tokenizer(published.tokenizer, 1), "vq"))},
        folder / "vq_ds16_t2i.pt",
    )
    save_shards(block, shapes_of(blank_text(FLAN_T5_XL), "t5"), folder / "text", 2)
    (folder / "text" / "config.json").write_text(
        json.dumps(FLAN_T5_XL.to_diff_dict()), encoding="utf-8"
    )
    write_tokenizer(folder / "text" / "tokenizer.json")


def write_anole(folder: Path, published: Published) -> None:
    c, block = published.target, torch.randn(BLOCK, dtype=torch.bfloat16)
    hub = folder / "Anole-7b-v0.1-hf"
    assert published.drafter is not None
    hub.mkdir()
    shapes = shapes_of(blank_network(c), "anole") | shapes_of(
        blank_tokenizer(published.tokenizer, 1), "anole-vq"
    )
    save_shards(block, shapes | {"lm_head.weight": (c.embeddings, c.dim)}, hub, 3)
    config = {
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "vocab_size": 65536,
        "swin_norm": False,
    }
    (hub / "config.json").write_text(
        json.dumps({**config, "rms_norm_eps": 1e-5, "rope_theta": 10000.0}), encoding="utf-8"
    )
    write_vocabulary(hub / "tokenizer.json", c.vocab)
    (folder / "drafter").mkdir()
    drafter = blank_network(published.drafter).state_dict()
    shapes = {name: tuple(weight.shape) for name, weight in drafter.items()}
    torch.save(random(block, shapes), folder / "drafter" / "pytorch_model.bin")


def write_janus(folder: Path, published: Published) -> None:
    """Write one checkpoint file in DeepSeek's format."""
    c, place = published.target, folder / "Janus-Pro-1B"
    place.mkdir()
    shapes: Shapes = {"language_model.lm_head.weight": (c.embeddings, c.dim)}
    # about the size of the picture encoder
    shapes |= {f"vision_model.{i}": (12, 1024, 1024) for i in range(24)}
    shapes |= shapes_of(blank_network(c), "janus") | shapes_of(
        blank_tokenizer(published.tokenizer, 1), "janus-vq"
    )
    torch.save(
        random(torch.randn(BLOCK, dtype=torch.bfloat16), shapes), place / "pytorch_model.bin"
    )
    config = {
        "num_attention_heads": 16,
        "num_key_value_heads": 16,
        "hidden_size": 2048,
        "num_hidden_layers": 24,
    }
    (place / "config.json").write_text(
        json.dumps({"language_config": {**config, "vocab_size": 102400}}), encoding="utf-8"
    )
    write_chat_vocabulary(place / "tokenizer.json", c.pad)


# -- a process that loads and draws

# A separate process isolates its memory. Rows have four tokens, since TOKENS fill no row of the
# model's picture.
RUN = """
import json, sys, threading, time
from dataclasses import replace
from pathlib import Path
import torch
from lantern_demo.decoding.loop import decode
from lantern_demo.decoding.methods import METHODS
from lantern_demo.runs.pipeline import load

model, dtype, folder, tokens = sys.argv[1:]

def memory():
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    lines = dict(line.split(":", 1) for line in status.splitlines())
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
told = {"began": began, "load_seconds": time.time() - start, "dtype": pipe.dtype}
told["threads"] = torch.get_num_threads()
told["loaded"] = {"most of its own": most, **memory()}
encoded = pipe.networks.text.encode("a red lantern over the lake")
told["methods"] = {}
for name in pipe.available_methods:
    method, knobs = METHODS[name], pipe.settings(tree="small", noise="independent", seed=1)
    start = time.time()
    whole, condition = pipe.prepared(method, knobs, encoded)
    config = replace(whole, num_tokens=int(tokens), room=None)
    *_, last = decode(pipe.target, pipe.drafter, condition, config)
    told["methods"][name] = {
        "tokens": last.tokens, "steps": last.steps, "seconds": time.time() - start,
        "decode": last.decode_seconds}
    print(name, told["methods"][name], memory(), file=sys.stderr, flush=True)
told["drawn"] = {"most of its own": most, **memory()}
start = time.time()
image = pipe.decode_image(list(range(pipe.info.tokens)))
told["picture"] = [*image.size, len(image.getcolors(2**18)), time.time() - start]
told["end"] = {"most of its own": most, **memory()}
print(json.dumps(told))
"""


def load_and_draw(model: str, dtype: str, files: Path) -> dict[str, Any]:
    """Load a model from published files, draw TOKENS tokens with each of its methods, and decode a
    picture.

    Print and return the seconds and GiB that this took."""
    env = {**os.environ, "LANTERN_CACHE": str(files / "cache"), "HF_HUB_OFFLINE": "1"}
    env["PYTHONPATH"] = str(ROOT)
    command = [sys.executable, "-c", RUN, model, dtype, str(files), str(TOKENS)]
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, encoding="utf-8", check=True)
    told: dict[str, Any] = json.loads(done.stdout)
    size = sum(file.stat().st_size for file in files.rglob("*") if file.is_file())
    print(json.dumps({"bytes": size, **told}, indent=1))
    return told


@dataclass(frozen=True)
class Case:
    """A model, the function that writes its files, the requested number format, and bounds of its
    target's weights in GiB.
    """

    model: str
    write: Callable[[Path, Published], None]
    dtype: str
    weights: tuple[float, float]


CASES = {
    "llamagen": Case("llamagen-t2i-256", write_llamagen, "auto", (1.2, 2.2)),
    "anole": Case("anole-7b", write_anole, "bfloat16", (12, 14)),
    "janus": Case("janus-pro-1b", write_janus, "auto", (2.5, 3.5)),
}


def numbers_of(network: nn.Module) -> int:
    """Return how many numbers the weights of a network are."""
    return sum(weight.numel() for weight in network.parameters())


def check(case: Case, folder: Path) -> None:
    """Write a model's files, load them and draw. Raises AssertionError if a check fails."""
    info = REGISTRY[case.model]
    published = info.published
    assert published is not None
    folder.mkdir(parents=True)
    try:
        torch.manual_seed(0)
        case.write(folder, published)
        told = load_and_draw(case.model, case.dtype, folder)
    finally:
        shutil.rmtree(folder)
    assert told["dtype"] == (sixteen_bits() if case.dtype == "auto" else case.dtype)
    target = 2 * numbers_of(blank_network(published.target)) / 2**30
    assert case.weights[0] < target < case.weights[1]
    weights = target + 4 * numbers_of(blank_tokenizer(published.tokenizer, 1)) / 2**30
    if published.drafter is not None:
        weights += 2 * numbers_of(blank_network(published.drafter)) / 2**30
    # stays on disk until there is a prompt, and then needs more memory
    encoder = case.write is write_llamagen
    assert told["loaded"]["most of its own"] < 1.3 * (weights + (1 if encoder else 0))
    needed = published.needs.cpu / 2**30
    assert told["end"]["most of its own"] < (1.3 if encoder else 1) * needed
    for method, found in told["methods"].items():
        assert len(found["tokens"]) == TOKENS and all(
            0 <= token < published.target.vocab for token in found["tokens"]
        ), method
    assert set(told["methods"]) == {
        m.id for m in METHODS.values() if published.drafter is not None or not m.needs_drafter
    }
    assert told["picture"][:2] == [info.image_size] * 2 and told["picture"][2] > 1000


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("folder", type=user_path, help="where the files are written meanwhile")
    parser.add_argument(
        "--models", nargs="+", choices=list(CASES), default=list(CASES), help="default: all"
    )
    args = parser.parse_args()
    for name in args.models:
        check(CASES[name], args.folder / "full-size")


if __name__ == "__main__":
    main()
