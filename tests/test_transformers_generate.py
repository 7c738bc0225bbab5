"""examples/transformers_generate: decoding inside transformers' `generate`, on tiny models of
transformers' own classes.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import library_models
import pytest
import torch
import transformers
from library_models import ASKED, DECODER, PROMPT, VOCABULARY
from passes import begin, stable_pass
from safetensors.torch import save_file
from tables import chi_square_p
from torch import Tensor

from examples.transformers_generate.custom_generate.adapter import Prompt, reader_of
from examples.transformers_generate.custom_generate.drafter import EagleDrafter, read_weights
from examples.transformers_generate.custom_generate.generate import decode_with
from lantern_demo.models.tokenizer import neighbour_table

FOLDER = Path(__file__).parents[1] / "examples" / "transformers_generate"
EXACT, LOOSE = ("vanilla", "sjd", "eagle1"), ("lantern", "lantern++")
MODELS = ("llama", "chameleon", "janus")


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return {name: getattr(library_models, name)() for name in MODELS}


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drafter")
    save_file(library_models.drafter(), folder / "model.safetensors")
    return folder


def drawn(model: Any, drafter: Path | None = None, **asked: Any) -> Any:
    """`generate` by the function."""
    given = ASKED | {
        "custom_generate": decode_with,
        "lantern_drafter": drafter,
        "return_dict_in_generate": True,
    }
    return model.generate(PROMPT, **given | asked)


def test_the_folders_name_is_enough(
    models: dict[str, Any], drafter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers copies the folder and runs the copy."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    for name in [name for name in sys.modules if name.partition(".")[0] == "transformers_modules"]:
        monkeypatch.delitem(sys.modules, name)  # the copies of another test
    by_name = {"custom_generate": str(FOLDER), "trust_remote_code": True}
    plain = models["llama"].generate(PROMPT, do_sample=False, **ASKED)
    out = drawn(models["llama"], drafter, do_sample=False, lantern_method="eagle1", **by_name)
    assert out.sequences.tolist() == plain.tolist() and type(out).__module__.startswith(
        "transformers_modules"
    )
    told = out.speculative_decoding
    assert told["steps"] < 29 and told["mean_acceptance_length"] > 1
    mask = torch.ones_like(PROMPT)  # of a Janus picture the guidance comes by its own name
    image = models["janus"].generate(
        PROMPT, attention_mask=mask, generation_mode="image", do_sample=False, guidance_scale=4.0
    )
    asked = {
        "lantern_image": True,
        "guidance_scale": 4.0,
        "attention_mask": mask,
        "lantern_drafter": drafter,
    }
    for method in EXACT:
        found = models["janus"].generate(
            PROMPT, do_sample=False, lantern_method=method, **by_name, **asked
        )
        assert found.tolist() == image.tolist() and image.shape == (1, 16), method


@pytest.mark.parametrize("method", EXACT)
def test_greedy_tokens_are_those_of_generate(
    models: dict[str, Any], drafter: Path, method: str
) -> None:
    """With padding, guidance, processors that read the tokens before, and an end."""
    llama = models["llama"]
    prompt, mask = torch.tensor([[0, 0, 5, 9, 3, 11]]), torch.tensor([[0, 0, 1, 1, 1, 1]])
    asked: dict[str, Any] = {"attention_mask": mask, "do_sample": False, "guidance_scale": 1.7}
    asked |= ASKED | {"repetition_penalty": 1.5, "no_repeat_ngram_size": 3}
    asked["negative_prompt_ids"] = torch.tensor([[5, 1, 1, 1, 1, 1, 2]])
    asked["eos_token_id"] = int(llama.generate(prompt, **asked)[0, 14])
    plain = llama.generate(prompt, **asked)
    assert plain.shape[1] < prompt.shape[1] + 30
    own = {"custom_generate": decode_with, "lantern_method": method, "lantern_drafter": drafter}
    assert llama.generate(prompt, **own, **asked).tolist() == plain.tolist()


@pytest.mark.parametrize("model", MODELS)
def test_with_shared_noise_exact_methods_draw_vanillas_tokens(
    models: dict[str, Any], drafter: Path, model: str
) -> None:
    asked: dict[str, Any] = {
        "do_sample": True,
        "lantern_seed": 7,
        "lantern_image": model != "llama",
        "top_k": 12,
    }
    if model != "janus":
        asked |= {
            "guidance_scale": 1.7,
            "negative_prompt_ids": torch.tensor([[5, 1]]),
            "repetition_penalty": 1.2,
        }
    vanilla, *others = (
        drawn(models[model], drafter, lantern_method=method, **asked) for method in EXACT
    )
    for other in others:
        assert other.sequences.tolist() == vanilla.sequences.tolist()
        assert other.speculative_decoding["steps"] < vanilla.speculative_decoding["steps"]
    assert (
        drawn(models[model], **asked | {"lantern_seed": 8}).sequences.tolist()
        != vanilla.sequences.tolist()
    )
    if model == "chameleon":
        assert ((vanilla.sequences[0, 4:] >= 16) & (vanilla.sequences[0, 4:] < 32)).all()


def probs(model: Any, ids: Tensor) -> Tensor:
    """The probabilities [V] of the next token, of the four likeliest."""
    logits = model(ids).logits[0, -1]
    return logits.masked_fill(logits < logits.topk(4).values[-1], -torch.inf).softmax(-1).detach()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["eagle1", "lantern"])
def test_rejection_sampling_follows_the_models_distribution(
    models: dict[str, Any], drafter: Path, method: str
) -> None:
    """LANTERN's rules too, where they relax nothing."""
    llama, counts, expected = models["llama"], torch.zeros(VOCABULARY), torch.zeros(VOCABULARY)
    for token, p in enumerate(probs(llama, PROMPT).tolist()):
        if p > 0:
            expected += p * probs(llama, torch.cat([PROMPT, torch.tensor([[token]])], 1))
    asked = {"do_sample": True, "top_k": 4, "max_new_tokens": 3, "lantern_method": method}
    asked |= {"lantern_noise": "independent", "lantern_window": 3, "lantern_k": 0}
    for seed in range(200):
        counts[drawn(llama, drafter, lantern_seed=seed, **asked).sequences[0, -2]] += 1
    assert chi_square_p(counts, expected) > 1e-5


@pytest.mark.parametrize("method", LOOSE)
def test_lantern_reads_the_models_codebook(
    models: dict[str, Any], drafter: Path, method: str
) -> None:
    for model in ("chameleon", "janus"):
        asked: dict[str, Any] = {"do_sample": True, "lantern_image": True, "lantern_method": method}
        steps = []
        for relaxed in (
            {"lantern_k": 0},
            {"lantern_k": 10, "lantern_delta": 0.9, "lantern_lambda": 30.0},
        ):
            outs = [
                drawn(models[model], drafter, lantern_seed=seed, **asked, **relaxed)
                for seed in range(3)
            ]
            steps.append(sum(out.speculative_decoding["steps"] for out in outs))
        assert steps[1] < steps[0]
    asked = {"do_sample": True, "lantern_seed": 3, "lantern_method": method, "lantern_k": 10}
    table = neighbour_table(torch.randn(VOCABULARY, 4), 10)
    assert drawn(models["llama"], drafter, lantern_neighbours=table, **asked).sequences.shape == (
        1,
        34,
    )
    with pytest.raises(ValueError, match=r"^lantern_neighbours is None, and what is drawn has no"):
        drawn(models["llama"], drafter, **asked)


@pytest.mark.parametrize("kind", [{"norms": True, "own": True}, {"bias": False}])
def test_all_published_kinds_of_drafters_are_read(
    models: dict[str, Any], tmp_path: Path, kind: dict[str, bool]
) -> None:
    torch.save(library_models.drafter(**kind), tmp_path / "pytorch_model.bin")
    asked: dict[str, Any] = {"do_sample": True, "lantern_seed": 2, "lantern_image": True}
    vanilla = drawn(models["chameleon"], lantern_method="vanilla", **asked)
    out = drawn(
        models["chameleon"], tmp_path / "pytorch_model.bin", lantern_method="eagle1", **asked
    )
    assert out.sequences.tolist() == vanilla.sequences.tolist()


@torch.inference_mode()
def test_the_layer_is_a_llamas(models: dict[str, Any], tmp_path: Path) -> None:
    """With a norm before attention, and an fc that hands on embeddings, it is a LLaMA of one layer
    without a last norm.
    """
    torch.manual_seed(8)
    config = transformers.LlamaConfig(vocab_size=VOCABULARY, **DECODER | {"num_hidden_layers": 1})
    other = transformers.LlamaForCausalLM(config).eval().model
    other.norm = torch.nn.Identity()
    weights = {name: x for name, x in other.state_dict().items() if not name.startswith("norm")}
    weights["fc.weight"] = torch.cat((torch.eye(32), torch.zeros(32, 32)), 1)
    save_file(weights, tmp_path / "model.safetensors")
    reader, _ = reader_of(
        models["llama"], PROMPT, transformers.LogitsProcessorList(), {}, False, None
    )
    drafter = EagleDrafter(read_weights(tmp_path, reader), reader, 24)
    cache, token = drafter.new_cache(1, 20), torch.tensor([7])
    states = torch.randn(1, 4, 72)
    got = begin(drafter, states, token, cache, Prompt(PROMPT, None, states[..., 40:]))
    wanted = other(torch.tensor([[9, 3, 11, 7]])).last_hidden_state[:, -1:]
    assert torch.allclose(got, wanted, atol=1e-5)
    got = stable_pass(drafter, torch.tensor([2, 6]), torch.randn(1, 2, 72), cache)
    wanted = other(torch.tensor([[9, 3, 11, 7, 2, 6]])).last_hidden_state[:, -1:]
    assert torch.allclose(got, wanted, atol=1e-5) and cache.length == 6


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"lantern_method": "zipar"}, "lantern_method is 'zipar'; allowed are vanilla, sjd"),
        ({"lantern_method": "eagle1"}, "lantern_drafter is None; lantern_method 'eagle1' needs"),
        ({"lantern_window": 0}, "window is 0; it must be at least 1"),
        ({"lantern_image": True}, "lantern_image is True for a llama model; allowed are janus"),
        ({"num_return_sequences": 2, "do_sample": True}, "input_ids has 2 rows; allowed is one"),
    ],
)
def test_what_cannot_be_decoded_is_refused_by_a_sentence(
    models: dict[str, Any], asked: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}"):
        drawn(models["llama"], **asked)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"d2t": torch.zeros(3)}, r"is not of EAGLE-1's format: it lacks or has d2t"),
        ({"fc.weight": torch.zeros(32, 60)}, r"whose fc has shape \[32, 60\]; for this model"),
    ],
)
def test_another_models_drafter_is_refused(
    models: dict[str, Any], tmp_path: Path, change: dict[str, Tensor | None], sentence: str
) -> None:
    weights = {name: x for name, x in (library_models.drafter() | change).items() if x is not None}
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match=f"^lantern_drafter is .*{sentence}"):
        drawn(models["llama"], tmp_path, lantern_method="eagle1")
    (tmp_path / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(ValueError, match=r"^lantern_drafter is .*, which cannot be read as"):
        drawn(models["llama"], tmp_path, lantern_method="eagle1")


def test_a_cache_that_forgets_is_refused() -> None:
    config = transformers.MistralConfig(
        vocab_size=VOCABULARY, sliding_window=8, head_dim=8, **DECODER
    )
    with pytest.raises(ValueError, match=r"DynamicSlidingWindowLayer; allowed are layers that"):
        drawn(transformers.MistralForCausalLM(config))
