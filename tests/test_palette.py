"""The colours of tokens: what a decoder makes of them, what is learnt from pictures, and what a model folder keeps."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from lantern_demo import load
from lantern_demo.models import palette
from lantern_demo.models.bundled import PALETTE, save
from lantern_demo.models.palette import token_colours


def test_a_token_has_the_mean_colour_of_a_patch_of_its_own(tiny_model: Path) -> None:
    pipe = load(tiny_model, "cpu")
    tokenizer, colours = pipe.networks.tokenizer, pipe.palette()
    assert colours.shape == (tokenizer.codebook_size, 3) and colours.dtype == torch.uint8
    patch = tokenizer.decode_latent(tokenizer.codebook[5].view(1, -1, 1, 1).expand(1, -1, palette.SIDE, palette.SIDE))
    assert colours[5].tolist() == (255 * patch.mean((0, 2, 3))).round().int().tolist()


def test_of_a_large_codebook_some_are_decoded_and_the_others_look_like_the_nearest(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = load(tiny_model, "cpu").networks.tokenizer
    whole = token_colours(tokenizer)
    monkeypatch.setattr(palette, "DECODED", 4)
    some, book = token_colours(tokenizer), tokenizer.codebook
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


def test_the_bundled_models_colours_are_those_of_scenes() -> None:
    """Nearer to what tokens look like in pictures that they were not learnt from than a patch of the token alone is."""
    from lantern_demo.scenes import render, sample_scenes

    pipe = load("lantern-scenes", "cpu", fit_trees=False)
    tokenizer = pipe.networks.tokenizer
    pictures = render(sample_scenes(4, 987654), tokenizer.size)
    cell = tokenizer.size // tokenizer.grid
    seen = 255 * pictures.unflatten(3, (-1, cell)).unflatten(2, (-1, cell)).mean((3, 5)).permute(0, 2, 3, 1).reshape(-1, 3)
    with torch.inference_mode():
        tokens = tokenizer.encode(pictures).flatten()

    def off(colours: torch.Tensor) -> float:
        return float((colours[tokens].float() - seen).abs().mean())

    assert off(pipe.palette()) < 0.75 * off(token_colours(tokenizer))
