"""Injected faults: what is good stays, and a sentence names what failed and what to do."""

import errno
import gc
import shutil
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from runs import Kernels
from safetensors.torch import save_file
from tiny import write_tiny_model

from lantern_demo import Pipeline, disk_cache, faults, load
from lantern_demo.decoding.cache import KVCache
from lantern_demo.decoding.graphs import Runners
from lantern_demo.decoding.loop import Step
from lantern_demo.decoding.methods import METHODS
from lantern_demo.models.bundled import PALETTE
from lantern_demo.runs.result import MethodFailed, Result
from lantern_demo.ui import files
from lantern_demo.ui import service as service_module
from lantern_demo.ui.api import answers
from lantern_demo.ui.service import Service

PROMPT = "two red box lanterns over a lake"
KNOBS = {"lantern_k": 10, "tree": "small", "seed": 3}


@pytest.fixture
def pipe(folder: Path) -> Pipeline:
    """A pipeline of its own for every test: they break it."""
    return load(folder, device="cpu")


def outcomes(pipe: Pipeline, methods: list[str]) -> dict[str, Result | MethodFailed]:
    events = pipe.compare(PROMPT, methods, **KNOBS)
    return {method: event for method, event in events if not isinstance(event, Step)}


def test_a_run_whose_kernel_fails_is_recorded_from_its_new_beginning(pipe: Pipeline) -> None:
    wanted = pipe.generate(PROMPT, "lantern++", **KNOBS)
    pipe.ops = Kernels(5)
    *steps, drawn = pipe.stream(PROMPT, "lantern++", **KNOBS)
    assert [step.index for step in steps].count(0) == 2
    assert drawn.tokens == wanted.tokens
    assert drawn.history == steps[-len(wanted.history) :]
    (entry,) = drawn.record["methods"].values()
    assert entry["engine_reason"] == "without kernels: no kernel"
    assert entry["token_ids"] == wanted.tokens
    assert len(entry["events"]["kinds"]) == len(drawn.tokens)


OUT_OF_MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
DEAD = "CUDA error: an illegal memory access was encountered"
SENTENCES = [
    (OUT_OF_MEMORY, "ran out of memory; choose a smaller"),
    (MemoryError(), "ran out of memory; choose a smaller"),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory"), "ran out of memory"),
    (RuntimeError(f"{DEAD}\nCUDA kernel errors might be late"), f"a fault ({DEAD}). Try again"),
    (FloatingPointError("the logits"), "Numbers went wrong: the logits. Try float32"),
    (OSError(errno.ENOSPC, "no"), "full; free some space"),
    (RuntimeError("odd\nand more"), "RuntimeError: odd"),
]


@pytest.mark.parametrize(("error", "says"), SENTENCES)
def test_an_error_is_a_sentence_with_a_remedy(error: Exception, says: str) -> None:
    told = faults.sentence(error)
    assert says in told and "\n" not in told


def failing(
    monkeypatch: pytest.MonkeyPatch, part: Any, name: str, error: Exception, when: Any = None
) -> None:
    """Let a method of a part raise: always, or whenever `when` of its arguments says so."""
    real = getattr(part, name)

    def wrapped(*arguments: Any, **options: Any) -> Any:
        if when and not when(*arguments, **options):
            return real(*arguments, **options)
        # a new one: an error keeps what the frames it went through held
        raise type(error)(*error.args)

    monkeypatch.setattr(part, name, wrapped)


def test_what_fits_into_memory_goes_on(pipe: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory that idle runners hold may be what the next run lacks."""

    def caches() -> int:
        return sum(type(thing) is KVCache for thing in gc.get_objects())

    freed: list[int] = []
    monkeypatch.setattr(Runners, "clear", lambda _: freed.append(1))
    # pytest keeps what is logged, errors and all
    monkeypatch.setattr(faults._LOG, "disabled", True)
    failing(monkeypatch, pipe.target, "forward", OUT_OF_MEMORY, lambda of, *_: len(of.tokens) > 1)
    before, alone = caches(), outcomes(pipe, ["vanilla"])
    assert isinstance(alone["vanilla"], Result) and not freed
    found = outcomes(pipe, list(METHODS))
    assert isinstance(found["vanilla"], Result) and freed
    for method in ("eagle1", "eagle2", "lantern", "lantern++"):
        failed = found[method]
        assert isinstance(failed, MethodFailed) and "out of memory" in failed.message
    del alone, found
    assert caches() == before


def test_a_gpu_fault_leaves_what_was_drawn(pipe: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CUDA context does not come back: from the fault on, every call fails."""
    dead = threading.Event()
    failing(monkeypatch, pipe.target, "forward", RuntimeError(DEAD), lambda *_: dead.is_set())
    found: dict[str, Any] = {}
    for method, event in pipe.compare(PROMPT, list(METHODS), **KNOBS):
        if isinstance(event, Result):
            dead.set()
        found[method] = event
    drawn = [event for event in found.values() if isinstance(event, Result)]
    assert 0 < len(drawn) < len(METHODS) and all(len(done.tokens) == 16 for done in drawn)
    assert drawn[0].decode_seconds > 0
    assert all(isinstance(one, Result) or DEAD in one.message for one in found.values())


def test_an_early_fault_is_every_methods(pipe: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(monkeypatch, pipe.networks.text, "encode", RuntimeError(DEAD))
    found = outcomes(pipe, ["vanilla", "eagle1"])
    assert len(found) == 2
    assert all(isinstance(one, MethodFailed) and DEAD in one.message for one in found.values())
    with pytest.raises(RuntimeError, match="The GPU reported a fault"):
        pipe.generate(PROMPT)


def test_every_damaged_file_of_a_model_folder_is_named(folder: Path, tmp_path: Path) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"
    folder = Path(shutil.copytree(folder, tmp_path / "whole"))
    colours = torch.zeros(64, 3, dtype=torch.uint8)
    save_file({PALETTE: colours}, folder / f"{PALETTE}.safetensors")
    names = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file()]
    assert len(names) > 5
    for number, name in enumerate(names):
        whole = (folder / name).read_bytes()
        damaged = {"cut": whole[: len(whole) // 2], "empty": b"", "pointer": pointer}
        if name.stem != PALETTE:  # it may be absent
            damaged["gone"] = None
        for damage, data in damaged.items():
            copy = shutil.copytree(folder, tmp_path / f"{number}-{damage}")
            (copy / name).unlink()
            if data is not None:
                (copy / name).write_bytes(data)
            pulled = damage == "pointer" and name.suffix == ".safetensors"
            says = "is a Git LFS pointer, .*; run `git lfs pull`" if pulled else ""
            with pytest.raises(ValueError, match=f"{copy}.*{says}"):
                load(copy, device="cpu")


def test_weights_of_another_models_drafter_are_named(folder: Path, tmp_path: Path) -> None:
    other = write_tiny_model(tmp_path / "other", grid=4, vocab=32)
    mixed = Path(shutil.copytree(folder, tmp_path / "mixed"))
    shutil.copytree(other / "drafter", mixed / "drafter", dirs_exist_ok=True)
    with pytest.raises(ValueError, match=r"(?s)drafter.*is not this model's: .*size mismatch"):
        load(mixed, device="cpu")


@pytest.mark.parametrize(
    ("part", "name", "free"), [(Path, "write_bytes", 10**9), (tempfile, "mkdtemp", 0)]
)
def test_a_full_disk_costs_the_pictures_and_nothing_else(
    folder: Path, monkeypatch: pytest.MonkeyPatch, part: object, name: str, free: int
) -> None:
    service = Service(folder, "cpu")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free))
    failing(monkeypatch, part, name, OSError(errno.ENOSPC, "no"))
    *_, (images, record) = answers(service, PROMPT, ["vanilla", "eagle1"], settings=dict(KNOBS))
    assert images == {} and record["order"] == ["vanilla", "eagle1"]
    assert len(record["methods"]["eagle1"]["token_ids"]) == 16
    assert "the disk is full" in record["not_saved"]["vanilla"]


def test_a_nearly_full_disk_counts_as_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradio keeps a copy of what is shown, and does not say so when that fails."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    assert files.saved(files.write, tmp_path / "a", b"x") is None
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    with pytest.raises(OSError, match="No such file"):
        files.saved(files.write, tmp_path / "nowhere" / "a", b"x")


def test_a_model_that_fails_to_load_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = "model tiny could not be loaded: The device ran out of memory"
    for error, says in ((OUT_OF_MEMORY, memory), (ValueError("damaged files"), "^damaged files$")):
        failing(monkeypatch, service_module, "load", error)
        service = Service(folder, "cpu")
        with pytest.raises(ValueError, match=says):
            service.request(PROMPT, None, {})
        assert service.state == "failed" and service.loaded is None


def test_a_file_of_the_cache_is_never_half_written(tmp_path: Path) -> None:
    path = tmp_path / "tables" / "one.json"
    disk_cache.put(path, "whole")
    with suppress(KeyboardInterrupt), disk_cache.replacing(path) as unfinished:
        unfinished.write_text("ha", encoding="utf-8")
        raise KeyboardInterrupt
    assert path.read_text(encoding="utf-8") == "whole" and list(path.parent.iterdir()) == [path]
