"""The folder for transformers' `custom_generate`, on tiny models of transformers' own classes."""

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
from safetensors.torch import save_file
from torch import Tensor

from lantern_demo.export import __main__ as command
from lantern_demo.export.custom_generate import write
from lantern_demo.export.generate import decode_with

METHODS = ("vanilla", "sjd")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("export") / "decoding"
    write(out)
    return out


@pytest.fixture(autouse=True)
def copies_stay_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers copies the folder, and imports the copy."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])


@pytest.fixture(scope="module")
def llama() -> Any:
    return library_models.llama()


@pytest.fixture(scope="module")
def chameleon() -> Any:
    return library_models.chameleon()


@pytest.fixture(scope="module")
def janus() -> Any:
    return library_models.janus()


@pytest.fixture(scope="module")
def emu() -> Any:
    return library_models.emu()


def spoken(model: Any, folder: Path, **asked: Any) -> Any:
    """`generate` by the folder's name."""
    return model.generate(
        PROMPT, custom_generate=str(folder), trust_remote_code=True, return_dict_in_generate=True, **ASKED | asked
    )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("cache", [None, "static"])
def test_greedy_tokens_are_those_of_generate(llama: Any, folder: Path, method: str, cache: str | None) -> None:
    plain = llama.generate(PROMPT, do_sample=False, **ASKED)
    out = spoken(llama, folder, do_sample=False, lantern_method=method, cache_implementation=cache)
    assert out.sequences.tolist() == plain.tolist()
    assert type(out).__module__.startswith("transformers_modules")  # and not this package's own


@pytest.mark.parametrize(
    "asked", [{}, {"temperature": 0.7, "top_k": 9, "top_p": 0.9, "repetition_penalty": 1.2, "no_repeat_ngram_size": 3}]
)
def test_with_shared_noise_all_methods_draw_the_same(llama: Any, folder: Path, asked: dict[str, Any]) -> None:
    outs = [spoken(llama, folder, do_sample=True, lantern_method=method, lantern_seed=7, **asked) for method in METHODS]
    assert outs[0].sequences.shape == (1, 34)
    assert outs[0].sequences.tolist() == outs[1].sequences.tolist()
    assert outs[1].speculative_decoding["steps"] < outs[0].speculative_decoding["steps"] == 29
    other = spoken(llama, folder, do_sample=True, lantern_seed=8, **asked)
    assert other.sequences.tolist() != outs[0].sequences.tolist()


def test_what_is_told_is_of_the_run(llama: Any, folder: Path) -> None:
    told = spoken(llama, folder, do_sample=True, lantern_window=4, lantern_seed=7).speculative_decoding
    assert told["num_spec_tokens"] == 3 and told["num_draft_tokens"] == 3 * told["num_spec_steps"]
    assert told["mean_acceptance_length"] == 1 + told["num_accepted_draft_tokens"] / told["num_spec_steps"] > 1
    assert told["num_spec_steps"] in (told["steps"], told["steps"] - 1)  # without drafts where one token is missing


def probs(model: Any, ids: Tensor) -> Tensor:
    """The probabilities [V] of the next token, of the four likeliest."""
    logits = model(ids).logits[0, -1]
    return logits.masked_fill(logits < logits.topk(4).values[-1], -torch.inf).softmax(-1).detach()


@pytest.mark.slow
@pytest.mark.parametrize("method", [*METHODS, "eagle1", "eagle2"])
def test_papers_rejection_sampling_follows_the_models_distribution(llama: Any, method: str, tmp_path: Path) -> None:
    save_file(library_models.drafter(), tmp_path / "model.safetensors")
    runs, counts, expected = 200, torch.zeros(VOCABULARY), torch.zeros(VOCABULARY)
    for token, p in enumerate(probs(llama, PROMPT).tolist()):
        if p > 0:
            expected += p * probs(llama, torch.cat([PROMPT, torch.tensor([[token]])], 1))
    for seed in range(runs):
        drawn = llama.generate(
            PROMPT,
            custom_generate=decode_with,
            do_sample=True,
            top_k=4,
            lantern_method=method,
            lantern_dice="own",
            lantern_seed=seed,
            lantern_window=3,
            lantern_drafter=tmp_path,
            **ASKED | {"max_new_tokens": 3},
        )
        counts[drawn[0, -2]] += 1
    there = expected > 1e-6
    assert counts[~there].sum() == 0
    goodness = ((counts - runs * expected)[there] ** 2 / (runs * expected[there])).sum()
    freedom = float(there.sum()) - 1
    assert goodness < freedom + 5 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("negative", [None, torch.tensor([[5]]), torch.tensor([[5, 1, 1, 1, 1, 2]])])
def test_guidance_is_generates(llama: Any, folder: Path, method: str, negative: Tensor | None) -> None:
    asked = {"do_sample": False, "guidance_scale": 1.7, "negative_prompt_ids": negative}
    plain = llama.generate(PROMPT, **ASKED | asked)
    assert spoken(llama, folder, lantern_method=method, **asked).sequences.tolist() == plain.tolist()
    assert plain.tolist() != llama.generate(PROMPT, do_sample=False, **ASKED).tolist()


def test_padding_ends_and_streams_are_generates(llama: Any, folder: Path) -> None:
    prompt, mask = torch.tensor([[0, 0, 5, 9, 3, 11]]), torch.tensor([[0, 0, 1, 1, 1, 1]])
    asked = {"attention_mask": mask, "do_sample": False, "repetition_penalty": 1.5} | ASKED
    end = int(llama.generate(prompt, **asked)[0, 12])
    plain = llama.generate(prompt, **asked | {"eos_token_id": end})
    assert plain.shape[1] < prompt.shape[1] + 30
    heard = list[int]()

    class Streamer:
        def put(self, ids: Tensor) -> None:
            heard.extend(ids.flatten().tolist())

        def end(self) -> None:
            heard.append(-1)

    found = llama.generate(
        prompt, custom_generate=str(folder), trust_remote_code=True, streamer=Streamer(), **asked | {"eos_token_id": end}
    )
    assert found.tolist() == plain.tolist()
    assert heard == [*plain[0].tolist(), -1]


def test_which_tokens_are_allowed_may_depend_on_the_place(emu: Any, folder: Path) -> None:
    """Emu3 draws rows of image tokens with a token at the end of each."""

    def rows(_: int, ids: Tensor) -> list[int]:
        return [3] if (len(ids) - PROMPT.shape[1]) % 5 == 4 else list(range(16, 24))

    asked = {"prefix_allowed_tokens_fn": rows, "guidance_scale": 2.0, "negative_prompt_ids": torch.tensor([[5, 11]])}
    plain = emu.generate(PROMPT, do_sample=False, **ASKED, **asked)
    assert spoken(emu, folder, do_sample=False, lantern_method="sjd", **asked).sequences.tolist() == plain.tolist()
    outs = [spoken(emu, folder, do_sample=True, lantern_method=method, lantern_seed=1, **asked) for method in METHODS]
    assert outs[0].sequences.tolist() == outs[1].sequences.tolist()
    drawn = outs[0].sequences[0, 4:].view(6, 5)
    assert (drawn[:, -1] == 3).all() and (drawn[:, :4] >= 16).all() and (drawn[:, :4] < 24).all()


def test_a_chameleon_draws_image_tokens(chameleon: Any, folder: Path) -> None:
    outs = [
        spoken(
            chameleon,
            folder,
            do_sample=True,
            lantern_method=method,
            lantern_seed=2,
            lantern_image=True,
            guidance_scale=3.0,
            negative_prompt_ids=torch.tensor([[5, 11]]),
        )
        for method in METHODS
    ]
    assert outs[0].sequences.tolist() == outs[1].sequences.tolist()
    drawn = outs[0].sequences[0, 4:]
    assert len(drawn) == 30 and ((drawn >= 16) & (drawn < 32)).all()
    # the first token, greedily, by the model itself
    states = chameleon.model(PROMPT).last_hidden_state[0, -1]
    first = 16 + int(chameleon.lm_head(states)[16:32].argmax())
    greedy = spoken(chameleon, folder, do_sample=False, lantern_image=True)
    assert int(greedy.sequences[0, 4]) == first


@pytest.mark.parametrize("door", ["name", "function"])
@pytest.mark.parametrize("method", METHODS)
def test_a_janus_draws_what_its_own_generate_draws(janus: Any, folder: Path, method: str, door: str) -> None:
    mask = torch.ones_like(PROMPT)
    plain = janus.generate(PROMPT, attention_mask=mask, generation_mode="image", do_sample=False, guidance_scale=4.0)
    how: Any = {"custom_generate": str(folder), "trust_remote_code": True} if door == "name" else {"custom_generate": decode_with}
    scale = {"guidance_scale": 4.0} if door == "name" else {"lantern_guidance": 4.0}
    found = janus.generate(
        PROMPT, attention_mask=mask, do_sample=False, lantern_image=True, lantern_method=method, max_new_tokens=4, **how, **scale
    )
    assert plain.shape == (1, 16) and found.tolist() == plain.tolist()
    other = janus.generate(PROMPT, attention_mask=mask, do_sample=False, lantern_image=True, lantern_guidance=1.0, **how)
    assert other.tolist() != plain.tolist()


def test_janus_takes_no_custom_generate_in_its_image_mode(janus: Any, folder: Path) -> None:
    for how in ({"custom_generate": str(folder), "trust_remote_code": True}, {"custom_generate": decode_with}):
        with pytest.raises(ValueError, match="not used by the model"):
            janus.generate(PROMPT, generation_mode="image", lantern_method="sjd", **how)


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (
            {"lantern_method": "zipar"},
            "lantern_method is 'zipar'; allowed are vanilla, sjd, eagle1, eagle2, lantern, lantern++",
        ),
        ({"lantern_window": 1}, "lantern_window is 1; it must be a whole number, 2 to 64"),
        ({"lantern_k": -1}, "lantern_k is -1; it must be a whole number, 0 or more"),
        ({"lantern_k": True}, "lantern_k is True; it must be a whole number"),
        ({"lantern_delta": 1.5}, "lantern_delta is 1.5; it must be a number, 0 to 1"),
        ({"lantern_delta": float("nan")}, "lantern_delta is nan; it must be a number, 0 to 1"),
        ({"lantern_lambda": 0.5}, "lantern_lambda is 0.5; it must be a number, 1 to 100"),
        ({"lantern_lambda": "8"}, "lantern_lambda is '8'; it must be a number, 1 to 100"),
        ({"lantern_seed": -1}, "seed is -1; it must be between 0 and 4294967295"),
        ({"lantern_dice": "loaded"}, "dice is 'loaded'; allowed are same, own"),
        ({"lantern_image": True}, "lantern_image is True for a llama model; allowed are janus and chameleon"),
        ({"num_return_sequences": 2, "do_sample": True}, "input_ids has 2 rows; allowed is one prompt"),
    ],
)
def test_what_cannot_be_decoded_is_refused_by_a_sentence(llama: Any, folder: Path, asked: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}"):
        spoken(llama, folder, **asked)


def test_a_cache_that_forgets_is_refused() -> None:
    config = transformers.MistralConfig(vocab_size=VOCABULARY, sliding_window=8, head_dim=8, **DECODER)
    with pytest.raises(ValueError, match=r"DynamicSlidingWindowLayer; allowed are layers that keep all positions"):
        transformers.MistralForCausalLM(config).generate(PROMPT, custom_generate=decode_with, **ASKED)


def test_the_folder_stands_alone(folder: Path) -> None:
    files = sorted((folder / "custom_generate").glob("*.py"))
    code = "\n".join(file.read_text() for file in files)
    assert not re.search(r"^\s*(from|import) lantern_demo", code, re.MULTILINE)
    imported = {f"{name}.py" for name in re.findall(r"^\s*from \.(\S+) import", code, re.MULTILINE)}
    assert {file.name for file in files} == imported | {"generate.py"}
    card = (folder / "README.md").read_text()
    assert card.startswith("---\n") and "\n  - custom_generate\n" in card
    assert (folder / "custom_generate" / "requirements.txt").read_text().startswith("torch>=")


def test_the_command_writes_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    monkeypatch.setattr(sys, "argv", ["export", "custom-generate", str(out)])
    command.main()
    assert (out / "custom_generate" / "generate.py").is_file() and str(out) in capsys.readouterr().out
    with pytest.raises(SystemExit):
        command.main()
    assert "OUT is" in capsys.readouterr().err
