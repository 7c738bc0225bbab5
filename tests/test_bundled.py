"""The model that ships with the code, and its picture decoder: kept, loaded and drawn with."""

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from published import same_weights, write_json
from safetensors.torch import load_file, save_file
from tiny import strong, vq_config, write_tiny_model
from transformers import JanusVQVAEConfig

from examples.make_bundled_model.folder import save
from lantern_demo import Pipeline, Result, load
from lantern_demo.models import bundled
from lantern_demo.models import tokenizer as tokenizers
from lantern_demo.models.bundled import PALETTE
from lantern_demo.models.llamagen import Drafter
from lantern_demo.models.tensors import SCALE
from lantern_demo.models.tokenizer import ImageTokenizer, PictureDecoder

CPU = torch.device("cpu")
PROMPT = "three red round lanterns over a lake at dusk with a full moon"


@pytest.fixture(scope="module")
def pipe() -> Pipeline:
    return load("lantern-scenes", device="cpu")


def test_a_saved_folder_is_the_one_that_was_read(tmp_path: Path) -> None:
    made = bundled.load(write_tiny_model(tmp_path / "made", grid=4, scale=2), CPU)
    made.drafter = strong(Drafter(replace(made.drafter.config, feature_layers=(1, 2))))
    made.palette = torch.arange(3 * 64).remainder(251).view(64, 3).to(torch.uint8)
    made.preset = {"cfg_scale": 1.5}
    save(tmp_path / "saved", made, torch.float32)
    written = load_file(tmp_path / "saved" / "target" / "model.safetensors")
    names = "attention.wqkv attention.wo feed_forward.w1 feed_forward.w2 feed_forward.w3"
    assert {f"layers.1.{name}.weight" for name in names.split()} < written.keys()
    pipe = load(tmp_path / "saved", "cpu")
    for name, part in made.parts().items():
        same_weights(pipe.networks.parts()[name], part)
    assert pipe.networks.drafter.config == made.drafter.config
    assert pipe.networks.target.feature_layers == (1, 2)
    assert torch.equal(pipe.images.palette(), made.palette)
    assert pipe.defaults.cfg_scale == 1.5 and pipe.info.image_size == 64


@pytest.mark.slow
def test_relaxation_accepts_more_and_says_what_it_costs(pipe: Pipeline) -> None:
    """Over two pictures each; a single one's accepted length is too noisy to order methods by."""
    steps = Counter[str]()
    for seed in range(2):
        for method, event in pipe.compare(PROMPT, ["eagle1", "lantern++"], seed=seed, tree="small"):
            if isinstance(event, Result):
                steps[method] += event.steps
                assert (event.changed > 0.01) == (method == "lantern++")
    assert steps["lantern++"] < steps["eagle1"] < 2 * 255


def test_a_token_has_the_mean_colour_of_a_patch_of_its_own(tiny_model: Path) -> None:
    pipe = load(tiny_model, "cpu")
    tokenizer, colours = pipe.networks.tokenizer, pipe.images.palette()
    assert colours.shape == (tokenizer.codebook_size, 3) and colours.dtype == torch.uint8
    vector = tokenizer.codebook[5].view(1, -1, 1, 1)
    patch = tokenizer.decode_latent(vector.expand(1, -1, tokenizers.SIDE, tokenizers.SIDE))
    assert colours[5].tolist() == (255 * patch.mean((0, 2, 3))).round().int().tolist()


def test_a_target_in_eight_bits_is_within_half_a_step(tmp_path: Path, pipe: Pipeline) -> None:
    save(tmp_path, pipe.networks, torch.float32, eight_bits=True)
    found = bundled.load(tmp_path, torch.device("cpu")).target.state_dict()
    for name, own in pipe.networks.target.state_dict().items():
        error = (found[name] - own).abs()
        if own.dim() != 2:
            assert not error.any()
            continue
        step = own.abs().amax(1, keepdim=True) / 127
        # half a step, and the rounding of scale and product to float16
        assert bool((error <= 0.5 * step + own.abs().amax() * 2**-9 + 2**-14).all()), name
    files = [*(tmp_path / "target").glob("*.safetensors")]
    whole = sum(w.numel() for w in pipe.networks.target.parameters())
    assert sum(file.stat().st_size for file in files) < 2 * whole
    file, stored = next((file, load_file(file)) for file in files)
    name = next(name for name in stored if name.endswith(SCALE))
    save_file(stored | {name: stored[name][:2].clone()}, file)
    with pytest.raises(ValueError, match=rf"{name} has shape \[2\]"):
        bundled.load(tmp_path, torch.device("cpu"))


def test_colours_of_another_model_are_refused(tiny_model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    save_file({PALETTE: torch.zeros(63, 3).byte()}, folder / f"{PALETTE}.safetensors")
    with pytest.raises(ValueError, match=rf"{PALETTE}.safetensors must hold 64 colours"):
        load(folder, "cpu")


# A part of a config.json, what it says wrongly -> words of the sentence.
WRONG: list[tuple[str, Any, str]] = [
    ("drafter", {"vocab": 32}, "its drafter says vocab 32"),
    ("tokenizer", {"num_patches": 8}, "an image tokenizer that does not go with its target"),
    ("picture", {"num_patches": 8}, "a picture decoder that does not go with its image"),
    ("preset", {"cfg_scale": 99}, "json: cfg_scale must be .*, got 99"),
    ("preset", [1], "must be an object, got"),
    ("drafter", {"feature_layers": [2, 1]}, r"feature layers are \[2, 1\]"),
    ("drafter", {"feature_layers": [1, 3]}, r"feature layers are \[1, 3\]"),
    ("drafter", {"feature_layers": [True, 2]}, r"feature layers are \[True, 2\]"),
]


@pytest.mark.parametrize(("part", "told", "says"), WRONG, ids=[says for *_, says in WRONG])
def test_a_wrong_config(part: str, told: Any, says: str, tiny_model: Path, tmp_path: Path) -> None:
    path = shutil.copytree(tiny_model, tmp_path / "model") / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config[part] = config.get(part, {}) | told if isinstance(told, dict) else told
    write_json(path, config)
    with pytest.raises(ValueError, match=says):
        load(path.parent, "cpu")


@torch.inference_mode()
def test_with_the_tokenizers_weights_it_draws_every_pixel_four_times() -> None:
    """The tokenizer is for 32 pixels, 4 x 4 tokens; its decoder has noise in every layer."""
    torch.manual_seed(3)
    tokenizer = ImageTokenizer(vq_config(32, (1, 1, 1, 2), 1, 16, 8, 32, num_patches=4)).eval()
    shape = tokenizer.vq.config.to_diff_dict()

    def decoder_of(channels: int) -> PictureDecoder:
        return PictureDecoder(JanusVQVAEConfig(**{**shape, "out_channels": channels})).eval()

    decoder = decoder_of(12)
    assert decoder.size == 2 * tokenizer.size == 64 and decoder_of(27).size == 96
    state, parts = tokenizer.vq.state_dict(), ("decoder.", "post_quant_conv.")
    weights = {name: state[name] for name in state if name.startswith(parts)}
    for end in ("weight", "bias"):  # a pixel shuffle reads the channels colour by colour
        last = f"decoder.conv_out.{end}"
        weights[last] = weights[last].repeat_interleave(4, 0)
    decoder.load_state_dict(weights)
    tokens = torch.randint(32, (3, 16), generator=torch.Generator().manual_seed(1))
    doubled = F.interpolate(tokenizer.decode(tokens), scale_factor=2)
    torch.testing.assert_close(decoder(tokenizer.vectors(tokens)), doubled, atol=1e-5, rtol=0)
    with pytest.raises(ValueError, match=r"3 times a square \(3, 12, 27\), got 6"):
        decoder_of(6)


@torch.inference_mode()
def test_it_draws_for_its_model_folder(tmp_path: Path) -> None:
    folder = write_tiny_model(tmp_path / "larger", grid=4, scale=2)
    plain = bundled.load(write_tiny_model(tmp_path / "plain", grid=4), CPU)
    found = bundled.load(folder, CPU)
    assert (found.image_size, found.tokenizer.size, plain.image_size) == (64, 32, 32)
    tokens = torch.arange(16)[None]
    assert torch.equal(plain.draw(tokens), plain.tokenizer.decode(tokens))
    assert torch.equal(found.draw(tokens), found.picture(found.tokenizer.vectors(tokens)))

    (folder / "picture" / "model.safetensors").unlink()
    with pytest.raises(ValueError, match=r"picture must hold weights as .safetensors, and has"):
        bundled.load(folder, CPU)
