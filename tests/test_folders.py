"""Folders of published files as their users keep them, and drafters as LANTERN's training writes them."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import app
import httpx
import published
import pytest
import torch
from gradio_client import Client
from published import ANOLE_ID, CLASS_ID, CLASSES, DIM, DRAFTER, JANUS_ID, TEXT_ID
from safetensors.torch import load_file, save_file
from tiny import command, served

from lantern_demo import load
from lantern_demo.decoding.methods import METHODS
from lantern_demo.models import checkpoints
from lantern_demo.models.files.tensors import CheckpointError
from lantern_demo.models.llamagen.drafter import Drafter
from lantern_demo.models.registry import REGISTRY
from lantern_demo.runs.pipeline import Pipeline, info_of
from lantern_demo.ui.service import Service

pytestmark = pytest.mark.usefixtures("published_cache")
PROMPT = "a red lantern over a lake"
DRAFTING = [method.id for method in METHODS.values() if method.needs_drafter]


def copied(files: Path, to: Path, **names: str) -> Path:
    """Copies of files and folders of one model, by their name there."""
    for name, place in names.items():
        found = next(path for path in files.iterdir() if path.name.partition(".")[0] == name)
        (to / place).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if found.is_dir() else shutil.copy)(found, to / place)
    return to


def of_lantern(text: Path, anole: Path, to: Path) -> Path:
    """jadohu/LANTERN, README, Checkpoints: LlamaGen."""
    return copied(
        text,
        to,
        target="LlamaGen-T2I",
        vq_ds16_t2i="vq_ds16_t2i.pt",
        text="t5/flan-t5-xl",
        drafter="trained_drafters/llamagen_drafter",
    )


def of_llamagen(text: Path, anole: Path, to: Path) -> Path:
    """FoundationVision/LlamaGen, README and language/README."""
    copied(text, to, vq_ds16_t2i="vq_ds16_t2i.pt", text="t5-ckpt/flan-t5-xl")
    torch.save({"model": published.networks()[0].state_dict()}, to / "t2i_XL_stage1_256.pt")
    return to


def of_lantern_anole(text: Path, anole: Path, to: Path) -> Path:
    """jadohu/LANTERN, README, Checkpoints: Anole, with a conversion that lacks the image decoder, and other tensors beside the
    decoder's in Meta's file."""
    shutil.copytree(anole / "anole_drafter", to / "trained_drafters" / "anole_drafter")
    target = shutil.copytree(anole / "Anole-7b-v0.1-hf", to / "Anole-7b-v0.1-hf")
    for shard in target.glob("*.safetensors"):
        kept = {name: tensor for name, tensor in load_file(shard).items() if "vqmodel" not in name}
        save_file(kept, shard, {"format": "pt"})
    meta = to / "chameleon" / "tokenizer"
    meta.mkdir(parents=True)
    state = published.chameleon_vq_tensors(published.anole_networks()[2])
    more = {"loss.logvar": torch.zeros(1), "model_ema.decay": torch.zeros(1)}
    torch.save({"state_dict": state | more, "epoch": 3}, meta / "vqgan.ckpt")
    (target / "tokenizer.json").rename(meta / "text_tokenizer.json")
    return to


LAYOUTS: dict[Callable[[Path, Path, Path], Path], tuple[str, bool]] = {
    of_lantern: (TEXT_ID, True),
    of_llamagen: (TEXT_ID, False),
    of_lantern_anole: (ANOLE_ID, True),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_folders_of_both_readmes_load_as_they_are(
    layout: Any, text_model: Path, anole_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The Hub is not reached in the tests, so that every part is the folder's; they draw what the parts draw elsewhere."""
    (model, drafter), folder = LAYOUTS[layout], layout(text_model, anole_model, tmp_path / "mine")
    pipe = load(model, device="cpu", folder=folder)
    assert (pipe.networks.drafter is not None) == drafter
    elsewhere = load(model, device="cpu", folder=text_model if model == TEXT_ID else anole_model)
    method = "lantern++" if drafter else "vanilla"
    assert pipe.generate(PROMPT, method).tokens == elsewhere.generate(PROMPT, method).tokens
    with pytest.raises(SystemExit) as left:
        command(checkpoints, "--model", model, "--folder", folder, "--check")
    assert left.value.code == 0 and capsys.readouterr().out.count("as expected") == 3 + drafter
    command(checkpoints, "--model", model, "--folder", folder)
    told = capsys.readouterr().out
    assert f"text: {folder}" in told and (f"drafter: {folder}" in told) == drafter
    assert drafter or "drafter: the folder mine holds no drafter of" in told


def test_a_part_may_lie_in_any_sub_folder_but_no_deeper(text_model: Path, tmp_path: Path) -> None:
    folder = of_lantern(text_model, text_model, tmp_path / "mine")
    (folder / "t5").rename(folder / "encoders")
    (folder / "encoders" / "deep").mkdir()
    assert load(TEXT_ID, device="cpu", folder=folder).networks.sources["text"]["local"] == "flan-t5-xl"
    (folder / "encoders" / "flan-t5-xl").rename(folder / "encoders" / "deep" / "flan-t5-xl")
    looked = r"none of text/model\*.safetensors, flan-t5-xl/model\*.safetensors, \*/flan-t5-xl/model\*.safetensors is there"
    with pytest.raises(CheckpointError, match=rf"mine lacks the text part of {TEXT_ID}: {looked}. From the Hub: .*not reached"):
        load(TEXT_ID, device="cpu", folder=folder)


# -- drafters


def write_drafter(to: Path, prefix: str = "", heads: int = 2) -> Path:
    """A drafter as LANTERN's training saves it, by accelerate, and the configuration that its README wants beside it."""
    to.mkdir(parents=True)
    small = published.networks()[1]
    save_file({prefix + name: weight.contiguous() for name, weight in small.state_dict().items()}, to / "model.safetensors")
    sizes = {"hidden_size": DIM, "intermediate_size": 96, "num_hidden_layers": 1, "vocab_size": published.VOCAB}
    config = {"architectures": ["LlamaForCausalLM"], "num_attention_heads": heads, "num_key_value_heads": heads, **sizes}
    more = {"rms_norm_eps": DRAFTER.eps, "hidden_act": "silu", "input_type": "t2i", "torch_dtype": "float16", "pretraining_tp": 1}
    (to / "config.json").write_text(json.dumps({**config, **more}))
    (to / "model_1.safetensors").write_bytes(b"the head")
    (to / "optimizer.bin").write_bytes(b"the optimizer's state")
    return to


@pytest.mark.parametrize("prefix", ["", "module."], ids=["one GPU", "several GPUs"])
def test_a_drafter_that_lantern_trained_loads(prefix: str, text_model: Path, tmp_path: Path) -> None:
    """In the folder, and by itself, with and without the prefix of a model that several GPUs trained."""
    bare = copied(text_model, tmp_path / "bare", target="target", vq_ds16_t2i="vq_ds16_t2i.pt", text="text")
    state = write_drafter(tmp_path / "state_20", prefix)
    given = load(TEXT_ID, device="cpu", folder=bare, drafter=state)
    assert given.networks.sources["drafter"] == {"local": "state_20", "trained": True}
    shutil.copytree(state, bare / "drafter")
    for pipe in (given, load(TEXT_ID, device="cpu", folder=bare)):
        published.assert_same(pipe.networks.drafter, published.networks()[1])
        assert pipe.networks.drafter.config == DRAFTER
        assert pipe.generate(PROMPT, "eagle1").tokens == pipe.generate(PROMPT).tokens


def test_a_drafter_that_was_trained_here_keeps_its_configuration_in_the_folder(text_model: Path, tmp_path: Path) -> None:
    bare = copied(text_model, tmp_path / "bare", target="target", vq_ds16_t2i="vq_ds16_t2i.pt", text="text")
    mine = Drafter(replace(DRAFTER, guided=True, eps=4e-6)).requires_grad_(False).eval()
    checkpoints.save_drafter(bare / "drafter", mine)
    published.assert_same(found := load(TEXT_ID, device="cpu", folder=bare).networks.drafter, mine)
    assert found.config == mine.config


def test_a_drafter_of_a_model_without_a_published_one(class_model: Path, tmp_path: Path) -> None:
    """Its sizes are the target's; another family's is refused before anything is fetched."""
    state = write_drafter(tmp_path / "state_20")
    found = load(CLASS_ID, device="cpu", folder=class_model, drafter=state).networks.drafter
    assert found.config == replace(DRAFTER, prefix=CLASSES.prefix)
    for folder, says in (
        (write_drafter(tmp_path / "other", heads=4), "says num_attention_heads 4, but this model has 2"),
        (tmp_path, "drafter must be a folder with pytorch_model.bin or model.safetensors, got"),
    ):
        with pytest.raises(CheckpointError, match=says):
            load(CLASS_ID, device="cpu", folder=class_model, drafter=folder)
    with pytest.raises(CheckpointError, match="drafter must be a folder with"):
        load(CLASS_ID, device="cpu", drafter=tmp_path)


def test_another_familys_drafter_is_refused(janus_model: Path, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config.json is not a drafter's configuration .*; train it anew"):
        load(JANUS_ID, device="cpu", folder=janus_model, drafter=write_drafter(tmp_path / "state_20"))


# -- what is told


def test_a_home_folder_is_found(
    text_model: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    shutil.copytree(text_model, tmp_path / "mine")
    write_drafter(tmp_path / "state_20")
    pipe = load(TEXT_ID, device="cpu", folder="~/mine", drafter="~/state_20")
    assert pipe.networks.sources["drafter"]["local"] == "state_20"
    command(checkpoints, "--model", TEXT_ID, "--folder", "~/mine")
    assert f"target: {tmp_path}/mine/target" in capsys.readouterr().out
    (tmp_path / "tiny").symlink_to(tiny_model)
    assert info_of("~/tiny").folder == tmp_path / "tiny"
    with pytest.raises(ValueError, match="folder must be a folder with the published files, got '~/other'"):
        load(TEXT_ID, device="cpu", folder="~/other")
    with pytest.raises(ValueError, match="'~nobody-of-this-name/x' is in no home folder"):
        load(TEXT_ID, device="cpu", folder="~nobody-of-this-name/x")


def test_a_model_without_its_drafter_says_so(
    text_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In the log, on the page, in /models and /healthz: the methods, the reason, and no path of this machine."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "gradio"))
    monkeypatch.setattr(Pipeline, "prepare", lambda _: iter(()))
    monkeypatch.setattr(logging.getLogger("lantern_demo"), "propagate", True)
    monkeypatch.setattr("lantern_demo.ui.log.set_up", lambda: None)
    folder = of_llamagen(text_model, text_model, tmp_path / "pretrained_models")
    with served(TEXT_ID, folder=folder) as (url, page):
        health = httpx.get(f"{url}healthz").json()
        offer = Client(url, verbose=False).predict(api_name="/models")
        arriving = next(fn for fn in page.fns.values() if fn.name == "arrive")
        shown = list(arriving.fn())[-1]
        first = next(fn for fn in page.fns.values() if fn.name == "first")
        updates = first.fn(SimpleNamespace(query_params={})).values()
    reason = f"the folder pretrained_models holds no drafter of {TEXT_ID}: none of drafter/pytorch_model.bin, "
    assert health["ready"] and health["warning"] == offer["warning"]
    assert reason in health["warning"] and reason in shown and reason in caplog.text
    labels = [METHODS[name].label for name in DRAFTING]
    assert all(label in health["warning"] for label in labels) and str(tmp_path) not in health["warning"] + shown
    told = next(one for one in offer["models"] if one["id"] == TEXT_ID)
    assert told["unavailable_methods"] == DRAFTING
    choosers = [json.loads(update) for update in updates if str(update).startswith('{"methods"')]
    offered = [one["id"] for chooser in choosers for one in chooser["methods"]]
    assert sorted([*offered, *DRAFTING]) == sorted(METHODS), "the page offers the others alone"


def test_what_a_folder_lacks_is_known_before_it_is_loaded(
    text_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Service, "_load", lambda *_: None)
    folder = of_llamagen(text_model, text_model, tmp_path / "mine")
    service = Service(TEXT_ID, "cpu", folder=folder)
    assert list(service.unavailable(REGISTRY[TEXT_ID])) == DRAFTING
    assert Service(TEXT_ID, "cpu").unavailable(REGISTRY[TEXT_ID]) == {}
    assert Service(TEXT_ID, "cpu", folder=text_model).unavailable(REGISTRY[TEXT_ID]) == {}


def refused(words: Iterable[object], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as left:
        command(app, *words)
    assert left.value.code == 2
    return capsys.readouterr().err


@pytest.mark.slow
def test_the_page_serves_a_folder(text_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "gradio"))
    folder = of_lantern(text_model, text_model, tmp_path / "mine")
    with served(TEXT_ID, folder=folder) as (url, _):
        client = Client(url, verbose=False)
        numbers = client.predict(PROMPT, method="lantern++", api_name="/draw")[1]
        health = httpx.get(f"{url}healthz").json()
    assert (numbers["model"], numbers["method"]) == (TEXT_ID, "lantern++") and "warning" not in health


def test_a_folder_that_makes_no_sense_is_refused_at_start(
    text_model: Path, tiny_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, says in (
        (["--model", TEXT_ID, "--folder", tmp_path / "none"], "folder must be a folder with the published files, got"),
        (["--folder", text_model], "folder is for published models; lantern-scenes has its own, got"),
        (["--model", tiny_model, "--folder", text_model], "folder is for published models; tiny has its own, got"),
    ):
        told = refused(words, capsys)
        assert says in told and "Running on" not in told
