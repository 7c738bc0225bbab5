"""Janus-Pro against transformers' own with small random weights, from both published forms."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import torch
from library_models import walk
from published import GRID, JANUS, JANUS_7B_ID, JANUS_ID, VOCAB, janus_library, write_janus
from released import close
from runs import decode, small
from torch import Tensor
from transformers import JanusForConditionalGeneration

from lantern_demo.decoding.loop import Decoded
from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.sampling import Sampling, guide
from lantern_demo.models import checkpoints
from lantern_demo.models.bundled import Networks
from lantern_demo.models.janus.target import Janus
from lantern_demo.models.registry import REGISTRY

pytestmark = pytest.mark.usefixtures("published_cache")
PROMPT = torch.tensor([[0, 23, 20, 24, 22, 10, 11, 12, 25, 23, 21, 24, 22, 3]])  # the last starts a picture
SCALE = 5.0


@lru_cache(maxsize=1)
def library() -> JanusForConditionalGeneration:
    return janus_library()


@pytest.fixture(scope="module", params=["authors", "authors in parts", "library"])
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    form, _, parts = request.param.partition(" in ")
    folder = tmp_path_factory.mktemp("janus") / "files"
    return write_janus(folder, form, 2, "7B") if parts else write_janus(folder, form)


@pytest.fixture
def ours(files: Path) -> Networks[Any]:
    model = JANUS_7B_ID if (files / "Janus-Pro-7B").exists() else JANUS_ID
    return checkpoints.load(REGISTRY[model], torch.device("cpu"), torch.float32, files)


@pytest.mark.parametrize("guided", [False, True])
@torch.no_grad()
def test_prompt_steps_and_tree(ours: Networks[Any], guided: bool) -> None:
    """States to 1e-4, logits and guided logits too."""
    target, model = ours.target, library()
    assert isinstance(target, Janus) and target.config == JANUS  # eps and theta are the files'
    condition = target.condition(PROMPT, None, guided)
    language = model.model.language_model
    language.config._attn_implementation = "eager"

    def states(tokens: Tensor | None, slots: Tensor, sees: Tensor, cache: Any) -> Tensor:
        if tokens is None:
            embeds = model.get_input_embeddings()(condition.features)
        else:
            embeds = model.prepare_embeddings_for_image_generation(tokens.expand(1 + guided, -1))
        mask = torch.where(sees, 0.0, torch.finfo(torch.float32).min)[None, None].expand(len(embeds), -1, -1, -1)
        places = slots.expand(len(embeds), -1)
        return language(inputs_embeds=embeds, attention_mask=mask, position_ids=places, past_key_values=cache).last_hidden_state

    def check(hidden: Tensor, wanted: Tensor) -> None:
        close(hidden, wanted)
        logits, theirs = target.head(hidden), model.model.generation_head(wanted)
        close(logits, theirs)
        if guided:
            close(guide(logits, SCALE), theirs[1] + SCALE * (theirs[0] - theirs[1]))

    walk(target, condition, states, check)


@torch.no_grad()
def test_a_greedy_picture_is_the_librarys(ours: Networks[Any]) -> None:
    """The library's own generation of a whole picture under guidance, which pads the unconditional prompt itself."""
    model = library()
    model.generation_config.generation_kwargs = {"boi_token_id": int(PROMPT[0, -1])}
    model.generation_config.pad_token_id = JANUS.pad
    wanted = model.generate(
        PROMPT, attention_mask=torch.ones_like(PROMPT), generation_mode="image", do_sample=False, guidance_scale=SCALE
    )[0].tolist()
    condition = ours.target.condition(PROMPT, None, True)
    assert len(set(wanted)) > 3 and len(wanted) == GRID * GRID
    for method in (method for method in METHODS.values() if method.lossless and not method.needs_drafter):
        sampling = Sampling(temperature=0, cfg_scale=SCALE)
        *_, last = decode(ours.target, None, condition, num_tokens=GRID * GRID, sampling=sampling, **small(method.id))
        assert isinstance(last, Decoded) and last.tokens == wanted, method.id
    *_, plain = decode(
        ours.target,
        None,
        ours.target.condition(PROMPT, None, False),
        num_tokens=GRID * GRID,
        method=METHODS["vanilla"],
        sampling=Sampling(temperature=0, cfg_scale=1.0),
    )
    assert plain.tokens != wanted


@torch.no_grad()
def test_pixels_are_the_librarys(ours: Networks[Any]) -> None:
    tokens = torch.arange(0, 4 * GRID * GRID, 4)[None] % VOCAB
    wanted = library().decode_image_tokens(tokens).permute(0, 3, 1, 2)
    assert float(wanted.std()) > 0.01
    close(ours.tokenizer.decode(tokens), (wanted.clamp(-1, 1) + 1) / 2)
