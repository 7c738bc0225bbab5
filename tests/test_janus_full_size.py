"""Janus-Pro 1B in full size with random weights, in DeepSeek's own file and in transformers': its packed weights are in memory
once, and every method without a drafter draws. It writes about 4 GB to the folder that FULL_SIZE_DIR names, takes them away
again, and wants about 6 GB of memory: without that variable it is skipped. The figures that it measures are printed (`pytest
-s`).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from math import prod
from pathlib import Path

import pytest
import torch
from full_size import BLOCK, FOLDER, load_and_draw, random
from published import write_chat_vocabulary
from safetensors.torch import save_file

from lantern_demo.decoding.methods import METHODS
from lantern_demo.models.families import LAYOUTS
from lantern_demo.models.files.blank import blank_network, blank_tokenizer
from lantern_demo.models.files.needs import held, memory
from lantern_demo.models.janus.target import PAD, JanusConfig
from lantern_demo.models.machine.sixteen import sixteen_bits
from lantern_demo.models.registry import REGISTRY

TOKENS = 16

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not FOLDER, reason="FULL_SIZE_DIR names no folder")]


@pytest.fixture(params=["authors", "library"])
def files(request: pytest.FixtureRequest) -> Iterator[Path]:
    """The published files, random."""
    assert FOLDER
    folder = Path(FOLDER) / "janus"
    published = REGISTRY["janus-pro-1b"].published
    assert published is not None and isinstance(published.target, JanusConfig)
    torch.manual_seed(0)
    block = torch.randn(BLOCK, dtype=torch.bfloat16)
    place = folder / "Janus-Pro-1B"
    place.mkdir(parents=True)
    try:
        c = published.target
        library = request.param == "library"
        head, pictures = "lm_head.weight", "vision_model.{}"
        shapes: dict[str, tuple[int, ...]] = {head if library else f"language_model.{head}": (c.embeddings, c.dim)}
        # about what reads pictures: 24 layers of width 1024
        shapes |= {(f"model.{pictures}" if library else pictures).format(i): (12, 1024, 1024) for i in range(24)}
        forms = ("janus-library", "janus-library-vq") if library else ("janus", "janus-vq")
        for network, form in zip((blank_network(c), blank_tokenizer(published.tokenizer, 1)), forms, strict=True):
            own = {name: tuple(weight.shape) for name, weight in network.state_dict().items()}
            shapes |= {LAYOUTS[form].published(name, own)[0]: shape for name, shape in own.items()}
        tensors = {name: random(block, shape, name).clone() for name, shape in shapes.items()}
        save_file(tensors, place / "model.safetensors") if library else torch.save(tensors, place / "pytorch_model.bin")
        del tensors
        config = {"num_attention_heads": 16, "num_key_value_heads": 16, "hidden_size": 2048, "num_hidden_layers": 24}
        (place / "config.json").write_text(
            json.dumps({"text_config" if library else "language_config": {**config, "vocab_size": 102400}})
        )
        write_chat_vocabulary(place / "tokenizer.json", PAD)
        yield folder
    finally:
        shutil.rmtree(folder)


def test_it_loads_and_every_method_without_a_drafter_draws(files: Path) -> None:
    told = load_and_draw("janus-pro-1b", "auto", files, TOKENS)
    published = REGISTRY["janus-pro-1b"].published
    assert published is not None
    weights = held(published.target) * 2 / 2**30
    assert weights > 2.5 and prod((102400, 2048)) < held(published.target)
    assert told["dtype"] == sixteen_bits()
    # Packed weights are the process's own, once, also while they are packed.
    most = memory(published, told["dtype"], on_cpu=True) / 2**30
    assert told["loaded"]["most of its own"] < 1.3 * weights and told["end"]["most of its own"] < most
    for method, found in told["methods"].items():
        assert len(found["tokens"]) == TOKENS and all(0 <= token < 16384 for token in found["tokens"]), method
        assert not METHODS[method].lossless or found["tvd"] == pytest.approx(0, abs=1e-4), method
    assert set(told["methods"]) >= {"vanilla", "sjd", "scd", "gsd", "zipar"}
    assert told["picture"][:2] == [384, 384] and told["picture"][2] > 1000
