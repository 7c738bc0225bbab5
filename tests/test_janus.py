"""Janus-Pro as a published model: what its files must hold, prompts in its chat template, drafters,
and the program on it.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import published
import pytest
import torch
from library_models import walk
from passes import begin, chain_pass, node_pass, stable_pass
from published import (
    GRID,
    JANUS,
    JANUS_7B_ID,
    JANUS_DRAFTER,
    JANUS_ID,
    decoder_sizes,
    janus_drafter,
    janus_library,
    write_janus,
)
from released import close
from runs import decode, small
from torch import Tensor
from transformers import LlamaConfig, LlamaModel

from lantern_demo.decoding.loop import Decoded
from lantern_demo.decoding.sampling import Sampling, guide
from lantern_demo.models import checkpoints
from lantern_demo.models.bundled import Networks
from lantern_demo.models.janus import Janus, JanusDrafter
from lantern_demo.models.registry import REGISTRY
from lantern_demo.runs.pipeline import Pipeline, load

pytestmark = pytest.mark.usefixtures("published_cache")
CPU = torch.device("cpu")
PROMPT = "a red lantern over the lake"


@pytest.fixture
def pipe(janus_model: Path) -> Pipeline:
    return load(JANUS_ID, device="cpu", folder=janus_model)


def test_what_deepseeks_config_leaves_out_is_a_llamas(tmp_path: Path) -> None:
    """The published file says neither eps nor theta."""
    folder, config = write_janus(tmp_path / "m"), published.authors_config()
    del config["language_config"]["rms_norm_eps"], config["language_config"]["rope_theta"]
    (folder / "Janus-Pro-1B" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    found = checkpoints.load(REGISTRY[JANUS_ID], CPU, torch.float32, folder).target.config
    assert (found.eps, found.rope_base) == (1e-6, 10000.0)


def test_prompts_stand_in_the_chat_template(pipe: Pipeline) -> None:
    """A user's turn, an empty one of the model's, the start of a picture; the file's own start mark
    is not there twice.
    """
    encoded = pipe.networks.text.encode("  a red lantern ")
    ids = {word: 10 + i for i, word in enumerate(published.JANUS_WORDS)}
    said = ["<|", "User", "|>", ":", "a", "red", "lantern", "\n\n", "<|", "Assistant", "|>", ":"]
    assert encoded.features.tolist() == [[0, *(ids[word] for word in said), 3]]
    assert encoded.mask is None and encoded.unknown == []
    both = pipe.networks.target.condition(encoded.features, None, True)
    assert both.mask is None  # the padding is read
    assert both.features.tolist()[1] == [0, *([JANUS.pad] * 12), 3]


@torch.no_grad()
def test_the_drafter_computes_what_the_code_that_it_follows_does() -> None:
    """State and vector through one linear layer and a SiLU into the library's Llama of one layer
    with its norm, over a picture from position 0; a pass over its first slots, one over the rest,
    then one node behind them.
    """
    drafter, c = janus_drafter(), JANUS_DRAFTER
    config = LlamaConfig(
        **decoder_sizes(c), vocab_size=4, num_hidden_layers=1, max_position_embeddings=64
    )
    language = LlamaModel(config).eval()
    own = drafter.state_dict()
    state = {name: weight for name, weight in own.items() if name.startswith(("layers.", "norm."))}
    assert language.load_state_dict(state, strict=False).missing_keys == ["embed_tokens.weight"]
    generator = torch.Generator().manual_seed(5)
    hidden = torch.randn(2, 6, c.dim, generator=generator)
    tokens = torch.tensor([3, 9, 11, 40, 2, 63])
    vectors = janus_library().prepare_embeddings_for_image_generation(tokens).expand(2, -1, -1)
    fused = torch.nn.functional.silu(
        torch.cat((hidden, vectors), -1) @ own["fusion.weight"].t() + own["fusion.bias"]
    )
    wanted = language(
        inputs_embeds=fused, position_ids=torch.arange(6)[None].expand(2, -1)
    ).last_hidden_state
    cache, prompt = drafter.new_cache(2, 12), torch.randn(2, 6, c.dim, generator=generator)
    first = begin(drafter, torch.cat((prompt, hidden[:, :1]), 1), tokens[:1], cache)
    rest = stable_pass(drafter, tokens[1:5], hidden[:, 1:5], cache)
    node = node_pass(
        drafter, tokens[5:], hidden[:, 5:], 1, torch.ones(1, 1, dtype=torch.bool), cache
    )
    torch.testing.assert_close(
        torch.cat((first, rest, node), 1), wanted[:, [0, 4, 5]], atol=1e-4, rtol=0
    )


class Perfect(JanusDrafter):
    """Not a network: it says what its target's states would be, whatever it is asked.

    Its drafts are always right.
    """

    def __init__(self, states: dict[int, Tensor]) -> None:
        super().__init__(JANUS_DRAFTER)
        self.states = states

    def run(
        self,
        embedded: Tensor,
        hidden: Tensor,
        rope: Tensor,
        mask: Tensor | None,
        store: Any,
        asked: int,
    ) -> Tensor:
        x = super().run(embedded, hidden, rope, mask, store, asked)
        own = int((mask[0, 0, -1] == 0).nonzero()[-1])  # the last slot that it sees is its own
        return self.states[own + 1].expand_as(x)


@torch.no_grad()
def test_states_go_through_the_head_row_by_row_before_they_are_mixed(pipe: Pipeline) -> None:
    """All drafts of a drafter that knows the target's states are accepted: the logits of mixed
    states are others.
    """
    target = pipe.networks.target
    encoded = pipe.networks.text.encode(PROMPT)
    condition = target.condition(encoded.features, None, True)
    tokens = pipe.generate(PROMPT, temperature=0).tokens
    cache, t = target.new_cache(2, GRID * GRID), encoded.features.shape[1]
    target.prefill(condition, cache)
    states = chain_pass(target, torch.tensor(tokens), cache)
    wrong = target.head(guide(states, 5.0)[None]).argmax(-1)[0]
    right = guide(target.head(states), 5.0).argmax(-1)
    assert right[:-1].tolist() == tokens[1:] and (wrong != right).any()
    # the slot of image token j sees t + j slots, itself and those of the prompt counted
    knower = Perfect({t + j: states[:, j : j + 1] for j in range(len(tokens))})
    knobs = {"num_tokens": 16, "sampling": pipe.settings(temperature=0).sampling()}
    *_, last = decode(target, knower, condition, **knobs, **small("eagle1", tree="0 00 000"))
    assert isinstance(last, Decoded) and last.tokens == tokens
    assert last.accepted_lengths[:3] == [4, 4, 4]


# -- against transformers' own with the same random weights, from both published forms

# the last starts a picture
IDS = torch.tensor([[0, 23, 20, 24, 22, 10, 11, 12, 25, 23, 21, 24, 22, 3]])
SCALE = 5.0


library = cache(janus_library)


@pytest.fixture(scope="module", params=["authors in parts", "library"])
def files(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    form, _, parts = request.param.partition(" in ")
    folder = tmp_path_factory.mktemp("janus") / "files"
    return write_janus(folder, form, 2, "7B") if parts else write_janus(folder, form)


@pytest.fixture
def ours(files: Path) -> Networks:
    model = JANUS_7B_ID if (files / "Janus-Pro-7B").exists() else JANUS_ID
    return checkpoints.load(REGISTRY[model], CPU, torch.float32, files)


@pytest.mark.parametrize("guided", [False, True])
@torch.no_grad()
def test_prompt_steps_and_tree(ours: Networks, guided: bool) -> None:
    """States to 1e-4, logits and guided logits too."""
    target, model = ours.target, library()
    assert isinstance(target, Janus) and target.config == JANUS  # eps and theta are the files'
    condition = target.condition(IDS, None, guided)
    language = model.model.language_model
    language.config._attn_implementation = "eager"

    def states(tokens: Tensor | None, slots: Tensor, sees: Tensor, cache: Any) -> Tensor:
        if tokens is None:
            embeds = model.get_input_embeddings()(condition.features)
        else:
            embeds = model.prepare_embeddings_for_image_generation(tokens.expand(1 + guided, -1))
        mask = torch.where(sees, 0.0, torch.finfo(torch.float32).min)[None, None].expand(
            len(embeds), -1, -1, -1
        )
        places = slots.expand(len(embeds), -1)
        return language(
            inputs_embeds=embeds, attention_mask=mask, position_ids=places, past_key_values=cache
        ).last_hidden_state

    def check(hidden: Tensor, wanted: Tensor) -> None:
        close(hidden, wanted)
        logits, theirs = target.head(hidden), model.model.generation_head(wanted)
        close(logits, theirs)
        if guided:
            close(guide(logits, SCALE), theirs[1] + SCALE * (theirs[0] - theirs[1]))

    walk(target, condition, states, check)


@torch.no_grad()
def test_a_greedy_picture_is_the_librarys(ours: Networks) -> None:
    """The library's own generation of a whole picture under guidance, which pads the unconditional
    prompt itself.
    """
    model = library()
    model.generation_config.generation_kwargs = {"boi_token_id": int(IDS[0, -1])}
    model.generation_config.pad_token_id = JANUS.pad
    wanted = model.generate(
        IDS,
        attention_mask=torch.ones_like(IDS),
        generation_mode="image",
        do_sample=False,
        guidance_scale=SCALE,
    )[0].tolist()
    condition, alone = (ours.target.condition(IDS, None, guided) for guided in (True, False))
    assert len(set(wanted)) > 3 and len(wanted) == GRID * GRID

    def drawn(method: str, condition: Any, scale: float) -> list[int]:
        knobs = {"num_tokens": GRID * GRID, "sampling": Sampling(0, cfg_scale=scale)}
        return list(decode(ours.target, None, condition, **knobs, **small(method)))[-1].tokens

    assert drawn("vanilla", condition, SCALE) == drawn("sjd", condition, SCALE) == wanted
    assert drawn("vanilla", alone, 1.0) != wanted


@torch.no_grad()
def test_pixels_are_the_librarys(ours: Networks) -> None:
    tokens = torch.arange(0, 4 * GRID * GRID, 4)[None] % published.VOCAB
    wanted = library().decode_image_tokens(tokens).permute(0, 3, 1, 2)
    assert float(wanted.std()) > 0.01
    close(
        ours.tokenizer.decode_latent(ours.tokenizer.vectors(tokens)), (wanted.clamp(-1, 1) + 1) / 2
    )
