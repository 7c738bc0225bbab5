"""Anole as a published model: its files load to the numbers they were written from, prompts become its tokens, and the program
runs on it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from published import (
    ANOLE,
    ANOLE_DRAFTER,
    ANOLE_ID,
    anole_config,
    anole_networks,
    anole_tensors,
    chameleon_vq_tensors,
    pictures,
    same_weights,
    write_anole,
    write_shards,
    write_vocabulary,
)

from lantern_demo.decoding.methods import METHODS
from lantern_demo.models import checkpoints
from lantern_demo.models.anole.cpu import LeanAnole
from lantern_demo.models.anole.drafter import AnoleDrafter
from lantern_demo.models.anole.prompts import image_name, read_vocabulary
from lantern_demo.models.anole.target import Anole
from lantern_demo.models.families import LAYOUTS
from lantern_demo.models.files.tensors import CheckpointError, weights_of
from lantern_demo.models.machine.sixteen import sixteen_bits
from lantern_demo.models.registry import REGISTRY
from lantern_demo.runs.pipeline import Generation, Pipeline, load

pytestmark = pytest.mark.usefixtures("published_cache")
CPU = torch.device("cpu")
PROMPT = "a red lantern over the lake"
HUB = "Anole-7b-v0.1-hf"


@pytest.fixture
def pipe(anole_model: Path) -> Pipeline:
    return load(ANOLE_ID, device="cpu", folder=anole_model)


# -- files


def test_the_hub_conversion_loads(anole_model: Path) -> None:
    target, drafter, tokenizer = anole_networks()
    found = checkpoints.load(REGISTRY[ANOLE_ID], CPU, torch.float32, anole_model)
    assert isinstance(found.target, Anole) and isinstance(found.drafter, AnoleDrafter)
    assert (found.target.config, found.drafter.config) == (ANOLE, ANOLE_DRAFTER)  # eps and theta are the files'
    for ours, theirs in ((found.target, target), (found.drafter, drafter), (found.tokenizer, tokenizer)):
        same_weights(ours, theirs)
        assert not any(p.requires_grad for p in ours.parameters())
    assert torch.equal(pictures(found.tokenizer), pictures(tokenizer))
    assert torch.equal(found.target.rope, target.rope) and torch.equal(found.drafter.rope, drafter.rope)


def test_the_authors_image_tokenizer_may_stand_in(tmp_path: Path) -> None:
    """Chameleon's vqgan.ckpt, with what its training left beside it, and the parts under their own names."""
    folder = write_anole(tmp_path / "m")
    tokenizer = anole_networks()[2]
    (folder / HUB).rename(folder / "target")
    with pytest.raises(
        CheckpointError, match=r"lacks the tokenizer of anole-7b: put model-\*.safetensors or tokenizer/vqgan.ckpt in"
    ):
        load(ANOLE_ID, device="cpu", folder=folder)
    (folder / "tokenizer").mkdir()
    (folder / "target" / "tokenizer.json").rename(folder / "tokenizer.json")
    leavings = {"loss.discriminator.main.0.weight": torch.zeros(3)}
    torch.save({"state_dict": chameleon_vq_tensors(tokenizer) | leavings, "epoch": 3}, folder / "tokenizer" / "vqgan.ckpt")
    found = load(ANOLE_ID, device="cpu", folder=folder)
    same_weights(found.networks.tokenizer, tokenizer)
    assert found.generate(PROMPT).record["model"]["sources"]["tokenizer"]["file"] == "tokenizer/vqgan.ckpt"


def test_theta_may_stand_where_newer_versions_of_the_library_write_it(tmp_path: Path) -> None:
    folder = write_anole(tmp_path / "m")
    config = anole_config()
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": config.pop("rope_theta")}
    (folder / HUB / "config.json").write_text(json.dumps(config))
    assert checkpoints.load(REGISTRY[ANOLE_ID], CPU, torch.float32, folder).target.config == ANOLE


def test_a_drafter_of_ones_own(anole_model: Path, tmp_path: Path) -> None:
    drafter = AnoleDrafter(replace(ANOLE_DRAFTER, bias=False, ffn=32)).requires_grad_(False).eval()
    checkpoints.save_drafter(tmp_path / "mine", drafter)
    found = load(ANOLE_ID, device="cpu", folder=anole_model, drafter=tmp_path / "mine")
    same_weights(found.networks.drafter, drafter)
    assert found.generate(PROMPT, "eagle1").record["model"]["sources"]["drafter"] == {"local": "mine", "trained": True}
    checkpoints.save_drafter(tmp_path / "other", AnoleDrafter(replace(ANOLE_DRAFTER, vocab=32)))
    with pytest.raises(ValueError, match="says vocab 32, but the target has 64: it is another model's drafter"):
        load(ANOLE_ID, device="cpu", folder=anole_model, drafter=tmp_path / "other")


# -- prompts


def test_prompts_are_the_vocabularys_tokens_between_marks(pipe: Pipeline) -> None:
    encoded = pipe.networks.text.encode("a red gong over the lake")
    assert encoded.features.tolist() == [
        [0, 8712, 8713, 3, 8715, 8717, 8716, 8710, 8197]
    ]  # the file's own start mark is not there twice
    assert encoded.mask is None and encoded.unknown == ["gong"]
    both = pipe.networks.target.condition(encoded.features, None, True)
    assert both.features.tolist()[1] == [1] * 7 + [0, 8197]
    assert both.mask is not None and both.mask.tolist() == [[True] * 9, [False] * 7 + [True] * 2]


@pytest.mark.parametrize(("name", "number"), [("<racm3:break>", 8198), ("IMGIMGBCZ", 17), ("<reserved08706>", None)])
def test_a_vocabulary_with_something_elsewhere_is_refused(name: str, number: int | None, tmp_path: Path) -> None:
    write_vocabulary(tmp_path / "tokenizer.json")
    assert read_vocabulary(tmp_path / "tokenizer.json", ANOLE.vocab).token_to_id("IMGIMGBCZ") == 4 + 12
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    content["model"]["vocab"].pop(name)
    if number is not None:
        content["model"]["vocab"][name] = number
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=rf"is not Anole's tokenizer: {name} must be \d+ in it, and is {number}"):
        read_vocabulary(tmp_path / "tokenizer.json", ANOLE.vocab)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"tokenizer.json is no tokenizer .*; delete it and download it again"):
        read_vocabulary(tmp_path / "tokenizer.json", ANOLE.vocab)


def test_names_of_image_tokens() -> None:
    assert [image_name(code) for code in (0, 53, 8191)] == ["IMGIMGAZ", "IMGIMGFDZ", "IMGIMGIBJBZ"]


# -- the program on it


def test_every_method_draws(pipe: Pipeline) -> None:
    assert pipe.available_methods == list(METHODS)
    done = {m: e for m, e in pipe.compare(PROMPT, seed=1) if isinstance(e, Generation)}
    assert set(done) == set(pipe.default_methods)
    assert done["vanilla"].image.size == (64, 64)
    assert all(len(d.tokens) == 16 and min(d.tokens) >= 0 and max(d.tokens) < ANOLE.vocab for d in done.values())
    sources = done["vanilla"].record["model"]["sources"]
    assert {part: source["file"] for part, source in sources.items()} == {
        "target": "model-*.safetensors",
        "drafter": "pytorch_model.bin",
        "tokenizer": "model-*.safetensors",
        "text": "tokenizer.json",
    }
    assert str(Path.home()) not in json.dumps(sources)
    assert all(done[m].tokens == done["vanilla"].tokens for m in ("eagle1", "eagle2"))
    assert isinstance(pipe.target, LeanAnole) and done["vanilla"].stats.dtype == sixteen_bits()


def test_both_neighbour_tables_are_one(pipe: Pipeline) -> None:
    assert torch.equal(pipe.neighbours("decoder"), pipe.neighbours("raw"))


def test_what_is_for_the_other_family_alone(pipe: Pipeline, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from lantern_demo.training import drafter

    monkeypatch.setattr("sys.argv", ["drafter", "--target", ANOLE_ID, "--out", str(tmp_path), "--captions", str(tmp_path)])
    with pytest.raises(
        SystemExit, match="--target must be of a family whose drafters this trains, LlamaGen or Janus; anole-7b has"
    ):
        drafter.main()


def test_the_whole_vocabulary_is_checked_before_rows_are_taken(tmp_path: Path) -> None:
    """The head of the file has a row for every word; the network's has the image tokens', in their order."""
    target, _, tokenizer = anole_networks()
    tensors = anole_tensors(target, tokenizer)
    write_shards(tensors, tmp_path, 1)
    found = dict(weights_of(Anole(ANOLE), [tmp_path / "model-00001-of-00001.safetensors"], LAYOUTS["anole"]))
    assert torch.equal(found["lm_head.weight"], tensors["lm_head.weight"][4:68])
    assert found["embed_tokens.weight"].shape[0] == ANOLE.embeddings
