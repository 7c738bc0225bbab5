"""LlamaGen-XL with a flan-t5-xl in full size with random weights, in the files that are published: packed weights are in memory
once, also while they are packed, and every method draws.

It writes about 12 GB to the folder that FULL_SIZE_DIR names, takes them away again, and wants about 8 GB of memory: without that
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
from published import write_tokenizer
from safetensors.torch import save_file
from torch import nn

from lantern_demo.decoding.methods import METHODS
from lantern_demo.models.families import LAYOUTS
from lantern_demo.models.files.blank import blank_network, blank_text, blank_tokenizer, t5_config
from lantern_demo.models.files.needs import budget, memory
from lantern_demo.models.llamagen.target import LlamaGenConfig
from lantern_demo.models.machine.sixteen import sixteen_bits
from lantern_demo.models.registry import REGISTRY, TextSizes

MODEL, TOKENS, SHARDS = "llamagen-t2i-256", 16, 2

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not FOLDER, reason="FULL_SIZE_DIR names no folder")]


@pytest.fixture
def files() -> Iterator[Path]:
    """The published files, random."""
    assert FOLDER
    folder = Path(FOLDER) / "llamagen"
    published = REGISTRY[MODEL].published
    assert published is not None and isinstance(published.target, LlamaGenConfig) and isinstance(published.text, TextSizes)
    torch.manual_seed(0)
    block = torch.randn(BLOCK)
    for part in ("target", "drafter", "text"):
        (folder / part).mkdir(parents=True)
    try:
        c, t5 = published.target, t5_config(published.text)

        def tensors(network: nn.Module, form: str) -> dict[str, torch.Tensor]:
            found: dict[str, torch.Tensor] = {}
            shapes = {name: tuple(weight.shape) for name, weight in network.state_dict().items()}
            for name, shape in shapes.items():
                parts = LAYOUTS[form].published(name, shapes)
                for part in parts:
                    found[part] = random(block, (shape[0] // len(parts), *shape[1:]), part).clone()
            return found

        save_file(tensors(blank_network(c), "lantern"), folder / "target" / "model.safetensors")
        heads = {"num_attention_heads": c.heads, "num_key_value_heads": c.heads}
        sizes = {"block_size": c.tokens, "cls_token_num": c.prefix, "rms_norm_eps": c.eps, "rope_base": c.rope_base}
        (folder / "target" / "config.json").write_text(json.dumps({**heads, **sizes}))
        assert published.drafter is not None
        torch.save(tensors(blank_network(published.drafter), "drafter"), folder / "drafter" / "pytorch_model.bin")
        pictures = tensors(blank_tokenizer(published.tokenizer, 1), "vq")
        torch.save({"model": pictures}, folder / "vq_ds16_t2i.pt")
        encoder = tensors(blank_text(t5), "t5")
        for i in range(SHARDS):
            part = {name: encoder[name] for name in list(encoder)[i::SHARDS]}
            save_file(part, folder / "text" / f"model-{i + 1:05d}-of-{SHARDS:05d}.safetensors")
        (folder / "text" / "config.json").write_text(json.dumps(t5.to_diff_dict()))
        write_tokenizer(folder / "text" / "tokenizer.json")
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize(("asked", "most"), [("auto", 2.2), ("float32", 3.6)])
def test_it_loads_and_every_method_draws(asked: str, most: float, files: Path) -> None:
    """most: GiB of the target's weights."""
    told = load_and_draw(MODEL, asked, files, TOKENS)
    published = REGISTRY[MODEL].published
    assert published is not None and told["dtype"] == (sixteen_bits() if asked == "auto" else asked)
    parts = {part: count / 2**30 for part, count in budget(published, told["dtype"], on_cpu=True).items()}
    assert parts["target"] < most
    # The text encoder stays in its files until there is a prompt.
    loaded = parts["target"] + parts["drafter"] + parts["image tokenizer"] + parts["the rest"]
    assert told["loaded"]["most of its own"] < 1.3 * loaded
    assert told["end"]["most of its own"] < 1.3 * memory(published, told["dtype"], on_cpu=True) / 2**30
    for method, found in told["methods"].items():
        assert len(found["tokens"]) == TOKENS and all(0 <= token < published.target.vocab for token in found["tokens"]), method
        assert not METHODS[method].lossless or found["tvd"] == pytest.approx(0, abs=1e-4), method
    assert set(told["methods"]) == set(METHODS)
    assert told["picture"][:2] == [256, 256] and told["picture"][2] > 1000
