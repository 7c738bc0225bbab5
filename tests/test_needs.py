"""What published models need: sizes from shapes, what does not fit, and the dry run that tells."""

from __future__ import annotations

import json
import re
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from published import TEXT_ID, write_text_model
from released import vq_state
from safetensors.torch import load_file, save_file

from lantern_demo.models import checkpoints, hub, needs
from lantern_demo.models.blank import shapes
from lantern_demo.models.registry import REGISTRY
from lantern_demo.pipeline import load

pytestmark = pytest.mark.usefixtures("published_cache")
CPU = torch.device("cpu")
PROMPT = "a red lantern over a lake"


def _golden_shapes() -> dict[str, Any]:
    return json.loads((Path(__file__).parent / "golden" / "state_dict_shapes.json").read_text())["models"]


def _spelt_out(tensors: dict[str, list[int]]) -> dict[str, tuple[int, ...]]:
    """Names with their layers, `x.{i}.y  [i=0..3]`, written out."""
    found = {}
    for name, shape in tensors.items():
        layers = re.fullmatch(r"(.*\S)\s+\[i=(\d+)\.\.(\d+)\]", name)
        names = [layers[1].replace("{i}", str(i)) for i in range(int(layers[2]), int(layers[3]) + 1)] if layers else [name]
        found.update(dict.fromkeys(names, tuple(shape)))
    return found


@pytest.mark.parametrize(("model", "part", "golden"), [
    ("llamagen-c2i-b-384", "target", "llamagen/GPT-B/c2i"), ("llamagen-c2i-l-256", "target", "llamagen/GPT-L/c2i"),
    ("llamagen-c2i-xl-384", "target", "llamagen/GPT-XL/c2i"), ("llamagen-t2i-512", "target", "llamagen/GPT-XL/t2i"),
    ("llamagen-t2i-512", "drafter", "lantern/llamagen_drafter, llamagen2_drafter (1 layer, bias default True)"),
    ("llamagen-t2i-512", "tokenizer", "llamagen/VQ-16"),
])  # fmt: skip
def test_full_sizes_are_those_of_the_released_classes(model: str, part: Any, golden: str) -> None:
    published = REGISTRY[model].published
    assert published is not None
    sizes = needs.sizes_of(published)[part]
    listed = _golden_shapes()[golden]
    wanted = _spelt_out(listed["tensors"])
    assert sum(map(prod, wanted.values())) == listed["numel"]
    if part == "tokenizer":
        del wanted["quantize.codebook_used"]
        wanted = {f"vq.{name}": shape for name, shape in vq_state(wanted).items()}  # type: ignore[arg-type]
    assert shapes(sizes) == wanted


def test_memory_grows_with_the_numbers() -> None:
    published = REGISTRY["llamagen-t2i-512"].published
    assert published is not None
    single, half = (needs.memory(published, dtype) for dtype in ("float32", "bfloat16"))
    assert 5 * 2**30 < half < single < 9 * 2**30
    described = needs.describe(REGISTRY["llamagen-t2i-512"])
    assert described is not None
    assert described["sources"]["target"] == {"repo": "jadohu/LlamaGen-T2I-2", "file": "model.safetensors", "revision": "main"}
    assert described["download_bytes"] == 4 * (777_923_840 + 44_567_040 + 71_883_403 + 2_849_757_184)
    assert needs.describe(REGISTRY["lantern-scenes"]) is None


def test_too_little_memory_is_said_before_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "free_memory", lambda _: 2**20)
    says = r"llamagen-t2i-512 cannot run here: it needs about 7\.\d GiB of memory in float32, and 1 MiB are free"
    with pytest.raises(ValueError, match=says):
        load("llamagen-t2i-512", device="cpu")


def test_too_small_a_disk_is_said_before_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("lantern_demo.models.needs.shutil.disk_usage", lambda _: usage)
    with pytest.raises(
        ValueError, match=r"llamagen-c2i-b-384 cannot run here: it needs about .* of disk space at .*, and 0 MiB are free"
    ):
        load("llamagen-c2i-b-384", device="cpu")
    assert needs.requirements_unmet(REGISTRY["lantern-scenes"], CPU, "float32") is None


def test_half_precision_is_named_where_it_would_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    published = REGISTRY["llamagen-t2i-512"].published
    assert published is not None
    monkeypatch.setattr(needs, "free_memory", lambda _: needs.memory(published, "bfloat16"))
    assert str(needs.short_of_memory(published, CPU, "float32")).endswith("; bfloat16 needs less")
    assert needs.short_of_memory(published, CPU, "bfloat16") is None


def _check(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str]:
    monkeypatch.setattr("sys.argv", ["checkpoints", *options])
    with pytest.raises(SystemExit) as left:
        checkpoints.main()
    assert isinstance(left.value.code, int)
    return left.value.code, capsys.readouterr().out


def test_check_of_a_folder(
    text_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = _check(monkeypatch, capsys, "--model", TEXT_ID, "--check", "--folder", str(text_model))
    assert code == 0
    assert out.count("tensors are as expected") == 4
    assert "Enough for float32" in out
    folder = write_text_model(tmp_path / "m", drafter=False)
    (folder / "vq_ds16_t2i.pt").unlink()
    target = folder / "target" / "model.safetensors"
    state = load_file(target)
    save_file({k: v.clone() for k, v in state.items() if k != "lm_head.weight"}, tmp_path / "cut.safetensors")
    target.write_bytes((tmp_path / "cut.safetensors").read_bytes())
    code, out = _check(monkeypatch, capsys, "--model", TEXT_ID, "--check", "--folder", str(folder))
    assert code == 1
    assert "tensor 'lm_head.weight' is missing" in out
    assert "tokenizer: not in the folder; put vq_ds16_t2i.pt in one of" in out
    assert "drafter: not in the folder; put pytorch_model.bin" in out


def test_check_of_the_hub(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    code, out = _check(monkeypatch, capsys, "--model", "llamagen-t2i-512", "--check")
    assert "target: model.safetensors of jadohu/LlamaGen-T2I-2, revision main" in out
    assert "about 2.9 GiB to download; the Hub could not be asked which commit that is" in out
    assert "estimates" in out
    monkeypatch.setattr(hub, "ask", lambda _: ("0" * 40, 5 * 2**30))
    _, out = _check(monkeypatch, capsys, "--model", "llamagen-t2i-512", "--check")
    assert f"(5.0 GiB by the Hub); now commit {'0' * 40}" in out
    monkeypatch.setattr(needs, "free_memory", lambda _: 2**30)
    code, out = _check(monkeypatch, capsys, "--model", "llamagen-t2i-512", "--check")
    assert code == 1
    assert "Not enough: it needs about" in out


def test_every_published_model_says_where_its_parts_come_from() -> None:
    for info in REGISTRY.values():
        if info.published is None:
            continue
        assert info.tokens * 16 * 16 == info.image_size**2
        assert set(needs.sizes_of(info.published)) == set(info.published.sources)
        assert all(source.revision == "main" for sources in info.published.sources.values() for source in sources)
        assert (info.published.target.grid, info.kind == "class") == (info.grid, info.published.target.classes > 0)
