"""Janus-Pro as a published model: what its files must hold, prompts in its chat template, drafters, and the program on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from passes import begin, chain_pass, node_pass, stable_pass
from published import GRID, JANUS, JANUS_DRAFTER, JANUS_ID, authors_config, janus_drafter, janus_library, write_janus
from runs import decode
from torch import Tensor
from transformers import LlamaConfig, LlamaModel

from lantern_demo.bench.quality import drawing
from lantern_demo.bench.quality.points import points_of
from lantern_demo.decoding.loop import Decoded
from lantern_demo.decoding.methods import METHODS
from lantern_demo.decoding.sampling import guide
from lantern_demo.models import checkpoints
from lantern_demo.models.janus.drafter import JanusDrafter
from lantern_demo.models.registry import REGISTRY
from lantern_demo.runs.pipeline import Pipeline, load
from lantern_demo.settings.drafts import drafts_of

pytestmark = pytest.mark.usefixtures("published_cache")
CPU = torch.device("cpu")
PROMPT = "a red lantern over the lake"


@pytest.fixture
def pipe(janus_model: Path) -> Pipeline:
    return load(JANUS_ID, device="cpu", folder=janus_model)


def test_what_deepseeks_config_leaves_out_is_a_llamas(tmp_path: Path) -> None:
    """The published file says neither eps nor theta."""
    folder, config = write_janus(tmp_path / "m"), authors_config()
    del config["language_config"]["rms_norm_eps"], config["language_config"]["rope_theta"]
    (folder / "Janus-Pro-1B" / "config.json").write_text(json.dumps(config))
    found = checkpoints.load(REGISTRY[JANUS_ID], CPU, torch.float32, folder).target.config
    assert (found.eps, found.rope_base) == (1e-6, 10000.0)


def test_prompts_stand_in_the_chat_template(pipe: Pipeline) -> None:
    """A user's turn, an empty one of the model's, the start of a picture; the file's own start mark is not there twice."""
    encoded = pipe.networks.text.encode("  a red lantern ")
    words = {"<|": 23, "User": 20, "|>": 24, ":": 22, "a": 10, "red": 11, "lantern": 12, "\n\n": 25, "Assistant": 21}
    said = ["<|", "User", "|>", ":", "a", "red", "lantern", "\n\n", "<|", "Assistant", "|>", ":"]
    assert encoded.features.tolist() == [[0, *(words[word] for word in said), 3]]
    assert encoded.mask is None and encoded.unknown == []
    both = pipe.networks.target.condition(encoded.features, None, True)
    assert both.mask is None  # the padding is read
    assert both.features.tolist()[1] == [0, *([JANUS.pad] * 12), 3]


def test_the_quality_harness_draws_from_captions(janus_model: Path) -> None:
    """Every picture of captions of different lengths is there."""
    pipe = load(JANUS_ID, device="cpu", dtype="float32", folder=janus_model)
    prompts = ["a red lantern", "blue night over the lake at dusk", "the lake", "a night"]
    points = [point for point in points_of(pipe, list(METHODS), "small") if point.group in ("main", "again")]
    assert {point.method for point in points} == set(pipe.available_methods)
    counts = {point.name: len(prompts) for point in points}
    jobs = drawing.jobs_of(points, counts, prompts)
    drawn = drawing.by_point(drawing.draw(pipe, ("", "", ""), jobs), jobs)
    assert {name: len(records) for name, records in drawn.items()} == counts
    assert all(len(record["tokens"]) == GRID * GRID for records in drawn.values() for record in records)


@torch.no_grad()
def test_the_drafter_computes_what_the_code_that_it_follows_does() -> None:
    """State and vector through one linear layer and a SiLU into the library's Llama of one layer with its norm, over a picture
    from position 0; a pass over its first slots, one over the rest, then one node behind them."""
    drafter, c = janus_drafter(), JANUS_DRAFTER
    config = LlamaConfig(
        hidden_size=c.dim,
        intermediate_size=c.ffn,
        num_hidden_layers=1,
        num_attention_heads=c.heads,
        num_key_value_heads=c.heads,
        vocab_size=4,
        rms_norm_eps=c.eps,
        rope_parameters={"rope_type": "default", "rope_theta": c.rope_base},
        max_position_embeddings=64,
    )
    language = LlamaModel(config).eval()
    own = drafter.state_dict()
    state = {name: weight for name, weight in own.items() if name.startswith(("layers.", "norm."))}
    assert language.load_state_dict(state, strict=False).missing_keys == ["embed_tokens.weight"]
    generator = torch.Generator().manual_seed(5)
    hidden = torch.randn(2, 6, c.dim, generator=generator)
    tokens = torch.tensor([3, 9, 11, 40, 2, 63])
    vectors = janus_library().prepare_embeddings_for_image_generation(tokens).expand(2, -1, -1)
    fused = torch.nn.functional.silu(torch.cat((hidden, vectors), -1) @ own["fusion.weight"].t() + own["fusion.bias"])
    wanted = language(inputs_embeds=fused, position_ids=torch.arange(6)[None].expand(2, -1)).last_hidden_state
    cache, prompt, nothing = drafter.new_cache(2, 12), torch.randn(2, 6, c.dim, generator=generator), None
    first = begin(drafter, torch.cat((prompt, hidden[:, :1]), 1), tokens[:1], cache, nothing)  # type: ignore[arg-type]
    rest = stable_pass(drafter, tokens[1:5], hidden[:, 1:5], cache)
    node = node_pass(drafter, tokens[5:], hidden[:, 5:], 1, torch.ones(1, 1, dtype=torch.bool), cache)
    torch.testing.assert_close(torch.cat((first, rest, node), 1), wanted[:, [0, 4, 5]], atol=1e-4, rtol=0)


class Perfect(JanusDrafter):
    """Not a network: it says what its target's states would be, whatever it is asked. Its drafts are always right."""

    def __init__(self, states: dict[int, Tensor]) -> None:
        super().__init__(JANUS_DRAFTER)
        self.states, self.at = states, 0

    def run(self, embedded: Tensor, hidden: Tensor, rope: Tensor, mask: Tensor | None, store: Any, asked: int) -> Tensor:
        x = super().run(embedded, hidden, rope, mask, store, asked)
        assert mask is not None
        return self.states[mask.shape[-1]].expand_as(x)


@torch.no_grad()
def test_states_go_through_the_head_row_by_row_before_they_are_mixed(pipe: Pipeline) -> None:
    """All drafts of a drafter that knows the target's states are accepted: the logits of mixed states are others."""
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
    knobs, chosen = pipe.settings(temperature=0, tree="0 00 000"), METHODS["eagle1"]
    *_, last = decode(
        target,
        knower,
        condition,
        num_tokens=16,
        method=chosen,
        sampling=knobs.sampling(),
        rule=knobs.rule(chosen),
        tree=drafts_of(chosen.drafts, knobs),
        engine="plain",
    )
    assert isinstance(last, Decoded) and last.tokens == tokens
    assert last.accepted_lengths[:3] == [4, 4, 4]
