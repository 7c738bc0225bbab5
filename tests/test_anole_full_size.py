"""Anole in full size with random weights, in the files that are published: its packed weights are in memory once, and every
method draws.

It writes about 17 GB to the folder that FULL_SIZE_DIR names, takes them away again, and wants about 20 GB of memory: without that
variable it is skipped. The figures that it measures are printed (`pytest -s`).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from full_size import BLOCK, FOLDER, load_and_draw, random
from published import write_vocabulary
from safetensors.torch import save_file

from lantern_demo.decoding.methods import METHODS
from lantern_demo.models.anole.target import AnoleConfig
from lantern_demo.models.families import LAYOUTS
from lantern_demo.models.files.blank import blank_network, blank_tokenizer
from lantern_demo.models.files.needs import held, memory
from lantern_demo.models.registry import REGISTRY

TOKENS, SHARDS = 8, 3

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not FOLDER, reason="FULL_SIZE_DIR names no folder")]


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


def test_it_loads_and_every_method_draws(files: Path, tmp_path: Path) -> None:
    told = load_and_draw("anole-7b", "bfloat16", files, TOKENS)
    published = REGISTRY["anole-7b"].published
    assert published is not None
    weights = held(published.target) * 2 / 2**30
    assert weights > 12
    # Packed weights are the process's own, once, also while they are packed.
    most = memory(published, "bfloat16", on_cpu=True) / 2**30
    assert told["loaded"]["most of its own"] < 1.3 * weights and told["end"]["most of its own"] < most
    for method, found in told["methods"].items():
        assert len(found["tokens"]) == TOKENS and all(0 <= token < 8192 for token in found["tokens"]), method
        assert not METHODS[method].lossless or found["tvd"] == pytest.approx(0, abs=1e-4), method
    assert set(told["methods"]) == set(METHODS)
    assert told["picture"][:2] == [512, 512] and told["picture"][2] > 1000
