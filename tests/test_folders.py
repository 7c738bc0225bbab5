"""Folders of published files as their users keep them, and drafters of LANTERN's training."""

import json
import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import app
import published
import pytest
import torch
from published import ANOLE_ID, DRAFTER, TEXT_ID
from safetensors.torch import load_file, save_file
from tiny import awaited, command

from examples.train_drafter.drafter import save_drafter
from lantern_demo import Pipeline, load
from lantern_demo.decoding.methods import METHODS
from lantern_demo.models import checkpoints
from lantern_demo.models.llamagen import Drafter
from lantern_demo.models.tensors import CheckpointError
from lantern_demo.ui.page import build
from lantern_demo.ui.routes import routes

pytestmark = pytest.mark.usefixtures("published_cache")
PROMPT = "a red lantern over a lake"
DRAFTING = [method.id for method in METHODS.values() if method.needs_drafter]


def copied(files: Path, to: Path, names: dict[str, str]) -> Path:
    for name, place in names.items():
        there = to / place
        there.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (files / name).is_dir() else shutil.copy)(files / name, there)
    return to


def of_lantern(files: Path, to: Path) -> Path:
    """jadohu/LANTERN, README, Checkpoints: LlamaGen."""
    names = {"target": "LlamaGen-T2I", "vq_ds16_t2i.pt": "vq_ds16_t2i.pt"}
    names |= {"text": "t5/flan-t5-xl", "drafter": "trained_drafters/llamagen_drafter"}
    return copied(files, to, names)


def of_lantern_anole(files: Path, to: Path) -> Path:
    """The same for Anole, with Meta's image decoder, whose file has more, and its vocabulary."""
    hub, meta = to / "Anole-7b-v0.1-hf", to / "chameleon" / "tokenizer"
    copied(files, to, {"anole_drafter": "trained_drafters/anole_drafter", hub.name: hub.name})
    for shard in hub.glob("*.safetensors"):
        tensors = {name: one for name, one in load_file(shard).items() if "vqmodel" not in name}
        save_file(tensors, shard, {"format": "pt"})
    meta.mkdir(parents=True)
    state = published.tensors_of(published.anole_networks()[2], "chameleon-vq")
    more = {"loss.logvar": torch.zeros(1), "model_ema.decay": torch.zeros(1)}
    torch.save({"state_dict": state | more, "epoch": 3}, meta / "vqgan.ckpt")
    (hub / "tokenizer.json").rename(meta / "text_tokenizer.json")
    return to


@pytest.mark.parametrize(
    ("model", "layout", "drafter"),
    [
        (TEXT_ID, of_lantern, True),
        (TEXT_ID, lambda _, to: published.write_llamagen(to), False),
        (ANOLE_ID, of_lantern_anole, True),
    ],
)
def test_the_folders_of_both_readmes_load_as_they_are(
    model: str,
    layout: Callable[[Path, Path], Path],
    drafter: bool,
    folder_of: dict[str, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No test reaches the Hub: every part is the folder's, and draws what it draws elsewhere."""
    folder = layout(folder_of[model], tmp_path / "mine")
    method = "lantern++" if drafter else "vanilla"
    given = {"device": "cpu", "dtype": "float32"}
    pipe, other = (load(model, folder=of, **given) for of in (folder, folder_of[model]))
    assert (pipe.networks.drafter is not None) == drafter
    assert pipe.generate(PROMPT, method).tokens == other.generate(PROMPT, method).tokens
    command(checkpoints, "--model", model, "--folder", folder)
    told = capsys.readouterr().out
    assert f"text: {folder}" in told and (f"drafter: {folder}" in told) == drafter
    assert drafter or "drafter: the folder mine holds no drafter of" in told


def test_a_part_lies_no_deeper_than_in_a_sub_folder(text_model: Path, tmp_path: Path) -> None:
    folder = of_lantern(text_model, tmp_path / "mine")
    (folder / "t5").rename(folder / "trained_drafters" / "t5")
    says = f"the folder mine holds no text of {TEXT_ID}: none of text/model.* From the Hub: "
    with pytest.raises(CheckpointError, match=says):
        load(TEXT_ID, device="cpu", folder=folder)


def of_training(to: Path, prefix: str = "", heads: int = 2) -> Path:
    """A drafter as accelerate saves it in LANTERN's training, with the config.json beside it."""
    to.mkdir(parents=True)
    state = published.networks()[1].state_dict()
    tensors = {prefix + name: weight.contiguous() for name, weight in state.items()}
    save_file(tensors, to / "model.safetensors")
    config = {"architectures": ["LlamaForCausalLM"], "rms_norm_eps": DRAFTER.eps}
    config |= {"num_attention_heads": heads, "num_key_value_heads": heads}
    (to / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (to / "model_1.safetensors").write_bytes(b"the head")
    (to / "optimizer.bin").write_bytes(b"the optimizer's state")
    return to


TRAINED: dict[str, Callable[[Path], object]] = {
    "one GPU": of_training,
    "several GPUs": partial(of_training, prefix="module."),  # before the names of all tensors
    "here": lambda to: save_drafter(to, published.networks()[1]),
}


@pytest.mark.parametrize("how", TRAINED)
def test_a_trained_drafter_loads(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    bare, state = tmp_path / "bare", tmp_path / "state_20"
    published.write_text_model(bare, drafter=False)
    TRAINED[how](state)
    given = {"folder": "~/bare", "drafter": "~/state_20"}
    pipes = [load(TEXT_ID, device="cpu", dtype="float32", **given)]
    assert pipes[0].networks.sources["drafter"] == {"local": "state_20", "trained": True}
    assert pipes[0].available_methods == list(METHODS)
    if how != "here":
        shutil.copytree(state, bare / "drafter", dirs_exist_ok=True)
        pipes.append(load(TEXT_ID, device="cpu", dtype="float32", folder=bare))
    for pipe in pipes:
        published.assert_same(pipe.networks.drafter, published.networks()[1])
        assert pipe.networks.drafter.config == DRAFTER
        assert pipe.generate(PROMPT, "eagle1").tokens == pipe.generate(PROMPT, "vanilla").tokens


def test_a_drafter_of_another_model_is_refused(llamagen_model: Path, tmp_path: Path) -> None:
    heads, words = of_training(tmp_path / "heads", heads=4), tmp_path / "words"
    save_drafter(words, Drafter(replace(DRAFTER, vocab=32)))
    for folder, drafter, says in (
        (llamagen_model, heads, "says num_attention_heads 4, but this model has 2"),
        (llamagen_model, words, "says vocab 32, but the target has 64: it is another"),
        (None, tmp_path, "drafter must be a folder with"),  # before anything is fetched
    ):
        with pytest.raises(ValueError, match=says):
            load(TEXT_ID, device="cpu", folder=folder, drafter=drafter)


def test_a_model_without_its_drafter_says_so(
    llamagen_model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Pipeline, "prepare", lambda _: iter(()))
    monkeypatch.setattr(logging.getLogger("lantern_demo"), "propagate", True)
    page = build(TEXT_ID, "cpu", folder=llamagen_model)
    service = page.lantern_service
    service.wait()
    health, *_ = routes(page, service)
    told = json.loads(awaited(health.endpoint(None)).body)
    events = {event.name: event.fn for event in page.fns.values()}

    async def arrived() -> str:
        return [shown async for shown in events["arrive"]()][-1]

    warning, shown, offer = told["warning"], awaited(arrived()), events["model"]()
    reason = f"the folder files holds no drafter of {TEXT_ID}: none of drafter/"
    assert warning == offer["warning"] and reason in warning
    assert reason in shown and reason in caplog.text
    assert all(METHODS[name].label in warning for name in DRAFTING)
    assert str(llamagen_model) not in warning + shown
    assert offer["model"]["id"] == TEXT_ID
    assert offer["model"]["unavailable_methods"] == DRAFTING
    asked = {"prompt": "a cat", "methods": "eagle1"}
    assert events["follow"]("navigate", SimpleNamespace(query_params=asked))


def test_what_makes_no_sense_is_refused_at_start(
    text_model: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave(code: int, said: str) -> None:
        raise SystemExit((code, said))

    monkeypatch.setattr(app, "leave", leave)  # which ends the process
    for words, says in (
        (["--model", TEXT_ID, "--folder", tmp_path / "none"], "folder must be a folder with the"),
        (["--model", tiny_model, "--folder", text_model], "tiny has its own, got"),
        (["--threads", 0], "threads must be a whole number"),
    ):
        with pytest.raises(SystemExit) as left:
            command(app, *words)
        code, said = left.value.code
        assert code == 2 and says in said
