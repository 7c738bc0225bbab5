"""The picture decoder: what it makes of tokens, and how it is kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from published import write_json
from tiny import vq_config, write_tiny_model
from transformers import JanusVQVAEConfig

from lantern_demo.models import bundled
from lantern_demo.models.tokenizer import ImageTokenizer, PictureDecoder

CPU = torch.device("cpu")


@pytest.fixture
def tokenizer() -> ImageTokenizer:
    """One for 32 pixels, 4 x 4 tokens, whose decoder has noise in every layer."""
    torch.manual_seed(3)
    made = ImageTokenizer(vq_config(32, (1, 1, 1, 2), 1, 16, 8, 32, num_patches=4))
    return made.requires_grad_(False).eval()


def decoder_of(tokenizer: ImageTokenizer, channels: int) -> PictureDecoder:
    shape = tokenizer.vq.config.to_diff_dict()
    return PictureDecoder(JanusVQVAEConfig(**{**shape, "out_channels": channels})).eval()


@torch.inference_mode()
def test_with_the_tokenizers_weights_it_draws_every_pixel_four_times(
    tokenizer: ImageTokenizer,
) -> None:
    decoder = decoder_of(tokenizer, 12)
    assert decoder.size == 2 * tokenizer.size == 64
    weights = {
        name: weight
        for name, weight in tokenizer.vq.state_dict().items()
        if name.startswith(("decoder.", "post_quant_conv."))
    }
    for end in ("weight", "bias"):  # a pixel shuffle reads the channels colour by colour
        last = f"decoder.conv_out.{end}"
        weights[last] = weights[last].repeat_interleave(4, 0)
    decoder.load_state_dict(weights)
    tokens = torch.randint(32, (3, 16), generator=torch.Generator().manual_seed(1))
    doubled = F.interpolate(tokenizer.decode(tokens), scale_factor=2)
    torch.testing.assert_close(decoder(tokenizer.vectors(tokens)), doubled, atol=1e-5, rtol=0)
    assert decoder_of(tokenizer, 27).size == 96
    with pytest.raises(ValueError, match=r"3 times a square \(3, 12, 27\), got 6"):
        decoder_of(tokenizer, 6)


@torch.inference_mode()
def test_it_draws_for_its_model_folder(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "larger", grid=4, scale=2)
    plain = bundled.load(write_tiny_model(tmp_path / "plain", grid=4), CPU)
    found = bundled.load(folder, CPU)
    assert (found.image_size, found.tokenizer.size, plain.image_size) == (64, 32, 32)
    tokens = torch.arange(16)[None]
    assert torch.equal(plain.draw(tokens), plain.tokenizer.decode(tokens))
    assert found.picture is not None
    assert torch.equal(found.draw(tokens), found.picture(found.tokenizer.vectors(tokens)))

    (folder / "picture" / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"picture must hold weights as .safetensors, and has"):
        bundled.load(folder, CPU)
    told = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    told["picture"]["num_patches"] = 8
    write_json(folder / "config.json", told)
    with pytest.raises(ValueError, match="a picture decoder that does not go with its image"):
        bundled.load(folder, CPU)
