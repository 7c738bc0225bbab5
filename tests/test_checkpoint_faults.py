"""Faults of published checkpoints and of the Hub: each gets a sentence that says what to do."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import published
import pytest
import torch
from published import ANOLE_ID, CLASS_ID, CLASSES, JANUS, JANUS_7B_ID, JANUS_ID, TEXT_ID, VOCAB
from released import llamagen_tensors
from safetensors.torch import load_file, save_file
from tiny import Evil, command

from lantern_demo.models import checkpoints, hub
from lantern_demo.models.anole import read_vocabulary as anole_words
from lantern_demo.models.janus import read_vocabulary as janus_words
from lantern_demo.models.registry import REGISTRY
from lantern_demo.models.tensors import CheckpointError
from lantern_demo.runs.pipeline import load
from lantern_demo.ui import recorded

pytestmark = pytest.mark.usefixtures("published_cache")
CPU = torch.device("cpu")
PROMPT = "a red lantern over a lake"


# -- files


# A form of files: its model, what writes them, and the files of its target by their folder and
# name.
FORMS: dict[str, tuple[str, Callable[..., Path], str, str]] = {
    "llamagen": (CLASS_ID, published.write_class_model, ".", "c2i_B_256.pt"),
    "lantern": (TEXT_ID, published.write_text_model, "target", "model.safetensors"),
    "anole": (ANOLE_ID, published.write_anole, "Anole-7b-v0.1-hf", "model-*.safetensors"),
    "authors": (JANUS_ID, published.write_janus, "Janus-Pro-1B", "pytorch_model.bin"),
    "library": (
        JANUS_ID,
        partial(published.write_janus, form="library"),
        "Janus-Pro-1B",
        "model.safetensors",
    ),
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
    ("llamagen", *lacks("layers.1.attention.wo.weight")),
    ("llamagen", *of_shape("norm.weight", [65], [64])),
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
    ("lantern", *lacks("model.layers.0.self_attn.k_proj.weight")),
    ("lantern", *of_shape("model.layers.0.self_attn.k_proj.weight", [65, 64], [64, 64])),
    ("anole", *lacks("model.layers.1.self_attn.k_norm.bias")),
    ("anole", *has("model.layers.1.mlp.up_proj.bias")),
    ("anole", *lacks("model.vqmodel.decoder.up.4.block.0.conv1.weight")),
    ("authors", *lacks("gen_head.vision_head.bias")),
    ("authors", *of_shape("gen_embed.weight", [64, 9], [64, 8])),
    ("authors", *lacks("gen_vision_model.decoder.conv_blocks.4.res.0.conv1.weight")),
    ("library", *lacks("model.generation_aligner.fc1.weight")),
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
    with pytest.raises(CheckpointError, match=rf": {says}.*delete it and download it again"):
        load(model, device="cpu", folder=tmp_path / "m")


@pytest.mark.parametrize(
    ("form", "change", "says"),
    [
        (
            "lantern",
            {"num_attention_heads": 4},
            "says num_attention_heads 4, but this model has .*another model",
        ),
        (
            "lantern",
            {"block_size": 1024},
            "says block_size 1024, but this model has .*another model",
        ),
        (
            "lantern",
            {"cls_token_num": 1},
            "says cls_token_num 1, but this model has .*another model",
        ),
        (
            "anole",
            {"num_attention_heads": 4},
            "says num_attention_heads 4, but this model has .*another model",
        ),
        ("anole", {"swin_norm": True}, "says swin_norm True, but this model has .*another model"),
        (
            "anole",
            {"vocab_size": 65536},
            "says vocab_size 65536, but this model has .*another model",
        ),
        (
            "authors",
            {"language_config": {"num_attention_heads": 4}},
            "says num_attention_heads 4, but .*belongs to another",
        ),
        (
            "authors",
            {"language_config": {"num_hidden_layers": 30}},
            "says num_hidden_layers 30, but this model has 2",
        ),
        (
            "authors",
            {"language_config": {"vocab_size": 102400}},
            "says vocab_size 102400, but this model has 48",
        ),
        (
            "authors",
            {"language_config": None},
            "says nothing of a language model: it belongs to another model",
        ),
    ],
)
def test_files_of_another_model_are_told_by_their_config(
    form: str, change: dict[str, Any], says: str, tmp_path: Path
) -> None:
    model, write, place, _ = FORMS[form]
    path = write(tmp_path / "m") / place / "config.json"
    config = {
        name: value
        for name, value in (json.loads(path.read_text(encoding="utf-8")) | change).items()
        if value is not None
    }
    path.write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(CheckpointError, match=rf"config.json {says}"):
        load(model, device="cpu", folder=tmp_path / "m")


def test_a_missing_part_is_told(tmp_path: Path) -> None:
    anole, janus = (
        published.write_anole(tmp_path / "anole"),
        published.write_janus(tmp_path / "janus", parts=2, size="7B"),
    )
    for model, folder, place, name in (
        (ANOLE_ID, anole, "Anole-7b-v0.1-hf", "model-0000{}-of-00002.safetensors"),
        (JANUS_7B_ID, janus, "Janus-Pro-7B", "pytorch_model-0000{}-of-00002.bin"),
    ):
        (folder / place / name.format(2)).unlink()
        with pytest.raises(
            CheckpointError, match=rf"holds only {name.format(1)}, which are not all of them"
        ):
            load(model, device="cpu", folder=folder)


MARKS = {
    "anole": (published.write_vocabulary, lambda path: anole_words(path, VOCAB)),
    "janus": (published.write_chat_vocabulary, lambda path: janus_words(path, JANUS)),
}


@pytest.mark.parametrize(
    ("family", "old", "new", "says"),
    [
        (
            "anole",
            '"<racm3:break>": 8197',
            '"<racm3:break>": 8198',
            "<racm3:break> must be 8197 in it, and is 8198",
        ),
        ("anole", '"IMGIMGBCZ": 16', '"IMGIMGBCZ": 17', "IMGIMGBCZ must be 16 in it, and is 17"),
        (
            "anole",
            '"<reserved08706>"',
            '"<reserved>"',
            "<reserved08706> must be 8710 in it, and is None",
        ),
        (
            "janus",
            '"<begin_of_image>"',
            '"<begin>"',
            "<begin_of_image> must be below 48 in it, and is None",
        ),
        (
            "janus",
            '"<\uff5c\u2581pad\u2581\uff5c>": 2',
            '"<\uff5c\u2581pad\u2581\uff5c>": 9',
            "must be 2 in it, and is 9",
        ),
    ],
)
def test_a_vocabulary_without_its_marks_is_refused(
    family: str, old: str, new: str, says: str, tmp_path: Path
) -> None:
    (write, read), path = MARKS[family], tmp_path / "tokenizer.json"
    write(path)
    assert read(path).token_to_id("lantern") == {"anole": 8714, "janus": 12}[family]
    content = json.loads(path.read_text(encoding="utf-8"))
    content["added_tokens"] = []
    text = json.dumps(content, ensure_ascii=False)
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")
    with pytest.raises(
        CheckpointError, match=f"is not (Anole|Janus-Pro)'s tokenizer: .*{re.escape(says)}"
    ):
        read(path)
    path.write_text("{", encoding="utf-8")
    with pytest.raises(
        CheckpointError, match=r"tokenizer.json is no tokenizer .*; delete it and download it again"
    ):
        read(path)


DAMAGES: tuple[Any, ...] = (2, 200, b"", b"<html>")  # a number: that part of it alone
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n"
TOLD = "neither bare nor under one of model, module, state_dict"
PICKLE, TENSORS, CONFIG = (
    (CLASS_ID, "c2i_B_256.pt"),
    (TEXT_ID, "target/model.safetensors"),
    (TEXT_ID, "target/config.json"),
)
FETCHED = [
    PICKLE,
    TENSORS,
    CONFIG,
    *((TEXT_ID, name) for name in ("drafter/pytorch_model.bin", "text/tokenizer.json")),
]


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        *(
            (
                PICKLE,
                content,
                r"is damaged or no PyTorch checkpoint .*; delete it and download it again",
            )
            for content in DAMAGES
        ),
        *(
            (
                TENSORS,
                content,
                r"is damaged or no safetensors file .*; delete it and download it again",
            )
            for content in DAMAGES
        ),
        *(
            (PICKLE, content, f"holds no tensors, {TOLD}")
            for content in ({"step": 3}, [1, 2], {"model": {}})
        ),
        (
            PICKLE,
            {"more": Evil()},
            r"holds code \(posix.mkdir\) beside its tensors, which is never run",
        ),
        (CONFIG, None, "cannot be read.*download it again"),
        (CONFIG, b"{", "cannot be read.*download it again"),
        (CONFIG, b"[]", "is not a model's configuration.*download it again"),
        *(
            (file, POINTER, "is a Git LFS pointer, not the file itself; run `git lfs pull`")
            for file in FETCHED
        ),
    ],
)
def test_what_is_no_file_of_a_model(
    file: tuple[str, str], content: Any, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code in a pickle is not run."""
    monkeypatch.chdir(tmp_path)
    (model, name), write = (
        file,
        published.write_class_model if file == PICKLE else published.write_text_model,
    )
    path = write(tmp_path / "m") / name
    if content is None:
        path.unlink()
    elif isinstance(content, int):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // content])
    elif isinstance(content, bytes):
        path.write_bytes(content)
    else:
        state = (
            {"model": llamagen_tensors(published.networks(CLASSES)[0])}
            if says.startswith("holds code")
            else {}
        )
        torch.save(state | content if state else content, path)
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
        with pytest.raises(
            ValueError, match=rf"{name} is a Git LFS pointer, .*; run `git lfs pull` in its folder"
        ):
            load(folder, device="cpu")
    (tmp_path / "1.json.gz").write_bytes(POINTER)
    monkeypatch.setattr(recorded, "FOLDER", tmp_path)
    with pytest.raises(
        ValueError, match=r"1.json.gz is a Git LFS pointer, .*; run `git lfs pull` in its folder"
    ):
        recorded.recorded_runs.__wrapped__()


# -- the Hub

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub:
    """Files of a local folder, handed out as the Hub's cache would, under a commit."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder, self.cache, self.reached = folder, cache, list[tuple[str, str, str]]()

    def file(self, repo: str, name: str, revision: str, local_files_only: bool) -> str:
        if not local_files_only:
            self.reached.append((repo, name, revision))
        snapshot = self.cache / f"models--{repo.replace('/', '--')}" / "snapshots" / COMMIT
        snapshot.mkdir(parents=True, exist_ok=True)
        (snapshot / name).write_bytes((self.place(repo) / name).read_bytes())
        return str(snapshot / name)

    def place(self, repo: str) -> Path:
        """Where the files of a repository lie in the folder."""
        parts = {
            "jadohu/LlamaGen-T2I": "target",
            "jadohu/llamagen_drafter": "drafter",
            "google/flan-t5-xl": "text",
        }
        found = self.folder / parts.get(repo, repo.split("/")[1])
        return found if found.is_dir() else self.folder

    def snapshot(
        self, repo: str, revision: str, allow_patterns: list[str], local_files_only: bool
    ) -> str:
        names = [p.name for pattern in allow_patterns for p in self.place(repo).glob(pattern)]
        found = [self.file(repo, name, revision, local_files_only) for name in names]
        return str(Path(found[0]).parent)


@pytest.fixture
def fake_hub(text_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub(text_model, tmp_path / "hub")
    monkeypatch.setattr(hub, "hf_hub_download", fake.file)
    monkeypatch.setattr(hub, "snapshot_download", fake.snapshot)
    return fake


@pytest.mark.parametrize(
    ("model", "target", "text"),
    [
        (TEXT_ID, "jadohu/LlamaGen-T2I", "google/flan-t5-xl"),
        (ANOLE_ID, "leloy/Anole-7b-v0.1-hf", "leloy/Anole-7b-v0.1-hf"),
    ],
)
def test_the_commit_is_told_and_what_is_downloaded_is_kept(
    model: str,
    target: str,
    text: str,
    fake_hub: FakeHub,
    anole_model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A record says which commit each part was of, and a second start takes what is there without
    asking the Hub.
    """
    if model == ANOLE_ID:
        fake_hub.folder = anole_model
    for part, located in checkpoints.locate(REGISTRY[model]).items():
        facts = located.facts
        assert (facts["commit"], facts["revision"], facts["file"]) == (
            COMMIT,
            "main",
            located.source.weights,
        )
        assert int(facts["bytes"]) > 0, part
    made = load(model, device="cpu").generate(PROMPT, "vanilla")
    sources = made.record["model"]["sources"]
    assert {part: s["commit"] for part, s in sources.items()} == dict.fromkeys(
        ("target", "drafter", "tokenizer", "text"), COMMIT
    )
    assert (sources["target"]["repo"], sources["text"]["repo"]) == (target, text)
    assert fake_hub.reached
    fake_hub.reached.clear()
    monkeypatch.setattr(hub, "downloaded", lambda _: True)
    assert load(model, device="cpu").generate(PROMPT, "vanilla").tokens == made.tokens
    assert not fake_hub.reached


def test_a_revision_can_be_pinned(fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    info = REGISTRY[TEXT_ID]
    monkeypatch.setenv("LANTERN_REVISIONS", "jadohu/LlamaGen-T2I=v2, google/flan-t5-xl=abc")
    assert checkpoints.locate(info)["target"].facts["revision"] == "v2"
    pins = {"jadohu/LlamaGen-T2I": "v2", "google/flan-t5-xl": "abc"}
    assert (
        all(revision == pins.get(repo, "main") for repo, _, revision in fake_hub.reached)
        and fake_hub.reached
    )
    monkeypatch.setenv("LANTERN_REVISIONS", "v2")
    with pytest.raises(
        ValueError, match=r'LANTERN_REVISIONS must be "repository=revision", .*got \'v2\''
    ):
        checkpoints.locate(info)


def test_fetching_ahead(fake_hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    command(checkpoints, "--model", TEXT_ID)
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == [
        "target",
        "drafter",
        "tokenizer",
        "text",
    ]
