"""Faults of published checkpoints: each gets a sentence that says what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import published
import pytest
import torch
from published import ANOLE_ID, TEXT_ID
from safetensors.torch import load_file, save_file
from tiny import Evil

from lantern_demo.models.tensors import CheckpointError
from lantern_demo.runs.load import load
from lantern_demo.ui import recorded

pytestmark = pytest.mark.usefixtures("published_cache")
Spoil = Callable[[Path], Any]


def removed(path: Path) -> None:
    path.unlink()


def of_bytes(content: bytes) -> Spoil:
    return lambda path: path.write_bytes(content)


def holding(content: Any) -> Spoil:
    return lambda path: torch.save(content, path)


def saying(**more: Any) -> Spoil:
    """A JSON file with other values."""
    return lambda path: path.write_text(json.dumps(json.loads(path.read_bytes()) | more))


def having(**tensors: torch.Tensor | None) -> Spoil:
    """A file with other tensors, or without some."""

    def spoil(path: Path) -> None:
        pickled = path.suffix == ".pt"
        found = (torch.load(path)["model"] if pickled else load_file(path)) | tensors
        kept = {name: tensor for name, tensor in found.items() if tensor is not None}
        torch.save(kept, path) if pickled else save_file(kept, path)

    return spoil


def marked_elsewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    path.write_text(re.sub(r'("IMGIMGBCZ": ?)16', r"\g<1>17", text), encoding="utf-8")


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"
OWN_FORM = TEXT_ID, published.write_llamagen, "t2i_XL_stage1_256.pt"
TARGET = TEXT_ID, published.write_text_model, "target/model.safetensors"
CONFIG = TEXT_ID, published.write_text_model, "target/config.json"
WORDS = TEXT_ID, published.write_text_model, "text/tokenizer.json"
SHARD = ANOLE_ID, published.write_anole, "Anole-7b-v0.1-hf/model-00002-of-00002.safetensors"
ANOLE_CONFIG = ANOLE_ID, published.write_anole, "Anole-7b-v0.1-hf/config.json"
ANOLE_WORDS = ANOLE_ID, published.write_anole, "Anole-7b-v0.1-hf/tokenizer.json"
KEY = "model.layers.0.self_attn.k_proj.weight"

# A file of a model, what spoils it -> words of the sentence that names it.
FAULTS: list[tuple[tuple[str, Callable[[Path], Path], str], Spoil, str]] = [
    (OWN_FORM, of_bytes(b"<html>"), "cannot be read .*; download it again"),
    (OWN_FORM, holding([1, 2]), "no tensors are in it"),
    (OWN_FORM, holding({"model": {}, "more": Evil()}), "download it again"),
    (OWN_FORM, of_bytes(POINTER), "is a Git LFS pointer, .*; run `git lfs pull`"),
    (OWN_FORM, having(extra=torch.zeros(2)), 'Unexpected key.* "extra"'),
    (OWN_FORM, having(**{"norm.weight": None}), 'Missing key.* "norm.weight"'),
    (TARGET, having(**{KEY: torch.zeros(65, 64)}), r"k_proj.*\[65, 64\].*\[64, 64\]"),
    (CONFIG, removed, "cannot be read.*download it again"),
    (CONFIG, of_bytes(b"[]"), "it is no JSON object.; download it again"),
    (CONFIG, saying(block_size=1024), "says block_size 1024, but this model has .*another"),
    (WORDS, saying(post_processor=None), "must know <pad> and end a text with </s>"),
    (ANOLE_CONFIG, saying(swin_norm=True), "says swin_norm True, but this model has .*another"),
    (ANOLE_WORDS, marked_elsewhere, "IMGIMGBCZ must be 16 in it, and is 17"),
    (SHARD, removed, "must hold all files, and has only model-00001-of-00002.safetensors"),
]


@pytest.mark.parametrize(("file", "spoil", "says"), FAULTS, ids=[says for *_, says in FAULTS])
def test_a_spoilt_file_is_named_with_its_fault(
    file: tuple[str, Callable[[Path], Path], str],
    spoil: Spoil,
    says: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Code in a pickle is not run."""
    monkeypatch.chdir(tmp_path)
    model, write, name = file
    path = write(tmp_path / "m") / name
    spoil(path)
    named = path.parent if spoil is removed and path.suffix != ".json" else path
    with pytest.raises(CheckpointError, match=rf"{re.escape(str(named))}.*{says}"):
        load(model, device="cpu", folder=tmp_path / "m")
    assert not (tmp_path / "ran").exists()


def test_pointers_of_git_in_the_place_of_recorded_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a clone without Git LFS has them."""
    (tmp_path / "1.json.gz").write_bytes(POINTER)
    monkeypatch.setattr(recorded, "FOLDER", tmp_path)
    with pytest.raises(ValueError, match=r"1.json.gz is a Git LFS pointer, .*; run `git lfs"):
        recorded.recorded_runs.__wrapped__()
