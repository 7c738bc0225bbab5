"""The picture decoder: its size, and its part of a model folder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tiny import write_tiny_model
from transformers import JanusVQVAEConfig

from lantern_demo import load
from lantern_demo.models import bundled
from lantern_demo.models.picture import PictureDecoder

CPU = torch.device("cpu")


def test_the_channels_of_its_output_give_its_size() -> None:
    shape = {"base_channels": 32, "channel_multiplier": [1, 1], "num_res_blocks": 1, "latent_channels": 16, "num_patches": 4}
    assert PictureDecoder(JanusVQVAEConfig(**shape, embed_dim=8, out_channels=27)).size == 24
    with pytest.raises(ValueError, match=r"3 times a square \(3, 12, 27\), got 6"):
        PictureDecoder(JanusVQVAEConfig(**shape, embed_dim=8, out_channels=6))


@torch.inference_mode()
def test_its_attention_sees_all_tokens() -> None:
    shape = {"base_channels": 32, "channel_multiplier": [1, 1], "num_res_blocks": 1, "latent_channels": 32, "num_patches": 4}
    decoder = PictureDecoder(JanusVQVAEConfig(**shape, embed_dim=8, out_channels=27, attention_layers=2)).eval()
    seen: list[torch.Tensor] = []
    decoder.decoder.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    z = torch.randn(1, 8, 4, 4)
    for other in (z, z + torch.zeros(4, 4).index_fill_(0, torch.tensor([3]), 1.0)):  # only the last row differs
        assert decoder(other).shape == (1, 3, 24, 24)
    assert not torch.equal(seen[0][..., 0, :], seen[1][..., 0, :])


@torch.inference_mode()
def test_a_model_folder_keeps_it(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "larger", grid=4, scale=2)
    plain = bundled.load(write_tiny_model(tmp_path / "plain", grid=4), CPU)
    found = bundled.load(folder, CPU)
    assert (found.image_size, found.tokenizer.size, plain.image_size, plain.picture) == (64, 32, 32, None)
    tokens = torch.arange(16)[None]
    assert torch.equal(plain.draw(tokens), plain.tokenizer.decode_latent(plain.tokenizer.vectors(tokens)))
    assert torch.equal(found.draw(tokens), found.picture(found.tokenizer.vectors(tokens)))
    assert not any("decoder" in name for name in found.tokenizer.state_dict()), "one decoder is enough"
    bundled.save(tmp_path / "again", found, torch.float32)
    assert torch.equal(bundled.load(tmp_path / "again", CPU).draw(tokens), found.draw(tokens))
    assert load(folder).info.image_size == 64

    (folder / "picture" / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"weights in .*picture cannot be read"):
        bundled.load(folder, CPU)
    told = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(told | {"picture": told["picture"] | {"num_patches": 8}}))
    with pytest.raises(ValueError, match="a picture decoder that does not go with its image tokenizer"):
        bundled.load(folder, CPU)
