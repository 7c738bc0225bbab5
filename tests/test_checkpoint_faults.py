"""Faults of published checkpoints: each gets a sentence that says what to do."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import published
import pytest
import torch
from published import ANOLE_ID, OWN, TEXT_ID, VOCAB
from released import llamagen_tensors
from safetensors.torch import load_file, save_file
from tiny import Evil

from lantern_demo.models.anole import read_vocabulary
from lantern_demo.models.tensors import CheckpointError
from lantern_demo.runs.pipeline import load
from lantern_demo.ui import recorded

pytestmark = pytest.mark.usefixtures("published_cache")


# -- files


# A form of files: its model, what writes them, and the files of its target by their folder and
# name.
FORMS: dict[str, tuple[str, Callable[..., Path], str, str]] = {
    "llamagen": (TEXT_ID, published.write_llamagen, ".", "t2i_XL_stage1_256.pt"),
    "lantern": (TEXT_ID, published.write_text_model, "target", "model.safetensors"),
    "anole": (ANOLE_ID, published.write_anole, "Anole-7b-v0.1-hf", "model-*.safetensors"),
}
Tensors = dict[str, torch.Tensor]
Change = Callable[[Tensors], Any]


def lacks(name: str) -> tuple[Change, str]:
    return lambda tensors: tensors.pop(name), rf"tensor '{re.escape(name)}' is missing"


def has(name: str) -> tuple[Change, str]:
    return lambda tensors: tensors.update(
        {name: torch.zeros(2)}
    ), rf"unknown tensor '{re.escape(name)}'"


def of_shape(name: str, shape: list[int], expected: list[int]) -> tuple[Change, str]:
    says = re.escape(f"tensor '{name}' has shape {shape}, expected {expected}")
    return lambda tensors: tensors.update({name: torch.zeros(shape)}), says


WRONG = [
    ("llamagen", *has("extra")),
    (
        "llamagen",
        lambda tensors: tensors.update({"norm.weight": torch.ones(64, dtype=torch.int64)}),
        "tensor 'norm.weight' is int64, allowed are float32, float16, bfloat16",
    ),
    (
        "llamagen",
        lambda tensors: [tensors.pop(name) for name in list(tensors)[:7]],
        ".*is missing; .*is missing; .*is missing; and 4 more",
    ),
    # What is one matrix here goes by the file's own names.
    ("lantern", *of_shape("model.layers.0.self_attn.k_proj.weight", [65, 64], [64, 64])),
    ("anole", *lacks("model.vqmodel.decoder.up.4.block.0.conv1.weight")),
]


@pytest.mark.parametrize(
    ("form", "change", "says"), WRONG, ids=[f"{form} {says}" for form, _, says in WRONG]
)
def test_wrong_tensors_are_named(form: str, change: Change, says: str, tmp_path: Path) -> None:
    model, write, place, name = FORMS[form]
    files, tensors = sorted((write(tmp_path / "m") / place).glob(name)), Tensors()
    for file in files:
        found = load_file(file) if file.suffix == ".safetensors" else torch.load(file)
        tensors |= found.get("model", found)
    change(tensors)
    if len(files) > 1:
        published.write_shards(tensors, files[0].parent, len(files))
    elif name.endswith(".safetensors"):
        save_file(tensors, files[0])
    else:
        torch.save(tensors, files[0])
    with pytest.raises(CheckpointError, match=rf": {says}.*\. It (is not this|belongs to a) model"):
        load(model, device="cpu", folder=tmp_path / "m")


@pytest.mark.parametrize(
    ("form", "change", "says"),
    [
        ("lantern", {"block_size": 1024}, "says block_size 1024, but this model has .*another"),
        ("anole", {"swin_norm": True}, "says swin_norm True, but this model has .*another"),
    ],
)
def test_files_of_another_model_are_told_by_their_config(
    form: str, change: dict[str, Any], says: str, tmp_path: Path
) -> None:
    model, write, place, _ = FORMS[form]
    path = write(tmp_path / "m") / place / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | change
    given = {name: value for name, value in config.items() if value is not None}
    path.write_text(json.dumps(given), encoding="utf-8")
    with pytest.raises(CheckpointError, match=rf"config.json {says}"):
        load(model, device="cpu", folder=tmp_path / "m")


def test_a_missing_part_is_told(tmp_path: Path) -> None:
    folder, name = published.write_anole(tmp_path / "anole"), "model-0000{}-of-00002.safetensors"
    (folder / "Anole-7b-v0.1-hf" / name.format(2)).unlink()
    with pytest.raises(CheckpointError, match=rf"holds only {name.format(1)}, which are not"):
        load(ANOLE_ID, device="cpu", folder=folder)


def test_a_vocabulary_without_its_marks_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    published.write_vocabulary(path)
    assert read_vocabulary(path, VOCAB).token_to_id("lantern") == 8714
    text = path.read_text(encoding="utf-8")
    assert '"IMGIMGBCZ":16' in text.replace(" ", "")
    path.write_text(re.sub(r'("IMGIMGBCZ": ?)16', r"\g<1>17", text), encoding="utf-8")
    with pytest.raises(CheckpointError, match="IMGIMGBCZ must be 16 in it, and is 17"):
        read_vocabulary(path, VOCAB)
    path.write_text("{", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"tokenizer.json is no tokenizer .*; delete it and"):
        read_vocabulary(path, VOCAB)


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"
TOLD = "neither bare nor under one of model, module, state_dict"
PICKLE = TEXT_ID, "t2i_XL_stage1_256.pt"
TENSORS, CONFIG = (TEXT_ID, "target/model.safetensors"), (TEXT_ID, "target/config.json")


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        (PICKLE, 2, r"is damaged or no PyTorch checkpoint .*; delete it and download it again"),
        (PICKLE, b"<html>", "is damaged or no PyTorch checkpoint"),
        (TENSORS, 2, r"is damaged or no safetensors file .*; delete it and download it again"),
        (PICKLE, [1, 2], f"holds no tensors, {TOLD}"),
        (PICKLE, {"model": {}}, f"holds no tensors, {TOLD}"),
        (PICKLE, {"more": Evil()}, r"holds code \(posix.mkdir\) beside its tensors, which is nev"),
        (CONFIG, None, "cannot be read.*download it again"),
        (CONFIG, b"[]", "is not a model's configuration.*download it again"),
        (PICKLE, POINTER, "is a Git LFS pointer, not the file itself; run `git lfs pull`"),
        (CONFIG, POINTER, "is a Git LFS pointer, not the file itself; run `git lfs pull`"),
    ],
)
def test_what_is_no_file_of_a_model(
    file: tuple[str, str], content: Any, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code in a pickle is not run."""
    monkeypatch.chdir(tmp_path)
    model, name = file
    write = published.write_llamagen if file == PICKLE else published.write_text_model
    path = write(tmp_path / "m") / name
    if content is None:
        path.unlink()
    elif isinstance(content, int):  # that part of it alone
        path.write_bytes(path.read_bytes()[: path.stat().st_size // content])
    elif isinstance(content, bytes):
        path.write_bytes(content)
    elif says.startswith("holds code"):
        state = llamagen_tensors(published.networks(OWN)[0])
        torch.save({"model": state} | content, path)
    else:
        torch.save(content, path)
    with pytest.raises(CheckpointError, match=rf"{path.name} {says}"):
        load(model, device="cpu", folder=tmp_path / "m")
    assert not (tmp_path / "ran").exists()


def test_pointers_of_git_in_what_ships_with_the_code(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A clone without Git LFS has them in the place of a model folder's weights and of the recorded
    runs.
    """
    for name in ("target/model.safetensors", "palette.safetensors"):
        folder = shutil.copytree(tiny_model, tmp_path / name.partition(".")[0])
        (folder / name).write_bytes(POINTER)
        with pytest.raises(ValueError, match=rf"{name} is a Git LFS pointer, .*; run `git lfs"):
            load(folder, device="cpu")
    (tmp_path / "1.json.gz").write_bytes(POINTER)
    monkeypatch.setattr(recorded, "FOLDER", tmp_path)
    with pytest.raises(ValueError, match=r"1.json.gz is a Git LFS pointer, .*; run `git lfs"):
        recorded.recorded_runs.__wrapped__()
