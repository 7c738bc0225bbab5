"""The model that ships with the code: it loads, and shows what the demo is about."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from lantern_demo import load
from lantern_demo.bench.quality.scenes import truth
from lantern_demo.models import palette
from lantern_demo.models.bundled import PALETTE, save
from lantern_demo.models.machine.matmul import exact_kinds
from lantern_demo.models.palette import token_colours
from lantern_demo.runs.pipeline import Generation, Pipeline

PROMPT = "a cat on a lake at dusk under the moon"


@pytest.fixture(scope="module")
def pipe() -> Pipeline:
    return load("lantern-scenes", device="cpu")


def test_float16_weights_are_the_targets_own(pipe: Pipeline) -> None:
    assert "half" in exact_kinds(pipe.networks.target.parameters())


@pytest.mark.slow
def test_relaxation_accepts_more_and_says_what_it_costs(pipe: Pipeline) -> None:
    """Over two pictures each; a single picture's accepted length is too noisy to order methods by."""
    steps: dict[str, int] = {}
    for seed in range(2):
        for method, event in pipe.compare(PROMPT, ["eagle1", "eagle2", "lantern", "lantern++"], seed=seed, tree="small"):
            if isinstance(event, Generation):
                steps[method] = steps.get(method, 0) + event.stats.steps
                assert event.stats.changed > 0.01 if method.startswith("lantern") else event.stats.changed == 0
    assert steps["lantern"] < steps["eagle2"] < 2 * 255
    assert steps["lantern++"] < steps["eagle1"] < 2 * 255


def test_every_word_of_a_caption_is_known(pipe: Pipeline) -> None:
    assert pipe.networks.text.encode(PROMPT).unknown == []
    assert pipe.networks.text.encode("a red robot").unknown == ["robot"]


# -- the colours of tokens


def test_a_token_has_the_mean_colour_of_a_patch_of_its_own(tiny_model: Path) -> None:
    pipe = load(tiny_model, "cpu")
    networks, colours = pipe.networks, pipe.palette()
    assert colours.shape == (networks.tokenizer.codebook_size, 3) and colours.dtype == torch.uint8
    patch = networks.decode(networks.tokenizer.codebook[5].view(1, -1, 1, 1).expand(1, -1, palette.SIDE, palette.SIDE))
    assert colours[5].tolist() == (255 * patch.mean((0, 2, 3))).round().int().tolist()


def test_of_a_large_codebook_some_are_decoded_and_the_others_look_like_the_nearest(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    networks = load(tiny_model, "cpu").networks
    whole = token_colours(networks)
    monkeypatch.setattr(palette, "DECODED", 4)
    some, book = token_colours(networks), networks.tokenizer.codebook
    known = torch.linspace(0, len(book) - 1, 4).round().long()
    assert torch.equal(some[known], whole[known])
    assert all(torch.equal(some[i], whole[known[(book[known] - book[i]).norm(dim=1).argmin()]]) for i in range(len(book)))


def test_colours_that_were_learnt_are_kept_with_the_model(tiny_model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    codes = json.loads((folder / "config.json").read_text())["tokenizer"]["num_embeddings"]
    learnt = torch.arange(3 * codes).remainder(251).view(codes, 3).to(torch.uint8)
    save_file({PALETTE: learnt}, folder / f"{PALETTE}.safetensors")
    pipe = load(folder, "cpu")
    assert torch.equal(pipe.palette(), learnt)
    save(tmp_path / "again", pipe.networks)
    assert torch.equal(load(tmp_path / "again", "cpu").palette(), learnt)
    save_file({PALETTE: learnt[1:].contiguous()}, folder / f"{PALETTE}.safetensors")
    with pytest.raises(ValueError, match=rf"{PALETTE}.safetensors must hold {codes} colours"):
        load(folder, "cpu")


@torch.inference_mode()
def test_the_bundled_models_colours_are_those_of_scenes(pipe: Pipeline) -> None:
    """They are nearer to pictures of true scenes than the colours of single-token patches."""
    networks = pipe.networks
    tokens = truth(pipe.info.folder, 8).tokens
    seen = 255 * F.adaptive_avg_pool2d(networks.draw(tokens), networks.tokenizer.grid).permute(0, 2, 3, 1)

    def off(colours: torch.Tensor) -> float:
        return float((colours[tokens.view(seen.shape[:3])].float() - seen).abs().mean())

    assert off(pipe.palette()) < 0.75 * off(token_colours(networks))
