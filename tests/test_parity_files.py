"""Which golden files the parity tests find, and that none is passed over in silence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import released
import torch
from released import Golden, files
from safetensors.torch import save_file


@pytest.mark.parametrize("file", files(), ids=lambda file: file.path.name)
def test_file_is_tested(file: Golden) -> None:
    if file.about is None:
        pytest.fail(f"{file.path} could not be read: {file.problem}")
    if file.kind is None:
        pytest.skip(f"{file.path.name} is of no kind that the parity tests know")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in the place of the golden one."""
    monkeypatch.setattr(released, "GOLDEN", tmp_path)
    monkeypatch.setattr(released, "files", released.files.__wrapped__)
    return tmp_path


def write(path: Path, names: list[str], **header: object) -> None:
    about = {key: value if isinstance(value, str) else json.dumps(value) for key, value in header.items()}
    save_file({name: torch.zeros(1) for name in names}, path.with_suffix(".safetensors"), about)


def test_kinds_are_told_by_content(folder: Path) -> None:
    write(folder / "one", ["tf_tokens", "tf_logits", "more"])
    write(folder / "two", ["embed_tokens.weight", "fc.weight"], config={"hidden_size": 4})
    write(folder / "other", ["embed_tokens.weight", "fc.weight"], drafter_config={"hidden_size": 4})
    (folder / "three.json").write_text('{"trees": {}, "topk_per_group": 10}')
    (folder / "four.json").write_text("[]")
    (folder / "README.md").write_text("not a case")
    found = {file.name: file.kind for file in released.files()}
    assert found == {"one": "llamagen", "two": "drafter weights", "other": None, "three": "tables of static trees", "four": None}
    (only,) = released.cases("llamagen")
    assert only.values[0].name == "one" and released.cases("target") == []


def test_unreadable_files_are_reported(folder: Path) -> None:
    (folder / "cut.safetensors").write_bytes(b"\x40\0\0\0\0\0\0\0{")
    (folder / "cut.json").write_text('{"rows": [')
    assert len(released.files()) == 2
    for file in released.files():
        assert file.about is None and file.kind is None and file.problem
        with pytest.raises(pytest.fail.Exception, match="could not be read"):
            test_file_is_tested(file)


def test_no_such_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(released, "GOLDEN", Path("no/such/folder"))
    with pytest.raises(NotADirectoryError, match="GOLDEN_DIR must name a folder"):
        released.files.__wrapped__()


def test_weights_are_found_through_the_header(folder: Path) -> None:
    for pair in ("a", "b", "b_a"):
        write(folder / f"pair_{pair}_target", ["model.embed_tokens.weight", "model.cls_embedding.x"], config={})
        write(folder / f"pair_{pair}_drafter", ["embed_tokens.weight", "fc.weight"], config={})
    for size in ("x", "x_y", "x_y_longer", "z"):
        write(folder / f"{size}_weights", ["tok_embeddings.weight", "output.weight"], config={"dim": 4 if size == "z" else 8})
    write(folder / "pictures", ["p0.ar.tokens"], modes={}, pair="a")
    write(
        folder / "trees", ["c1_greedy_draft_tokens"], weights="pair_b_drafter.safetensors + lm_head of pair_b_target.safetensors"
    )
    write(folder / "lost", ["c1_greedy_draft_tokens"], weights="pair_c_drafter.safetensors")
    write(folder / "x_y_long", ["tf_tokens", "tf_logits"], config={"dim": 8})
    write(folder / "q", ["tf_tokens", "tf_logits"], config={"dim": 4})

    def weights(name: str, kind: str) -> list[str]:
        (case,) = (file for file in released.files() if file.name == name)
        return [file.name for file in released.weights_of(case, kind)]

    assert weights("pictures", "target weights") == ["pair_a_target"]
    assert weights("pictures", "drafter weights") == ["pair_a_drafter"]
    assert weights("trees", "target weights") == ["pair_b_target"]
    assert weights("trees", "drafter weights") == ["pair_b_drafter"]
    assert weights("x_y_long", "llamagen weights") == ["x_y_weights"]
    assert weights("q", "llamagen weights") == ["z_weights"]
    with pytest.raises(pytest.fail.Exception, match=r"no drafter weights for lost.*pair_c_drafter"):
        weights("lost", "drafter weights")
