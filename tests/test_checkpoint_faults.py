"""Faults of published checkpoints, of their cache and of the Hub: each gets a sentence that says what to do."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from published import (
    CLASS_ID,
    CLASSES,
    TEXT_ID,
    assert_same,
    lantern_tensors,
    logits,
    networks,
    target_config,
    write_class_model,
    write_text_model,
)
from safetensors import SafetensorError
from safetensors.torch import save_file

from lantern_demo.models import checkpoints
from lantern_demo.models.files import hub, store
from lantern_demo.models.files.convert import CheckpointError
from lantern_demo.models.registry import REGISTRY, Source
from lantern_demo.runs.pipeline import load

pytestmark = pytest.mark.usefixtures("published_cache")
CPU = torch.device("cpu")
PROMPT = "a red lantern over a lake"


# -- files


def _broken(change: Any) -> Any:
    """A class model's tensors, changed by a function."""
    state = dict(networks(CLASSES)[0].state_dict())
    change(state)
    return {"model": state}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda s: s.update(extra=torch.zeros(1)), "unknown tensor 'extra'"),
        (lambda s: s.pop("layers.1.attention.wo.weight"), "tensor 'layers.1.attention.wo.weight' is missing"),
        (lambda s: s.update({"norm.weight": torch.ones(65)}), r"tensor 'norm.weight' has shape \[65\], expected \[64\]"),
        (
            lambda s: s.update({"norm.weight": torch.ones(64, dtype=torch.int64)}),
            "tensor 'norm.weight' is int64, allowed are float32, float16, bfloat16",
        ),
        (lambda s: [s.pop(k) for k in list(s)[:7]], ".*is missing; .*is missing; .*is missing; and 4 more"),
    ],
)
def test_wrong_tensors_are_named(change: Any, says: str, class_model: Path, tmp_path: Path) -> None:
    folder = write_class_model(tmp_path / "m")
    torch.save(_broken(change), folder / "c2i_B_256.pt")
    with pytest.raises(CheckpointError, match=rf"c2i_B_256.pt: {says}.*delete it and download it again"):
        load(CLASS_ID, device="cpu", folder=folder)


def test_wrong_tensors_of_a_conversion_go_by_its_own_names(tmp_path: Path) -> None:
    folder = write_text_model(tmp_path / "m")
    state = lantern_tensors(networks()[0])
    name = "model.layers.0.self_attn.k_proj.weight"
    for value, says in ((None, "is missing"), (torch.zeros(65, 64), r"has shape \[65, 64\], expected \[64, 64\]")):
        save_file(
            {k: v for k, v in state.items() if k != name} | ({} if value is None else {name: value}),
            folder / "target" / "model.safetensors",
        )
        with pytest.raises(CheckpointError, match=rf"model.safetensors: tensor '{name}' {says}"):
            load(TEXT_ID, device="cpu", folder=folder)


@pytest.mark.parametrize(("key", "value"), [("num_attention_heads", 4), ("block_size", 1024), ("cls_token_num", 1)])
def test_files_of_another_model_are_told_by_their_config(key: str, value: int, tmp_path: Path) -> None:
    folder = write_text_model(tmp_path / "m")
    (folder / "target" / "config.json").write_text(json.dumps(target_config() | {key: value}))
    with pytest.raises(CheckpointError, match=rf"config.json says {key} {value}, but this model has .*another model"):
        load(TEXT_ID, device="cpu", folder=folder)


def test_a_conversion_needs_its_config(tmp_path: Path) -> None:
    folder = write_text_model(tmp_path / "m")
    for content, says in ((None, "cannot be read"), ("{", "cannot be read"), ("[]", "is not a model's configuration")):
        (folder / "target" / "config.json").unlink(missing_ok=True)
        if content:
            (folder / "target" / "config.json").write_text(content)
        with pytest.raises(CheckpointError, match=rf"config.json {says}.*download it again"):
            load(TEXT_ID, device="cpu", folder=folder)


class Evil:
    """Something that runs when it is unpickled by the trusting."""

    def __reduce__(self) -> Any:
        return os.mkdir, ("ran",)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (lambda whole: whole[: len(whole) // 2], "is damaged or no PyTorch checkpoint"),
        (lambda _: b"", "is damaged or no PyTorch checkpoint"),
        (lambda _: b"version https://git-lfs.github.com/spec/v1\n", "is damaged or no PyTorch checkpoint"),
    ],
)
def test_damaged_pickles(content: Any, says: str, tmp_path: Path) -> None:
    path = write_class_model(tmp_path / "m") / "c2i_B_256.pt"
    path.write_bytes(content(path.read_bytes()))
    with pytest.raises(CheckpointError, match=rf"c2i_B_256.pt {says}.*; delete it and download it again"):
        load(CLASS_ID, device="cpu", folder=path.parent)


def test_damaged_safetensors(tmp_path: Path) -> None:
    path = write_text_model(tmp_path / "m") / "target" / "model.safetensors"
    whole = path.read_bytes()
    for content in (whole[:-5], whole[:20], b"", b"no such thing"):
        path.write_bytes(content)
        with pytest.raises(
            CheckpointError, match=r"model.safetensors is damaged or no safetensors file .*; delete it and download"
        ):
            load(TEXT_ID, device="cpu", folder=tmp_path / "m")


def test_what_is_no_checkpoint(tmp_path: Path) -> None:
    path = write_class_model(tmp_path / "m") / "c2i_B_256.pt"
    for content in ({"step": 3}, [1, 2], {"model": {}}):
        torch.save(content, path)
        with pytest.raises(
            CheckpointError, match=r"c2i_B_256.pt holds no tensors, neither bare nor under one of model, module, state_dict"
        ):
            load(CLASS_ID, device="cpu", folder=path.parent)


def test_code_in_a_pickle_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = write_class_model(tmp_path / "m") / "c2i_B_256.pt"
    torch.save({"model": networks(CLASSES)[0].state_dict(), "more": Evil()}, path)
    with pytest.raises(CheckpointError, match=r"c2i_B_256.pt holds code \(posix.mkdir\) beside its tensors, which is never run"):
        load(CLASS_ID, device="cpu", folder=path.parent)
    assert not (tmp_path / "ran").exists()


# -- the cache of conversions


def test_a_second_start_does_not_convert(text_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = checkpoints.load(REGISTRY[TEXT_ID], CPU, torch.float32, text_model)
    monkeypatch.setattr(checkpoints, "convert", lambda *_: pytest.fail("converted again"))
    second = checkpoints.load(REGISTRY[TEXT_ID], CPU, torch.float32, text_model)
    assert_same(second.target, first.target)


def test_a_changed_file_is_converted_anew(tmp_path: Path) -> None:
    folder = write_class_model(tmp_path / "m")
    before = checkpoints.load_target(REGISTRY[CLASS_ID], CPU, torch.float32, folder)
    torch.save(_broken(lambda s: s.update({"output.weight": s["output.weight"] * 2})), folder / "c2i_B_256.pt")
    os.utime(folder / "c2i_B_256.pt", (1, 1))
    after = checkpoints.load_target(REGISTRY[CLASS_ID], CPU, torch.float32, folder)
    torch.testing.assert_close(logits(after), 2 * logits(before))


@pytest.mark.parametrize("damage", ["shard", "missing shard", "manifest", "version"])
def test_a_damaged_conversion_is_made_anew(damage: str, class_model: Path) -> None:
    info = REGISTRY[CLASS_ID]
    made = checkpoints.prepare(info, class_model)["target"]
    shard, manifest = made.folder / "000.safetensors", made.folder / store.MANIFEST
    if damage == "shard":
        shard.write_bytes(shard.read_bytes()[:-9])
    elif damage == "missing shard":
        shard.unlink()
    elif damage == "manifest":
        manifest.write_text('{"converter": 1')
    else:
        manifest.write_text(json.dumps({**made.manifest, "converter": 0}))
    again = checkpoints.load_target(info, CPU, torch.float32, class_model)
    assert_same(again, networks(CLASSES)[0])


def test_damage_that_the_manifest_cannot_show_is_reported(class_model: Path) -> None:
    made = checkpoints.prepare(REGISTRY[CLASS_ID], class_model)["target"]
    shard = made.folder / "000.safetensors"
    shard.write_bytes(b"\xff" * shard.stat().st_size)
    with pytest.raises(CheckpointError, match=r"000.safetensors is damaged .*; delete .*, and it is made anew"):
        load(CLASS_ID, device="cpu", folder=class_model)


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), None])
def test_a_full_disk_leaves_nothing_behind(
    error: OSError | None, class_model: Path, published_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: object, path: Path) -> None:
        path.write_bytes(b"half of it")
        raise error or SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("lantern_demo.models.files.convert.save_file", full)
    with pytest.raises(CheckpointError, match=r"The disk of .* is full: the converted .* does not fit; .*LANTERN_CACHE"):
        load(CLASS_ID, device="cpu", folder=class_model)
    assert [p for p in published_cache.rglob("*") if p.is_file() and p.parent.name not in (".locks", "fitted")] == []


def test_a_cache_that_cannot_be_written(class_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LANTERN_CACHE", str(tmp_path / "file"))
    with pytest.raises(CheckpointError, match=r"cannot be written .*; set LANTERN_CACHE to a folder that can"):
        checkpoints.prepare(REGISTRY[CLASS_ID], class_model)


# -- the Hub

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub:
    """Files of a local folder, handed out as the Hub's cache would, under a commit."""

    def __init__(self, folder: Path, cache: Path) -> None:
        self.folder, self.cache, self.asked = folder, cache, list[tuple[str, str, str]]()

    def file(self, repo: str, name: str, revision: str) -> str:
        self.asked.append((repo, name, revision))
        snapshot = self.cache / f"models--{repo.replace('/', '--')}" / "snapshots" / COMMIT
        snapshot.mkdir(parents=True, exist_ok=True)
        place = {"jadohu/LlamaGen-T2I": "target", "jadohu/llamagen_drafter": "drafter", "google/flan-t5-xl": "text"}.get(
            repo, "."
        )
        (snapshot / name).write_bytes((self.folder / place / name).read_bytes())
        return str(snapshot / name)

    def snapshot(self, repo: str, revision: str, allow_patterns: list[str], local_files_only: bool) -> str:
        names = [p.name for pattern in allow_patterns for p in (self.folder / "text").glob(pattern)]
        found = [self.file(repo, name, revision) for name in names]
        return str(Path(found[0]).parent)


@pytest.fixture
def fake_hub(text_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    fake = FakeHub(text_model, tmp_path / "hub")
    monkeypatch.setattr(hub, "hf_hub_download", fake.file)
    monkeypatch.setattr(hub, "snapshot_download", fake.snapshot)
    return fake


def test_the_commit_is_kept_and_told(fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = load(TEXT_ID, device="cpu")
    made = checkpoints.prepare(REGISTRY[TEXT_ID])
    for part, file in (("target", "model.safetensors"), ("drafter", "pytorch_model.bin"), ("tokenizer", "vq_ds16_t2i.pt")):
        source = made[part].manifest["source"]  # type: ignore[index]
        assert (source["commit"], source["revision"], source["file"]) == (COMMIT, "main", file)
        assert source["bytes"] > 0
    sources = pipe.generate(PROMPT).record["model"]["sources"]
    assert {part: s["commit"] for part, s in sources.items()} == dict.fromkeys(("target", "drafter", "tokenizer", "text"), COMMIT)
    assert sources["target"]["repo"] == "jadohu/LlamaGen-T2I"
    asked = len(fake_hub.asked)
    monkeypatch.setattr(checkpoints, "convert", lambda *_: pytest.fail("converted again"))
    load(TEXT_ID, device="cpu")
    assert {repo for repo, _, _ in fake_hub.asked[asked:]} == {"google/flan-t5-xl"}  # read from the Hub's own cache


def test_a_revision_can_be_pinned(fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    info = REGISTRY[TEXT_ID]
    checkpoints.prepare(info)
    monkeypatch.setenv("LANTERN_REVISIONS", "jadohu/LlamaGen-T2I=v2, google/flan-t5-xl=abc")
    asked = len(fake_hub.asked)
    made = checkpoints.prepare(info)
    assert made["target"].manifest["source"]["revision"] == "v2"
    assert {(repo, revision) for repo, _, revision in fake_hub.asked[asked:]} == {("jadohu/LlamaGen-T2I", "v2")}
    monkeypatch.setenv("LANTERN_REVISIONS", "v2")
    with pytest.raises(ValueError, match=r'LANTERN_REVISIONS must be "repository=revision", .*got \'v2\''):
        checkpoints.prepare(info)


def _failure(name: str, status: int) -> Exception:
    import huggingface_hub.errors as errors

    kind = getattr(errors, name)
    try:
        response = httpx.Response(status, request=httpx.Request("GET", "http://localhost"))
        return kind("it failed", response=response)
    except TypeError:
        return kind("it failed")


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            _failure("GatedRepoError", 403),
            r"jadohu/LlamaGen-T2I is gated: ask for access on its page on the Hub, and set HF_TOKEN",
        ),
        (_failure("RepositoryNotFoundError", 404), r"jadohu/LlamaGen-T2I is not on the Hub, or it is private: .* set HF_TOKEN"),
        (_failure("RevisionNotFoundError", 404), r"jadohu/LlamaGen-T2I has no revision 'main'; correct it in LANTERN_REVISIONS"),
        (_failure("RemoteEntryNotFoundError", 404), r"jadohu/LlamaGen-T2I at revision main lacks a file .*LANTERN_REVISIONS"),
        (
            _failure("LocalEntryNotFoundError", 0),
            r"model.safetensors of jadohu/LlamaGen-T2I is not on this machine and the Hub was not reached",
        ),
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), r"The disk of .* is full: .* does not fit; .*HF_HOME"),
        (
            ConnectionResetError("by peer"),
            r"model.safetensors of jadohu/LlamaGen-T2I could not be downloaded \(ConnectionResetError",
        ),
    ],
)
def test_failed_downloads_get_a_sentence(error: Exception, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> str:
        raise error

    monkeypatch.setattr(hub, "hf_hub_download", fails)
    with pytest.raises(CheckpointError, match=says):
        load(TEXT_ID, device="cpu")


def test_offline_without_the_files(tmp_path: Path) -> None:
    """The library itself, which the tests keep offline."""
    with pytest.raises(CheckpointError, match=r"is not on this machine and the Hub was not reached: .*HF_HUB_OFFLINE"):
        hub.download(Source("nobody/nothing", "model.safetensors", "lantern"))
    with pytest.raises(CheckpointError, match=r"is not on this machine and the Hub was not reached"):
        hub.download(Source("nobody/nothing", "model*.safetensors", "t5", ("config.json",)))
    assert hub.ask(Source("nobody/nothing", "model.safetensors", "lantern")) is None


def test_fetching_ahead(fake_hub: FakeHub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["checkpoints", "--model", TEXT_ID])
    checkpoints.main()
    assert [line.split(":")[0] for line in capsys.readouterr().out.splitlines()] == ["target", "tokenizer", "drafter", "text"]
    assert store.manifest(store.hub_folder(Source("jadohu/LlamaGen-T2I", "model.safetensors", "lantern"))) is not None
