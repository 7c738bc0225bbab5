"""Published models on a processor: fused, their weights there once, in a format that rounds a node
alike in every pass.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from published import CLASS_ID, JANUS_ID, TEXT_ID

from lantern_demo.models import cpu, families, registry
from lantern_demo.models.cpu import OF_FORMAT, sixteen_bits, supported
from lantern_demo.models.llamagen import LeanTarget
from lantern_demo.runs.pipeline import load

PROMPT = "three red round lanterns over a lake at dusk"
CPU = torch.device("cpu")
FORMATS = ["float32", *(name for name, kind in OF_FORMAT.items() if supported(kind))]

pytestmark = pytest.mark.usefixtures("published_cache")


def test_formats_differ(text_model: Path) -> None:
    """They are what they say: each moves the distribution, bfloat16 most."""
    logits = {}
    for dtype in FORMATS:
        pipe = load(TEXT_ID, device="cpu", dtype=dtype, folder=text_model)
        with torch.inference_mode():
            encoded = pipe.read(PROMPT).encoded
            condition = pipe.networks.target.condition(encoded.features, encoded.mask, True)
            target = pipe.target
            assert isinstance(target, LeanTarget)
            logits[dtype] = target.head(target.prefill(condition, target.new_cache(2, 1))[:, -1:])
    away = {
        name: float((found - logits["float32"]).abs().mean())
        for name, found in logits.items()
        if name != "float32"
    }
    assert all(distance > 0 for distance in away.values())
    assert sorted(away, key=lambda name: away[name]) == [
        name for name in ("float16", "bfloat16") if name in away
    ]


@pytest.mark.parametrize(
    ("model", "prompt", "kept"),
    [
        (CLASS_ID, "goldfish", set()),
        (JANUS_ID, PROMPT, {"embed_tokens.weight", "image_embedding.codes.weight"}),
    ],
)
def test_a_large_targets_weights_are_there_once(
    model: str,
    prompt: str,
    kept: set[str],
    folder_of: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, dtype = folder_of[model], FORMATS[-1]
    wanted = load(model, device="cpu", dtype=dtype, folder=folder).generate(prompt, seed=2)
    monkeypatch.setattr(families, "LARGEST", 0)
    pipe = load(model, device="cpu", dtype=dtype, folder=folder)
    matrices = {
        name
        for name, weight in pipe.networks.target.named_parameters()
        if weight.dim() > 1 and "norm" not in name
    }
    gone = {name for name, weight in pipe.networks.target.named_parameters() if weight.is_meta}
    left = {name for name in matrices - gone if not name.startswith("cls_embedding.")}
    assert gone <= matrices and left == kept
    assert pipe.generate(prompt, seed=2).tokens == wanted.tokens


@pytest.mark.parametrize(
    ("native", "works", "wanted"),
    [
        (True, ("bfloat16", "half"), "bfloat16"),
        (True, ("half",), "float16"),
        (False, ("bfloat16", "half"), "float16"),
        (False, (), "float32"),
    ],
)
def test_the_default_has_16_bits_where_the_processor_has_a_matmul_for_them(
    native: bool, works: tuple[str, ...], wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = registry.REGISTRY[TEXT_ID]
    assert families.dtype_of(info, "auto", CPU) == sixteen_bits()
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: native)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    monkeypatch.setattr(cpu, "supported", works.__contains__)
    assert sixteen_bits() == wanted


def test_a_prompt_is_read_once_for_runs_that_follow_each_other(
    text_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is told the seconds that it took."""
    pipe = load(TEXT_ID, device="cpu", folder=text_model)
    read: list[str] = []
    encode = pipe.networks.text.encode
    monkeypatch.setattr(
        pipe.networks.text, "encode", lambda text: [read.append(text), encode(text)][1]
    )
    first, second = (
        pipe.generate(PROMPT, method=method, tree="small").stats for method in ("vanilla", "eagle1")
    )
    pipe.generate("a blue lantern", tree="small")
    assert read.count(PROMPT) == read.count("a blue lantern") == 1
    assert first.text_seconds == second.text_seconds > 0
