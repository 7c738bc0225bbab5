"""Anole as a published model: its files load to the numbers they were written from, prompts become its tokens, and the program
runs on it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from published import (
    ANOLE,
    ANOLE_DRAFTER,
    ANOLE_ID,
    anole_config,
    anole_networks,
    chameleon_vq_tensors,
    pictures,
    same_weights,
    write_anole,
)

from lantern_demo.models import checkpoints
from lantern_demo.models.anole.drafter import AnoleDrafter
from lantern_demo.models.anole.target import Anole
from lantern_demo.models.files.tensors import CheckpointError
from lantern_demo.models.registry import REGISTRY
from lantern_demo.runs.pipeline import Pipeline, load

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


# -- the program on it
