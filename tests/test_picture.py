"""The picture decoder: what it makes of tokens, where it starts, what it is taught, and how it is
kept.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from tiny import vq_config, write_tiny_model
from torch import Tensor, nn
from transformers import JanusVQVAEConfig

from examples.make_bundled_model import picture
from examples.make_bundled_model.lanterns import render, sample_scenes
from examples.make_bundled_model.picture import (
    CHUNK,
    Pairs,
    config,
    picture_loss,
    start_from,
    steepness_kept,
)
from lantern_demo import load
from lantern_demo.models import bundled
from lantern_demo.models.tokenizer import ImageTokenizer, PictureDecoder

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def tokenizer() -> ImageTokenizer:
    """One for 32 pixels, 4 x 4 tokens, whose decoder has noise in every layer."""
    torch.manual_seed(3)
    return (
        ImageTokenizer(vq_config(32, (1, 1, 1, 2), 1, 16, 8, 32, num_patches=4))
        .requires_grad_(False)
        .eval()
    )


@pytest.fixture(scope="module")
def tokens() -> Tensor:
    return torch.randint(32, (3, 16), generator=torch.Generator().manual_seed(1))


@torch.inference_mode()
def test_it_starts_as_the_tokenizers_decoder_with_every_pixel_doubled(
    tokenizer: ImageTokenizer, tokens: Tensor
) -> None:
    decoder = PictureDecoder(config(tokenizer)).eval()
    assert decoder.size == 2 * tokenizer.size == 64
    start_from(decoder, tokenizer)
    doubled = F.interpolate(tokenizer.decode(tokens), scale_factor=2)
    torch.testing.assert_close(decoder(tokenizer.vectors(tokens)), doubled, atol=1e-5, rtol=0)
    groups = [
        m.num_channels // m.num_groups for m in decoder.modules() if isinstance(m, nn.GroupNorm)
    ]
    assert set(groups) == {4}
    shape = config(tokenizer).to_diff_dict()
    assert PictureDecoder(JanusVQVAEConfig(**{**shape, "out_channels": 27})).size == 96
    with pytest.raises(ValueError, match=r"3 times a square \(3, 12, 27\), got 6"):
        PictureDecoder(JanusVQVAEConfig(**{**shape, "out_channels": 6}))
    fewer = PictureDecoder(
        JanusVQVAEConfig(**{**config(tokenizer).to_diff_dict(), "num_res_blocks": 0})
    )
    with pytest.raises(ValueError, match=r"the picture decoder has no decoder\.up\.0\.block\.1"):
        start_from(fewer, tokenizer)


@torch.inference_mode()
def test_a_model_folder_keeps_it(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "larger", grid=4, scale=2)
    plain = bundled.load(write_tiny_model(tmp_path / "plain", grid=4), CPU)
    found = bundled.load(folder, CPU)
    assert (found.image_size, found.tokenizer.size, plain.image_size, plain.picture) == (
        64,
        32,
        32,
        None,
    )
    tokens = torch.arange(16)[None]
    assert torch.equal(plain.draw(tokens), plain.tokenizer.decode(tokens))
    assert found.picture is not None
    assert torch.equal(found.draw(tokens), found.picture(found.tokenizer.vectors(tokens)))
    bundled.save(tmp_path / "again", found, torch.float32)
    assert torch.equal(bundled.load(tmp_path / "again", CPU).draw(tokens), found.draw(tokens))
    assert load(folder).info.image_size == 64

    (folder / "picture" / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"weights in .*picture cannot be read"):
        bundled.load(folder, CPU)
    told = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(
        json.dumps(told | {"picture": told["picture"] | {"num_patches": 8}}), encoding="utf-8"
    )
    with pytest.raises(
        ValueError, match="a picture decoder that does not go with its image tokenizer"
    ):
        bundled.load(folder, CPU)


@torch.inference_mode()
def test_pairs_are_a_scenes_tokens_and_the_same_scene_larger(
    tiny_model: Path, tmp_path: Path
) -> None:
    tokenizer = bundled.load(tiny_model, CPU).tokenizer
    pairs = Pairs(tmp_path, tokenizer, CHUNK + 1, 64, seed=5)
    assert pairs.count == 2 * CHUNK
    tokens, drawn = pairs(2, 3)  # scenes 6, 7 and, of the second chunk, 0
    first, second = sample_scenes(CHUNK, 5), sample_scenes(CHUNK, 6)
    wanted = torch.cat([tokenizer.encode(render(first))[6:], tokenizer.encode(render(second))[:1]])
    assert torch.equal(tokens, wanted)
    torch.testing.assert_close(
        drawn,
        torch.cat([render(first, 64)[6:], render(second, 64)[:1]]),
        atol=0.5 / 255 + 1e-6,
        rtol=0,
    )

    again = Pairs(tmp_path, tokenizer, CHUNK + 1, 64, seed=5)  # reads what the first has written
    again.tokenizer = None  # type: ignore[assignment]
    assert all(
        torch.equal(one, other) for one, other in zip(again(2, 3), (tokens, drawn), strict=True)
    )
    turns = [torch.cat([again(turn * CHUNK + i, 2)[0] for i in range(CHUNK)]) for turn in range(3)]
    assert not torch.equal(turns[0], turns[1]) and not torch.equal(turns[1], turns[2])
    # each scene once a turn
    assert all(sorted(turn.tolist()) == sorted(turns[0].tolist()) for turn in turns)


def test_the_loss_asks_for_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    true = render(sample_scenes(4, 9)) * 2 - 1
    assert picture_loss(true, true) == 0
    soft = F.avg_pool2d(F.pad(true, (2, 2, 2, 2), mode="replicate"), 5, 1)
    kept = steepness_kept(soft, true)
    assert (
        kept.shape == (4,)
        and (kept < 0.9).all()
        and torch.equal(steepness_kept(true, true), torch.ones(4))
    )
    # A picture moved by two pixels is as steep as it was, a soft one is not: only the moved one is
    # free of the last term.
    moved = true.roll(2, -1)
    assert picture.steepness(moved).sub(picture.steepness(true)).abs().mean() < 0.7 * (
        picture.steepness(soft).sub(picture.steepness(true)).abs().mean()
    )
    whole = picture_loss(soft, true)
    monkeypatch.setattr(picture, "steepness", lambda pictures: pictures * 0)
    assert picture_loss(soft, true) < whole  # the term is in the loss
    monkeypatch.undo()
    output = soft.clone().requires_grad_()
    [downhill] = torch.autograd.grad(picture_loss(output, true), [output])
    assert picture_loss(soft - 2e-3 * downhill.sign(), true) < picture_loss(soft, true)
