"""The needs of published models: constants that match the networks, refusals, and the dry run."""

from __future__ import annotations

import json
import re
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from published import (
    ANOLE_ID,
    TEXT_ID,
    write_text_model,
)
from tiny import command

from examples.make_bundled_model.folder import published_tensors
from lantern_demo.models import checkpoints, hub
from lantern_demo.models.checkpoints import GIB
from lantern_demo.models.families import FAMILIES, LAYOUTS, blank_network, blank_tokenizer
from lantern_demo.models.registry import REGISTRY
from lantern_demo.models.tensors import shapes_of
from lantern_demo.runs.load import load

pytestmark = pytest.mark.usefixtures("published_cache")
FULL = dict(REGISTRY)  # as it is, before tests put small models in the place of some
CPU = torch.device("cpu")
GPU = torch.device("cuda")
T5_XL = 2_849_757_184  # numbers of flan-t5-xl, of which the encoder stays in memory:
T5_ENCODER = 1_223_527_424


def _golden_shapes() -> dict[str, Any]:
    return json.loads(
        (Path(__file__).parent / "golden" / "state_dict_shapes.json").read_text(encoding="utf-8")
    )["models"]


def _spelt_out(tensors: dict[str, list[int]]) -> dict[str, tuple[int, ...]]:
    """Names with their layers, `x.{i}.y  [i=0..3]`, written out."""
    found = {}
    for name, shape in tensors.items():
        layers = re.fullmatch(r"(.*\S)\s+\[i=(\d+)\.\.(\d+)\]", name)
        names = (
            [layers[1].replace("{i}", str(i)) for i in range(int(layers[2]), int(layers[3]) + 1)]
            if layers
            else [name]
        )
        found.update(dict.fromkeys(names, tuple(shape)))
    return found


@pytest.mark.parametrize(
    ("model", "part", "golden"),
    [
        ("llamagen-t2i-512", "target", "llamagen/GPT-XL/t2i"),
        (
            "llamagen-t2i-512",
            "drafter",
            "lantern/llamagen_drafter, llamagen2_drafter (1 layer, bias default True)",
        ),
        ("llamagen-t2i-512", "tokenizer", "llamagen/VQ-16"),
        ("anole-7b", "drafter", "lantern/anole_drafter (1 layer, bias default True)"),
    ],
)
def test_full_sizes_are_those_of_the_released_classes(model: str, part: Any, golden: str) -> None:
    published = FULL[model].published
    sizes = {"target": published.target, "drafter": published.drafter}
    own = blank_tokenizer(published) if part == "tokenizer" else blank_network(sizes[part])
    listed = _golden_shapes()[golden]
    wanted = _spelt_out(listed["tensors"])
    assert sum(map(prod, wanted.values())) == listed["numel"]
    if part == "tokenizer":
        del wanted["quantize.codebook_used"]
    form = {"target": "llamagen", "tokenizer": "vq"}.get(part, "drafter")
    found = published_tensors(own, LAYOUTS[form])
    assert {name: tuple(tensor.shape) for name, tensor in found.items()} == wanted


def test_anoles_full_sizes_are_those_of_the_library_and_the_released_classes() -> None:
    """The target in the Hub's files is transformers' Chameleon, with Chameleon's image tokenizer
    beside it.
    """
    published = FULL[ANOLE_ID].published
    with torch.device("meta"):
        library = transformers.ChameleonForConditionalGeneration(
            transformers.ChameleonConfig(vocabulary_map={"<image>": 8711})
        )
    wanted = {
        n: tuple(w.shape)
        for n, w in library.state_dict().items()
        if not n.startswith("model.vqmodel.")
    }
    c = published.target
    own = shapes_of(blank_network(c)) | {"lm_head.weight": (c.embeddings, c.dim)}
    assert {LAYOUTS["anole"].published(name, {}): shape for name, shape in own.items()} == wanted
    listed = next(m for name, m in _golden_shapes().items() if name.startswith("chameleon/vqgan"))
    own = shapes_of(blank_tokenizer(published))
    assert {
        LAYOUTS["chameleon-vq"].published(name, own): shape for name, shape in own.items()
    } == _spelt_out(listed["tensors"])
    encoder = {
        n.removeprefix("model.vqmodel."): tuple(w.shape)
        for n, w in library.state_dict().items()
        if "vqmodel.encoder" in n
    }
    assert encoder.items() <= _spelt_out(listed["tensors"]).items()


@pytest.mark.parametrize("model", [name for name, info in FULL.items() if info.published])
def test_needs_match_the_networks(model: str) -> None:
    """They are the weights of each part, a race's run, tables and a GiB for all the rest."""
    published = FULL[model].published
    c = published.target
    target = sum(map(prod, shapes_of(blank_network(c)).values()))
    drafter = sum(map(prod, shapes_of(blank_network(published.drafter)).values()))
    pictures = sum(map(prod, shapes_of(blank_tokenizer(published)).values()))
    if model == ANOLE_ID:  # its head has a row for each word
        more = (c.embeddings - c.vocab) * c.dim
        download = 2 * (target + more + pictures) + 4 * drafter
    else:
        download = 4 * (target + drafter + pictures + T5_XL)
    assert published.download == download
    tables = blank_tokenizer(published).codebook_size * 1001 * 4
    rest = 4 * pictures + tables + GIB + (0 if model == ANOLE_ID else 2 * T5_ENCODER)
    run = checkpoints.run_bytes(published, "bfloat16")
    assert published.memory == 2 * (target + drafter) + run + rest


def test_too_little_memory_or_disk_is_said_before_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "free_memory", lambda _: 2**20)
    says = (
        r"llamagen-t2i-512 cannot run here: it needs at least 5\.7 GiB of memory in float32, "
        "and 1 MiB are free"
    )
    with pytest.raises(ValueError, match=says):
        load("llamagen-t2i-512", device="cpu", dtype="float32")
    published = REGISTRY["llamagen-t2i-512"].published
    monkeypatch.setattr(checkpoints, "free_memory", lambda _: published.memory)
    assert checkpoints.short_of_memory(published, CPU, "bfloat16") is None
    anole = FULL[ANOLE_ID].published
    monkeypatch.setattr(checkpoints, "free_memory", lambda _: int(16e9))
    says = "it needs about 16.4 GiB of GPU memory in bfloat16, and 14.9 GiB are free"
    assert checkpoints.short_of_memory(anole, GPU, "bfloat16") == says
    monkeypatch.setattr(checkpoints, "free_memory", lambda _: int(24e9))
    assert checkpoints.short_of_memory(anole, GPU, "bfloat16") is None
    monkeypatch.undo()
    monkeypatch.setattr(
        "lantern_demo.models.checkpoints.shutil.disk_usage",
        lambda _: type("Usage", (), {"free": 1000}),
    )
    monkeypatch.setattr(checkpoints, "free_memory", lambda _: None)
    says = r"llamagen-t2i-512 cannot run here: it needs about 13.9 GiB of disk space at .*, and 0 "
    with pytest.raises(ValueError, match=says):
        load("llamagen-t2i-512", device="cpu")


def test_files_that_are_here_are_not_downloaded_again(
    text_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parts, and the bytes that are left."""
    info = REGISTRY[TEXT_ID]
    assert checkpoints.to_fetch(info, text_model) == ([], 0)
    folder = write_text_model(tmp_path / "m")
    (folder / "text").rename(tmp_path / "text")
    here = sum(path.stat().st_size for path in folder.rglob("*.*") if path.suffix != ".json")
    assert checkpoints.to_fetch(info, folder) == (["text"], info.published.download - here)
    cached = tmp_path / "vq.pt"
    cached.write_bytes(b"x" * 1000)
    monkeypatch.setattr(hub, "cached", lambda of: (cached,) if of.format == "vq" else ())
    parts, left = checkpoints.to_fetch(info)
    assert parts == ["target", "drafter", "text"] and left == info.published.download - 1000


def _check(capsys: pytest.CaptureFixture[str], model: str, *options: object) -> tuple[int, str]:
    with pytest.raises(SystemExit) as left:
        command(checkpoints, "--model", model, "--check", *options)
    assert isinstance(left.value.code, int)
    return left.value.code, capsys.readouterr().out


def test_check_of_a_folder(
    text_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = _check(capsys, TEXT_ID, "--folder", text_model)
    assert code == 0 and out.count(f": {text_model}") == 4
    assert "Memory on cpu in 16 bits: about 1.0 GiB." in out and "It fits." in out
    folder = write_text_model(tmp_path / "m", drafter=False)
    (folder / "vq_ds16_t2i.pt").unlink()
    code, out = _check(capsys, TEXT_ID, "--folder", folder)
    assert code == 1
    assert f"tokenizer: the folder m holds no tokenizer of {TEXT_ID}: none of " in out
    assert f"drafter: the folder m holds no drafter of {TEXT_ID}: none of " in out


def test_check_of_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out = _check(capsys, "llamagen-t2i-512")
    assert "target: model.safetensors of jadohu/LlamaGen-T2I-2; to download" in out
    assert "To download: about 13.9 GiB." in out and "estimates" in out
    assert out.count("to download") == 4 and "drafter: no drafter" not in out
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"x" * 2**20)
    monkeypatch.setattr(hub, "cached", lambda of: (file,) if of.format == "lantern" else ())
    monkeypatch.setattr(checkpoints, "free_memory", lambda _: 2**30)
    code, out = _check(capsys, "llamagen-t2i-512")
    assert f"target: {file}" in out and out.count("to download") == 3
    assert code == 1 and "Not enough: it needs about" in out


def test_the_table_of_models_is_that_of_the_estimates() -> None:
    """docs/models.md has every model once, with the sizes by the estimates."""
    text = (Path(__file__).parent.parent / "docs" / "models.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("| `")
    ]
    table = {
        name: row for row in rows if len(row) == 10 for name in re.findall(r"`([^`]+)`", row[0])
    }
    assert set(table) == set(FULL)
    for name, row in table.items():
        published = FULL[name].published
        if published is not None:
            assert abs(float(row[7]) - published.memory / GIB) < 0.06, name
            assert row[8] == "LANTERN's", name


def test_a_family_has_five_names() -> None:
    """A new one is a file, a row of this table, and rows of the registry."""
    names = {"NETWORKS", "LAYOUTS", "TOKENIZER", "configured", "prompt_reader"}
    for sizes, family in FAMILIES.items():
        assert names <= {*vars(family)} and sizes in family.NETWORKS
