"""The model that ships with the code: it loads, and shows what the demo is about. `test_shared` shows that exact methods draw the
very pictures of vanilla on it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from examples.make_bundled_model.picture import steepness_kept
from examples.make_bundled_model.tokenizer import psnr
from lantern_demo import load
from lantern_demo.models.machine.matmul import exact_kinds
from lantern_demo.models.registry import BUNDLED
from lantern_demo.runs.pipeline import Generation, Pipeline
from lantern_demo.scenes import HELD_OUT, render, sample_scenes

PROMPT = "three red round lanterns over a lake at dusk with a full moon"


@pytest.fixture(scope="module")
def pipe() -> Pipeline:
    return load("lantern-scenes", device="cpu")


def test_float16_weights_are_the_targets_own(pipe: Pipeline) -> None:
    assert "half" in exact_kinds(pipe.networks.target.parameters())


@pytest.mark.slow
def test_relaxation_accepts_more_and_says_what_it_costs(pipe: Pipeline) -> None:
    """Over three pictures each; a single picture's accepted length is too noisy to order methods by."""
    steps: dict[str, int] = {}
    for seed in range(3):
        for method, event in pipe.compare(PROMPT, ["eagle1", "eagle2", "lantern", "lantern++"], seed=seed, tree="small"):
            if isinstance(event, Generation):
                steps[method] = steps.get(method, 0) + event.stats.steps
                assert event.stats.changed > 0.01 if method.startswith("lantern") else event.stats.changed == 0
    assert steps["lantern"] < steps["eagle2"] < 3 * 255
    assert steps["lantern++"] < steps["eagle1"] < 3 * 255


@pytest.mark.slow
@torch.inference_mode()
def test_tokenizer_keeps_held_out_scenes(pipe: Pipeline) -> None:
    images = render(sample_scenes(16, HELD_OUT))
    tokenizer = pipe.networks.tokenizer
    assert psnr(tokenizer.decode(tokenizer.encode(images)), images).mean() > 29


@pytest.mark.slow
@torch.inference_mode()
def test_pictures_hold_more_than_the_tokenizers_own_enlarged(pipe: Pipeline) -> None:
    scenes = sample_scenes(24, HELD_OUT)
    networks, images = pipe.networks, render(scenes, 256)
    tokens = networks.tokenizer.encode(render(scenes))
    drawn = networks.draw(tokens)
    enlarged = F.interpolate(networks.tokenizer.decode(tokens), size=256, mode="bicubic").clamp(0, 1)
    assert drawn.shape == (24, 3, 256, 256) and pipe.info.image_size == 256
    assert psnr(drawn, images).mean() > psnr(enlarged, images).mean() + 1
    assert steepness_kept(drawn, images).mean() > steepness_kept(enlarged, images).mean() + 0.1


def test_the_files_are_small_enough_for_plain_git() -> None:
    sizes = [path.stat().st_size for path in (BUNDLED / "lantern-scenes").rglob("*") if path.is_file()]
    assert max(sizes) < 10_000_000 and sum(sizes) < 45_000_000


def test_every_word_of_a_caption_is_known(pipe: Pipeline) -> None:
    assert pipe.networks.text.encode(PROMPT).unknown == []
    assert pipe.networks.text.encode("a red dragon").unknown == ["dragon"]
